/*
 * job/attempt.h
 *		A worker's attempt: a job with the token that the worker holds.
 */
#ifndef IDEMQ_JOB_ATTEMPT_H
#define IDEMQ_JOB_ATTEMPT_H

#include "table/jobs.h"
#include "queue/queue_settings.h"

typedef struct Attempt
{
	int64 id;
	int64 token; /* the worker's */
	Job job;	 /* as fetched; void when not found */
	QueueInfo queue;
} Attempt;

extern Outcome idemq_attempt_find(JobsTable *table, int64 id, int64 token, Attempt *attempt);
extern Outcome idemq_attempt_lock(JobsTable *table, int64 id, int64 token, Attempt *attempt);
extern Outcome idemq_attempt_try_lock(JobsTable *table, int64 id, int64 token, Attempt *attempt);
extern bool idemq_attempt_stands(int64 id, int64 token);
extern bool idemq_attempt_is_gone(JobsTable *table, const Attempt *attempt);
extern void idemq_attempt_count(const Attempt *attempt, Outcome outcome, bool commit);
extern void idemq_attempt_raise_cancelled(const Attempt *attempt);
extern void idemq_attempt_raise(const Attempt *attempt, Outcome outcome);

#endif
