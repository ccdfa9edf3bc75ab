/*
 * job/replace_job.c
 *		Replacing a waiting job by a new request: the job gets the payload, headers and kind of the
 *		request, and, while no attempt of the job counts, also its time and priority.
 *
 * A claim and a replacement compete for the row, and each writes the version that it has fetched,
 * or nothing.  If the replacement comes second, it waits until the claim's transaction has ended.
 * If the claim comes second, it does not wait, but leaves the row, so it never starts with half of
 * a request.  A job that has been claimed in the meantime is not changed; the caller looks the key
 * up again.
 *
 * The delay starts again with each request.  With a max_wait (idemq_job_wait_no_longer), it does so
 * only until that time after the first request, so a stream of requests that never pauses does not
 * defer a job indefinitely.  The first request is the one that added the job, at enqueued_at.
 * Every request has its own max_wait, and none is stored.  So if each request has a max_wait of w,
 * the job is ready at the latest w after the first; a later replacement has a time in the past, and
 * the job keeps its position.  If a job runs again (it was released, redriven, or asked to run
 * again), the time of its first request is unknown.  Then the time for which the job already waits
 * is not deferred.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * The columns of a request that every waiting job gets, and those that only a job without an
 * attempt gets.
 */
#define WORK_COLUMNS (COLUMN_BIT(COL_PAYLOAD) | COLUMN_BIT(COL_HEADERS) | COLUMN_BIT(COL_KIND))
#define TERMS_COLUMNS                                                                              \
	(COLUMN_BIT(COL_PRIORITY) | COLUMN_BIT(COL_EXPIRES_AT) | COLUMN_BIT(COL_MAX_ATTEMPTS))

/*
 * Returns the column that has the time for which a request asks; enqueued_at if it asks for none.
 */
static JobColumn
time_column(const JobChange *columns)
{
	if (columns->set & COLUMN_BIT(COL_READY_AT))
		return COL_READY_AT;
	return (columns->set & COLUMN_BIT(COL_RUN_AT)) ? COL_RUN_AT : COL_ENQUEUED_AT;
}

/* Returns the time for which a request asks; the time when it was made if it asks for none. */
TimestampTz
idemq_request_time(const JobChange *columns)
{
	return DatumGetTimestampTz(columns->values[time_column(columns)]);
}

/*
 * Sets the time of a job that has no attempt. not_later: the time may only become earlier.  A
 * blocked job has its time in run_at, NULL for now.  A job of a group that uses permits has it in
 * both columns, because the job then has no permit (job/permits.c).  A head gets no new time in the
 * past, because shared/groups/groups.c relies on that.
 */
static void
set_time(JobChange *change, const QueueInfo *queue, const Job *job, TimestampTz asked,
		 bool not_later)
{
	if (job->status == JOB_BLOCKED)
	{
		if (not_later)
			asked = Min(asked, job_time(job, COL_RUN_AT));
		if (asked > DT_NOBEGIN)
			job_set(change, COL_RUN_AT, TimestampTzGetDatum(asked));
		return;
	}
	if (job_has(job, COL_GROUP_KEY))
		asked = Max(asked, idemq_now());
	if (job->flags & (JOB_PERMIT | JOB_RATE_LIMITED))
		job_set(change, COL_FLAGS, Int16GetDatum(job->flags & ~(JOB_PERMIT | JOB_RATE_LIMITED)));
	if (not_later)
		asked = Min(asked, job->ready_at);
	job_set(change, COL_READY_AT, TimestampTzGetDatum(asked));
	if (idemq_job_uses_permits(queue, job))
		job_set(change, COL_RUN_AT, TimestampTzGetDatum(asked));
	else
		job_set_null(change, COL_RUN_AT);
}

/*
 * Makes the time of a request earlier if it is later than max_wait after the first request. job:
 * the fetched job that the request replaces; NULL if the request is the first.
 */
