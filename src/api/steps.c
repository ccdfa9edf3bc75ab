/*
 * api/steps.c
 *		The procedure begin_step, which stores that an attempt is about to call another system;
 *		and the SQL functions finish_step and refuse_step, which store how the step has ended.
 *
 * No transaction spans this database and another system.  What can be known is which calls may
 * have been made.  So begin_step stores each call before it is made, in a transaction that has
 * committed and is on disk when the caller gets its answer, whatever synchronous_commit says.
 * (With synchronous standbys it is on those as well, unless the DBA has chosen local, remote_write
 * or a similar value.)
 *
 * Why an effect does not happen twice, for one name of a job whose payload does not change, and
 * callers that give up their call at call_until and make a new begin_step for each call:
 *
 *	- Two calls of a round are never in progress at once.  Each begin_step that allows its caller to
 *	  call (new, unknown) writes call_until.  Another caller is allowed to call only after that
 *	  time, by the clock of this server; and the row is locked from the check to the commit.
 *	- An effect has one key until the other system has said that it did not happen: only refuse_step
 *	  changes the key, and only the last attempt to begin may call refuse_step.
 *	- A call that was made is in a row, unless WAL that was flushed is lost.
 *
 * A caller that asks twice in one attempt gets the same answer as another attempt would, because it
 * is not known here whether its call was made.  A stale token is refused: the job's row is locked
 * FOR SHARE until the commit, so the token is current then.  If this transaction has made the
 * claim, both commit together.
 *
 * The end of a step that was begun is a fact about another system.  So finish_step accepts it from
 * each attempt that has begun the step, even if that attempt has lost the job.  The first end
 * stays.  But a receipt replaces a refusal, which was then premature, until the next call has
 * begun: without the receipt, the effect would happen again.  A refusal never replaces a receipt,
 * and is accepted only from the attempt that began last, because it says nothing about the calls
 * of others.
 *
 * A step that was never begun is done here, by the transaction that calls finish_step.  That must
 * be the transaction of the current attempt: the job's row, locked FOR SHARE, keeps the attempt
 * current until the transaction ends.  If the step was done here before, the call raises IQ006, as
 * a repeated commit does, because the effect would be repeated.  A row without begun_at belongs to
 * such a step.
 *
 * Locks, in this order: the job's row, then the step's row.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "shared/counts/counts.h"
#include "table/table.h"
#include "txn/txn.h"

/* Reads the first three arguments, id, token and name. */
StepName
idemq_arg_step(FunctionCallInfo fcinfo)
{
	idemq_arg_attempt(fcinfo);
	(void) idemq_arg_text(fcinfo, 2, "name", STEP_MAX_NAME);
	return (StepName){PG_GETARG_INT64(0), PG_GETARG_DATUM(2), PG_GETARG_INT64(1)};
}

/* Raises 55000 if a step has the name of an event. */
pg_noreturn static void
step_refuse_event(const StepName *name)
{
	ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("\"%s\" is an event that job %lld awaits, so a step cannot have this name",
				   TextDatumGetCString(name->name), (long long) name->job_id),
			errhint("Give the step another name."));
}

typedef enum BeginOutcome
{
	BEGIN_NEW,
	BEGIN_DONE,
	BEGIN_UNKNOWN,
	BEGIN_BUSY
} BeginOutcome;

typedef struct Begin
{
	StepName name;
	StepCall call;
	int64 call_timeout;
	int32 queue_id;
	BeginOutcome outcome;
	Step step; /* the step as it was, but with the new effect_key */
} Begin;

/* Decides what to do with an existing step, and writes it. */
static BeginOutcome
begin_known(Begin *begin)
{
	Step *step = &begin->step;

	if (step->state == STEP_REFUSED || step->state == STEP_VOID)
	{
		(void) idemq_step_begin(&begin->name, begin->queue_id, &begin->call, step);
		return BEGIN_NEW;
	}
	if (step_is_wait(step->state))
		step_refuse_event(&begin->name);
	if (!step->same_request)
		ereport(
			ERROR, errcode(ERRCODE_IDEMQ_KEY_REUSED),
			errmsg("step \"%s\" of job %lld was already begun with a different request",
				   TextDatumGetCString(begin->name.name), (long long) begin->name.job_id),
			errhint(
				"Use a different step name for each effect, and derive the request only from the "
				"job's payload. The stored request is in idemq.steps."));
	if (step->state == STEP_DONE)
		return BEGIN_DONE;
	if (begin->call.begun_at < step->call_until)
		return BEGIN_BUSY;
	idemq_step_take_over(&begin->name, &begin->call);
	return BEGIN_UNKNOWN;
}

/* Begins the step in the current transaction. */
static void
begin_step(Begin *begin)
{
	begin->queue_id = idemq_attempt_hold(begin->name.job_id, begin->name.token);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		idemq_step_lock(&begin->name, begin->call.request, &begin->step);
		/* The clock is read after the row is locked, which may take a while. */
		begin->call.begun_at = idemq_now();
		begin->call.call_until = begin->call.begun_at + begin->call_timeout;
		if (begin->step.state != STEP_NONE)
		{
			begin->outcome = begin_known(begin);
			return;
		}
		begin->outcome = BEGIN_NEW;
		if (idemq_step_begin(&begin->name, begin->queue_id, &begin->call, &begin->step))
			return;
	}
}

