/*
 * api/begin_step.c
 *		SQL procedure begin_step: an attempt is about to have another system do something.
 *
 * No transaction spans this database and another system.  What can be known is which calls
 * may have been made: so each is stored before it is made, in a transaction that has
 * committed and is on disk when the caller gets its answer, whatever synchronous_commit says.
 * (With synchronous standbys it is on those as well, unless synchronous_commit is local,
 * remote_write or so by the DBA's choice.)
 *
 * The proof, for one name of a job whose payload stays, with callers that give up their call
 * at call_until and take a fresh begin_step for each:
 *
 *	- Two calls of a round are not under way at once.  Each begin that lets its caller call
 *	  (new, unknown) writes call_until; another is let only when that has passed, by the
 *	  clock of this server, and the row is locked from the look to the commit.
 *	- An effect happens under one key, until the other side said that it did not: the key
 *	  changes with refuse_step alone, which only the last to begin may call.
 *	- A call that was made is in a row, unless what was flushed is lost.
 *
 * A caller that asks twice in one attempt is told as another attempt would be: whether its
 * call was made is not known here.  A stale token is refused (the job's row is held FOR SHARE
 * until the commit, so it is current at that time); the claim has committed, since it is not
 * this transaction's unless that commits both.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_begin_step);

typedef enum BeginOutcome
{
	BEGIN_NEW,
	BEGIN_DONE,
	BEGIN_UNKNOWN,
	BEGIN_BUSY
} BeginOutcome;

static const char *const outcome_names[] = {
	[BEGIN_NEW] = "new", [BEGIN_DONE] = "done", [BEGIN_UNKNOWN] = "unknown", [BEGIN_BUSY] = "busy"};

/* The INOUT arguments, in order. */
enum
{
	ANSWER_OUTCOME,
	ANSWER_RESPONSE,
	ANSWER_FORMER_REQUEST,
	ANSWER_BEGUN_AT,
	ANSWER_RETRY_AFTER,
	ANSWER_EFFECT_KEY,
	ANSWER_COLUMNS
};

typedef struct Begin
{
	StepName name;
	StepCall call;
	int64 call_timeout;
	BeginOutcome outcome;
	Step step; /* as it was; its effect key as it is */
} Begin;

static void
read_arguments(FunctionCallInfo fcinfo, Begin *begin)
{
	idemq_arg_required(fcinfo, 0, "id");
	idemq_arg_required(fcinfo, 1, "token");
	(void) idemq_arg_text(fcinfo, 2, "name", STEP_MAX_NAME);
	idemq_arg_required(fcinfo, 3, "request");
	begin->name = (StepName){PG_GETARG_INT64(0), PG_GETARG_DATUM(2), PG_GETARG_INT64(1)};
	begin->call.request = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(3)));
	idemq_check_document("request", begin->call.request, 0);
	begin->call_timeout = idemq_arg_interval(fcinfo, 4, "call_timeout", 1);
}

/* Holds the job to the end of the transaction, its attempt being current; returns its queue. */
static int32
hold_job(const StepName *name)
{
	JobsTable table;
	Attempt attempt;
	Outcome outcome;

	idemq_jobs_open(&table);
	outcome = idemq_attempt_lock(&table, name->job_id, name->token, &attempt);
	idemq_attempt_count(&attempt, outcome, false);
	idemq_attempt_raise(&attempt, outcome);
	idemq_jobs_close(&table);
	return attempt.queue.id;
}

/* Raises IQ003. */
pg_noreturn static void
refuse_request(const Begin *begin)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEMQ_KEY_REUSED),
			 errmsg("step \"%s\" of job %lld was begun with another request",
					TextDatumGetCString(begin->name.name), (long long) begin->name.job_id),
			 errhint("Give each effect of a job a name of its own, and make its request of the "
					 "payload alone; see the stored one in idemq.steps.")));
}

/* Raises 55000. */
pg_noreturn static void
refuse_wait(const Begin *begin)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("\"%s\" is an event that job %lld awaits, and no step",
						   TextDatumGetCString(begin->name.name), (long long) begin->name.job_id),
					errhint("Give the step another name.")));
}

