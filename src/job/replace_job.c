/*
 * job/replace_job.c
 *		A request for a job that waits: it takes the request's payload, headers and kind, and,
 *		while nobody has claimed it, its time and priority.
 *
 * A claim and a replacement race for the row, and each writes the version that it has
 * fetched, or nothing.  Whoever comes second waits until the first one's transaction has
 * ended: a claim does not wait, but leaves the row, and so never starts with half of a
 * request.  A job that is claimed by then is not touched; the caller looks it up again.
 *
 * The time starts again with each request.  With a max_wait (idemq_job_wait_no_longer) it does
 * so no longer than that after the first: a stream of requests that never pauses does not
 * put a job off for ever.  The first request is the one that made the job, created_at; every
 * request brings its own max_wait, and none is remembered.  So the bound is that of the
 * requests: if each of them has a max_wait of w, the job is ready w after the first, at the
 * latest; the replacement that is made then has its time in the past, and keeps its place.
 * When the first request for another run of a job came (it was released, redriven, asked
 * to run again) is not known.  Then the time that it waits for already is not put off.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

/* What a request says of the work, and its terms, which only a job takes that nobody has claimed. */
#define WORK_COLUMNS (COLUMN_BIT(COL_PAYLOAD) | COLUMN_BIT(COL_HEADERS) | COLUMN_BIT(COL_KIND))
#define TERMS_COLUMNS                                                                              \
	(COLUMN_BIT(COL_PRIORITY) | COLUMN_BIT(COL_EXPIRES_AT) | COLUMN_BIT(COL_MAX_ATTEMPTS))

/* Returns the column that has the time of a request: that of one in a group, and at once, none. */
static JobColumn
time_column(const JobChange *columns)
{
	if (columns->set & COLUMN_BIT(COL_READY_AT))
		return COL_READY_AT;
	return (columns->set & COLUMN_BIT(COL_RUN_AT)) ? COL_RUN_AT : COL_CREATED_AT;
}

/* Returns the time that a request asks for; that it was made, for none. */
TimestampTz
idemq_request_time(const JobChange *columns)
{
	return DatumGetTimestampTz(columns->values[time_column(columns)]);
}

/*
 * Sets the time of a job that nobody has claimed: one that is blocked has it in run_at, NULL for
 * at once, and one of a group that has places in both, since it has none of them then
 * (job/places.c).  A head's only grows: shared/groups/groups.c counts on it.
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
	if (not_later)
		asked = Min(asked, job->ready_at);
	job_set(change, COL_READY_AT, TimestampTzGetDatum(asked));
	if (idemq_job_uses_places(queue, job))
		job_set(change, COL_RUN_AT, TimestampTzGetDatum(asked));
	else
		job_set_null(change, COL_RUN_AT);
}

/* Notes what shared memory must do after the commit, or the abort, of another time or priority. */
static void
note(const QueueInfo *queue, const Job *job, const JobChange *change)
{
	int priority = DatumGetInt16(change->values[COL_PRIORITY]);
	ReadyKey key = {DatumGetTimestampTz(change->values[COL_READY_AT]), job->id};

	if (job_has(job, COL_GROUP_KEY))
		idemq_pending_groups_note(queue->slot, queue->id, job_value(job, COL_GROUP_KEY),
								  GROUP_DROP_FLOOR);
	if (change->set & COLUMN_BIT(COL_READY_AT))
	{
		idemq_pending_ready_note_taken(queue->slot, queue->id, job->priority, job_ready_key(job));
		idemq_pending_ready_note(queue->slot, queue->id, priority, key);
	}
	if (!change->isnull[COL_EXPIRES_AT])
		idemq_pending_ready_note_expiry(queue->slot, queue->id,
										DatumGetTimestampTz(change->values[COL_EXPIRES_AT]));
}

/*
 * Moves the time of a request forward, if need be, so that it is no later than max_wait after
 * the first one; job: the fetched job that it replaces, or NULL when it is the first.
 */
void
idemq_job_wait_no_longer(JobChange *columns, const Job *job, const Interval *max_wait)
{
	JobColumn column = time_column(columns);
	Datum first = job != NULL ? job_value(job, COL_CREATED_AT) : columns->values[COL_CREATED_AT];
	TimestampTz latest = DatumGetTimestampTz(
		DirectFunctionCall2(timestamptz_pl_interval, first, PointerGetDatum(max_wait)));

	if (column == COL_CREATED_AT)
		return;
	/* That is the time of a job which is blocked, too: NULL for at once. */
	if (job != NULL && job->token != 0)
		latest = Max(latest, job->is_ready				? job->ready_at
							 : job_has(job, COL_RUN_AT) ? job_time(job, COL_RUN_AT)
														: idemq_now());
	if (DatumGetTimestampTz(columns->values[column]) > latest)
		job_set(columns, column, TimestampTzGetDatum(latest));
}

/*
 * Returns whether a request replaces a job as it is: one that waits, and that nobody has
 * claimed; with rerun any that waits, be it for another attempt.
 */
bool
idemq_job_is_replaceable(const Job *job, bool rerun)
{
	bool waits = job->status == JOB_PENDING || job->status == JOB_BLOCKED;

	return rerun ? waits || job->status == JOB_FAILED : waits && job->attempt == 0;
}

/*
 * Gives a fetched job, which is replaceable, what is asked for: all of it when nobody has
 * claimed it, no later than max_wait, unless it is NULL, allows; with rerun the work alone, and
 * place and attempts stay, when somebody has.  With rerun its time is not put off.  JOB_CHANGED, and
 * nothing is done, also when it is too new for the transaction's snapshot.
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
	/* What was done of the payload before is void. */
	job_set_null(&change, COL_CHECKPOINT);
	if (columns->set & COLUMN_BIT(COL_KEY_EXPIRES_AT))
		job_set(&change, COL_KEY_EXPIRES_AT, columns->values[COL_KEY_EXPIRES_AT]);
	if (whole)
	{
		set_time(&change, queue, job, idemq_request_time(&limited), rerun);
		note(queue, job, &change);
	}
	return idemq_jobs_update(table, job, &change, JOB_WAITS);
}
