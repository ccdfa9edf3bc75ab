/*
 * api/change_job.h
 *		Changing what becomes of a job: what cancel, retry, redrive and reschedule share.
 */
#ifndef IDEMQ_API_CHANGE_JOB_H
#define IDEMQ_API_CHANGE_JOB_H

#include "fmgr.h"

#include "job/transition.h"
#include "table/audit_log.h"
#include "queue/queues.h"

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

#endif
