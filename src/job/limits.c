/*
 * job/limits.c
 *		What a queue's max_running and rate_limit count, in its slot: how many lease
 *		entries it has, and when its next token comes.
 *
 * running counts the queue's entries in the lease table, of every queue, so that a
 * limit that is set later finds it right.  An entry is there from before the claim
 * is visible until after the commit that ends the attempt: so there are never more
 * open claims and jobs in processing than are counted.  A claim counts itself in if
 * that leaves the count within the limit, by one compare-and-swap.
 *
 * A transaction that ends attempts may claim as many in their place (txn/borrowed.c).
 * The entry of such a claim is borrowed: not counted until its commit, which counts
 * it before it removes the entries that it replaces; the other order would let
 * somebody slip in between.  Its abort removes it, and the others stay.
 *
 * A slot serves one queue after the other.  Its lives are numbered, in the same word
 * as the count, and an entry knows in which life it was counted: what belongs to a
 * former life is not subtracted.  The entries that a queue had before it had a slot
 * are counted when the search for lost leases ends (shared/recovery_point.c); until then a queue
 * with max_running hands out nothing.
 *
 * rate_tat is that of GCRA (base/gcra.c), a token for each claim.
 *
 * Waking: whoever is turned away sets turned_away, and then looks once more; whoever
 * takes from the count does so, and then clears turned_away, and if it was set wakes
 * one sleeper and has the worker look.  Both are full barriers, so one of the two
 * sees the other.  A token that comes by time is noted for the worker's timer.
 *
 * Locks: a count changes with the entry, under the entry's partition lock; the rest
 * is atomic.  idemq_limit_freed is called after commit and abort: it neither
 * allocates nor raises.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "job/limits.h"
#include "txn/borrowed.h"
#include "shared/lease_table.h"
#include "shared/slots.h"
#include "shared/wake.h"
#include "base/clock.h"
#include "base/gcra.h"
#include "base/settings.h"

#define NSECS_PER_USEC INT64CONST(1000)
/* While a queue waits for room in the lease table, it is visited that often. */
#define FULL_INTERVAL USECS_PER_SEC
/* The worker is not asked for tokens more often than that. */
#define TOKEN_INTERVAL INT64CONST(1000)

/* Bits of turned_away. */
#define BY_RUNNING 1
#define BY_RATE 2

#define LIFE(word) ((uint32) ((word) >> 32))
#define COUNT(word) ((uint32) (word))

/* Returns whether an entry is counted in what is its queue's slot now. */
bool
idemq_limit_is_counted(const Lease *lease)
{
	return lease->units > 0 &&
		   LIFE(pg_atomic_read_u64(&idemq_slot_at(lease->slot)->running)) == lease->life;
}

/*
 * Counts one more unit of an entry in the queue's slot: the one given, if it is the
 * queue's, or another.  Returns false when max, unless that is 0, is reached.
 */
bool
idemq_limit_count_in(Lease *lease, QueueSlot *slot, int32 queue_id, uint32 max)
{
	uint64 known;
	uint32 life;

	slot = idemq_slot_current(slot, queue_id);
	if (slot == NULL)
		return max == 0;
	known = pg_atomic_read_u64(&slot->running);
	life = LIFE(known);
	/* After the read of its life: another queue's slot has another one. */
	pg_read_barrier();
	if (!idemq_slot_is_of(slot, queue_id))
		return max == 0;
	do
	{
		if (LIFE(known) != life || (max > 0 && COUNT(known) >= max))
			return max == 0;
	} while (!pg_atomic_compare_exchange_u64(&slot->running, &known, known + 1));
	if (lease->units > 0 && (lease->slot != idemq_slot_index(slot) || lease->life != life))
		(void) idemq_limit_count_out(lease, 0);
	lease->slot = idemq_slot_index(slot);
	lease->life = life;
	lease->units++;
	return true;
}

/* Counts an entry as no more than keep units; returns where fewer are counted now. */
LimitPlace
idemq_limit_count_out(Lease *lease, uint32 keep)
{
	uint32 units = lease->units;
	QueueSlot *slot;
	uint64 known;

	if (units <= keep)
		return NO_PLACE;
	lease->units = keep;
	slot = idemq_slot_at(lease->slot);
	known = pg_atomic_read_u64(&slot->running);
	do
	{
		if (LIFE(known) != lease->life)
			return NO_PLACE;
		Assert(COUNT(known) >= units - keep);
	} while (!pg_atomic_compare_exchange_u64(&slot->running, &known, known - (units - keep)));
	return (LimitPlace){lease->slot, lease->queue_id};
}

