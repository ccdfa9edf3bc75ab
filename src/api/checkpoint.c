/*
 * api/checkpoint.c
 *		SQL functions that a worker calls in the middle of an attempt: checkpoint and
 *		assert_current, which raise when the attempt is no longer its own; hold_claimed,
 *		which says so.
 *
 * hold_claimed has no arguments: a client sends it in one message with the COMMIT of
 * commit_and_claim, before it has read what was claimed.  An error would be that of the
 * message, and hide that the commit is done.  So it raises none, and the client calls
 * assert_current when the answer is not held.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_checkpoint);
PG_FUNCTION_INFO_V1(idemq_sql_v2_assert_current);
PG_FUNCTION_INFO_V1(idemq_sql_v2_hold_claimed);

/* Finds the attempt of arguments id and token; raises IQ001, IQ002, IQ006. */
static void
find_or_raise(JobsTable *table, FunctionCallInfo fcinfo, Attempt *attempt)
{
	Outcome outcome = idemq_attempt_find(table, PG_GETARG_INT64(0), PG_GETARG_INT64(1), attempt);

	idemq_attempt_count(attempt, outcome, false);
	idemq_attempt_raise(attempt, outcome);
}

/* checkpoint(id, token, state) -> void; IQ001, IQ002, IQ006, 22004, 40001, 54000. */
Datum
idemq_sql_v2_checkpoint(PG_FUNCTION_ARGS)
{
	JobsTable table;
	Attempt attempt;
	EventArgs args = {0};

	idemq_arg_required(fcinfo, 0, "id");
	idemq_arg_required(fcinfo, 1, "token");
	idemq_arg_required(fcinfo, 2, "state");
	args.document = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(2)));
	idemq_check_document("state", args.document, 0);
	idemq_jobs_open(&table);
	for (;;)
	{
		find_or_raise(&table, fcinfo, &attempt);
		if (idemq_transition(&table, &attempt.job, &attempt.queue, EVENT_CHECKPOINT, &args,
							 JOB_WAITS) == JOB_WRITTEN)
			break;
		idemq_jobs_refresh_or_raise(&table);
	}
	idemq_jobs_close(&table);
	PG_RETURN_VOID();
}

/*
 * assert_current(id, token) -> void; IQ001, IQ002, IQ006, 22004, 40001.
 * See idemq_attempt_lock.
 */
Datum
idemq_sql_v2_assert_current(PG_FUNCTION_ARGS)
{
	JobsTable table;
	Attempt attempt;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_arg_required(fcinfo, 1, "token");
	idemq_jobs_open(&table);
	outcome = idemq_attempt_lock(&table, PG_GETARG_INT64(0), PG_GETARG_INT64(1), &attempt);
	idemq_attempt_count(&attempt, outcome, false);
	idemq_attempt_raise(&attempt, outcome);
	idemq_jobs_close(&table);
	PG_RETURN_VOID();
}

/*
 * hold_claimed() -> held, busy or gone: as assert_current, of the one job that this session's
 * last transaction has claimed; never waits for another transaction.
 */
Datum
idemq_sql_v2_hold_claimed(PG_FUNCTION_ARGS)
{
	int64 id;
	int64 token;
	const char *answer = "gone";

	if (idemq_pending_claimed(&id, &token))
	{
		JobsTable table;
		Attempt attempt;
		Outcome outcome;

		idemq_jobs_open(&table);
		outcome = idemq_attempt_try_share(&table, id, token, &attempt);
		idemq_jobs_close(&table);
		if (outcome == OUTCOME_CURRENT)
			answer = "held";
		else if (outcome == OUTCOME_LOCKED)
			answer = "busy";
	}
	PG_RETURN_TEXT_P(cstring_to_text(answer));
}
