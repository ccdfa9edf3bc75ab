/*
 * api/begin_step.c
 *		SQL procedure begin_step: an attempt is about to have another system do something.
 *
 * No transaction spans this database and another system.  What can be known is which calls
 * may have been made.  So each is stored before it is made, in a transaction that has
 * committed and is on disk when the caller gets its answer, whatever synchronous_commit says.
 * (With synchronous standbys it is on those as well, unless the DBA has chosen local,
 * remote_write or the like.)
 *
 * The proof, for one name of a job whose payload stays, with callers that give up their call
 * at call_until and take a fresh begin_step for each:
 *
 *	- Two calls of a round are not under way at once.  Each begin that lets its caller call
 *	  (new, unknown) writes call_until.  Another caller is let call only when that has passed,
 *	  by the clock of this server; and the row is locked from the look to the commit.
 *	- An effect has one key until the other side has said that it did not happen: the key
 *	  changes with refuse_step alone, which only the last to begin may call.
 *	- A call that was made is in a row, unless what was flushed is lost.
 *
 * A caller that asks twice in one attempt is answered as another attempt would be: whether its
 * call was made is not known here.  A stale token is refused: the job's row is held FOR SHARE
 * until the commit, so the token is current then.  The claim has committed by then, too: if
 * this transaction has made it, both commit together.
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
#include "table/table.h"

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
	Step step; /* as it was, but for effect_key, which is the new one */
} Begin;

/* Decides about a step that is there; writes what follows. */
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
		idemq_step_refuse_event(&begin->name);
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

/* Begins the step, in the transaction that is open. */
static void
begin_step(Begin *begin)
{
	begin->queue_id = idemq_attempt_hold(begin->name.job_id, begin->name.token);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		idemq_step_lock(&begin->name, begin->call.request, &begin->step);
		/* The clock is read with the row locked, after any wait for it. */
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

/* Sets synchronous_commit to on for this transaction if it is off; other values are a choice. */
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
	 * What was begun survives a crash.  So does what the answer tells of, even if another
	 * transaction has committed it with synchronous_commit = off.  A cancelled wait for standbys
	 * is an error: the caller must not call.
	 */
	ask_for_safety();
	ForceSyncCommit();
	SPI_commit();
	ask_for_safety(); /* the first one ended with its transaction */
	idemq_sync_rep_await_commit();
	SPI_finish();
	return begin_step_answer(fcinfo, &begin);
}
