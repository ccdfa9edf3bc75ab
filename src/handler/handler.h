/*
 * handler/handler.h
 *		Background processes that run the jobs of a queue through a function in the database.
 */
#ifndef IDEMQ_HANDLER_HANDLER_H
#define IDEMQ_HANDLER_HANDLER_H

#include <signal.h>

#include "access/htup.h"
#include "utils/guc.h"

#include "queue/queue.h"
#include "shared/queue_states/queue_states.h"

typedef struct ClaimedJob
{
	int64 id;
	int64 token;
	int32 attempt;
	int repeats;  /* times that it was run again at once */
	bool alone;	  /* it runs in its own transaction */
	bool settled; /* this process has nothing more to do with it */
	Datum payload;
	HeapTuple row; /* with the columns of idemq.claim */
} ClaimedJob;

/* The jobs returned by one claim, in claim order. */
typedef struct ClaimedJobs
{
	MemoryContext context;
	int count;
	int next; /* index of the first job that has not run yet */
	ClaimedJob *jobs;
} ClaimedJobs;

/* The state of a handler process; unused in other processes. */
typedef struct HandlerProcess
{
	QueueStateKey key;
	HandlerInfo info;		   /* the handler, as last read */
	uint64 version;			   /* of the queue's settings, read before info */
	Oid role;				   /* the role that the process is connected as */
	QueueName queue_name;	   /* as of the last check, like qstate */
	QueueState *qstate;		   /* state of the queue */
	ClaimedJobs *claimed;	   /* from the last committed claim */
	const ClaimedJob *current; /* the job whose function is running; NULL between jobs */
	int done; /* number of jobs that the last transaction has run; valid after RUN_DONE with jobs */
	MemoryContext errors; /* holds the last error */
} HandlerProcess;

/*
 * run.c
 *		One transaction of a handler process.
 */

typedef enum RunResult
{
	RUN_DONE,
	RUN_FAILED, /* rolled back, and the error was copied */
	RUN_LEAVE	/* nothing was done: the handler has changed, or may no longer run */
} RunResult;

extern HandlerProcess idemq_handler;

extern void idemq_handler_prepare(void);
extern void idemq_handler_begin(void);
extern void idemq_handler_commit(void);
extern RunResult idemq_handler_check(HandlerTarget *target, QueueInfo *queue);
extern RunResult idemq_handler_run(ClaimedJob *jobs, int count, bool claim, ErrorData **error);

/*
 * limits.c
 *		How long a handler's function may run, and how long idemq's own statements may wait.
 */

/* Whether job_timeout has passed for the last job whose function was called. */
extern volatile sig_atomic_t idemq_handler_timed_out;
/* Whether the function of that job was interrupted because the job is being cancelled. */
extern volatile sig_atomic_t idemq_handler_cancelled;
/* Whether this process has received SIGTERM. */
extern volatile sig_atomic_t idemq_handler_terminated;

extern void idemq_handler_limits_begin(void);
extern void idemq_handler_limit_start(int64 length, int64 job_id, int64 token);
extern void idemq_handler_limit_stop(void);
extern void idemq_handler_limit_waits(GucAction action);

/*
 * settle.c
 *		How an attempt ends if its function has not returned.
 */

extern bool idemq_handler_met_another(const ErrorData *error);
extern bool idemq_handler_settle_failed(ClaimedJob *job, ErrorData *error);
extern void idemq_handler_end_at_exit(ClaimedJob *job, bool terminated, const char *text);

#endif
