/*
 * api/send_event.c
 *		SQL function send_event: tells the jobs of a queue that wait for an event, or will,
 *		that it has happened.
 *
 * A duplicate answers with the first payload only if row security would show the caller that
 * event.  A role that may only enqueue cannot see payloads; it learns whether its own is equal.
 *
 * An event is kept at least for the queue's idempotency_window, so that a job that asks for it
 * later gets it, too.  During that time the first event of a name counts, and later ones are
 * duplicates.  Each job that waits is answered at once (table/events.c).  One that sleeps for the
 * event is also made ready, by EVENT_RESCHEDULE: after the commit the scan start is lowered and
 * waiters are woken, as for any job that becomes ready.
 *
 * A job sleeps for the event if the attempt that waits gave it back, nobody has claimed it
 * since, and its time has not come.  Others are left alone: one in an attempt asks again, one
 * that failed has its backoff.
 *
 * Locks, in this order: the queue, against being dropped; the event's name, alone, which waits
 * for transactions that await or send it; the jobs that wait, by their ids, and their steps.
 * Nobody holds a job that sleeps for long, since no claim takes it.  A job that does not sleep
 * is locked against deletion alone, and left out when it is being deleted: if that is rolled
 * back, its next attempt finds the event, which is kept.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/*
 * Makes a job that sleeps ready, and so locks its row; locks another job's row against deletion.
 * False when the job is gone, or is being deleted.
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
		/* The attempt that waits gave it back, nobody has claimed it since. */
		if (job.status == JOB_PENDING && job.token == wait->token && job.ready_at > args.now)
			write = idemq_transition(table, &job, &queue, EVENT_RESCHEDULE, &args, JOB_WAITS);
		/* The same, but the job's group is paused. */
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

/* Answers all jobs that wait, and wakes those that sleep. */
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

/* Returns whether two payloads are equal; 0 is the payload of an event that was sent without. */
static bool
event_is_same(Datum first, Datum second)
{
	if (first == (Datum) 0 || second == (Datum) 0)
		return first == second;
	return idemq_same_document(first, second);
}

/* Shapes an answer; first: the payload that counts; shown: whether the caller gets it. */
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
	/* Read with the name locked: an event of that name that was sent before has an earlier time. */
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
