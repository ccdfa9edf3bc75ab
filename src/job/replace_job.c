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

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "job/new_job.h"
#include "job/places.h"
#include "job/replace_job.h"
#include "table/jobs_write.h"
#include "txn/pending_ready.h"
#include "base/clock.h"
#include "base/spi.h"

/*
 * One that was released or redriven has a checkpoint, which is about the payload of before.
 * $11: not later than the job was to run; NULL in run_at, of a blocked one, is at once.
 * $12: its group has places, of which it then has none (job/places.c).
 */
static SqlStatement replace_job =
	{.text = "UPDATE idemq.jobs SET payload = $2, checkpoint = NULL, "
			 "ready_at = CASE WHEN status <> 'blocked' THEN least(CASE WHEN group_key IS NULL "
			 "THEN $3 ELSE greatest($3, $9) END, CASE WHEN $11 THEN ready_at END) END, "
			 "run_at = CASE WHEN status = 'blocked' AND (run_at IS NOT NULL OR NOT $11) "
			 "THEN least($3, CASE WHEN $11 THEN run_at END) "
			 "WHEN status <> 'blocked' AND group_key IS NOT NULL AND $12 "
			 "THEN least(greatest($3, $9), CASE WHEN $11 THEN ready_at END) END, "
			 "priority = $4, headers = $5, "
			 "expires_at = $6, max_attempts = $7, kind = $8, "
			 "key_expires_at = coalesce($10, key_expires_at) "
			 "WHERE id = $1 AND status IN ('pending', 'blocked') AND attempt = 0",
	 .nargs = 12,
	 .types = {INT8OID, JSONBOID, TIMESTAMPTZOID, INT2OID, JSONBOID, TIMESTAMPTZOID, INT4OID,
			   TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, BOOLOID, BOOLOID}};
/* As above, of a job that was claimed before: its place and its attempts stay. */
static SqlStatement replace_claimed =
	{.text = "UPDATE idemq.jobs SET payload = $2, headers = $3, kind = $4, "
			 "checkpoint = NULL, key_expires_at = coalesce($5, key_expires_at) "
			 "WHERE id = $1 AND status IN ('pending', 'failed', 'blocked')",
	 .nargs = 5,
	 .types = {INT8OID, JSONBOID, JSONBOID, TEXTOID, TIMESTAMPTZOID}};

/* Takes a column's value as a parameter. */
static void
fill_value(const JobChange *columns, JobColumn column, Datum *value, char *isnull)
{
	bool is_set = (columns->set & COLUMN_BIT(column)) != 0;

	*value = is_set ? columns->values[column] : (Datum) 0;
	*isnull = is_set ? ' ' : 'n';
}

/* What replace gives a job, in the order of its parameters. */
static const JobColumn replaced_columns[] = {COL_PAYLOAD, COL_READY_AT,	  COL_PRIORITY,
											 COL_HEADERS, COL_EXPIRES_AT, COL_MAX_ATTEMPTS,
											 COL_KIND};

/*
 * As idemq_job_replace, of the version that was found, without a group: its entries in unique
 * indexes need no check, which would read those of all versions before.  False, and nothing
 * is done, when it is another case.
 */
static bool
replace_found(JobsTable *table, const QueueInfo *queue, const Job *job, const JobChange *columns,
			  bool not_later)
{
	JobChange change = {0};
	JobChange noted;

	if (!table->simple || job->status != JOB_PENDING || job->attempt != 0 ||
		!job->row->tts_isnull[COL_GROUP_KEY] || (columns->set & COLUMN_BIT(COL_READY_AT)) == 0)
		return false;
	for (int i = 0; i < (int) lengthof(replaced_columns); i++)
	{
		if (columns->set & COLUMN_BIT(replaced_columns[i]))
			job_set(&change, replaced_columns[i], columns->values[replaced_columns[i]]);
		else
			job_set_null(&change, replaced_columns[i]);
	}
	if (not_later && job->ready_at < DatumGetTimestampTz(columns->values[COL_READY_AT]))
		job_set(&change, COL_READY_AT, TimestampTzGetDatum(job->ready_at));
	job_set_null(&change, COL_RUN_AT);
	job_set_null(&change, COL_CHECKPOINT);
	if (columns->set & COLUMN_BIT(COL_KEY_EXPIRES_AT))
		job_set(&change, COL_KEY_EXPIRES_AT, columns->values[COL_KEY_EXPIRES_AT]);
	idemq_pending_ready_note_taken(queue->slot, queue->id, job->priority, job_ready_key(job));
	noted = *columns;
	noted.values[COL_READY_AT] = change.values[COL_READY_AT];
	(void) idemq_new_job_note_as(queue, &noted, job->id);
	return idemq_jobs_update(table, job, &change, JOB_WAITS) == JOB_WRITTEN;
}

