/*
 * handler/claimed.h
 *		The jobs that a handler's process has claimed.
 */
#ifndef IDEMQ_HANDLER_CLAIMED_H
#define IDEMQ_HANDLER_CLAIMED_H

#include "access/htup.h"
#include "access/tupdesc.h"

#include "queue/queue_settings.h"

/* One job: the row that claim would have answered, taken apart. */
typedef struct ClaimedJob
{
	int64 id;
	int64 token;
	int32 attempt;
	int repeats;  /* times that it was run again at once */
	bool alone;	  /* not with others in one transaction */
	bool settled; /* this process has nothing more to do with it */
	HeapTuple row;
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

#endif
