/*
 * api/change_job.h
 *		Changing what becomes of a job: what cancel, retry and redrive share.
 */
#ifndef IDEMQ_API_CHANGE_JOB_H
#define IDEMQ_API_CHANGE_JOB_H

#include "fmgr.h"

#include "job/transition.h"
#include "queue/queues.h"

/* Privileges that allow to cancel and to retry: producers have them, and administrators. */
#define PRIVILEGE_CHANGE (PRIVILEGE_ENQUEUE | PRIVILEGE_ADMIN)

/* Decides what is to happen to a fetched job; false when nothing, with the outcome. */
typedef bool (*Decide)(const Job *job, TimestampTz now, JobEvent *event, Outcome *outcome);

extern Outcome idemq_change_job(JobsTable *table, int64 id, int privileges, Decide decide,
								const char *action);
extern Datum idemq_change_one(FunctionCallInfo fcinfo, Decide decide, const char *action);

#endif
