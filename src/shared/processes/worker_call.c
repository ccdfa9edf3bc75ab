/*
 * shared/processes/worker_call.c
 *		How a background worker is woken: when it sleeps, who needs it, and for which queue.
 *
 * No wake-up of a worker is lost.  The worker writes asleep_until = never (idemq_worker_awake),
 * full barrier, takes the marks of queues (shared/processes/due_queues.c), checks what is due,
 * writes asleep_until = until (idemq_worker_asleep), and waits on its latch.  A session that has
 * something for time t writes it down (shared/processes/due_times.c, or a ring of news), marks the
 * queue, full barrier, reads asleep_until, and sets the latch if t is less
 * (idemq_worker_need_for_queue; idemq_worker_need_by for what belongs to no queue).  If it read
 *	 - never: the latch is set, and the worker, between its check and its sleep, does not
 *	   sleep;
 *	 - an until later than t: the latch is set;
 *	 - an until not later than t: the worker wakes in time by itself, and takes the mark.
 *	   Had it been awake already, one of the two would have seen what the other wrote before
 *	   its barrier.
 * So a busy queue, whose deadlines are all later than the first, does not wake the worker
 * for each claim.  A worker slot may have become another database's meanwhile: that worker
 * wakes in vain, and the right one has just started and checks everything.
 *
 * A worker that is awake notes each piece of work that it begins (beat).  One that sleeps
 * should wake when it said that it would, or when it is called.  The first call puts the time
 * of the call, with the bit WORKER_CALLED, in the place of the until that it has read, by
 * compare-and-swap, and then sets the latch.  With that bit the value is later than every t;
 * and a worker that has woken meanwhile, and sleeps again, is woken by that latch once more.
 * A worker that has not moved for IDEMQ_STUCK_AFTER is as good as none: it is stopped, or at
 * one long piece of work.  Nobody watches it: idemq_worker_present looks when it is asked.
 *
 * The proof of the marks is in shared/processes/due_queues.c.
 *		Model: test/model/worker.pml; the worker, three sessions, two queues, one task that fails.
 *
 * Locks: none, atomics only.  All of it is called after commit and abort, and under other
 * locks: nothing here allocates or raises.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "base/base.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/*
 * Returns whether a worker runs in this database, and has moved of late, as far as is known
 * without a lock.
 */
bool
idemq_worker_present(void)
{
	WorkerSlot *worker = idemq_worker_here();

	return worker != NULL && worker->state == WORKER_RUNNING &&
		   idemq_mono_now() - idemq_worker_still_since(worker) < IDEMQ_STUCK_AFTER;
}

static void
worker_call_slot(WorkerSlot *worker, int64 mono)
{
	int32 proc = worker->proc;
	uint64 until;

	/* After what our caller has written. */
	pg_memory_barrier();
	until = pg_atomic_read_u64(&worker->asleep_until);
	if ((uint64) Max(mono, 0) >= until || proc < 0)
		return;
	/* An overdue worker has been still since it should have woken: idemq_worker_still_since. */
	if (until < WORKER_CALLED)
		(void) pg_atomic_compare_exchange_u64(&worker->asleep_until, &until,
											  WORKER_CALLED |
												  Min(until, (uint64) idemq_mono_now()));
	SetLatch(&GetPGProcByNumber(proc)->procLatch);
}

/*
 * Has this database's worker awake by a time (mono), for what belongs to no queue.  Does
 * nothing without a worker.
 */
void
idemq_worker_need_by(int64 mono)
{
	WorkerSlot *worker;

	if (idemq_worker_self() != NULL)
		return; /* it checks again before it sleeps */
	worker = idemq_worker_here();
	if (worker != NULL)
		worker_call_slot(worker, mono);
}

/* Marks the queue of that index, for what was written down; idemq_worker_need_by is to follow. */
void
idemq_worker_mark_queue(int qstate_index)
{
	WorkerSlot *worker = idemq_worker_here();

	if (worker != NULL)
		idemq_due_queues_mark(idemq_worker_index(worker), qstate_index);
}

/* As idemq_worker_need_by, for a queue of this database. */
void
idemq_worker_need_for_queue(const QueueState *qstate, int64 mono)
{
	idemq_worker_mark_queue(idemq_qstate_index(qstate));
	idemq_worker_need_by(mono);
}

/* Has this database's worker visit all its queues, at once. */
void
idemq_worker_need_all(void)
{
	WorkerSlot *worker = idemq_worker_here();

	if (worker != NULL)
		idemq_due_queues_mark_all(idemq_worker_index(worker));
	idemq_worker_need_by(0);
}

/* Tells this database's worker that schedules have changed; after the commit. */
void
idemq_worker_note_schedules(void)
{
	WorkerSlot *worker = idemq_worker_here();

	if (worker == NULL)
		return; /* a worker that comes lists them */
	(void) pg_atomic_fetch_or_u32(&worker->asked, WORKER_ASKED_SCHEDULES);
	idemq_worker_need_by(0);
}

/*
 * Tells this database's worker that something was counted for the history's present step; to be
 * called after the commit, and after it was counted.
 */
void
idemq_worker_note_counts(void)
{
	WorkerSlot *worker = idemq_worker_here();

	if (worker == NULL || !idemq_history)
		return;
	pg_memory_barrier();
	if ((pg_atomic_read_u32(&worker->asked) & WORKER_ASKED_HISTORY) != 0)
		return; /* the worker is yet to read what was counted */
	if (unlikely(idemq_test_clock))
		pg_atomic_write_u64(&worker->counted_at, (uint64) idemq_now());
	(void) pg_atomic_fetch_or_u32(&worker->asked, WORKER_ASKED_HISTORY);
	idemq_worker_need_by(idemq_mono_now() + IDEMQ_HISTORY_STEP);
}

/* Returns whether this worker is asked for something (WORKER_ASKED_...); take: clears it. */
bool
idemq_worker_is_asked(uint32 what, bool take)
{
	pg_atomic_uint32 *asked = &idemq_worker_self()->asked;
	uint32 were = take ? pg_atomic_fetch_and_u32(asked, ~what) : pg_atomic_read_u32(asked);

	return (were & what) != 0;
}

/* Says that this worker is awake, before it checks for work: from here on every call wakes it. */
void
idemq_worker_awake(void)
{
	idemq_worker_beats();
	pg_write_barrier();
	pg_atomic_write_u64(&idemq_worker_self()->asleep_until, PG_UINT64_MAX);
	pg_memory_barrier();
}

/* Says that this worker begins another piece of work. */
void
idemq_worker_beats(void)
{
	pg_atomic_write_u64(&idemq_worker_self()->beat, (uint64) idemq_mono_now());
}

/* Says until when (mono) this worker will sleep, before it waits on its latch. */
void
idemq_worker_asleep(int64 until)
{
	pg_atomic_write_u64(&idemq_worker_self()->asleep_until, (uint64) Max(until, 0));
}
