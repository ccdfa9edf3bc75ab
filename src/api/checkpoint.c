/*
 * api/checkpoint.c
 *		SQL functions that a worker calls in the middle of an attempt: checkpoint and
 *		assert_current, which raise when the attempt is no longer current; hold_claimed,
 *		which answers that instead.
 *
 * hold_claimed has no arguments: a client sends it in one message with the COMMIT of
 * commit_and_claim, before it has read what was claimed.  An error would fail the whole
 * message, and hide that the commit is done.  So hold_claimed raises none, and the client
 * calls assert_current when the answer is not "held".
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

/* Reads which step of which attempt is meant: id, token and name, the first three arguments. */
StepName
idemq_arg_step(FunctionCallInfo fcinfo)
{
	idemq_arg_attempt(fcinfo);
	(void) idemq_arg_text(fcinfo, 2, "name", STEP_MAX_NAME);
	return (StepName){PG_GETARG_INT64(0), PG_GETARG_DATUM(2), PG_GETARG_INT64(1)};
}

/* Raises 55000 for a step's name that is an event's. */
void
idemq_step_refuse_event(const StepName *name)
{
	ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("\"%s\" is an event that job %lld awaits, so a step cannot have this name",
				   TextDatumGetCString(name->name), (long long) name->job_id),
			errhint("Give the step another name."));
}

/* checkpoint(id, token, state) -> void; IQ001, IQ002, IQ006, 22004, 40001, 54000. */
SQL_FUNCTION(idemq_sql_checkpoint)
{
	JobsTable table;
	Attempt attempt;
	EventArgs args = {0};

	idemq_arg_attempt(fcinfo);
	idemq_arg_required(fcinfo, 2, "state");
	args.document = idemq_arg_document(fcinfo, 2, "state");
	idemq_jobs_open(&table);
	for (;;)
	{
		idemq_attempt_find_current(&table, PG_GETARG_INT64(0), PG_GETARG_INT64(1), &attempt);
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
 * See idemq_attempt_hold.
 */
SQL_FUNCTION(idemq_sql_assert_current)
{
	idemq_arg_attempt(fcinfo);
	(void) idemq_attempt_hold(PG_GETARG_INT64(0), PG_GETARG_INT64(1));
	PG_RETURN_VOID();
}

/*
 * hold_claimed() -> held, busy or gone: as assert_current, for the one job that this session's
 * last transaction claimed; never waits for another transaction.
 */
SQL_FUNCTION(idemq_sql_hold_claimed)
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
		outcome = idemq_attempt_try_lock(&table, id, token, LockTupleShare, &attempt);
		idemq_jobs_close(&table);
		if (outcome == OUTCOME_CURRENT)
			answer = "held";
		else if (outcome == OUTCOME_LOCKED)
			answer = "busy";
	}
	PG_RETURN_TEXT_P(cstring_to_text(answer));
}
