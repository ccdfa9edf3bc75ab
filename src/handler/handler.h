/*
 * handler/handler.h
 *		Processes that run jobs by a function in the database.
 */
#ifndef IDEMQ_HANDLER_HANDLER_H
#define IDEMQ_HANDLER_HANDLER_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "utils/guc.h"

#include "queue/queue.h"

/*
 * claimed.c
 *		The jobs that a handler's process has claimed.
 */

typedef struct ClaimedJob
{
	int64 id;
	int64 token;
	int32 attempt;
	int repeats;  /* times that it was run again at once */
	bool alone;	  /* it runs in a transaction of its own */
	bool settled; /* this process has nothing more to do with it */
	Datum payload;
	HeapTuple row; /* as idemq.claim answers */
} ClaimedJob;

/* The jobs of one claim, in its order. */
typedef struct ClaimedJobs
{
	MemoryContext context;
	int count;
	int next; /* the first that is not run yet */
	ClaimedJob *jobs;
} ClaimedJobs;

extern ClaimedJobs *idemq_claimed_now(void);
extern void idemq_claimed_begin(void);
extern TupleDesc idemq_claimed_desc(void);
extern bool idemq_claimed_more(const QueueInfo *queue, int wanted);
extern void idemq_claimed_swap(void);

/*
 * run.c
 *		Running the jobs of a handler.
 */

typedef enum RunResult
{
	RUN_DONE,
	RUN_FAILED, /* nothing is committed; the error is copied */
	RUN_LEAVE	/* nothing is committed: the handler is another, or may not run any more */
} RunResult;

/* What a handler's process is for. */
typedef struct HandlerRun
{
	HandlerInfo info;	  /* as it was read */
	uint64 version;		  /* of the queue's settings, read before info */
	Oid role;			  /* that this process is connected as */
	QueueState *qstate;	  /* of the queue, at the last check */
	int done;			  /* jobs that the last transaction has run */
	MemoryContext errors; /* for what has failed */
} HandlerRun;

extern const ClaimedJob *idemq_handler_job(void);
extern const char *idemq_handler_queue(void);
extern RunResult idemq_handler_check(HandlerRun *run, HandlerTarget *target, QueueInfo *queue);
extern RunResult idemq_handler_run(HandlerRun *run, ClaimedJob *jobs, int count, bool claim,
								   ErrorData **error);
extern void idemq_handler_begin(void);
extern void idemq_handler_commit(void);

/*
 * limits.c
 *		How long a handler's function may run, and idemq's own statements wait.
 */

extern void idemq_handler_limits_begin(void);
extern void idemq_handler_limit_start(int64 length, int64 job_id, int64 token);
extern void idemq_handler_limit_stop(void);
extern void idemq_handler_limit_waits(GucAction action);
extern bool idemq_handler_timed_out(void);
extern bool idemq_handler_cancelled(void);
extern bool idemq_handler_terminated(void);

/*
 * settle.c
 *		What becomes of a job whose function has raised an error.
 */

extern bool idemq_handler_met_another(const ErrorData *error);
extern bool idemq_handler_settle_failed(HandlerRun *run, ClaimedJob *job, ErrorData *error);
extern void idemq_handler_end_at_exit(ClaimedJob *job, bool told, const char *text);

#endif
