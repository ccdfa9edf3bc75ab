/*
 * api/change_job.c
 *		Changing what becomes of a job: what cancel, retry and redrive share.
 *
 * The caller decides by the job's latest version, and that very version is written.
 * If it changed in between, the caller decides again.
 */
#include "postgres.h"

#include "api/change_job.h"
#include "job/transition.h"
#include "table/audit_log.h"
#include "table/jobs.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/oids.h"

/*
 * Applies a decision to the latest version of a job.  action: what idemq.audit calls it;
 * NULL for a caller that sees to that.
 */
Outcome
idemq_change_job(JobsTable *table, int64 id, int privileges, Decide decide, const char *action)
{
	for (;;)
	{
		EventArgs args = {0};
		QueueInfo queue;
		JobEvent event;
		Outcome outcome;
		Job job;

		if (!idemq_jobs_fetch(table, id, &job) ||
			!idemq_queue_allows(job.queue_id, privileges, &queue))
			return OUTCOME_NOT_FOUND;
		args.now = args.ready_at = idemq_now();
		if (!decide(&job, args.now, &event, &outcome))
			return outcome;
		if (idemq_transition(table, &job, &queue, event, &args, JOB_WAITS) == JOB_WRITTEN)
		{
			if (action != NULL)
				idemq_audit(&(AuditEntry){.action = action, .queue = &queue, .job_id = id});
			return outcome;
		}
		idemq_jobs_refresh_or_raise(table);
	}
}

/* As idemq_change_job, of argument id, for a producer or an administrator. */
Datum
idemq_change_one(FunctionCallInfo fcinfo, Decide decide, const char *action)
{
	JobsTable table;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_jobs_open(&table);
	outcome = idemq_change_job(&table, PG_GETARG_INT64(0), PRIVILEGE_CHANGE, decide, action);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}
