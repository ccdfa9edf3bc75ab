/*
 * queue/queues.h
 *		Queue settings and privileges.
 */
#ifndef IDEMQ_QUEUE_QUEUES_H
#define IDEMQ_QUEUE_QUEUES_H

#include "fmgr.h"
#include "storage/lockdefs.h"

#include "shared/slots.h"

typedef enum QueuePrivilege
{
	PRIVILEGE_ENQUEUE = 1,
	PRIVILEGE_CLAIM = 2,
	PRIVILEGE_ADMIN = 4
} QueuePrivilege;

#define PRIVILEGE_ALL (PRIVILEGE_ENQUEUE | PRIVILEGE_CLAIM | PRIVILEGE_ADMIN)

/* A queue's settings; intervals in microseconds. */
typedef struct QueueInfo
{
	int32 id;
	char name[IDEMQ_MAX_QUEUE_NAME + 1];
	int64 lease;
	int32 max_attempts;
	int64 retry_base;
	double retry_factor;
	int64 retry_max;
	double retry_jitter;
	int64 retention;
	int64 idempotency_window;
	int32 max_running; /* 0: no limit */
	int32 rate_limit;  /* claims in rate_period; 0: no limit */
	int64 rate_period;
	char dead_queue[IDEMQ_MAX_QUEUE_NAME + 1]; /* "": none */
	bool paused;
	int privileges; /* the current role's, as QueuePrivilege bits */
	QueueSlot *slot;
} QueueInfo;

extern void idemq_queues_install(void);
extern void idemq_queue_by_name(const char *name, int wanted, QueueInfo *queue);
extern void idemq_queue_arg(FunctionCallInfo fcinfo, int n, const char *name, int wanted,
							QueueInfo *queue);
extern void idemq_queue_open(FunctionCallInfo fcinfo, int n, const char *name, int wanted,
							 LOCKMODE mode, QueueInfo *queue);
extern void idemq_queue_hold(QueueInfo *queue, int wanted, LOCKMODE mode);
extern bool idemq_queue_find(const char *name, QueueInfo *queue);
extern bool idemq_queue_by_id(int32 id, QueueInfo *queue);
extern bool idemq_queue_allows(int32 id, int wanted, QueueInfo *queue);
extern void idemq_queue_lock(int32 id, LOCKMODE mode);
extern bool idemq_queue_try_lock(int32 id, LOCKMODE mode);
extern int32 *idemq_queue_ids(int wanted, int *count);
pg_noreturn extern void idemq_queue_denied(const char *name, int wanted);
extern void idemq_queues_changed(void);

#endif
