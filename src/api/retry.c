/*
 * api/retry.c
 *		SQL functions that have a job run again: retry, retry_many.
 */
#include "postgres.h"

#include "api/api.h"
#include "job/job.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_retry);
PG_FUNCTION_INFO_V1(idemq_sql_v2_retry_many);

static bool
decide_retry(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_RETRY;
	*outcome = OUTCOME_RETRYING;
	switch (job->status)
	{
		case JOB_DEAD:
		case JOB_CANCELLED:
			*event = idemq_redrive_event(job);
			return true;
		case JOB_FAILED:
			return true;
		case JOB_PENDING:
			if (job->ready_at > args->now)
				return true;
			/* FALLTHROUGH */
		default:
			*outcome = idemq_outcome_of_status(job->status);
			return false;
	}
}

/* retry(id) -> retrying | current | locked | blocked | completed | not_found; 22004, 40001. */
Datum
idemq_sql_v2_retry(PG_FUNCTION_ARGS)
{
	static const JobChanger retrier = {.decide = decide_retry,
									   .privileges = PRIVILEGE_CHANGE,
									   .audit = {.action = "retry"}};

	return idemq_change_one(fcinfo, &retrier);
}

/* retry_many(ids) -> setof (id, outcome as retry); 22004, 22023, 40001. */
Datum
idemq_sql_v2_retry_many(PG_FUNCTION_ARGS)
{
	static const JobChanger retrier = {.decide = decide_retry, .privileges = PRIVILEGE_CHANGE};

	return idemq_change_many(fcinfo, &retrier, "retry_many");
}
