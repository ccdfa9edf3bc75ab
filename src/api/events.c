/*
 * api/events.c
 *		SQL functions await_event, which returns an event, or releases the job until the event is
 *		sent; and send_event, which sends an event to the jobs of a queue.
 *
 * await_event has three outcomes.  arrived: the event has been sent; its payload may be NULL.
 * timed_out: it was not sent before the deadline that the first call set.  waiting: the wait is
 * stored, and the job is released, as by idemq.release.  The attempt does not count, its lease and its permit in
 * max_running are free after the commit, and a head of a FIFO group stays the head.  The job's
 * ready_at is the end of the wait, so no timer is needed; send_event sets it to the current time.
 * The next attempt calls await_event again.
 *
 * The outcome is stored as a step of the job (table/steps.c).  So every later call returns the same
 * outcome, even in other attempts, and a wait begins with the first call.  If the event exists when
 * an attempt calls await_event, it has arrived, even after the deadline, unless the outcome was
 * timed_out before.  If the job was asked in the meantime to run once more (on_duplicate => rerun),
 * it continues with its new payload, for which no wait has begun, and is ready at the requested
 * time.
 *
 * An event is kept at least for the queue's idempotency_window, so that a job that asks later gets
 * it, too.  During that time the first event of a name counts, and later ones are duplicates.  A
 * duplicate returns the first payload only if row security would show the caller that event.  A
 * role that may only enqueue cannot see payloads; it learns whether its own payload is equal.
 *
 * send_event stores the outcome for each job that waits (table/events.c).  A job that sleeps until
 * the event is sent is also made ready, by EVENT_RESCHEDULE: after the commit, the scan start is
 * lowered and waiters are woken, as for any job that becomes ready.  A job sleeps in this sense if
 * the waiting attempt has released it, no worker has claimed it since, and its deadline has not
 * come.  Other jobs do not change: a running job calls await_event again, and a job that has failed
 * waits for its backoff.
 *
 * Locks of await_event, in this order: the event's name in shared mode, which waits for a
 * transaction that sends the event; the job's row, as for an UPDATE; the step's row.
 * table/events.c explains why no event is missed.
 *
 * Locks of send_event, in this order: the queue, so that it is not dropped; the event's name
 * exclusively, which waits for transactions that await or send it; the jobs that wait, in the
 * order of their ids, and their steps.  No transaction holds a sleeping job for long, because claims
 * do not find it.  A job that does not sleep is only locked against deletion.  If it is being
 * deleted, it is skipped; if that deletion is rolled back, the job's next attempt finds the event,
 * which is kept.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

typedef struct Await
{
	StepName name;
	int64 timeout;
	int32 queue_id; /* the queue in which the event's name is locked */
	bool asked;		/* whether the job must run once more */
	Step step;		/* the step as it was, later as it is */
} Await;

