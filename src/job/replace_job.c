/*
 * job/replace_job.c
 *		A request for a job that waits: it takes the request's payload, headers and kind; and,
 *		while no attempt of it counts, the request's time and priority.
 *
 * A claim and a replacement race for the row, and each writes the version that it has fetched,
 * or nothing.  A replacement that comes second waits until the claim's transaction has ended.  A
 * claim that comes second does not wait, but leaves the row, and so never starts with half of a
 * request.  A job that is claimed by then is not touched; the caller looks it up again.
 *
 * The time starts again with each request.  With a max_wait (idemq_job_wait_no_longer) it does
 * so only until that long after the first request: a stream of requests that never pauses does not
 * defer a job indefinitely.  The first request is the one that made the job, at enqueued_at.  Every
 * request brings its own max_wait, and none is remembered.  So the requests set the bound: if each
 * of them has a max_wait of w, the job is ready w after the first, at the latest; a replacement
 * that comes later has its time in the past, and keeps its position.  For another run of a job (it
 * was released, redriven, asked to run again) it is not known when the first request came.  Then
 * the time that the job already waits for is not deferred.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

/* What a request says of the work; and its terms, which only a job without an attempt takes. */
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
 * Sets the time of a job that has no attempt.  A blocked job has it in run_at, NULL for at once;
 * a job of a group that uses permits, in both columns, since it has no permit then (job/permits.c).
 * A head gets no time that has passed, but its own: shared/groups/groups.c counts on that.
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
 * Makes the time of a request earlier, if need be, so that it is no later than max_wait after the
 * first request; job: the fetched job that it replaces, or NULL when it is the first.
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
	/* The time that the job waits for already; a blocked one has it in run_at, NULL for at once. */
	if (job != NULL && job->token != 0)
		latest = Max(latest, job->is_ready				? job->ready_at
							 : job_has(job, COL_RUN_AT) ? job_time(job, COL_RUN_AT)
														: idemq_now());
	if (DatumGetTimestampTz(columns->values[column]) > latest)
		job_set(columns, column, TimestampTzGetDatum(latest));
}

/*
 * Returns whether a request replaces a job as it is: one that waits, and has no attempt that
 * counts; with rerun any job that waits, also for another attempt.
 */
bool
idemq_job_is_replaceable(const Job *job, bool rerun)
{
	bool waits = job->status == JOB_PENDING || job->status == JOB_BLOCKED;

	return rerun ? waits || job->status == JOB_RETRYING : waits && job->attempt == 0;
}

/*
 * Gives a fetched job, which is replaceable, what is asked for.  A job without an attempt gets all
 * of it, at a time that is no later than max_wait, unless that is NULL, allows.  A job that waits
 * for another attempt, with rerun, gets only the work; its position and attempts stay.  With rerun
 * the time is not deferred.  JOB_CHANGED, and nothing is done, also when the job is too new for the
 * transaction's snapshot.
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
	/* What was done for the former payload is void. */
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
