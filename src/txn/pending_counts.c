/*
 * txn/pending_counts.c
 *		What this transaction counts: added to its queues' counters after its
 *		commit, forgotten at its abort, savepoints included.
 *
 * One tally a subtransaction and queue, on a stack: subtransaction ids grow, so
 * those of an open subtransaction stand together above its parent's.  A rollback
 * takes the top off; a release merges it into the parent's, so that a loop of
 * exception blocks leaves no more than the block around it.
 *
 * Each row that is written is noted once, where it is written: by table/jobs_write.c for
 * direct access, by the row trigger (hooks/row_triggers.c) for SQL, which table/jobs_sql.c and
 * job/new_job_keyed.c use as well.  Events are noted by the function that makes them
 * happen; a DBA's statement is none.
 *
 * The stack is kept for the next transaction; unused tallies are clean.  It
 * grows when something is noted; what txn/at_end.c calls neither allocates nor raises.
 *
 * PREPARE TRANSACTION: the tallies are lost; when the transaction ends, the
 * gauges are unset (idemq_counters_unset_gauges).
 *
 * Locks: none of its own; all state is this backend's.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/slots/slots.h"
#include "txn/txn.h"

#define MIN_TALLIES 4
/* A longer stack is not kept. */
#define MAX_KEPT 64

typedef struct Tally
{
	SubTransactionId subid;
	int32 queue_id;
	QueueSlot *slot; /* that it had, as a hint; not cleared */
	CounterDelta *delta;
} Tally;

static MemoryContext tally_context = NULL;
static Tally *tallies = NULL;
static int ntallies = 0;
static int max_tallies = 0;

/* Makes a timing empty. */
static void
clear_timing(TimingDelta *timing)
{
	for (int i = timing->first; i <= timing->last; i++)
		timing->buckets[i] = 0;
	timing->first = HISTOGRAM_BUCKETS;
	timing->last = -1;
}

/* Takes the top of the stack off, and leaves it clean. */
static void
pop(void)
{
	CounterDelta *delta = tallies[--ntallies].delta;

	memset(delta->gauges, 0, sizeof(delta->gauges));
	memset(delta->counters, 0, sizeof(delta->counters));
	for (int t = 0; t < TIMING_COUNT; t++)
		clear_timing(&delta->timings[t]);
}

/* Makes the stack longer. */
static void
grow(void)
{
	int more = Max(max_tallies, MIN_TALLIES);
	CounterDelta *deltas;

	if (tally_context == NULL)
		tally_context =
			AllocSetContextCreate(TopMemoryContext, "idemq tallies", ALLOCSET_SMALL_SIZES);
	deltas = MemoryContextAllocHuge(tally_context, more * sizeof(CounterDelta));
	memset(deltas, 0, more * sizeof(CounterDelta));
	if (tallies == NULL)
		tallies = MemoryContextAlloc(tally_context, more * sizeof(Tally));
	else
		tallies = repalloc_huge(tallies, (max_tallies + more) * sizeof(Tally));
	for (int i = 0; i < more; i++)
	{
		tallies[max_tallies + i] = (Tally){InvalidSubTransactionId, 0, NULL, &deltas[i]};
		for (int t = 0; t < TIMING_COUNT; t++)
			clear_timing(&deltas[i].timings[t]);
	}
	max_tallies += more;
}

/* Returns the queue's tally among those of a subtransaction below top; NULL for none. */
static Tally *
find_below(int top, SubTransactionId subid, int32 queue_id)
{
	for (int i = top - 1; i >= 0 && tallies[i].subid == subid; i--)
	{
		if (tallies[i].queue_id == queue_id)
			return &tallies[i];
	}
	return NULL;
}

/* Returns what this subtransaction does to a queue. */
static CounterDelta *
delta_of(int32 queue_id)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Tally *tally = find_below(ntallies, subid, queue_id);

	if (tally == NULL)
	{
		if (ntallies == max_tallies)
			grow();
		tally = &tallies[ntallies++];
		tally->subid = subid;
		tally->queue_id = queue_id;
	}
	return tally->delta;
}