/*
 * Gives a fetched job that was not claimed yet the new payload, kind, time and priority; false
 * when it is claimed, or finished, by now, or too new for the transaction's snapshot.
 * not_later: of its time and the new one, it gets the earlier.
 */
bool
idemq_job_replace(JobsTable *table, const QueueInfo *queue, const Job *job,
				  const JobChange *columns, bool not_later)
{
	Datum values[12] = {Int64GetDatum(job->id)};
	char nulls[] = "            ";
	SqlScope scope;
	uint64 updated;

	if (replace_found(table, queue, job, columns, not_later))
		return true;
	for (int i = 0; i < (int) lengthof(replaced_columns); i++)
	{
		JobColumn column = replaced_columns[i];

		/* The time of one in a group. */
		if (column == COL_READY_AT && (columns->set & COLUMN_BIT(COL_READY_AT)) == 0)
			column = (columns->set & COLUMN_BIT(COL_RUN_AT)) ? COL_RUN_AT : COL_CREATED_AT;
		fill_value(columns, column, &values[i + 1], &nulls[i + 1]);
	}
	/* A head's ready_at only grows: shared/groups.c counts on it. */
	values[8] = TimestampTzGetDatum(idemq_now());
	fill_value(columns, COL_KEY_EXPIRES_AT, &values[9], &nulls[9]);
	values[10] = BoolGetDatum(not_later);
	values[11] = BoolGetDatum(idemq_is_of_places(queue, job));
	idemq_spi_begin_on_jobs(&scope);
	updated = idemq_spi_run(&replace_job, values, nulls, SPI_OK_UPDATE);
	idemq_spi_end(&scope);
	return updated > 0;
}

/*
 * Gives a job that was claimed, and waits for its next attempt, the new payload; false as
 * idemq_job_replace.
 */
bool
idemq_job_replace_payload(int64 id, const JobChange *columns)
{
	Datum values[5] = {Int64GetDatum(id)};
	char nulls[] = "     ";
	SqlScope scope;
	uint64 updated;

	fill_value(columns, COL_PAYLOAD, &values[1], &nulls[1]);
	fill_value(columns, COL_HEADERS, &values[2], &nulls[2]);
	fill_value(columns, COL_KIND, &values[3], &nulls[3]);
	fill_value(columns, COL_KEY_EXPIRES_AT, &values[4], &nulls[4]);
	idemq_spi_begin_on_jobs(&scope);
	updated = idemq_spi_run(&replace_claimed, values, nulls, SPI_OK_UPDATE);
	idemq_spi_end(&scope);
	return updated > 0;
}

/* Returns when a job that waits is to be ready: for one that is blocked, as it was asked for. */
static TimestampTz
waits_until(const Job *job)
{
	if (job->is_ready)
		return job->ready_at;
	return job->row->tts_isnull[COL_RUN_AT] ? idemq_now()
											: DatumGetTimestampTz(job->row->tts_values[COL_RUN_AT]);
}

/*
 * Moves the time of a request forward, if need be, so that it is no later than max_wait after
 * the first one; job: the fetched job that it replaces, or NULL when it is the first.
 */
void
idemq_job_wait_no_longer(JobChange *columns, const Job *job, const Interval *max_wait)
{
	JobColumn column = (columns->set & COLUMN_BIT(COL_READY_AT)) ? COL_READY_AT : COL_RUN_AT;
	Datum first = job != NULL ? job->row->tts_values[COL_CREATED_AT]
							  : columns->values[COL_CREATED_AT];
	TimestampTz latest = DatumGetTimestampTz(
		DirectFunctionCall2(timestamptz_pl_interval, first, PointerGetDatum(max_wait)));

	/* In a group, and at once. */
	if ((columns->set & COLUMN_BIT(column)) == 0)
		return;
	if (job != NULL && job->token != 0)
		latest = Max(latest, waits_until(job));
	if (DatumGetTimestampTz(columns->values[column]) > latest)
		job_set(columns, column, TimestampTzGetDatum(latest));
}
