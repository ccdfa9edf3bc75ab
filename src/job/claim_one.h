/*
 * job/claim_one.h
 *		Taking a ready job: the lease entry first, then the row.
 */
#ifndef IDEMQ_JOB_CLAIM_ONE_H
#define IDEMQ_JOB_CLAIM_ONE_H

#include "job/transition.h"

typedef enum TakeResult
{
	TAKE_DONE,
	TAKE_BUSY,	  /* another session is on it */
	TAKE_CHANGED, /* it moved on since the snapshot */
	TAKE_LOCKED,  /* a transaction that is no claim holds its row */
	TAKE_LIMIT,	  /* max_running or rate_limit of its queue: see job/limits.h */
	TAKE_EARLY	  /* group_rate: see job/group_rate.h; args->ready_at is when to try again */
} TakeResult;

extern TakeResult idemq_claim_one(JobsTable *table, const Job *job, const QueueInfo *queue,
								  JobEvent event, EventArgs *args, int64 lease, bool attach);
extern JobWrite idemq_job_park(JobsTable *table, const Job *job, const QueueInfo *queue);

#endif