/* Decides about a step that is there; writes what follows. */
static BeginOutcome
begin_known(Begin *begin)
{
	Step *step = &begin->step;

	if (step->state == STEP_REFUSED || step->state == STEP_VOID)
	{
		idemq_step_begin_again(&begin->name, &begin->call, step);
		return BEGIN_NEW;
	}
	if (step_is_wait(step->state))
		refuse_wait(begin);
	if (!step->same_request)
		refuse_request(begin);
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
	int32 queue_id = hold_job(&begin->name);

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		idemq_step_lock(&begin->name, begin->call.request, &begin->step);
		/* The time is that of a moment with the row locked: whoever waited has waited. */
		begin->call.begun_at = idemq_now();
		begin->call.call_until = begin->call.begun_at + begin->call_timeout;
		if (begin->step.state != STEP_NONE)
		{
			begin->outcome = begin_known(begin);
			return;
		}
		begin->outcome = BEGIN_NEW;
		if (idemq_step_insert_open(&begin->name, queue_id, &begin->call, &begin->step))
			return;
	}
}

/* For this transaction, what is off is on; local and remote_write are somebody's choice. */
static void
ask_for_safety(void)
{
	if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		(void) set_config_option("synchronous_commit", "on", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Commits, so that what was begun survives a crash: also what an answer is of that another
 * committed with synchronous_commit = off.  A wait for standbys that was cancelled is an
 * error: the caller must not call.
 */
static void
commit(void)
{
	ask_for_safety();
	ForceSyncCommit();
	SPI_commit();
	ask_for_safety(); /* that was the transaction before */
	idemq_sync_rep_await_commit();
}

/* Shapes the answer. */
static Datum
answer(FunctionCallInfo fcinfo, const Begin *begin)
{
	const Step *step = &begin->step;
	Datum values[ANSWER_COLUMNS] = {0};
	bool nulls[ANSWER_COLUMNS];

	memset(nulls, true, sizeof(nulls));
	values[ANSWER_OUTCOME] = CStringGetTextDatum(outcome_names[begin->outcome]);
	nulls[ANSWER_OUTCOME] = false;
	values[ANSWER_RESPONSE] = step->response;
	nulls[ANSWER_RESPONSE] = begin->outcome != BEGIN_DONE || step->response == (Datum) 0;
	values[ANSWER_FORMER_REQUEST] = step->request;
	nulls[ANSWER_FORMER_REQUEST] = begin->outcome == BEGIN_NEW || step->request == (Datum) 0;
	values[ANSWER_BEGUN_AT] =
		TimestampTzGetDatum(begin->outcome == BEGIN_NEW ? begin->call.begun_at : step->begun_at);
	nulls[ANSWER_BEGUN_AT] = step->inside;
	if (begin->outcome == BEGIN_BUSY)
	{
		values[ANSWER_RETRY_AFTER] = idemq_interval_datum(step->call_until - begin->call.begun_at);
		nulls[ANSWER_RETRY_AFTER] = false;
	}
	if (step->effect_key != NULL)
	{
		values[ANSWER_EFFECT_KEY] = CStringGetTextDatum(step->effect_key);
		nulls[ANSWER_EFFECT_KEY] = false;
	}
	return idemq_row_datum(fcinfo, values, nulls);
}

/*
 * begin_step(id, token, name, request, call_timeout, INOUT outcome, response,
 * former_request, begun_at, retry_after, effect_key); IQ001, IQ002, IQ003, IQ006, 2D000,
 * 22004, 22023, 25006, 54000; 40001 above READ COMMITTED; 40003 when the wait for a
 * synchronous standby was cancelled.
 */
Datum
idemq_sql_v2_begin_step(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	Begin begin = {0};

	idemq_check_top_level(fcinfo, "begin_step",
						  "It commits by itself, so that what it stores is safe before the call.");
	read_arguments(fcinfo, &begin);
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	MemoryContextSwitchTo(caller);
	PushActiveSnapshot(GetTransactionSnapshot());
	begin_step(&begin);
	PopActiveSnapshot();
	commit();
	SPI_finish();
	return answer(fcinfo, &begin);
}
