/*
 * api/finish_step.c
 *		SQL functions that store how a step ended: finish_step, refuse_step.
 *
 * For a step that was begun (api/begin_step.c) the answer is a fact about another system.  It
 * is taken from each attempt that has begun the step, also from one that has lost the job.
 * The first answer stays.  A receipt outweighs a refusal, which was then said too early, until
 * the next call has begun: if the receipt were thrown away, the effect would happen again.  A
 * refusal never outweighs a receipt, and is taken only from the attempt that began last: it
 * does not speak of the calls of others.
 *
 * A step that was never begun is done here, by the transaction that calls finish_step.  That
 * must be the current attempt's: the job's row, held FOR SHARE, keeps the attempt current
 * until the transaction ends.  If the step was done here before, the call raises IQ006, as a
 * repeated commit does: the effect would be repeated.  The row tells the two kinds of steps
 * apart: what was done here has no begun_at.
 *
 * Locks, in this order: the job's row, then the step's.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "shared/counts/counts.h"
#include "table/table.h"
#include "txn/txn.h"

/* A call that ends a step, and what it has found. */
typedef struct StepEnding
{
	StepName name;
	Attempt attempt;
	Outcome standing; /* of the attempt: current, stale, already committed or not found */
	Step step;
} StepEnding;

/* Compares the attempt with the job.  One that this transaction itself commits is current. */
static Outcome
standing_of(JobsTable *table, const StepName *name, Attempt *attempt)
{
	Outcome standing = idemq_attempt_find(table, name->job_id, name->token, attempt);

	if (standing == OUTCOME_ALREADY_COMMITTED && attempt->job.token == name->token &&
		idemq_jobs_is_own(&attempt->job))
		return OUTCOME_CURRENT;
	if (standing == OUTCOME_NOT_FOUND && !idemq_attempt_is_gone(table, attempt))
		idemq_attempt_raise(attempt, standing);
	return standing;
}

/*
 * Finds the job and locks its row to the end of the transaction: for a current attempt against
 * whatever would end it, otherwise against deletion alone.  False when this transaction has
 * committed the attempt in a queue that keeps nothing: nothing is left to be stored.
 */
static bool
hold_job(StepEnding *ending)
{
	const StepName *name = &ending->name;
	JobsTable table;

	idemq_jobs_open(&table);
	for (;;)
	{
		Outcome standing = standing_of(&table, name, &ending->attempt);
		LockTupleMode mode = standing == OUTCOME_CURRENT ? LockTupleShare : LockTupleKeyShare;

		ending->standing = standing;
		if (standing == OUTCOME_NOT_FOUND ||
			idemq_jobs_lock(&table, &ending->attempt.job, mode, JOB_WAITS) == JOB_WRITTEN)
			break;
		idemq_jobs_refresh_or_raise(&table);
	}
	idemq_jobs_close(&table);
	return ending->standing != OUTCOME_NOT_FOUND;
}

static char *
step_name(const StepEnding *ending)
{
	return TextDatumGetCString(ending->name.name);
}

/* Finds the job and its step, and holds both; false as hold_job. */
static bool
find_step(FunctionCallInfo fcinfo, StepEnding *ending)
{
	ending->name = idemq_arg_step(fcinfo);
	if (!hold_job(ending))
		return false;
	idemq_step_lock(&ending->name, (Datum) 0, &ending->step);
	if (step_is_wait(ending->step.state))
		idemq_step_refuse_event(&ending->name);
	return true;
}

/* Raises 55000: another attempt's call is open. */
pg_noreturn static void
refuse_stranger(const StepEnding *ending)
{
	ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("step \"%s\" of job %lld was begun by another attempt", step_name(ending),
				   (long long) ending->name.job_id),
			errhint(
				"CALL idemq.begin_step first. It reports whether the earlier attempt's request may "
				"still reach the other system."));
}

/*
 * Does the step in this transaction; false when another call has done it meanwhile: the caller
 * looks again.
 */
static bool
do_inside(StepEnding *ending, Datum response)
{
	const Step done = {.state = STEP_DONE, .response = response};

	idemq_attempt_refuse(&ending->attempt, ending->standing);
	switch (ending->step.state)
	{
		case STEP_OPEN:
			refuse_stranger(ending);
		case STEP_DONE:
			ereport(
				ERROR, errcode(ERRCODE_IDEMQ_ALREADY_COMMITTED),
				errmsg("step \"%s\" of job %lld is already done", step_name(ending),
					   (long long) ending->name.job_id),
				errhint(
					"The step has taken effect. Roll back, read its response from idemq.steps, and "
					"continue with the next step."));
		case STEP_WAITING:
		case STEP_ARRIVED:
		case STEP_TIMED_OUT:
			idemq_step_refuse_event(&ending->name);
		case STEP_NONE:
		case STEP_REFUSED:
		case STEP_VOID:
			break;
	}
	return idemq_step_write(&ending->name, ending->attempt.queue.id, &done,
							ending->step.state != STEP_NONE);
}

/*
 * Ends the step; returns the response that counts, 0 for NULL: the stored one, if the attempt
 * has begun the step and there is one, otherwise the attempt's own.
 */
static Datum
finish_step_end(StepEnding *ending, Datum response)
{
	const Step *step = &ending->step;

	while (!step->mine && !do_inside(ending, response))
		idemq_step_lock(&ending->name, (Datum) 0, &ending->step);
	if (step->mine && step->state == STEP_DONE)
		return step->response;
	if (step->mine)
		idemq_step_answer(&ending->name, response);
	if (!step->mine || step->state == STEP_OPEN || step->state == STEP_REFUSED)
		idemq_pending_counts_event(ending->attempt.queue.id, COUNTER_BIT(COUNTER_STEPS_DONE));
	return response;
}

/*
 * finish_step(id, token, name, response) -> the response that counts; IQ001, IQ002, IQ006,
 * 55000, 22004, 22023, 25006, 54000; 40001 above READ COMMITTED.
 */
SQL_FUNCTION(idemq_sql_finish_step)
{
	Datum response = idemq_arg_document(fcinfo, 3, "response");
	Datum counts;
	StepEnding ending;

	counts = find_step(fcinfo, &ending) ? finish_step_end(&ending, response) : response;
	if (counts == (Datum) 0)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(counts);
}

/* refuse_step(id, token, name, error) -> void; IQ001, IQ002, IQ006, 55000, as finish_step. */
SQL_FUNCTION(idemq_sql_refuse_step)
{
	Datum error = PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3);
	StepEnding ending;

	idemq_check_text("error", error);
	if (!find_step(fcinfo, &ending))
		PG_RETURN_VOID();
	if (!ending.step.mine)
		idemq_attempt_refuse(&ending.attempt, ending.standing);
	if (ending.step.state == STEP_DONE)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("step \"%s\" of job %lld is already done", step_name(&ending),
					   (long long) ending.name.job_id),
				errdetail("The response is stored, so the other system has processed the request."),
				errhint("Read the response from idemq.steps, and continue from there."));
	/* Another attempt's call may be under way: this attempt does not speak of it. */
	if (ending.step.state == STEP_OPEN && ending.step.token != ending.name.token)
	{
		idemq_attempt_refuse(&ending.attempt, ending.standing);
		refuse_stranger(&ending);
	}
	if (!ending.step.mine)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("step \"%s\" of job %lld was not begun by this attempt", step_name(&ending),
					   (long long) ending.name.job_id),
				errhint("CALL idemq.begin_step before you call the other system."));
	if (ending.step.state == STEP_OPEN)
		idemq_step_refuse(&ending.name, error);
	PG_RETURN_VOID();
}
