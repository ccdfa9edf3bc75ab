/*
 * api/api.h
 *		Functions that several files of SQL functions use.
 */
#ifndef IDEMQ_API_API_H
#define IDEMQ_API_API_H

#include "fmgr.h"
#include "nodes/pg_list.h"
#include "utils/tuplestore.h"

#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/*
 * enqueue.c
 *		Adding a job to a queue, and the options of a job, for other functions that add jobs.
 */

/* Options of a job; from delay to expires_in in the order in which all functions take them. */
enum
{
	OPTION_KEY,
	OPTION_DELAY,
	OPTION_RUN_AT,
	OPTION_PRIORITY,
	OPTION_GROUP_KEY,
	OPTION_MAX_ATTEMPTS,
	OPTION_HEADERS,
	OPTION_EXPIRES_IN,
	OPTION_KEY_TTL,
	OPTION_KIND,
	OPTIONS
};

extern void idemq_enqueue_read_options(FunctionCallInfo fcinfo, int key, int first, int key_ttl,
									   int kind, NullableDatum *values);
extern void idemq_enqueue_set_options(JobChange *columns, const QueueInfo *queue,
									  const NullableDatum *values);
extern void idemq_enqueue_add(JobsTable *table, JobsBatch *batch, const QueueInfo *queue,
							  JobChange *columns, DuplicateRule rule, JobWait wait,
							  EnqueueAnswer *answer);

/*
 * claim.c
 *		Beginning attempts.
 */

extern void idemq_claim_args(FunctionCallInfo fcinfo, int n, ClaimCall *call);

/*
 * steps.c
 *		The arguments of a function that is about a step or an event of an attempt.
 */

extern StepName idemq_arg_step(FunctionCallInfo fcinfo);

/*
 * wait.c
 *		Ending the waits of other sessions, for functions that a worker calls in any case.
 */

extern void idemq_end_waits_arg(FunctionCallInfo fcinfo, int arg);

/*
 * change_job.c
 *		Changing what becomes of a job.
 */

/* Privileges that allow to cancel and to retry: producers have them, and administrators. */
#define PRIVILEGE_CHANGE (PRIVILEGE_ENQUEUE | PRIVILEGE_ADMIN)

/*
 * Decides what is to happen to a fetched job, and with what outcome; false when nothing is.
 * In *args, now and ready_at are set to now.  arg: the changer's.
 */
typedef bool (*Decide)(const Job *job, const void *arg, EventArgs *args, JobEvent *event,
					   Outcome *outcome);

/* A change, of one job or of many. */
typedef struct JobChanger
{
	Decide decide;
	const void *arg;
	int privileges;	  /* the role must hold one of them */
	JobWait wait;	  /* for whoever holds the row; a job that is skipped is answered as locked */
	AuditEntry audit; /* of each job; its action is NULL when the caller sees to that */
	int64 *dead_letter_records; /* counts those taken out; needed if jobs may be redriven */
} JobChanger;

extern Datum idemq_change_one(FunctionCallInfo fcinfo, const JobChanger *changer);

/*
 * wrapper.c
 *		SQL functions in front of functions in SQL.
 */

extern Oid idemq_wrapper_caller(void);
extern void idemq_wrapper_report(int level, const char *message, const char *detail,
								 const char *hint);
extern int idemq_wrapper_become(Oid role);
extern int idemq_wrapper_become_caller(void);
extern void idemq_wrapper_become_owner(int guc_level);

/*
 * create_queue.c
 *		What ensure_queue and ensure_handler share with ensure_topic.
 */

extern Oid idemq_ensure_may_call(const char *function, const char *what, const char *name);

#endif
