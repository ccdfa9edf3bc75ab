/*
 * shared/leases/running.c
 *		How many jobs of a queue run: its lease entries, counted in its state.
 *
 * Every queue is counted, so that a limit that is set later finds the count right.  A
 * claim in a queue with max_running counts itself in, by one compare-and-swap, if that
 * leaves the count within the limit; all else counts without asking.
 *
 * Never more than max_running.  Call O the open claims of a queue and P its running jobs,
 * in any snapshot.  Each has an entry from before it is an open claim until after the commit that
 * ends it is visible, and each entry is counted, unless its permit was transferred.  A transaction
 * T may transfer permits, that is, claim in place of an attempt, as often as it ends attempts that
 * are counted (txn/pending_queues.c).  Until T's commit a claim with a transferred permit is in O,
 * and the attempt that it replaces is in P: O and P together exceed the count by the permits that T
 * has transferred.  No more jobs than max_running are worked on, since T has finished with the
 * others.  At T's commit, in one instant, the ended attempts leave P and their replacements enter
 * it, one for one.  After it the replacements are counted first, then the entries of the ended
 * attempts go: in between the count is too high, never too low.  If T aborts, the entries with
 * transferred permits go uncounted, and the others stay.
 *
 * What could spoil that:
 *	 - a savepoint takes back an end that has been replaced: pending actions are a stack,
 *	   the claim came later and is undone first;
 *	 - T ends an entry and takes it over by its next claim of that job: the entry carries
 *	   units, one of the attempt that ends, and one of the new one unless that has a transferred
 *	   permit.  The commit leaves one, the abort the first;
 *	 - SQL and a trigger end one attempt twice: Lease.ending.credited allows one credit;
 *	 - the limit was lowered: no permit is transferred while the count, less what T ends, is at
 *	   the limit;
 *	 - a queue state goes to another queue: its lives are numbered, in the word that has the
 *	   count, and an entry knows in which life it was counted.  An entry of a former life
 *	   is not subtracted;
 *	 - entries are from before the queue had this state: TRUNCATE takes the queue states away first,
 *	   then the entries, and one that is put meanwhile is counted nowhere, and so refused;
 *	 - jobs are running without an entry (restart, COMMIT PREPARED, rows made by
 *	   hand): a queue with max_running hands out nothing while a search is needed, and
 *	   a claim searches to the end.  Another search may be asked for meanwhile, perhaps again
 *	   and again (COMMIT PREPARED): then the claim believes its own search, from the start.
 *	   What came since asks no limit, and counts as if it had come after the claim.  (Neither
 *	   a claim nor the end of an attempt in such a queue can be prepared: txn/pending.c.)  An
 *	   attempt without an entry that T has ended is not seen by T's own search, so no search
 *	   by T is believed (idemq_transfer_uncounted);
 *	 - the lease table is full: no claim without an entry in a queue with max_running.
 * idemq.check() adds up the entries with all partitions locked, and compares.
 *
 * No wake-up is lost.  A claimer that a limit refuses sets the limit's bit in refused_by,
 * and checks the limit once more, before it leaves or sleeps.  A session that lowers the
 * count, or gives a claim back to the rate, does that first, then clears the bit, and if
 * it was set wakes one waiter and has the worker check the queue, for NOTIFY.  All are
 * full barriers, so one of the two sees the other.  One signal for several jobs is
 * enough: a claimer wakes the next waiter while the limits allow (api/claim.c).
 *
 * Locks: see README.md.  A count changes with its entry, under the entry's partition
 * lock (level 1); the words in the queue state are atomic.  idemq_running_freed is called
 * after commit and abort, without a lock: it neither allocates nor raises.
 */
#include "postgres.h"

#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/* Returns whether an entry is counted in the present life of the queue state that counted it. */
bool
idemq_running_is_counted(const RunningCounted *counted)
{
	return counted->units > 0 &&
		   RUNNING_LIFE(pg_atomic_read_u64(&idemq_qstate_at(counted->qstate_index)->running)) ==
			   counted->life;
}

/*
 * Counts one more unit of an entry in the queue's state: in qstate, if the queue still has it, or
 * in the state that the queue has now.  Returns false when max, unless that is 0, is reached, or
 * the queue has just lost its state.
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
	/* After its life is read: once another queue has the state, it is in another life. */
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

/* Counts an entry as no more than keep units; returns where fewer are counted now. */
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

/* Returns how many lease entries a queue state counts. */
int
idemq_running_count(const QueueState *qstate)
{
	return (int) RUNNING_COUNT(pg_atomic_read_u64((pg_atomic_uint64 *) &qstate->running));
}

/* Wakes one waiter if the limit of that bit has refused a claim since the last wake-up. */
void
idemq_running_wake_refused(QueueState *qstate, int32 queue_id, uint32 limit)
{
	pg_memory_barrier();
	if ((pg_atomic_read_u32(&qstate->refused_by) & limit) != 0 &&
		(pg_atomic_fetch_and_u32(&qstate->refused_by, ~limit) & limit) != 0)
		idemq_wake_if_ready(qstate, queue_id, 1);
}

/* Wakes a session that waits for room: an entry is counted no more. */
void
idemq_running_freed(RunningFreed freed)
{
	if (freed.qstate_index >= 0)
		idemq_running_wake_refused(idemq_qstate_at(freed.qstate_index), freed.queue_id,
								   REFUSED_BY_RUNNING);
}
