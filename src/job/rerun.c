/*
 * job/rerun.c
 *		A request for a job that is in progress, or finished: it runs once more.
 *
 * A job in processing remembers it, in columns of its own: status, token, lease and
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
 * Either way one of the two sees the other, and no request is lost.  The request waits for
 * no worker that only works: its claim has committed, and it holds no row.  A worker that
 * claims or commits, and leaves its transaction open, holds it.
 *
 * A request that is remembered replaces the one before it: the job runs once for all that
 * came while it ran.  Its time is the earliest that one of them asked for, as it is of a job
 * that waits to be claimed: a stream of requests with a delay does not postpone it for ever.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/* Returns the time that a request asks for; that it was made, for none. */
static TimestampTz
time_of(const JobChange *columns)
{
	JobColumn column = COL_CREATED_AT;

	if (columns->set & COLUMN_BIT(COL_READY_AT))
		column = COL_READY_AT;
	else if (columns->set & COLUMN_BIT(COL_RUN_AT)) /* of a request for a group */
		column = COL_RUN_AT;
	return DatumGetTimestampTz(columns->values[column]);
}

/* Has the fetched job run once more, which is in processing or finished; sets its status. */
static JobWrite
rerun(JobsTable *table, const QueueInfo *queue, const JobChange *columns, JobWait wait,
	  EnqueueAnswer *answer)
{
	EventArgs args = {.now = idemq_now()};
	JobRequest *request = &args.request;
	const Job *job = &answer->holder;
	JobEvent event = job->status == JOB_PROCESSING ? EVENT_ASK_RERUN : idemq_rerun_event(job);

	args.ready_at = Max(args.now, time_of(columns));
	if (event == EVENT_ASK_RERUN && !job->row->tts_isnull[COL_RERUN_AT])
		args.ready_at = Min(args.ready_at, DatumGetTimestampTz(job->row->tts_values[COL_RERUN_AT]));
	request->payload = columns->values[COL_PAYLOAD];
	if (columns->set & COLUMN_BIT(COL_HEADERS))
		request->headers = columns->values[COL_HEADERS];
	if (columns->set & COLUMN_BIT(COL_KIND))
		request->kind = columns->values[COL_KIND];
	request->has_key_expiry = (columns->set & COLUMN_BIT(COL_KEY_EXPIRES_AT)) != 0;
	if (request->has_key_expiry)
		request->key_expires_at = DatumGetTimestampTz(columns->values[COL_KEY_EXPIRES_AT]);
	if (event != EVENT_ASK_RERUN)
		answer->status = event == EVENT_RERUN ? JOB_PENDING : JOB_BLOCKED;
	return idemq_transition(table, job, queue, event, &args, wait);
}

/*
 * As idemq_new_job_keyed of DUPLICATE_RERUN: a job that has the key, and is in processing
 * or finished, runs once more with the payload, headers, kind and time of the columns, and the
 * time to live of the key if they have one.
 */
void
idemq_new_job_or_rerun(JobsTable *table, const QueueInfo *queue, JobChange *columns, JobWait wait,
					   EnqueueAnswer *answer)
{
	for (;;)
	{
		idemq_new_job_keyed(table, queue, columns, (DuplicateRule){.policy = DUPLICATE_RERUN}, wait,
							answer);
		if (answer->outcome != OUTCOME_RERUN)
			return;
		idemq_tick_key_check(queue->id, columns->values[COL_KEY]);
		switch (rerun(table, queue, columns, wait, answer))
		{
			case JOB_LOCKED:
				answer->outcome = OUTCOME_LOCKED;
				return;
			case JOB_WRITTEN:
				idemq_jobs_refresh(table); /* a batch may come to that key again */
				return;
			case JOB_CHANGED:
				idemq_jobs_refresh_or_raise(table);
		}
	}
}