/* Returns how many lease entries a slot counts. */
int
idemq_limit_running(const QueueSlot *slot)
{
	return (int) COUNT(pg_atomic_read_u64((pg_atomic_uint64 *) &slot->running));
}

/* Wakes one of those whom a limit, by its bit, turned away, if there are any. */
static void
wake_turned_away(QueueSlot *slot, int32 queue_id, uint32 limit)
{
	pg_memory_barrier();
	if ((pg_atomic_read_u32(&slot->turned_away) & limit) != 0 &&
		(pg_atomic_fetch_and_u32(&slot->turned_away, ~limit) & limit) != 0)
		idemq_wake_perhaps(slot, queue_id, 1);
}

/* Tells who waits for it that an entry is counted no more. */
void
idemq_limit_freed(LimitPlace place)
{
	if (place.slot >= 0)
		wake_turned_away(idemq_slot_at(place.slot), place.queue_id, BY_RUNNING);
}

/* Tells who waits for it that the search for lost leases has ended. */
void
idemq_limit_recovered(const QueueInfo *queue)
{
	if (queue->slot != NULL)
		wake_turned_away(queue->slot, queue->id, BY_RUNNING);
}

/* Returns the rate_limit of a queue for base/gcra.c. */
static GcraLimit
rate_of(const QueueInfo *queue)
{
	return (GcraLimit){queue->rate_limit,
					   Min(queue->rate_period, GCRA_MAX_PERIOD / NSECS_PER_USEC) * NSECS_PER_USEC};
}

/*
 * Reads the bucket of a queue.  It is never emptier than empty: so it is after
 * another rate was set, and then begins empty.
 */
static uint64
read_tat(const QueueInfo *queue, const GcraLimit *limit)
{
	pg_atomic_uint64 *place = &queue->slot->rate_tat;
	uint64 tat = pg_atomic_read_u64(place);
	uint64 latest;

	do
	{
		latest = (uint64) (idemq_mono_now() * NSECS_PER_USEC + limit->period);
	} while (tat > latest && !pg_atomic_compare_exchange_u64(place, &tat, latest));
	return Min(tat, latest);
}

/*
 * Takes a token of a queue with rate_limit for a claim; false when there is none, or
 * when max_running stands in its way anyhow, unless it borrows.  Neither a rollback nor
 * an error gives it back.
 */
bool
idemq_limit_take_token(const QueueInfo *queue, bool borrows)
{
	GcraLimit limit = rate_of(queue);
	GcraAnswer answer;
	uint64 tat;

	if (queue->rate_limit == 0)
		return true;
	if (queue->slot == NULL || (queue->max_running > 0 && !borrows &&
								idemq_limit_running(queue->slot) >= queue->max_running))
		return false;
	tat = read_tat(queue, &limit);
	do
	{
		answer = idemq_gcra(&limit, (int64) tat, idemq_mono_now() * NSECS_PER_USEC, 1);
	} while (answer.allowed &&
			 !pg_atomic_compare_exchange_u64(&queue->slot->rate_tat, &tat, (uint64) answer.tat));
	return answer.allowed;
}

/* Gives a token back that was not needed. */
void
idemq_limit_return_token(const QueueInfo *queue)
{
	GcraLimit limit = rate_of(queue);

	if (queue->rate_limit == 0 || queue->slot == NULL)
		return;
	(void) pg_atomic_fetch_sub_u64(&queue->slot->rate_tat, idemq_gcra(&limit, 0, 0, 1).tat);
	wake_turned_away(queue->slot, queue->id, BY_RATE);
}

/*
 * Returns whether this transaction may claim in the place of an attempt that it
 * ends: not while more run than may, the limit having been lowered.
 *
 * Why no more jobs than max_running are ever worked on.  Call O the open claims of a
 * queue and P its jobs in processing, in any snapshot.  Each has an entry from before it
 * is an open claim until after the commit that ends it is visible; each entry is
 * counted, except the borrowed ones.  Until the commit of a transaction T a borrowed
 * claim is an open claim of T, and what it replaces is in P: O and P together are more
 * than the count by what T has borrowed, but T has finished with these.  At T's commit,
 * in one instant, the ended leave P and the borrowed enter it, one for one.  After it
 * the borrowed are counted first, then the ended entries go: in between the count is
 * too high, never too low.  Should T abort, the borrowed entries go uncounted.
 *
 * What could break that:
 *   a savepoint takes back an end	notes are a stack: the claim came later, and is
 *									undone first
 *   T claims a job that it ended	the entry carries units, for the attempt that ends
 *									and for the new one unless that was borrowed; the
 *									commit leaves one, the abort the first
 *   SQL and a trigger end one		credited in the entry: one credit an end
 *   attempt twice
 *   a queue is given a slot		a take checks for the slot under its partition
 *									lock: it counts itself, or the search's end, under
 *									all partition locks, finds it
 *   T ends an attempt without an	T's own search for lost leases does not see it,
 *   entry							others do: no search by T is believed
 *   the lease table is full		no claim without an entry where max_running is set
 */
