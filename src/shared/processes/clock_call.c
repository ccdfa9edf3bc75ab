/*
 * shared/processes/clock_call.c
 *		How the session that has moved the test clock makes every process notice the new time, and
 *		waits until its database's worker has done everything that is due (api/advance_clock.c).
 *
 * A process that sleeps until a certain time has read the clock, and sleeps on its latch for the
 * difference.  So after the clock has been moved, the latch of every process is set.  A process
 * that has read the old time wakes up, or does not fall asleep, and reads the new time.  No bit in
 * a set of waiters is cleared for this, because otherwise a signal that there is work would be
 * wasted on a session that only looks at the time.
 *
 * Calls to a worker are numbered.  The worker reads the number (idemq_clock_called), does what is
 * due without any delays after earlier runs or failures, and answers with the number when nothing
 * more is due.  So the answer to a call covers everything that was due at the time of the call.  A
 * worker that starts later finds the unanswered call.
 *
 * Locks: none except the spinlock in PostgreSQL's condition variable; everything else is atomics.
 */
#include "postgres.h"

#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/processes/processes.h"

/* Makes every process of the server look at the time, and every worker do what is due. */
ClockCall
idemq_clock_call(void)
{
	WorkerSlot *own = idemq_worker_here();
	ClockCall call = {.worker = own == NULL ? -1 : idemq_worker_index(own)};

	for (int i = 0; i < idemq_workers_max(); i++)
	{
		uint64 number = pg_atomic_add_fetch_u64(&idemq_worker_at(i)->clock_asked, 1);

		if (i == call.worker)
			call.number = number;
	}
	for (int i = 0; i < MaxBackends; i++)
		SetLatch(&GetPGProcByNumber(i)->procLatch);
	return call;
}

/* Returns whether a call went to the worker slot that this database still has. */
bool
idemq_clock_holds(const ClockCall *call)
{
	WorkerSlot *own = idemq_worker_here();

	return own != NULL && idemq_worker_index(own) == call->worker;
}

/*
 * Waits for at most patience microseconds until the worker has answered a call for which
 * idemq_clock_holds is true.  Returns whether it has answered.  *left is what it still has to do,
 * as bits of TaskKind.
 */
bool
idemq_clock_await(const ClockCall *call, int64 patience, uint32 *left)
{
	int64 until = idemq_stopwatch() + patience;
	WorkerSlot *worker = idemq_worker_at(call->worker);
	bool answered;

	ConditionVariablePrepareToSleep(&worker->clock_answered);
	for (;;)
	{
		int64 now = idemq_stopwatch();

		answered = pg_atomic_read_u64(&worker->clock_done) >= call->number;
		if (answered || now >= until)
			break;
		(void) ConditionVariableTimedSleep(&worker->clock_answered, (until - now) / 1000 + 1,
										   compat_wait_event_wait());
	}
	ConditionVariableCancelSleep();
	*left = answered ? 0 : pg_atomic_read_u32(&worker->clock_left);
	return answered;
}

/* Returns the number of the last call to this worker if it is unanswered; otherwise 0. */
uint64
idemq_clock_called(void)
{
	WorkerSlot *worker = idemq_worker_self();
	uint64 asked = pg_atomic_read_u64(&worker->clock_asked);

	/* Before the clock is read. */
	pg_memory_barrier();
	return asked > pg_atomic_read_u64(&worker->clock_done) ? asked : 0;
}

/* Answers a call if nothing is left to do; otherwise notes what is left (bits of TaskKind). */
void
idemq_clock_answer(uint64 call, uint32 left)
{
	WorkerSlot *worker = idemq_worker_self();

	pg_atomic_write_u32(&worker->clock_left, left);
	if (left != 0)
		return;
	pg_memory_barrier();
	pg_atomic_write_u64(&worker->clock_done, call);
	ConditionVariableBroadcast(&worker->clock_answered);
}

/*
 * With idemq.test_clock, returns when the numbers that this worker must add to the history were
 * counted.
 */
TimestampTz
idemq_clock_counted_at(void)
{
	return (TimestampTz) pg_atomic_read_u64(&idemq_worker_self()->counted_at);
}
