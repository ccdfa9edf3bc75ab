/*
 * api/retry.c
 *		SQL functions that have a job run again: retry, retry_many; and what redrive
 *		(sql/parts/40_jobs.sql) asks of C.
 */
#include "postgres.h"

#include "api/api.h"
#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "table/table.h"

static bool
decide_retry(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_RETRY;
	*outcome = OUTCOME_RETRYING;
	switch (job->status)
	{
		case JOB_DEAD:
		case JOB_CANCELLED:
			*event = idemq_job_waits_again(job) ? EVENT_REDRIVE_GROUPED : EVENT_REDRIVE;
			return true;
		case JOB_RETRYING:
			return true;
		case JOB_PENDING:
			if (job->ready_at > args->now)
				return true;
			pg_fallthrough;
		default:
			*outcome = idemq_outcome_of_status(job->status);
			return false;
	}
}

/* Tells how many dead-letter records were taken out of their queues. */
static void
retry_report_records(int64 dead_letter_records)
{
	if (dead_letter_records > 0)
		ereport(NOTICE,
				(errmsg("cancelled dead-letter records: %lld", (long long) dead_letter_records)));
}

/* retry(id) -> retrying | current | locked | blocked | completed | not_found; 22004, 40001. */
SQL_FUNCTION(idemq_sql_retry)
{
	int64 dead_letter_records = 0;
	JobChanger retrier = {.decide = decide_retry,
						  .privileges = PRIVILEGE_CHANGE,
						  .audit = {.action = "retry"},
						  .dead_letter_records = &dead_letter_records};
	Datum outcome = idemq_change_one(fcinfo, &retrier);

	retry_report_records(dead_letter_records);
	return outcome;
}

/* retry_many(ids) -> setof (id, outcome as retry); 22004, 22023, 40001. */
SQL_FUNCTION(idemq_sql_retry_many)
{
	int64 dead_letter_records = 0;
	JobChanger retrier = {.decide = decide_retry,
						  .privileges = PRIVILEGE_CHANGE,
						  .dead_letter_records = &dead_letter_records};
	Datum none = idemq_change_many(fcinfo, &retrier, "retry_many");

	retry_report_records(dead_letter_records);
	return none;
}

/* Decides for a job that the attempt of token *arg has left dead. */
static bool
decide_redrive(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	bool is_that = job->status == JOB_DEAD && job->token == *(const int64 *) arg;

	*event = idemq_job_waits_again(job) ? EVENT_REDRIVE_GROUPED : EVENT_REDRIVE;
	*outcome = is_that ? OUTCOME_RETRYING : OUTCOME_CURRENT;
	return is_that;
}

/*
 * redrive_job(id, token) -> (whether that attempt had left it dead, and it runs again; how many
 * of its records were taken out of the dead-letter queue); 40001.
 */
SQL_FUNCTION(idemq_sql_internal_redrive_job)
{
	int level = idemq_wrapper_become_caller();
	int64 token = PG_GETARG_INT64(1);
	int64 dead_letter_records = 0;
	JobChanger redriver = {.decide = decide_redrive,
						   .arg = &token,
						   .privileges = PRIVILEGE_ADMIN,
						   .dead_letter_records = &dead_letter_records};
	JobsTable table;
	Outcome outcome;

	idemq_jobs_open(&table);
	outcome = idemq_change_job(&table, PG_GETARG_INT64(0), &redriver, NULL);
	idemq_jobs_close(&table);
	idemq_wrapper_become_owner(level);
	return idemq_row_datum(fcinfo,
						   (Datum[]){BoolGetDatum(outcome == OUTCOME_RETRYING),
									 Int64GetDatum(dead_letter_records)},
						   (bool[]){false, false});
}