void
idemq_job_wait_no_longer(JobChange *columns, const Job *job, const Interval *max_wait)
{
	JobColumn column = time_column(columns);
	Datum first = job != NULL ? job_value(job, COL_ENQUEUED_AT) : columns->values[COL_ENQUEUED_AT];
	TimestampTz latest = DatumGetTimestampTz(
		DirectFunctionCall2(timestamptz_pl_interval, first, PointerGetDatum(max_wait)));

	if (column == COL_ENQUEUED_AT)
		return;
	/* The time for which the job already waits; a blocked job has it in run_at, NULL for now. */
	if (job != NULL && job->token != 0)
		latest = Max(latest, job->is_ready				? job->ready_at
							 : job_has(job, COL_RUN_AT) ? job_time(job, COL_RUN_AT)
														: idemq_now());
	if (DatumGetTimestampTz(columns->values[column]) > latest)
		job_set(columns, column, TimestampTzGetDatum(latest));
}

/*
 * Returns whether a request replaces a job: one that waits and has no attempt that counts; with
 * rerun, any job that waits, even for another attempt.
 */
bool
idemq_job_is_replaceable(const Job *job, bool rerun)
{
	bool waits = job->status == JOB_PENDING || job->status == JOB_BLOCKED;

	return rerun ? waits || job->status == JOB_RETRYING : waits && job->attempt == 0;
}

/*
 * Replaces a fetched job, which must be replaceable, by a request.  A job without an attempt gets
 * all columns of the request; its time is limited by max_wait, unless that is NULL, and with rerun
 * only becomes earlier.  A job that waits for another attempt (with rerun) gets only payload,
 * headers and kind, and keeps its position and attempts.  Returns JOB_CHANGED, without any change,
 * also if the job is too new for the transaction's snapshot.
 */
JobWrite
idemq_job_replace(JobsTable *table, const QueueInfo *queue, const Job *job,
				  const JobChange *columns, bool rerun, const Interval *max_wait)
{
	bool whole = idemq_job_is_replaceable(job, false);
	uint32 taken = whole ? WORK_COLUMNS | TERMS_COLUMNS : WORK_COLUMNS;
	JobChange limited = *columns;
	JobChange change = {0};

	if (max_wait != NULL)
		idemq_job_wait_no_longer(&limited, job, max_wait);
	for (int i = 0; i < JOB_COLUMNS; i++)
	{
		if ((taken & columns->set & COLUMN_BIT(i)) != 0)
			job_set(&change, i, columns->values[i]);
		else if ((taken & COLUMN_BIT(i)) != 0)
			job_set_null(&change, i);
	}
	/* The checkpoint belongs to the former payload. */
	job_set_null(&change, COL_CHECKPOINT);
	if (columns->set & COLUMN_BIT(COL_KEY_EXPIRES_AT))
		job_set(&change, COL_KEY_EXPIRES_AT, columns->values[COL_KEY_EXPIRES_AT]);
	if (whole)
	{
		set_time(&change, queue, job, idemq_request_time(&limited), rerun);
		if (job_has(job, COL_GROUP_KEY))
			idemq_pending_groups_note(queue->qstate, queue->id, job_value(job, COL_GROUP_KEY),
									  GROUP_DROP_LOW_WATER);
		if (change.set & COLUMN_BIT(COL_READY_AT))
		{
			ReadyKey key = {DatumGetTimestampTz(change.values[COL_READY_AT]), job->id};

			idemq_pending_ready_note_taken(queue->qstate, queue->id, job->priority,
										   job_ready_key(job));
			idemq_pending_ready_note(queue->qstate, queue->id,
									 DatumGetInt16(change.values[COL_PRIORITY]), key);
		}
		if (!change.isnull[COL_EXPIRES_AT])
			idemq_pending_ready_note_expiry(queue->qstate, queue->id,
											DatumGetTimestampTz(change.values[COL_EXPIRES_AT]));
	}
	return idemq_jobs_update(table, job, &change, JOB_WAITS);
}
