/*
 * job/rerun.c
 *		A request for a job that is in progress, or finished: it runs once more.
 *
 * A running job remembers it, in columns of its own: status, token, lease and
 * attempt stay as they are, so its worker is not disturbed.  What ends the attempt serves
 * the request in its own transaction (job/transition.c).  A finished job is made ready.
 *
 * Request and end of the attempt race for the row.  Both write the version that they have
 * fetched, or nothing:
 *
 *	 - The request comes first: the end waits until the request's transaction has ended,
 *	   finds another version, and fetches that, with the request if it has committed.
 *	 - The end comes first: the request waits, finds another version, and looks the key up
 *	   again: the job is finished, and made ready.
 *
 * Either way one of the two sees the other, and no request is lost.  The request waits for no
 * worker that only works: the worker's claim has committed, and it holds no row.  A worker that
 * claims or commits, and leaves its transaction open, holds the row.
 *
 * A request that is remembered replaces the one before it: the job runs once for all that
 * came while it ran.  Its time is the earliest that one of them asked for, as it is of a job
 * that waits to be claimed: a stream of requests with a delay does not postpone it for ever.
 */
#include "postgres.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/*
 * Has a fetched job, which is running or finished, run once more, with the payload, headers,
 * kind and time of the columns, and the time to live of the key if they have one.  Sets *status to
 * the new status of a finished one.
 */
static JobWrite
rerun_job(JobsTable *table, const QueueInfo *queue, const Job *job, const JobChange *columns,
		  JobWait wait, JobStatus *status)
{
	EventArgs args = {.now = idemq_now()};
	JobRequest *request = &args.request;
	bool is_running = job->status == JOB_RUNNING;
	bool waits = !is_running && idemq_job_waits_again(job);

	args.ready_at = Max(args.now, idemq_request_time(columns));
	if (is_running && job_has(job, COL_RERUN_AT))
		args.ready_at = Min(args.ready_at, job_time(job, COL_RERUN_AT));
	request->payload = columns->values[COL_PAYLOAD];
	if (columns->set & COLUMN_BIT(COL_HEADERS))
		request->headers = columns->values[COL_HEADERS];
	if (columns->set & COLUMN_BIT(COL_KIND))
		request->kind = columns->values[COL_KIND];
	if (columns->set & COLUMN_BIT(COL_KEY_EXPIRES_AT))
		request->key_expires_at = DatumGetTimestampTz(columns->values[COL_KEY_EXPIRES_AT]);
	if (!is_running)
		*status = waits ? JOB_BLOCKED : JOB_PENDING;
	return idemq_transition(table, job, queue,
							is_running ? EVENT_ASK_RERUN
							: waits	   ? EVENT_RERUN_GROUPED
									   : EVENT_RERUN,
							&args, wait);
}

/*
 * As idemq_new_job_keyed, and has a duplicate that is running or finished run once more, if the rule
 * says so (OUTCOME_RERUN).
 */
void
idemq_new_job_or_rerun(JobsTable *table, const QueueInfo *queue, JobChange *columns,
					   DuplicateRule rule, JobWait wait, EnqueueAnswer *answer)
{
	JobWrite write = JOB_CHANGED;
	Job job;

	do
	{
		idemq_new_job_keyed(table, queue, columns, rule, wait, answer);
		if (answer->outcome != OUTCOME_RERUN)
			return;
		if (idemq_jobs_fetch(table, answer->id, &job))
			write = rerun_job(table, queue, &job, columns, wait, &answer->status);
		if (write == JOB_CHANGED)
			idemq_jobs_refresh_or_raise(table);
	} while (write == JOB_CHANGED);
	if (write == JOB_WRITTEN)
		idemq_jobs_refresh(table); /* a batch may come to that key again */
	else
		answer->outcome = OUTCOME_LOCKED;
}
