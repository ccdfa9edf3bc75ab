/*
 * job/rerun.c
 *		A request for a job that is running or finished: it runs once more.
 *
 * A running job stores the request in columns of its own: status, token, lease and attempt do not
 * change, so its worker is not disturbed.  The call that ends the attempt serves the request in its
 * own transaction (job/transition.c).  A finished job becomes ready.
 *
 * The request and the end of the attempt compete for the row.  Each writes the version that it has
 * fetched, or nothing:
 *
 *	 - The request comes first: the end waits until the request's transaction has ended, finds
 *	   another version, and fetches it, with the request if that has committed.
 *	 - The end comes first: the request waits, finds another version, and looks the key up again:
 *	   the job is finished, and becomes ready.
 *
 * In both cases one of the two sees the other, and no request is lost.  The request does not wait
 * for a worker that is only working: the worker's claim has committed, so the worker holds no row.
 * A worker that claims or commits, and leaves its transaction open, holds the row.
 *
 * A stored request replaces the one before it: the job runs once for all requests that came while
 * it was running.  Its time is the earliest for which one of them asked, as with a job that waits
 * to be claimed, so a stream of requests with a delay does not postpone it indefinitely.
 */
#include "postgres.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/*
 * Makes a fetched job that is running or finished run once more, with the payload, headers, kind
 * and time of the columns, and with the key's time to live if they have one.  Sets *status to the
 * new status of a finished job.
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
 * Like idemq_new_job_keyed, but if the outcome is OUTCOME_RERUN, also makes the duplicate run once
 * more.
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
		idemq_jobs_refresh(table); /* the same key may come again in a batch */
	else
		answer->outcome = OUTCOME_LOCKED;
}
