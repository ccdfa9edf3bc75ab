/*
 * api/change_job.c
 *		Changing what becomes of a job: what cancel, retry, redrive and reschedule share.
 *
 * The caller decides by the job's latest version, and that very version is written.
 * If it changed in between, the caller decides again.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "api/change_job.h"
#include "job/transition.h"
#include "table/audit_log.h"
#include "table/jobs.h"
#include "txn/pending.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/oids.h"

/* Adds the kind of a job to what is said of it. */
static void
note_kind(AuditEntry *entry, const Job *job)
{
	int n = 0;

	if (job->row->tts_isnull[COL_KIND])
		return;
	while (entry->members[n] != NULL)
		n += 2;
	Assert(n + 1 < (int) lengthof(entry->members));
	entry->members[n] = "kind";
	entry->members[n + 1] = TextDatumGetCString(job->row->tts_values[COL_KIND]);
}

/*
 * Applies a decision to the latest version of a job.  *queue_id, if it is not NULL: the
 * job's queue, 0 when the job is not found.
 */
Outcome
idemq_change_job(JobsTable *table, int64 id, const JobChanger *changer, int32 *queue_id)
{
	if (queue_id != NULL)
		*queue_id = 0;
	for (;;)
	{
		EventArgs args = {0};
		QueueInfo queue;
		JobEvent event;
		Outcome outcome;
		Job job;

		if (!idemq_jobs_fetch(table, id, &job) ||
			!idemq_queue_allows(job.queue_id, changer->privileges, &queue))
			return OUTCOME_NOT_FOUND;
		if (queue_id != NULL)
			*queue_id = queue.id;
		args.now = args.ready_at = idemq_now();
		if (!changer->decide(&job, changer->arg, &args, &event, &outcome))
			return outcome;
		/* It may have to wait for the worker, which is told first. */
		if (event == EVENT_CANCEL && job.status == JOB_PROCESSING)
			idemq_pending_note_cancel(queue.id, id, job.token);
		if (idemq_transition(table, &job, &queue, event, &args, JOB_WAITS) == JOB_WRITTEN)
		{
			AuditEntry entry = changer->audit;

			entry.queue = &queue;
			entry.job_id = id;
			if (entry.action != NULL)
			{
				note_kind(&entry, &job);
				idemq_audit(&entry);
			}
			return outcome;
		}
		idemq_jobs_refresh_or_raise(table);
	}
}

/* As idemq_change_job, of argument id. */
Datum
idemq_change_one(FunctionCallInfo fcinfo, const JobChanger *changer)
{
	JobsTable table;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_jobs_open(&table);
	outcome = idemq_change_job(&table, PG_GETARG_INT64(0), changer, NULL);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}
