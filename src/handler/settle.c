/*
 * handler/settle.c
 *		What becomes of a job whose function has raised an error, by its SQLSTATE:
 *
 *		40001, 40P01	run again at once, three times; then as all others
 *		IQ010			fail: retried after the interval in DETAIL, or the queue's backoff
 *		IQ011			fail: dead
 *		IQ012			release: ready again after the interval in DETAIL, or retry_base;
 *						the attempt does not count
 *		57014			release, if the job is being cancelled; otherwise as all others
 *		57P01 - 57P03	release: a server shuts down, this one or one that it asked
 *		all others		fail: retried after the queue's backoff
 *
 * The error's text becomes the attempt's error; SQLSTATE, detail, hint and context become its
 * details.  The job's effects are rolled back by then; this is a transaction of its own.  It does
 * not wait for a session that holds the job's row: what it cannot write it hands over to the
 * reaper (job/reap.c), which knows that the attempt failed, and not why.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "handler/handler.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "table/table.h"

/* A job that failed because of another transaction is run again at once so many times. */
#define MAX_REPEATS 3
/* Bytes that are kept of each text of an error; six times as many in JSON, at worst. */
#define MAX_TEXT 2000

static text *
clipped(const char *string)
{
	return cstring_to_text_with_len(string, pg_mbcliplen(string, (int) strlen(string), MAX_TEXT));
}

/* Returns an error as a jsonb: a member for each text that it has. */
static Jsonb *
settle_describe(const ErrorData *error)
{
	const char *const members[][2] = {{"sqlstate", unpack_sql_state(error->sqlerrcode)},
									  {"message", error->message},
									  {"detail", error->detail},
									  {"hint", error->hint},
									  {"context", error->context}};
	StringInfoData json;

	initStringInfo(&json);
	for (int i = 0; i < (int) lengthof(members); i++)
	{
		if (members[i][1] != NULL)
		{
			appendStringInfo(&json, "%c\"%s\":", i > 0 ? ',' : '{', members[i][0]);
			escape_json(&json, text_to_cstring(clipped(members[i][1])));
		}
	}
	appendStringInfoChar(&json, '}');
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data)));
}

/* Reads the interval that a function has put into DETAIL, microseconds; false when it is none. */
static bool
read_delay(const ErrorData *error, int64 *delay)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool valid = false;

	if (error->detail == NULL)
		return false;
	PG_TRY();
	{
		Datum value = DirectFunctionCall3(interval_in, CStringGetDatum(error->detail),
										  ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));

		*delay = idemq_check_interval("DETAIL", DatumGetIntervalP(value), 0);
		valid = true;
	}
	PG_CATCH();
	{
		/* Only these two functions were called, and they hold nothing. */
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return valid;
}

/* Chooses how the attempt ends. */
static Finish
settle_choose(const ErrorData *error, const QueueInfo *queue)
{
	Finish finish = {.kind = FINISH_FAIL, .uncounted = true};

	switch (error->sqlerrcode)
	{
		case ERRCODE_IDEMQ_RETRY_LATER:
			finish.has_delay = read_delay(error, &finish.delay);
			break;
		case ERRCODE_IDEMQ_DEAD:
			finish.permanent = true;
			break;
		case ERRCODE_IDEMQ_SNOOZE:
			finish.kind = FINISH_RELEASE;
			if (!read_delay(error, &finish.delay))
				finish.delay = queue->retry_base;
			break;
		case ERRCODE_QUERY_CANCELED:
			if (idemq_handler_cancelled() && !idemq_handler_timed_out())
				finish.kind = FINISH_RELEASE;
			break;
		case ERRCODE_ADMIN_SHUTDOWN:
		case ERRCODE_CRASH_SHUTDOWN:
		case ERRCODE_CANNOT_CONNECT_NOW:
			finish.kind = FINISH_RELEASE;
			finish.delay = queue->retry_base;
			break;
		default:
			break;
	}
	return finish;
}

/*
 * Ends an attempt in a transaction of its own.  If another session holds the row or drops the
 * dead-letter queue, or the role may no longer claim, it ends the lease, and the reaper ends the
 * attempt.
 */
static void
end_attempt(ClaimedJob *job, Finish *finish)
{
	Attempt attempt;
	Outcome outcome;

	finish->wait = JOB_SKIPS;
	outcome = idemq_finish_by_token(job->id, job->token, finish, false, &attempt);
	if (outcome == OUTCOME_LOCKED || outcome == OUTCOME_NOT_FOUND)
		idemq_lease_hand_over(job->id, job->token,
							  finish->kind == FINISH_FAIL ? LOSS_FAILED : LOSS_RETURNED);
}

/* Returns whether a transaction failed because of another, and may succeed when repeated. */
bool
idemq_handler_met_another(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		   error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/*
 * Ends the attempt whose transaction has raised an error; false when the job is to be run
 * again at once.
 */
bool
idemq_handler_settle_failed(HandlerRun *run, ClaimedJob *job, ErrorData *error)
{
	QueueInfo queue;
	Finish finish = {.kind = FINISH_RELEASE};

	IDEMQ_STOP("idemq_handler_settle_failed");
	if (idemq_handler_met_another(error) && job->repeats < MAX_REPEATS)
	{
		job->repeats++;
		return false;
	}
	idemq_handler_begin();
	if (idemq_queue_by_id(run->info.queue_id, &queue))
	{
		if (idemq_handler_timed_out() && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			error->message =
				MemoryContextStrdup(run->errors,
									psprintf("job_timeout of queue \"%s\" has passed", queue.name));
		finish = settle_choose(error, &queue);
		if (finish.kind == FINISH_FAIL)
		{
			finish.args.error = clipped(error->message != NULL ? error->message : "");
			finish.args.details = settle_describe(error);
		}
		end_attempt(job, &finish);
	}
	idemq_handler_commit();
	job->settled = true;
	if (finish.kind == FINISH_FAIL)
	{
		ereport(LOG, errcode(error->sqlerrcode),
				errmsg("handler of queue \"%s\", job %lld, attempt %d: %s", idemq_handler_queue(),
					   (long long) job->id, job->attempt,
					   error->message != NULL ? error->message : ""),
				error->detail != NULL ? errdetail_internal("%s", error->detail) : 0,
				error->context != NULL ? errcontext("%s", error->context) : 0);
		if (error->message != NULL)
			idemq_handler_note_error((QueueStateKey){MyDatabaseId, run->info.queue_id},
									 error->message);
	}
	return true;
}

/*
 * Ends the attempt of a job whose process ends in the middle of it; text: why.  A job that was
 * not begun, with text NULL, is given back, as if it had not been claimed.  So is one whose process
 * was told to end; but the third time in a row it has failed (job/finish.c).
 */
void
idemq_handler_end_at_exit(ClaimedJob *job, bool told, const char *text)
{
	Finish finish = {.kind = FINISH_RELEASE, .uncounted = true};

	if (job->settled)
		return;
	idemq_handler_begin();
	if (text != NULL)
	{
		finish.args.error = cstring_to_text(text);
		finish.kind = told ? FINISH_INTERRUPT : FINISH_FAIL;
	}
	end_attempt(job, &finish);
	idemq_handler_commit();
	job->settled = true;
}
