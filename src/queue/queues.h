/*
 * queue/queues.h
 *		Queue settings and privileges.
 */
#ifndef IDEMQ_QUEUE_QUEUES_H
#define IDEMQ_QUEUE_QUEUES_H

#include "fmgr.h"
#include "storage/lockdefs.h"

#include "queue/queue_settings.h"

typedef enum QueuePrivilege
{
	PRIVILEGE_ENQUEUE = 1,
	PRIVILEGE_CLAIM = 2,
	PRIVILEGE_ADMIN = 4
} QueuePrivilege;

#define PRIVILEGE_ALL (PRIVILEGE_ENQUEUE | PRIVILEGE_CLAIM | PRIVILEGE_ADMIN)

extern void idemq_queue_by_name(const char *name, int wanted, QueueInfo *queue);
extern void idemq_queue_arg(FunctionCallInfo fcinfo, int n, const char *name, int wanted,
							QueueInfo *queue);
extern void idemq_queue_open(FunctionCallInfo fcinfo, int n, const char *name, int wanted,
							 LOCKMODE mode, QueueInfo *queue);
extern void idemq_queue_hold(QueueInfo *queue, int wanted, LOCKMODE mode);
extern void idemq_queue_keep(const QueueInfo *queue);
extern bool idemq_queue_find(const char *name, QueueInfo *queue);
extern bool idemq_queue_by_id(int32 id, QueueInfo *queue);
extern bool idemq_queue_allows(int32 id, int wanted, QueueInfo *queue);
extern bool idemq_queue_allows_role(int32 id, Oid role, int wanted, QueueInfo *queue);
extern bool idemq_may_change_schedule(int32 queue_id, const char *creator, Oid creator_oid);
extern void idemq_queue_lock(int32 id, LOCKMODE mode);
extern bool idemq_queue_try_lock(int32 id, LOCKMODE mode);
extern int32 *idemq_queue_ids(int wanted, int *count);
pg_noreturn extern void idemq_queue_denied(const char *name, int wanted);

#endif