/*
 * Sets synchronous_commit to on for this transaction if it is off; other values are the user's
 * choice.
 */
static void
ask_for_safety(void)
{
	if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		(void) set_config_option("synchronous_commit", "on", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

/* Returns the values of the INOUT arguments as a row. */
static Datum
begin_step_answer(FunctionCallInfo fcinfo, const Begin *begin)
{
	static const char *const outcomes[] = {[BEGIN_NEW] = "new",
										   [BEGIN_DONE] = "done",
										   [BEGIN_UNKNOWN] = "unknown",
										   [BEGIN_BUSY] = "busy"};
	const Step *step = &begin->step;
	bool is_new = begin->outcome == BEGIN_NEW;
	RowBuilder row = {0};

	row_add(&row, CStringGetTextDatum(outcomes[begin->outcome]));
	row_add_if(&row, begin->outcome == BEGIN_DONE && step->response != 0, step->response);
	row_add_if(&row, !is_new && step->request != 0, step->request);
	row_add_if(&row, !step->inside,
			   TimestampTzGetDatum(is_new ? begin->call.begun_at : step->begun_at));
	row_add_if(&row, begin->outcome == BEGIN_BUSY,
			   idemq_interval_datum(step->call_until - begin->call.begun_at));
	row_add_if(&row, step->effect_key != 0, step->effect_key);
	return idemq_row_datum(fcinfo, row.values, row.nulls);
}

/*
 * begin_step(id, token, name, request, call_timeout, INOUT outcome, response,
 * former_request, begun_at, retry_after, effect_key); IQ001, IQ002, IQ003, IQ006, 2D000,
 * 22004, 22023, 25006, 54000; 40001 above READ COMMITTED; 40003 when the wait for a
 * synchronous standby was cancelled.
 */
SQL_FUNCTION(idemq_sql_begin_step)
{
	MemoryContext caller = CurrentMemoryContext;
	Begin begin = {0};

	idemq_check_top_level(
		fcinfo, "begin_step",
		"The procedure commits so that the request is stored before you call the other system.");
	begin.name = idemq_arg_step(fcinfo);
	idemq_arg_required(fcinfo, 3, "request");
	begin.call.request = idemq_arg_document(fcinfo, 3, "request");
	begin.call_timeout = idemq_arg_interval(fcinfo, 4, "call_timeout", 1);
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	MemoryContextSwitchTo(caller);
	PushActiveSnapshot(GetTransactionSnapshot());
	begin_step(&begin);
	PopActiveSnapshot();
	/*
	 * The new step must survive a crash.  So must the state that the answer reports, even if another
	 * transaction committed it with synchronous_commit = off.  A cancelled wait for standbys is an
	 * error, because the caller must not make its call then.
	 */
	ask_for_safety();
	ForceSyncCommit();
	SPI_commit();
	ask_for_safety(); /* its effect ended with the first transaction */
	idemq_sync_rep_await_commit();
	SPI_finish();
	return begin_step_answer(fcinfo, &begin);
}

/* A call of finish_step or refuse_step. */
typedef struct StepEnding
{
	StepName name;
	Attempt attempt;
	Outcome standing; /* of the attempt: current, stale, already committed or not found */
	Step step;
} StepEnding;

/* Compares the attempt with the job.  An attempt that this transaction commits is current. */
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
 * Finds the job and locks its row until the end of the transaction: if the attempt is current,
 * against any end of the attempt, otherwise only against deletion.  Returns false if this
 * transaction has committed the attempt in a queue without retention, so that nothing needs to be
 * stored.
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

/* Finds and locks the job and its step; returns false in the same case as hold_job. */
static bool
find_step(FunctionCallInfo fcinfo, StepEnding *ending)
{
	ending->name = idemq_arg_step(fcinfo);
	if (!hold_job(ending))
		return false;
	idemq_step_lock(&ending->name, (Datum) 0, &ending->step);
	if (step_is_wait(ending->step.state))
		step_refuse_event(&ending->name);
	return true;
}

/* Raises 55000 because another attempt's call is open. */
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
 * Writes the step as done in this transaction.  Returns false if another call has ended it in the
 * meantime, so that the caller must start again.
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
			step_refuse_event(&ending->name);
		case STEP_NONE:
		case STEP_REFUSED:
		case STEP_VOID:
			break;
	}
	return idemq_step_write(&ending->name, ending->attempt.queue.id, &done,
							ending->step.state != STEP_NONE);
}

/*
 * Ends the step.  Returns the response that counts (0: NULL): the stored one, if the attempt has
 * begun the step and there is one, otherwise the caller's.
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
	/* Another attempt's call may be in progress, and this attempt does not know its result. */
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
