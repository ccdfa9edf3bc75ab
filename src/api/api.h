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
 * claim_row.c
 *		A claimed job as a row for its worker.
 */

/* id, token, attempt, max_attempts, deadline, payload, key, group_key, checkpoint,
 * enqueued_at, headers, kind; where others follow the headers, the kind is the last of all */
#define CLAIM_COLUMN_COUNT 12
#define CLAIM_KIND (CLAIM_COLUMN_COUNT - 1)

extern void idemq_claim_row_fill(const Job *job, const EventArgs *args, Datum *values, bool *nulls);
extern Datum idemq_job_document(const Job *job, JobColumn column, bool *isnull);

/*
 * enqueue.c
 *		Adding a job to a queue, for what adds jobs to several.
 */

extern void idemq_enqueue_add(JobsTable *table, JobsBatch *batch, const QueueInfo *queue,
							  JobChange *columns, DuplicateRule rule, JobWait wait,
							  EnqueueAnswer *answer);

/*
 * enqueue_options.c
 *		What the functions that add jobs can be told of a job.
 */

/* Options of a job; their order means nothing. */
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

/* An option of a job, and the array of it in enqueue_many. */
typedef struct JobOption
{
	void (*set)(JobChange *columns, Datum value);
	const char *plural; /* the name of the array, and its element type */
	Oid type;
} JobOption;

extern const JobOption idemq_enqueue_options[OPTIONS];

extern void idemq_enqueue_read_options(FunctionCallInfo fcinfo, const int *args,
									   NullableDatum *values);
extern void idemq_enqueue_set_options(JobChange *columns, const QueueInfo *queue,
									  const NullableDatum *values);

/*
 * depends_on.c
 *		The arguments of an enqueue that say what the job waits for.
 */

extern bool idemq_arg_parents(FunctionCallInfo fcinfo, int n, NewKin *kin);

/*
 * claim_call.c
 *		Claiming from queues: what claim, claim_any and commit_and_claim share.
 */

/* One call that claims. */
typedef struct ClaimCall
{
	ReadyScan scan; /* of the queue at hand; first, for consider */
	/* what is asked for */
	int32 wanted;
	int64 lease; /* microseconds, 0 for the queue's */
	text *worker;
	bool attach;
	/* where the answer goes */
	Tuplestorestate *store;
	TupleDesc desc;
	bool with_outcome; /* the first column is an outcome; the last may be the queue's name */
	int32 claimed;
	/* of the last scan, where groups have places */
	bool round_ended;	/* it stopped before a priority: see claim_rounds */
	int round_priority; /* of the last job that it took or left */
	int32 parked;		/* jobs that it made blocked, or put off */
	List *groups;		/* names whose next job is to be promoted */
} ClaimCall;

extern void idemq_claim_begin(ClaimCall *call, int wanted);
extern void idemq_claim_args(FunctionCallInfo fcinfo, int n, ClaimCall *call);
extern void idemq_claim_from_queue(ClaimCall *call);

/*
 * job_answer.c
 *		What claim_job and acquire share: arguments and answer.
 */

extern void idemq_claim_by_id_args(FunctionCallInfo fcinfo, int n, JobCall *call);
extern Datum idemq_job_answer(FunctionCallInfo fcinfo, const JobCall *call, Outcome outcome);

/*
 * finish.c
 *		Ending attempts: what commit, fail and release share.
 */

typedef enum FinishKind
{
	FINISH_COMMIT,
	FINISH_FAIL,
	FINISH_RELEASE
} FinishKind;

/* How attempts are to end. */
typedef struct Finish
{
	FinishKind kind;
	bool permanent; /* fail: no further attempt */
	bool uncounted; /* a token that is not current is no refusal of a worker's call */
	bool has_delay;
	JobWait wait; /* for who holds the row, or drops its dead queue; JOB_WAITS unless it is set */
	int64 delay;  /* fail, release: microseconds until the job is ready again */
	EventArgs
		args; /* result; error, details; of a release: error, why its worker was interrupted */
} Finish;

/* Takes one answer of a batch; ord: the element's position in the arguments, from 0. */
typedef void (*FinishAnswer)(const Attempt *attempt, int32 ord, Outcome outcome, void *arg);

extern Outcome idemq_finish_by_token(int64 id, int64 token, Finish *finish, bool raise,
									 Attempt *attempt);
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
 * stand_in.c
 *		What a session does for its queue in place of the background worker.
 */

extern void idemq_stand_in(const QueueInfo *queue);

/*
 * change_job.c
 *		Changing what becomes of a job: what cancel, retry, redrive and reschedule share.
 */

/* Privileges that allow to cancel and to retry: producers have them, and administrators. */
#define PRIVILEGE_CHANGE (PRIVILEGE_ENQUEUE | PRIVILEGE_ADMIN)

/*
 * Decides what is to happen to a fetched job; false when nothing, with the outcome.  Of
 * *args, now and ready_at are set to now; arg: the change's.
 */
typedef bool (*Decide)(const Job *job, const void *arg, EventArgs *args, JobEvent *event,
					   Outcome *outcome);

/* A change, of one job or of many. */
typedef struct JobChanger
{
	Decide decide;
	const void *arg;
	int privileges;	  /* of which the role must hold one */
	JobWait wait;	  /* for whoever holds the row; a job that is skipped is locked */
	AuditEntry audit; /* of each job; its action is NULL when the caller sees to that */
} JobChanger;

extern Outcome idemq_change_job(JobsTable *table, int64 id, const JobChanger *changer,
								int32 *queue_id);
extern Datum idemq_change_one(FunctionCallInfo fcinfo, const JobChanger *changer);
extern Datum idemq_change_many(FunctionCallInfo fcinfo, const JobChanger *changer,
							   const char *action);

/*
 * gate.c
 *		SQL functions in front of functions in SQL.
 */

extern Oid idemq_gate_caller(void);
extern int idemq_gate_become(Oid role);
extern int idemq_gate_become_caller(void);
extern void idemq_gate_become_owner(int guc_level);

#endif
