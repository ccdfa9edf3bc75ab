/*
 * api/await_event.c
 *		SQL function await_event: an attempt asks for an event, or gives its job back until
 *		it comes.
 *
 * There are three answers.  arrived: the event has come; its payload may be NULL.  timed_out:
 * it has not come by the time that the first call set.  waiting: the wait is noted, and the
 * job is released, as by idemq.release.  The attempt does not count, its lease and its permit
 * in max_running are free with the commit, and a head of a FIFO group stays the head.  The
 * job's ready_at is the end of the wait, so no timer is needed; send_event sets it to now.
 * The next attempt calls again.
 *
 * The answer is a step of the job (table/steps.c): each later call gets the same one, in other
 * attempts too, and the time of a wait begins with the first call.  An event that is there when
 * an attempt asks has arrived, even after the end of the wait, unless timed_out was answered.
 *
 * All of it happens in the caller's transaction.  Locks, in this order: the event's name,
 * shared, which waits for a transaction that sends it; the job's row, as for an UPDATE; the
 * step's row.  table/events.c says why no event is missed.
 *
 * A job that was asked meanwhile to run once more (on_duplicate => rerun) goes on with its
 * new payload, for which nothing waits yet: it is ready at the time that the request asks for.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

typedef struct Await
{
	StepName name;
	int64 timeout;
	int32 queue_id; /* whose event's name is locked */
	bool asked;		/* to run once more */
	Step step;		/* as it was; then as it is */
} Await;

/* Locks the event's name, then the job, whose attempt is current. */
static void
await_event_lock(Await *await)
{
	JobsTable table;
	Attempt attempt;

	idemq_jobs_open(&table);
	idemq_attempt_find_current(&table, await->name.job_id, await->name.token, &attempt);
	for (;;)
	{
		/* At first, and if somebody has moved the job to another queue. */
		if (attempt.queue.id != await->queue_id)
		{
			await->queue_id = attempt.queue.id;
			idemq_event_lock(&(EventName){await->queue_id, await->name.name}, ShareLock);
			idemq_jobs_refresh(&table);
		}
		else
		{
			idemq_attempt_raise_cancelled(&attempt);
			if (idemq_jobs_lock(&table, &attempt.job, LockTupleNoKeyExclusive, JOB_WAITS) ==
				JOB_WRITTEN)
				break;
			idemq_jobs_refresh_or_raise(&table);
		}
		idemq_attempt_find_current(&table, await->name.job_id, await->name.token, &attempt);
	}
	await->asked = !attempt.job.row->tts_isnull[COL_RERUN_AT];
	idemq_jobs_close(&table);
}

/* Checks whether the event has come, or the wait is over; writes the step. */
static void
look(Await *await)
{
	Step *step = &await->step;
	TimestampTz now = idemq_now();
	bool locked = step->state != STEP_NONE;

	/* A wait that has begun keeps its beginning and its end. */
	if (step->state != STEP_WAITING)
		*step = (Step){.begun_at = now, .call_until = now + await->timeout};
	step->state = STEP_WAITING;
	if (idemq_event_find(&(EventName){await->queue_id, await->name.name}, now, &step->response))
		step->state = STEP_ARRIVED;
	else if (now >= step->call_until)
		step->state = STEP_TIMED_OUT;
	(void) idemq_step_write(&await->name, await->queue_id, step, locked);
}

/* Answers the wait; while the event has not come, gives the job back until the wait's end. */
static void
answer_wait(Await *await)
{
	Finish finish = {.kind = FINISH_RELEASE};
	Attempt attempt;
	await_event_lock(await);
	idemq_step_lock(&await->name, (Datum) 0, &await->step);
	switch (await->step.state)
	{
		case STEP_OPEN:
		case STEP_DONE:
		case STEP_REFUSED:
			ereport(
				ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg(
					"job %lld already has a step named \"%s\", so an event cannot have this name",
					(long long) await->name.job_id, TextDatumGetCString(await->name.name)),
				errhint("The steps and events of a job share one namespace. Give the step another "
						"name."));
		case STEP_NONE:
		case STEP_VOID:
		case STEP_WAITING:
			look(await);
			break;
		case STEP_ARRIVED:
		case STEP_TIMED_OUT:
			return;
	}
	if (await->step.state != STEP_WAITING)
		return;
	/* The release adds this to a later now, so the job is not ready before call_until. */
	if (!await->asked)
		finish.delay = Max(await->step.call_until - idemq_now(), 0);
	(void) idemq_finish_by_token(await->name.job_id, await->name.token, &finish, true, &attempt);
}

/*
 * await_event(id, token, name, timeout) -> (outcome, payload); IQ001, IQ002, IQ006, 55000,
 * 22004, 22023, 25006; 40001 above READ COMMITTED.
 */
SQL_FUNCTION(idemq_sql_await_event)
{
	Await await = {0};
	Datum values[2];
	bool nulls[2] = {false};
	const char *outcome;

	await.name = idemq_arg_step(fcinfo);
	await.timeout = idemq_arg_interval(fcinfo, 3, "timeout", 0);
	idemq_jobs_check_writable();
	answer_wait(&await);
	outcome = await.step.state == STEP_ARRIVED	   ? "arrived"
			  : await.step.state == STEP_TIMED_OUT ? "timed_out"
												   : "waiting";
	values[0] = CStringGetTextDatum(outcome);
	values[1] = await.step.response;
	nulls[1] = await.step.state != STEP_ARRIVED || values[1] == (Datum) 0;
	return idemq_row_datum(fcinfo, values, nulls);
}
