/*
 * shared/leases/running.c
 *		How many jobs of a queue are running: the number of its lease entries, counted in its state.
 *
 * Every queue is counted, so that the count is right if a limit is set later.  A claim in a queue
 * with max_running adds itself to the count, by one compare-and-swap, only if the count then stays
 * within the limit.  All other sessions count without checking.
 *
 * max_running is never exceeded.  Let O be the open claims of a queue, and P its running jobs, in
 * any snapshot.  Each of them has an entry from before it is an open claim until after the commit
 * that ends it is visible, and each entry is counted, unless its permit was transferred.  A
 * transaction T may transfer permits, that is, claim in place of an attempt, as often as it ends
 * attempts that are counted (txn/pending_queues.c).  Until T commits, a claim with a transferred
 * permit is in O, and the attempt that it replaces is in P, so O and P together exceed the count by
 * the number of permits that T has transferred.  But workers work on no more than max_running jobs,
 * because T has finished with the attempts that it ends.  At T's commit, the ended attempts leave
 * P, and their replacements enter it, one for one and at the same moment.  After the commit, the
 * replacements are counted first, and then the entries of the ended attempts are removed.  In
 * between, the count is too high, never too low.  If T aborts, the entries with transferred permits
 * are removed without being counted, and the other entries stay.
 *
 * These cases need special care:
 *	 - A rollback to a savepoint undoes the end of an attempt that has been replaced: pending
 *	   actions are a stack, so the claim, which came later, is undone first.
 *	 - T ends an attempt, and takes over its entry by claiming the same job again: the entry counts
 *	   one unit for the attempt that ends, and one for the new attempt unless that has a transferred
 *	   permit.  The commit keeps one unit, the abort the first.
 *	 - SQL and a trigger end one attempt twice: Lease.ending.credited allows only one permit
 *	   transfer.
 *	 - The limit has been lowered: no permit is transferred while the count, less the attempts that
 *	   T ends, has reached the limit.
 *	 - A queue state passes to another queue: its lives are numbered, in the same word as the count,
 *	   and an entry records the life in which it was counted.  An entry of a former life is not
 *	   subtracted.
 *	 - Entries are older than the queue state: TRUNCATE first takes away the queue states, then the
 *	   entries.  An entry that is added in between cannot be counted, and is therefore refused.
 *	 - Jobs are running without an entry (after a restart or COMMIT PREPARED, or in rows made by
 *	   hand): a queue with max_running hands out no job while a search for lost leases is needed,
 *	   and a claim does the whole search.  If other searches are requested in the meantime, perhaps
 *	   again and again (COMMIT PREPARED), the claim relies on its own search, which began at the
 *	   start.  The jobs that were found later were not limited, and count as if they had come after
 *	   the claim.  (In such a queue, a transaction that claims or ends an attempt cannot be
 *	   prepared: txn/pending.c.)  T's own search does not see an attempt without an entry that T has
 *	   ended, so no search by such a T is relied on (idemq_transfer_uncounted).
 *	 - The lease table is full: in a queue with max_running, no claim succeeds without an entry.
 * idemq.check() adds up the entries with all partitions locked, and compares the sum with the
 * count.
 *
 * No wake-up is lost.  If max_running refuses a claim, the session sets running_refused, and checks
 * the count once more, before it returns or sleeps.  A session that lowers the count does so first,
 * then clears the flag.  If the flag was set, it wakes one waiter, and makes the worker check the
 * queue, for NOTIFY.  All of these are full barriers, so one of the two sees the other.  One signal for several jobs is enough, because a session that
 * claims wakes the next waiter while the limits allow it (api/claim.c).
 *
 * Locks: see src/shared/README.md.  A count changes together with its entry, under the lock of the
 * entry's partition (level 1); the words in the queue state are atomics.  idemq_running_freed is
 * called after commit and abort, without a lock, and neither allocates nor raises errors.
 */
#include "postgres.h"

#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/* Returns whether an entry is counted in the current life of the queue state that counted it. */
bool
idemq_running_is_counted(const RunningCounted *counted)
{
	return counted->units > 0 &&
		   RUNNING_LIFE(pg_atomic_read_u64(&idemq_qstate_at(counted->qstate_index)->running)) ==
			   counted->life;
}

/*
 * Counts one more unit of an entry in the state of its queue, which is qstate if the queue still
 * has it.  Returns false if the count has reached max (0: no limit), or if the queue has just lost
 * its state.
 */
bool
idemq_running_count_in(RunningCounted *counted, QueueState *qstate, int32 queue_id, uint32 max)
{
	uint64 known;
	uint32 life;

	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate == NULL)
		return false;
	known = pg_atomic_read_u64(&qstate->running);
	life = RUNNING_LIFE(known);
	/* The key after the life: if another queue has the state by now, the life has changed, too. */
	pg_read_barrier();
	if (!idemq_qstate_is_of(qstate, queue_id))
		return false;
	do
	{
		if (RUNNING_LIFE(known) != life || (max > 0 && RUNNING_COUNT(known) >= max))
			return false;
	} while (!pg_atomic_compare_exchange_u64(&qstate->running, &known, known + 1));
	if (counted->units > 0 &&
		(counted->qstate_index != idemq_qstate_index(qstate) || counted->life != life))
		(void) idemq_running_count_out(counted, queue_id, 0);
	counted->qstate_index = idemq_qstate_index(qstate);
	counted->life = life;
	counted->units++;
	return true;
}

/* Lowers the units of an entry to keep, if they are more; returns where the count has fallen. */
RunningFreed
idemq_running_count_out(RunningCounted *counted, int32 queue_id, uint32 keep)
{
	uint32 units = counted->units;
	QueueState *qstate;
	uint64 known;

	if (units <= keep)
		return NOTHING_FREED;
	counted->units = keep;
	qstate = idemq_qstate_at(counted->qstate_index);
	known = pg_atomic_read_u64(&qstate->running);
	do
	{
		if (RUNNING_LIFE(known) != counted->life)
			return NOTHING_FREED;
		Assert(RUNNING_COUNT(known) >= units - keep);
	} while (!pg_atomic_compare_exchange_u64(&qstate->running, &known, known - (units - keep)));
	return (RunningFreed){counted->qstate_index, queue_id};
}

/* Returns the number of running jobs that a queue state counts. */
int
idemq_running_count(const QueueState *qstate)
{
	return (int) RUNNING_COUNT(pg_atomic_read_u64((pg_atomic_uint64 *) &qstate->running));
}

/* Wakes one waiter if max_running has refused a claim since the last wake-up. */
void
idemq_running_wake_refused(QueueState *qstate, int32 queue_id)
{
	pg_memory_barrier();
	if (pg_atomic_read_u32(&qstate->running_refused) != 0 &&
		pg_atomic_exchange_u32(&qstate->running_refused, 0) != 0)
		idemq_wake_if_ready(qstate, queue_id, 1);
}

/* Wakes a waiter, if max_running has refused a claim, because the count has fallen. */
void
idemq_running_freed(RunningFreed freed)
{
	if (freed.qstate_index >= 0)
		idemq_running_wake_refused(idemq_qstate_at(freed.qstate_index), freed.queue_id);
}
