/*
 * handler/settle.c
 *		How an attempt ends if its function has raised an error, by the error's SQLSTATE:
 *
 *		40001, 40P01	the job runs again at once, up to three times; then as all others
 *		IQ010			fail: retried after the interval in DETAIL, or the queue's backoff
 *		IQ011			fail: dead
 *		IQ012			release: ready again after the interval in DETAIL, or retry_base; the
 *						attempt does not count
 *		57014			release, if the job is being cancelled; otherwise as all others
 *		57P01 - 57P03	release: this server is shutting down, or one that the function has asked
 *		all others		fail: retried after the queue's backoff
 *
 * The error's message becomes the error of the attempt.  SQLSTATE, DETAIL, HINT and CONTEXT become
 * its details.
 *
 * The effects of the job have been rolled back, and the attempt ends in its own transaction.  This
 * transaction does not wait for another session that holds the job's row.  Instead, it hands the
 * lease over to the reaper (job/reap.c), which then knows that the attempt has failed, but not
 * why.
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

/* How often a job runs again at once after 40001 or 40P01. */
#define MAX_REPEATS 3
/* Maximum number of bytes stored for each text of an error; in JSON, a byte becomes at most six. */
#define MAX_TEXT 2000

static text *
clipped(const char *string)
{
	return cstring_to_text_with_len(string, pg_mbcliplen(string, (int) strlen(string), MAX_TEXT));
}

/* Returns an error as a jsonb object, with a member for each text that the error has. */
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

/* Reads DETAIL as an interval, into microseconds; returns false if it is not an interval. */
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
		/* No subtransaction is needed: the two functions called here acquire no resources. */
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return valid;
}

/* Returns how the attempt ends, by the table above, except for its error and details. */
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
			if (idemq_handler_cancelled && !idemq_handler_timed_out)
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
 * Ends an attempt, in the open transaction.  If another session holds the row or is dropping the
 * dead-letter queue, or the role may no longer claim from the queue, it ends the lease instead, and
 * the reaper ends the attempt.
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

/* Returns whether a transaction failed because of another one, so that a retry may succeed. */
bool
idemq_handler_met_another(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		   error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/*
 * Ends the attempt of a job whose transaction was rolled back because of an error.  Returns false
 * if the job must run again at once; the attempt then continues.
 */
bool
idemq_handler_settle_failed(ClaimedJob *job, ErrorData *error)
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
	if (idemq_queue_by_id(idemq_handler.key.queue_id, &queue))
	{
		if (idemq_handler_timed_out && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			error->message =
				MemoryContextStrdup(idemq_handler.errors,
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
				errmsg("handler of queue \"%s\", job %lld, attempt %d: %s",
					   idemq_handler.queue_name, (long long) job->id, job->attempt,
					   error->message != NULL ? error->message : ""),
				error->detail != NULL ? errdetail_internal("%s", error->detail) : 0,
				error->context != NULL ? errcontext("%s", error->context) : 0);
		if (error->message != NULL)
			idemq_handler_note_error(idemq_handler.key, error->message);
	}
	return true;
}

/*
 * Ends the attempt of a claimed job because the process exits.  text NULL: the job has not begun,
 * so it is released as if it had not been claimed.  Otherwise text is the error: the job has
 * failed, unless terminated is true (SIGTERM).  Then it is released, but the third time in a row
 * it fails (job/finish.c).
 */
void
idemq_handler_end_at_exit(ClaimedJob *job, bool terminated, const char *text)
{
	Finish finish = {.kind = FINISH_RELEASE, .uncounted = true};

	if (job->settled)
		return;
	idemq_handler_begin();
	if (text != NULL)
	{
		finish.args.error = cstring_to_text(text);
		finish.kind = terminated ? FINISH_INTERRUPT : FINISH_FAIL;
	}
	end_attempt(job, &finish);
	idemq_handler_commit();
	job->settled = true;
}
