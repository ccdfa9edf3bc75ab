/*
 * api/api.h
 *		What the SQL functions share.
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
 *		Adding a job to a queue, for functions that add jobs to several.
 */

extern void idemq_enqueue_add(JobsTable *table, JobsBatch *batch, const QueueInfo *queue,
							  JobChange *columns, DuplicateRule rule, JobWait wait,
							  EnqueueAnswer *answer);

/*
 * enqueue_options.c
 *		What the functions that add jobs can be told of a job.
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

/* The column that an option sets, and its array in enqueue_many. */
typedef struct JobOption
{
	JobColumn column;
	const char *plural; /* the array's name, */
	Oid type;			/* the type of its elements, */
	int many_arg;		/* and its position */
} JobOption;

extern const JobOption idemq_enqueue_options[OPTIONS];

extern void idemq_enqueue_read_options(FunctionCallInfo fcinfo, int key, int first, int key_ttl,
									   int kind, NullableDatum *values);
extern void idemq_enqueue_set_options(JobChange *columns, const QueueInfo *queue,
									  const NullableDatum *values);

/*
 * wait.c
 *		Ending the waits of other sessions, for functions that a worker calls in any case.
 */

extern void idemq_end_waits_arg(FunctionCallInfo fcinfo, int arg);

/*
 * depends_on.c
 *		The arguments of an enqueue that say what the job waits for.
 */

extern bool idemq_arg_parents(FunctionCallInfo fcinfo, int n, NewDependencies *depends);

/*
 * claim.c
 *		Beginning attempts.
 */

extern void idemq_claim_args(FunctionCallInfo fcinfo, int n, ClaimCall *call);

/*
 * claim_result.c
 *		What claim_job and acquire share: arguments and answer.
 */

extern void idemq_claim_by_id_args(FunctionCallInfo fcinfo, int n, JobCall *call);
extern Datum idemq_claim_result_row(FunctionCallInfo fcinfo, const JobCall *call, Outcome outcome);

/*
 * finish.c
 *		Ending attempts: what commit, fail and release share.
 */

/* Takes one answer of a batch; ord: the element's position in the arguments, from 0. */
typedef void (*FinishAnswer)(const Attempt *attempt, int32 ord, Outcome outcome, void *arg);

extern Outcome idemq_finish_attempt(FunctionCallInfo fcinfo, Finish *finish, bool raise,
									Attempt *attempt);
extern void idemq_finish_batch(FunctionCallInfo fcinfo, Finish *finish, FinishAnswer answer,
							   void *arg);
extern Datum idemq_finish_one(FunctionCallInfo fcinfo, Finish *finish, bool raise);
extern Datum idemq_finish_many(FunctionCallInfo fcinfo, Finish *finish);

/*
 * commit.c
 *		Ending attempts with success.
 */

extern Finish idemq_commit_args(FunctionCallInfo fcinfo);

/*
 * checkpoint.c
 *		What attempts call on their way, and what calls about a step of one share.
 */

extern StepName idemq_arg_step(FunctionCallInfo fcinfo);
pg_noreturn extern void idemq_step_refuse_event(const StepName *name);

/*
 * fallback_maintenance.c
 *		What a waiter does for its queue while there is no background worker, or it is stuck.
 */

extern void idemq_do_fallback_maintenance(const QueueInfo *queue);

/*
 * change_job.c
 *		Changing what becomes of a job: what cancel, retry, redrive and reschedule share.
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

extern Outcome idemq_change_job(JobsTable *table, int64 id, const JobChanger *changer,
								int32 *queue_id);
extern Datum idemq_change_one(FunctionCallInfo fcinfo, const JobChanger *changer);
extern Datum idemq_change_many(FunctionCallInfo fcinfo, const JobChanger *changer,
							   const char *action);

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
 *		Creating a queue, and changing its settings.
 */

extern void idemq_check_dead_letter_queue(FunctionCallInfo fcinfo, const char *name, int32 id);
extern bool idemq_create_queue(FunctionCallInfo fcinfo, QueueInfo *queue);
extern void idemq_change_queue(FunctionCallInfo fcinfo, QueueInfo *queue, bool latest);

/*
 * ensure_queue.c
 *		Declaring a queue; and what it shares with ensure_topic and ensure_handler.
 */

extern Oid idemq_ensure_may_call(const char *function, const char *what, const char *name);

#endif
