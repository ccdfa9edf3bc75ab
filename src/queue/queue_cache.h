/*
 * queue/queue_cache.h
 *		What this session has read of the queues: settings and grants.
 */
#ifndef IDEMQ_QUEUE_QUEUE_CACHE_H
#define IDEMQ_QUEUE_QUEUE_CACHE_H

#include "queue/queue_settings.h"

typedef struct QueueGrant
{
	NameData role;
	Oid role_oid;	/* InvalidOid: the name alone decides */
	char privilege; /* its first letter */
} QueueGrant;

typedef struct CachedQueue
{
	int32 id;		 /* hash key */
	bool exists;	 /* else all below is empty */
	uint64 version;	 /* idemq_version_of_queue, before it was read; 0: to be read again */
	QueueInfo info;	 /* privileges and slot are queue/queues.c's */
	Oid role;		 /* whose privileges info.privileges are; InvalidOid: nobody's */
	uint64 roles_at; /* idemq_queue_cache_roles() when they were computed */
	int ngrants;
	QueueGrant *grants;
} CachedQueue;

extern void idemq_queue_cache_install(void);
extern CachedQueue *idemq_queue_cache_by_id(int32 id);
extern CachedQueue *idemq_queue_cache_by_name(const char *name);
extern const int32 *idemq_queue_cache_ids(int *count);
extern bool idemq_queue_cache_is_fresh(const CachedQueue *cached);
extern uint64 idemq_queue_cache_roles(void);
extern void idemq_queue_cache_changed(int32 id);
extern void idemq_queue_cache_forget(int32 id);
extern uint64 idemq_queue_cache_version(void);

#endif