bool
idemq_limit_may_borrow(const QueueInfo *queue)
{
	int free;

	if (queue->max_running == 0 || queue->slot == NULL)
		return false;
	free = idemq_credit_free(queue->id);
	return free > 0 && idemq_limit_running(queue->slot) - free < queue->max_running;
}

/* Returns how a queue stands to max_running; it has a slot. */
static QueueLimit
running_state(const QueueInfo *queue, LimitView *view)
{
	SlotStatus status;

	view->running = idemq_limit_running(queue->slot);
	if (queue->max_running == 0)
		return LIMIT_OPEN;
	if (!idemq_slot_status(queue->id, &status) || status.needs_recovery)
		return LIMIT_RECOVERING;
	if (view->running >= queue->max_running)
		return LIMIT_RUNNING;
	return idemq_lease_table_is_full() ? LIMIT_TABLE_FULL : LIMIT_OPEN;
}

/* Reads how a queue stands to its limits. */
void
idemq_limit_view(const QueueInfo *queue, LimitView *view)
{
	*view = (LimitView){LIMIT_OPEN, 0, DT_NOEND};
	if (queue->slot == NULL)
	{
		if (queue->max_running > 0 || queue->rate_limit > 0)
			view->state = LIMIT_NO_SLOT;
		return;
	}
	view->state = running_state(queue, view);
	if (view->state == LIMIT_OPEN && queue->rate_limit > 0)
	{
		GcraLimit limit = rate_of(queue);
		int64 tat = (int64) read_tat(queue, &limit);
		GcraAnswer answer = idemq_gcra(&limit, tat, idemq_mono_now() * NSECS_PER_USEC, 1);

		if (answer.allowed)
			return;
		view->state = LIMIT_RATE;
		view->until = idemq_now() + (answer.retry_after + NSECS_PER_USEC - 1) / NSECS_PER_USEC;
	}
}

/*
 * Returns whether the queue's limits would let one more be claimed.  If not, that is on
 * record, so that a sleeper is woken when they do.  *view: as idemq_limit_view.
 */
bool
idemq_limit_lets(const QueueInfo *queue, LimitView *view)
{
	uint32 limits = (queue->max_running > 0 ? BY_RUNNING : 0) |
					(queue->rate_limit > 0 ? BY_RATE : 0);

	*view = (LimitView){LIMIT_OPEN, 0, DT_NOEND};
	if (limits == 0)
		return true;
	idemq_limit_view(queue, view);
	if (view->state == LIMIT_OPEN || view->state == LIMIT_NO_SLOT)
		return view->state == LIMIT_OPEN;
	/* On record first, then the view that counts. */
	(void) pg_atomic_fetch_or_u32(&queue->slot->turned_away, limits);
	idemq_limit_view(queue, view);
	if (view->state == LIMIT_RATE)
		idemq_wake_due_at(queue->slot, Max(view->until, idemq_now() + TOKEN_INTERVAL));
	else if (view->state == LIMIT_TABLE_FULL)
		idemq_wake_due_at(queue->slot, idemq_now() + FULL_INTERVAL);
	return view->state == LIMIT_OPEN;
}

/*
 * Returns whether a queue with limits has a slot to count in; warns, once a session,
 * when it has none.
 */
bool
idemq_limit_has_slot(const QueueInfo *queue)
{
	static bool warned = false;

	if (queue->slot != NULL || (queue->max_running == 0 && queue->rate_limit == 0))
		return true;
	if (!warned)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("queue \"%s\" hands out nothing: shared memory has no room to count what "
						"its limits need",
						queue->name),
				 errhint("Raise idemq.max_queues, which is %d, and restart the server.",
						 idemq_max_queues)));
	warned = true;
	return false;
}