/* Locks the event's name and then the job, and checks that the attempt is current. */
static void
await_event_lock(Await *await)
{
	JobsTable table;
	Attempt attempt;

	idemq_jobs_open(&table);
	idemq_attempt_find_current(&table, await->name.job_id, await->name.token, &attempt);
	for (;;)
	{
		/* In the first round, and again if the job was moved to another queue. */
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

/* Checks whether the event has been sent, or the wait is over; writes the step. */
static void
await_event_look(Await *await)
{
	Step *step = &await->step;
	TimestampTz now = idemq_now();
	bool locked = step->state != STEP_NONE;

	/* A wait that has begun keeps its start and its deadline. */
	if (step->state != STEP_WAITING)
		*step = (Step){.begun_at = now, .call_until = now + await->timeout};
	step->state = STEP_WAITING;
	if (idemq_event_find(&(EventName){await->queue_id, await->name.name}, now, &step->response))
		step->state = STEP_ARRIVED;
	else if (now >= step->call_until)
		step->state = STEP_TIMED_OUT;
	(void) idemq_step_write(&await->name, await->queue_id, step, locked);
}

/*
 * Returns the outcome.  If the event has not been sent yet, releases the job until the end of the
 * wait.
 */
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
			await_event_look(await);
			break;
		case STEP_ARRIVED:
		case STEP_TIMED_OUT:
			return;
	}
	if (await->step.state != STEP_WAITING)
		return;
	/* The release adds this to a later time, so the job is not ready before call_until. */
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

/*
 * Makes a job ready that waits for the event, which locks its row; if the job does not wait any
 * more, locks its row against deletion.  Returns false if the job does not exist or is being
 * deleted.
 */
static bool
send_event_wake(JobsTable *table, const EventWait *wait)
{
	for (;;)
	{
		EventArgs args = {0};
		QueueInfo queue;
		JobWrite write;
		Job job;

		if (!idemq_jobs_fetch(table, wait->job_id, &job) ||
			!idemq_queue_by_id(job.queue_id, &queue))
			return false;
		args.now = args.ready_at = idemq_now();
		args.priority = job.priority;
		/* The waiting attempt has released the job, and no worker has claimed it since. */
		if (job.status == JOB_PENDING && job.token == wait->token && job.ready_at > args.now)
			write = idemq_transition(table, &job, &queue, EVENT_RESCHEDULE, &args, JOB_WAITS);
		/* The same, in a group that is paused. */
		else if (job.status == JOB_BLOCKED && job.token == wait->token &&
				 job_time(&job, COL_RUN_AT) > args.now)
		{
			args.new_run_at = true;
			write =
				idemq_transition(table, &job, &queue, EVENT_RESCHEDULE_BLOCKED, &args, JOB_WAITS);
		}
		else
			write = idemq_jobs_lock(table, &job, LockTupleKeyShare, JOB_SKIPS);
		if (write != JOB_CHANGED)
			return write == JOB_WRITTEN;
		idemq_jobs_refresh_or_raise(table);
	}
}

/* Stores the event for all jobs that wait for it, and makes those ready that were released. */
static void
send_event_tell(const EventName *event, Datum payload)
{
	int count;
	int held = 0;
	EventWait *waits = idemq_waits_for(event, &count);
	int64 *ids = MemoryContextAllocHuge(CurrentMemoryContext, Max(count, 1) * sizeof(int64));
	MemoryContext job_context;
	MemoryContext old;
	JobsTable table;

	if (count == 0)
		return;
	job_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq event", ALLOCSET_DEFAULT_SIZES);
	idemq_jobs_open(&table);
	old = MemoryContextSwitchTo(job_context);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(job_context);
		if (send_event_wake(&table, &waits[i]))
			ids[held++] = waits[i].job_id;
	}
	MemoryContextSwitchTo(old);
	idemq_jobs_close(&table);
	idemq_waits_arrived(event, ids, held, payload);
}

/* Returns whether two payloads are equal; 0 is the payload of an event without one. */
static bool
event_is_same(Datum first, Datum second)
{
	if (first == (Datum) 0 || second == (Datum) 0)
		return first == second;
	return idemq_same_document(first, second);
}

/*
 * Returns the result row of send_event.  first: the payload that counts; shown: the caller may see
 * it.
 */
static Datum
send_event_answer(FunctionCallInfo fcinfo, Outcome outcome, Datum first, bool shown, bool same)
{
	Datum values[] = {idemq_outcome_datum(outcome), first, BoolGetDatum(same)};
	bool nulls[] = {false, !shown || first == (Datum) 0, false};

	return idemq_row_datum(fcinfo, values, nulls);
}

/*
 * send_event(queue, name, payload) -> (outcome accepted | duplicate, the payload that counts or
 * NULL if the caller may not read events, whether the caller's payload equals that);
 * IQ005, 42501, 22004, 22023, 25006, 54000; 40001 above READ COMMITTED.
 */
SQL_FUNCTION(idemq_sql_send_event)
{
	Datum payload;
	EventName event;
	QueueInfo queue;
	TimestampTz now;
	Datum first;

	(void) idemq_arg_text(fcinfo, 1, "name", EVENT_MAX_NAME);
	payload = idemq_arg_document(fcinfo, 2, "payload");
	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, 0, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	event = (EventName){queue.id, PG_GETARG_DATUM(1)};
	idemq_event_lock(&event, ExclusiveLock);
	/*
	 * Taken while the name is locked, so it is later than the time of any earlier event of that
	 * name.
	 */
	now = idemq_now();
	if (idemq_event_find(&event, now, &first))
	{
		idemq_sync_rep_await();
		return send_event_answer(fcinfo, OUTCOME_DUPLICATE, first,
								 (queue.privileges & (PRIVILEGE_CLAIM | PRIVILEGE_ADMIN)) != 0,
								 event_is_same(first, payload));
	}
	idemq_event_write(&event, payload, now, now + queue.idempotency_window);
	send_event_tell(&event, payload);
	return send_event_answer(fcinfo, OUTCOME_ACCEPTED, payload, true, true);
}
