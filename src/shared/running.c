/*
 * shared/running.c
 *		How many jobs of a queue run: its lease entries, counted in its slot.
 *
 * Every queue is counted, so that a limit that is set later finds the count right.
 * An entry is there from before the claim is visible until after the commit that
 * ends the attempt.  So a queue never has more open claims and jobs in processing
 * than are counted.  A claim counts itself in, by one compare-and-swap, if that
 * leaves the count within max_running.
 *
 * A transaction that ends attempts may claim as many in their place (txn/borrowed.c).
 * The entry of such a claim is borrowed: it is not counted until its commit, which
 * counts it before it removes the entries that it replaces; in the other order
 * another claim could slip in between.  Its abort removes it, and the others stay.
 *
 * A slot serves one queue after the other.  Its lives are numbered, in the same word
 * as the count, and an entry knows in which life it was counted: what belongs to a
 * former life is not subtracted.  The entries that a queue had before it had a slot
 * are counted when the search for lost leases ends (shared/recovery_point.c); until
 * then a queue with max_running hands out nothing.
 *
 * No wake-up is lost: a claimer that a limit refuses sets the limit's bit in
 * refused_by, and then checks the limit once more.  A session that lowers the count,
 * or gives a claim back to the rate, does that first and then clears the bit; if it
 * was set, it wakes one sleeper and has the worker check the queue.  Both are full
 * barriers, so one of the two sees the other.  One signal for several jobs is enough:
 * a sleeper that claims wakes the next while the limits allow (api/claim.c).
 *
 * Locks: see README.md.  A count changes with its entry, under the entry's partition
 * lock (level 1); the words in the slot are atomic.  idemq_running_freed is called
 * after commit and abort, without a lock: it neither allocates nor raises.
 */
#include "postgres.h"

#include "shared/running.h"
#include "shared/slots.h"
#include "shared/wake.h"

/* Returns whether an entry is counted in what is its queue's slot now. */
bool
idemq_running_is_counted(const RunningMark *mark)
{
	return mark->units > 0 &&
		   RUNNING_LIFE(pg_atomic_read_u64(&idemq_slot_at(mark->slot)->running)) == mark->life;
}

/*
 * Counts one more unit of an entry in the queue's slot: the one given, if it is the
 * queue's, or another.  Returns false when max, unless that is 0, is reached.
 */
bool
idemq_running_count_in(RunningMark *mark, QueueSlot *slot, int32 queue_id, uint32 max)
{
	uint64 known;
	uint32 life;

	slot = idemq_slot_current(slot, queue_id);
	if (slot == NULL)
		return max == 0;
	known = pg_atomic_read_u64(&slot->running);
	life = RUNNING_LIFE(known);
	/* After the read of its life: another queue's slot has another one. */
	pg_read_barrier();
	if (!idemq_slot_is_of(slot, queue_id))
		return max == 0;
	do
	{
		if (RUNNING_LIFE(known) != life || (max > 0 && RUNNING_COUNT(known) >= max))
			return max == 0;
	} while (!pg_atomic_compare_exchange_u64(&slot->running, &known, known + 1));
	if (mark->units > 0 && (mark->slot != idemq_slot_index(slot) || mark->life != life))
		(void) idemq_running_count_out(mark, queue_id, 0);
	mark->slot = idemq_slot_index(slot);
	mark->life = life;
	mark->units++;
	return true;
}

/* Counts an entry as no more than keep units; returns where fewer are counted now. */
RunningFreed
idemq_running_count_out(RunningMark *mark, int32 queue_id, uint32 keep)
{
	uint32 units = mark->units;
	QueueSlot *slot;
	uint64 known;

	if (units <= keep)
		return NOTHING_FREED;
	mark->units = keep;
	slot = idemq_slot_at(mark->slot);
	known = pg_atomic_read_u64(&slot->running);
	do
	{
		if (RUNNING_LIFE(known) != mark->life)
			return NOTHING_FREED;
		Assert(RUNNING_COUNT(known) >= units - keep);
	} while (!pg_atomic_compare_exchange_u64(&slot->running, &known, known - (units - keep)));
	return (RunningFreed){mark->slot, queue_id};
}

/* Returns how many lease entries a slot counts. */
int
idemq_running_count(const QueueSlot *slot)
{
	return (int) RUNNING_COUNT(pg_atomic_read_u64((pg_atomic_uint64 *) &slot->running));
}

/* Wakes one of those whom a limit, by its bit, has refused, if there are any. */
void
idemq_running_wake_refused(QueueSlot *slot, int32 queue_id, uint32 limit)
{
	pg_memory_barrier();
	if ((pg_atomic_read_u32(&slot->refused_by) & limit) != 0 &&
		(pg_atomic_fetch_and_u32(&slot->refused_by, ~limit) & limit) != 0)
		idemq_wake_perhaps(slot, queue_id, 1);
}

/* Notifies those who wait for it that an entry is counted no more. */
void
idemq_running_freed(RunningFreed freed)
{
	if (freed.slot >= 0)
		idemq_running_wake_refused(idemq_slot_at(freed.slot), freed.queue_id, REFUSED_BY_RUNNING);
}