/* Notes a row that was written: its status before and after, NO_ROW for none. */
void
idemq_pending_counts_row(int32 queue_id, int from, int to)
{
	CounterDelta *delta;

	if (from == to)
		return;
	delta = delta_of(queue_id);
	if (from != NO_ROW)
		delta->gauges[from]--;
	if (to != NO_ROW)
		delta->gauges[to]++;
}

/* Notes an event for each of those counters, as COUNTER_BITs. */
void
idemq_pending_counts_event(int32 queue_id, uint32 counters)
{
	CounterDelta *delta;

	if (counters == 0)
		return;
	delta = delta_of(queue_id);
	for (; counters != 0; counters &= counters - 1)
		delta->counters[pg_rightmost_one_pos32(counters)]++;
}

static void
add_to_bucket(TimingDelta *timing, int bucket, uint32 count)
{
	timing->buckets[bucket] += count;
	timing->first = Min(timing->first, bucket);
	timing->last = Max(timing->last, bucket);
}

/* Notes how long something took; longer than the histogram reaches is as long as that. */
void
idemq_pending_counts_timing(int32 queue_id, Timing which, TimestampTz from, TimestampTz to)
{
	int64 usecs = to - Max(from, to - HISTOGRAM_LIMIT);

	add_to_bucket(&delta_of(queue_id)->timings[which], idemq_histogram_bucket(usecs), 1);
}

/* Adds one delta to another. */
static void
merge(CounterDelta *to, const CounterDelta *from)
{
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		to->gauges[i] += from->gauges[i];
	for (int i = 0; i < COUNTER_COUNT; i++)
		to->counters[i] += from->counters[i];
	for (int t = 0; t < TIMING_COUNT; t++)
	{
		const TimingDelta *timing = &from->timings[t];

		for (int i = timing->first; i <= timing->last; i++)
		{
			if (timing->buckets[i] != 0)
				add_to_bucket(&to->timings[t], i, timing->buckets[i]);
		}
	}
}

/*
 * Gives a subtransaction's tallies to its parent: those of queues that the
 * parent has not counted in stay where they are, above the parent's others.
 */
void
idemq_pending_counts_release(SubTransactionId subid, SubTransactionId parent)
{
	int bottom = ntallies;
	int kept;

	while (bottom > 0 && tallies[bottom - 1].subid >= subid)
		bottom--;
	kept = bottom;
	for (int i = bottom; i < ntallies; i++)
	{
		Tally *known = find_below(bottom, parent, tallies[i].queue_id);

		if (known != NULL)
			merge(known->delta, tallies[i].delta);
		else
		{
			if (kept < i)
			{
				Tally moved = tallies[kept];

				tallies[kept] = tallies[i];
				tallies[i] = moved;
			}
			tallies[kept++].subid = parent;
		}
	}
	while (ntallies > kept)
		pop();
}

/* Adds all tallies to their queues: their transaction has committed. */
void
idemq_pending_counts_apply(void)
{
	uint64 xid = U64FromFullTransactionId(GetTopFullTransactionIdIfAny());

	for (int i = 0; i < ntallies; i++)
	{
		Tally *tally = &tallies[i];

		tally->slot = idemq_slot_current(tally->slot, tally->queue_id);
		if (tally->slot != NULL)
			idemq_counters_add(idemq_slot_index(tally->slot), tally->queue_id, xid, tally->delta);
	}
}

/* Drops the tallies of a subtransaction and of later ones: it has been rolled back. */
void
idemq_pending_counts_undo(SubTransactionId from)
{
	idemq_counters_cancel_count();
	while (ntallies > 0 && tallies[ntallies - 1].subid >= from)
		pop();
}

/* Forgets all, at the end of the transaction. */
void
idemq_pending_counts_forget(void)
{
	while (ntallies > 0)
		pop();
	if (max_tallies <= MAX_KEPT)
		return;
	MemoryContextReset(tally_context);
	tallies = NULL;
	max_tallies = 0;
}
