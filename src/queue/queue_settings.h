/*
 * queue/queue_settings.h
 *		The settings of a queue.
 */
#ifndef IDEMQ_QUEUE_QUEUE_SETTINGS_H
#define IDEMQ_QUEUE_QUEUE_SETTINGS_H

#include "fmgr.h"
#include "utils/snapshot.h"

#include "shared/slots.h"

typedef char QueueName[IDEMQ_MAX_QUEUE_NAME + 1];

/* A queue and its settings; intervals in microseconds. */
typedef struct QueueInfo
{
	int32 id;
	QueueName name;
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
	QueueName dead_queue;	  /* "": none */
	NameData dead_queue_role; /* which has set that; "": nobody is asked */
	Oid dead_queue_role_oid;
	int64 dead_retention;
	int64 max_lease;	 /* no claim or heartbeat may ask for a longer one */
	int64 job_timeout;	 /* an attempt may run so long; 0: no limit */
	int32 group_running; /* jobs of one group in processing at once */
	int32 group_rate;	 /* starts of one group in group_period; 0: no limit */
	int64 group_period;
	bool dead_queue_cancelled; /* cancelled jobs that were begun go to dead_queue, too */
	bool paused;			   /* see idemq_queue_is_paused */
	TimestampTz paused_until;  /* DT_NOEND: until somebody resumes it */
	TimestampTz created_at;
	int privileges; /* the current role's, as QueuePrivilege bits */
	QueueSlot *slot;
} QueueInfo;

extern void idemq_settings_check(FunctionCallInfo fcinfo, bool is_new);
extern void idemq_settings_check_lease(const QueueInfo *queue, int64 lease);
extern int64 idemq_settings_lease(const QueueInfo *queue, int64 asked);
extern int idemq_setting_arg(const char *name);
extern bool idemq_settings_insert(FunctionCallInfo fcinfo, const char *name, int32 *id);
extern bool idemq_settings_is_inserting(void);
extern void idemq_settings_update(FunctionCallInfo fcinfo, const char *name);
extern Datum idemq_settings_document(int32 queue_id);
extern Datum idemq_settings_difference(Datum from, Datum to);
extern uint64 idemq_settings_load(int32 queue_id, Snapshot snapshot);
extern void idemq_settings_read(uint64 row, QueueInfo *queue);
extern bool idemq_queue_is_paused(const QueueInfo *queue);

#endif
