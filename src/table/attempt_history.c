/*
 * table/attempt_history.c
 *		The history of attempts that did not commit, whose job ran again, or that have details:
 *		idemq.attempts.
 *
 * Locks: none of its own; the caller holds the job's row.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

static SqlStatement add_attempt = {
	.text =
		"INSERT INTO idemq.attempts (job_id, token, queue_id, attempt, worker, claimed_at, ended_at, "
		"outcome, error, details) VALUES ($1, $2, $3, $4, $5, nullif($6, '-infinity'), $7, $8, $9, $10) "
		"ON CONFLICT (job_id, token) DO UPDATE SET ended_at = excluded.ended_at, "
		"outcome = excluded.outcome, error = excluded.error, details = excluded.details",
	.types = {INT8OID, INT8OID, INT4OID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID,
			  TEXTOID, JSONBOID}};

/*
 * Records the end of a job's current attempt.  job: as it was while it ran.  error, details: may be
 * NULL.  If a DBA has set an attempt back to running, it ends once more, and its last end is
 * recorded.
 */
void
idemq_attempt_history_add(const Job *job, TimestampTz ended_at, const char *outcome, text *error,
						  Jsonb *details)
{
	TupleTableSlot *row = job->row;
	Datum values[] = {Int64GetDatum(job->id),
					  Int64GetDatum(job->token),
					  Int32GetDatum(job->queue_id),
					  Int32GetDatum(job->attempt),
					  row->tts_isnull[COL_WORKER] ? (Datum) 0 : row->tts_values[COL_WORKER],
					  row->tts_isnull[COL_CLAIMED_AT] ? TimestampTzGetDatum(DT_NOBEGIN)
													  : row->tts_values[COL_CLAIMED_AT],
					  TimestampTzGetDatum(ended_at),
					  CStringGetTextDatum(outcome),
					  PointerGetDatum(error),
					  PointerGetDatum(details)};

	(void) idemq_spi_do(&add_attempt, values, NULL);
}

/*
 * Records the commit of a completed job.  details: NULL if the job will run again; then its result
 * is recorded.  If a DBA has set the job to completed, it may have no finished_at; then the current
 * time is recorded.
 */
void
idemq_attempt_history_add_commit(const Job *job, Jsonb *details)
{
	TupleTableSlot *row = job->row;

	if (details == NULL && !row->tts_isnull[COL_RESULT])
		details = DatumGetJsonbP(row->tts_values[COL_RESULT]);
	idemq_attempt_history_add(job,
							  row->tts_isnull[COL_FINISHED_AT]
								  ? idemq_now()
								  : DatumGetTimestampTz(row->tts_values[COL_FINISHED_AT]),
							  "committed", NULL, details);
}

static SqlStatement find_commit =
	{.text = "SELECT 1 FROM idemq.attempts WHERE job_id = $1 AND token = $2 "
			 "AND outcome = 'committed'",
	 .types = {INT8OID, INT8OID}};

/* Returns whether a job was committed with that token before it ran again. */
bool
idemq_attempt_history_has_commit(int64 job_id, int64 token)
{
	Datum values[] = {Int64GetDatum(job_id), Int64GetDatum(token)};

	return idemq_spi_finds(&find_commit, values, NULL);
}

static SqlStatement forget_attempts = {.few = true,
									   .text = "DELETE FROM idemq.attempts WHERE job_id = ANY ($1)",
									   .types = {INT8ARRAYOID}};

/* Deletes the history of jobs whose rows are deleted. */
void
idemq_attempt_history_forget(const int64 *job_ids, int count)
{
	idemq_spi_do_for_ids(&forget_attempts, job_ids, count);
}
