/*
 * handler/run.h
 *		Running the jobs of a handler.
 */
#ifndef IDEMQ_HANDLER_RUN_H
#define IDEMQ_HANDLER_RUN_H

#include "handler/claimed.h"
#include "queue/handlers.h"

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
	uint64 version;		  /* of the queue's settings, before that */
	Oid role;			  /* that this process is connected as */
	QueueSlot *slot;	  /* of the queue, at the last check; NULL: none */
	int done;			  /* jobs that the last transaction has run */
	MemoryContext errors; /* for what has failed */
} HandlerRun;

extern const ClaimedJob *idemq_handler_job(void);
extern const char *idemq_handler_queue(void);
extern RunResult idemq_handler_check(HandlerRun *run, HandlerTarget *target, QueueInfo *queue);
extern RunResult idemq_handler_run(HandlerRun *run, ClaimedJob *jobs, int count, bool claim,
								   ErrorData **error);
extern RunResult idemq_handler_claim(HandlerRun *run, ErrorData **error);
extern void idemq_handler_begin(void);
extern void idemq_handler_commit(void);
extern ErrorData *idemq_handler_catch(HandlerRun *run);

#endif
