/*
 * shared/wake.c
 *		Who sleeps until there is work (CALL idemq.wait, wait_any, wait_result),
 *		and who wakes them.
 *
 * Each queue has a set of sleepers, a bit for each session, and so has each of
 * RESULT_SETS hash values of a job's id.  A sleeper sets its bit, looks whether
 * there is work, and sleeps on its latch; whoever makes work does so, then clears
 * a bit, and sets that session's latch.  Clearing is atomic: a bit is one signal
 * to one sleeper, and there are never more signals than sleepers.  One session
 * may be in the sets of many queues, which a condition variable does not allow.
 *
 * No signal is lost between the look and the sleep: the bit is set before the
 * look, the work is visible before the bits are read, with a full barrier on
 * both sides.  A signal can be lost with the session that got it.  So a sleeper
 * that leaves without having looked passes it on (api/wait.c), a claim that leaves
 * ready work behind wakes the next (api/claim.c), and the background worker signals
 * again when a queue has had no claim for UNCLAIMED_AFTER since a signal.
 *
 * Beside that, here is what the worker is told: that something became ready (a
 * number that grows, for NOTIFY) and when something comes due by time alone.
 *
 * Locks: none, atomics only.  What txn/pending.c calls after commit and abort neither
 * allocates nor raises.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "shared/slots.h"
#include "shared/wake.h"
#include "shared/worker_board.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/settings.h"

/* Sets of those who wait for a job's result: a power of two. */
#define RESULT_SETS 256
/* A queue with sleepers that nobody claims from after a signal is signalled again. */
#define UNCLAIMED_AFTER INT64CONST(100000)
#define BITS 64

static char *sets = NULL;

static int
word_count(void)
{
	return (compat_max_backends() + BITS - 1) / BITS;
}

static Size
set_size(void)
{
	return offsetof(Sleepers, bits) + mul_size(sizeof(pg_atomic_uint64), word_count());
}

/* One set for each slot, one for all queues without, and those for results. */
static int
set_count(void)
{
	return idemq_max_queues + 1 + RESULT_SETS;
}

/* Returns the bytes of shared memory for all sets. */
Size
idemq_wake_shmem_size(void)
{
	return mul_size(set_size(), set_count());
}

static Sleepers *
set_at(int index)
{
	return (Sleepers *) (sets + index * set_size());
}

/* Attaches to the sets, and makes them when this is the first process. */
void
idemq_wake_shmem_init(void *area, bool found)
{
	sets = area;
	for (int i = 0; i < set_count() && !found; i++)
	{
		pg_atomic_init_u32(&set_at(i)->count, 0);
		pg_atomic_init_u32(&set_at(i)->turn, 0);
		for (int w = 0; w < word_count(); w++)
			pg_atomic_init_u64(&set_at(i)->bits[w], 0);
	}
}

/* Returns those who wait for a queue; queues without a slot (NULL) share one set. */
Sleepers *
idemq_sleepers_of_queue(const QueueSlot *slot)
{
	return set_at(slot == NULL ? idemq_max_queues : idemq_slot_index(slot));
}

/* Returns those who wait for the result of a job, or of one with the same hash value. */
Sleepers *
idemq_sleepers_of_job(Oid database, int64 job_id)
{
	uint64 key[2] = {database, (uint64) job_id};
	uint32 hash = hash_bytes((const unsigned char *) key, sizeof(key));

	return set_at(idemq_max_queues + 1 + (hash & (RESULT_SETS - 1)));
}

/* Returns whether anybody sleeps; to be asked after the work is visible. */
bool
idemq_sleepers_any(Sleepers *sleepers)
{
	pg_memory_barrier();
	return pg_atomic_read_u32(&sleepers->count) > 0;
}

/* Sets this session's bit.  Returns false when it was set still: nobody has signalled. */
bool
idemq_sleepers_join(Sleepers *sleepers)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);
	uint64 before;

	/* First: who reads a count of 0 meets no bit that somebody sleeps on. */
	pg_atomic_fetch_add_u32(&sleepers->count, 1);
	before = pg_atomic_fetch_or_u64(&sleepers->bits[IDEMQ_MY_PROC_NUMBER / BITS], bit);
	if (before & bit)
		pg_atomic_fetch_sub_u32(&sleepers->count, 1);
	return (before & bit) == 0;
}

/* Returns whether this session's bit is set still. */
bool
idemq_sleepers_waits(Sleepers *sleepers)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);

	return (pg_atomic_read_u64(&sleepers->bits[IDEMQ_MY_PROC_NUMBER / BITS]) & bit) != 0;
}

/* Clears this session's bit.  Returns whether somebody had: a signal that was not answered. */
bool
idemq_sleepers_leave(Sleepers *sleepers)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);
	uint64 before = pg_atomic_fetch_and_u64(&sleepers->bits[IDEMQ_MY_PROC_NUMBER / BITS], ~bit);

	if (before & bit)
		pg_atomic_fetch_sub_u32(&sleepers->count, 1);
	return (before & bit) == 0;
}

/* Signals up to max of the sleepers of one word; returns how many. */
static int
wake_word(Sleepers *sleepers, int word, int max)
{
	int woken = 0;
	uint64 bits;

	while (woken < max && (bits = pg_atomic_read_u64(&sleepers->bits[word])) != 0)
	{
		int n = pg_rightmost_one_pos64(bits);
		uint64 bit = UINT64CONST(1) << n;

		if ((pg_atomic_fetch_and_u64(&sleepers->bits[word], ~bit) & bit) == 0)
			continue; /* somebody else's signal, or it left */
		pg_atomic_fetch_sub_u32(&sleepers->count, 1);
		SetLatch(&GetPGProcByNumber(word * BITS + n)->procLatch);
		woken++;
	}
	return woken;
}

/* Signals up to max sleepers; returns how many. */
int
idemq_sleepers_wake(Sleepers *sleepers, int max)
{
	int words = word_count();
	int first;
	int woken = 0;

	if (!idemq_sleepers_any(sleepers))
		return 0;
	first = (int) (pg_atomic_fetch_add_u32(&sleepers->turn, 1) % (uint32) words);
	for (int i = 0; i < words && woken < max; i++)
		woken += wake_word(sleepers, (first + i) % words, max - woken);
	return woken;
}

/* Lowers one of a slot's times, and has the worker awake by then. */
static void
lower_time(pg_atomic_uint64 *time, TimestampTz to)
{
	uint64 known = pg_atomic_read_u64(time);

	while ((uint64) to < known)
	{
		if (pg_atomic_compare_exchange_u64(time, &known, (uint64) to))
		{
			idemq_worker_need_by(idemq_mono_from_timestamp(to));
			break;
		}
	}
}

/* Notes that something comes due by time alone, for the worker's timer. */
void
idemq_wake_due_at(QueueSlot *slot, TimestampTz due)
{
	if (slot != NULL && due > 0)
		lower_time(&slot->next_due, due);
}

/* Notes that a job of the queue expires, unless it is claimed by then. */
void
idemq_wake_to_expire_at(QueueSlot *slot, int32 queue_id, TimestampTz expires_at)
{
	if (!idemq_slot_is_of(slot, queue_id))
		slot = idemq_slot_find(MyDatabaseId, queue_id);
	if (slot != NULL)
		lower_time(&slot->next_expiry, Max(expires_at, 1));
}

/* Notes a signal, for the worker to look whether a claim follows. */
static void
note_signal(QueueSlot *slot)
{
	uint64 none = 0;
	int64 now = idemq_mono_now();

	if (slot != NULL && pg_atomic_read_u64(&slot->unclaimed_at) == 0 &&
		pg_atomic_compare_exchange_u64(&slot->unclaimed_at, &none, (uint64) now))
		idemq_worker_need_by(now + UNCLAIMED_AFTER);
}

/*
 * Has those who LISTEN told, soon, that the queue has something ready.  The first
 * since the worker told wakes it; it comes by itself for those that follow, also
 * for one that it has not read any more (worker/chores.c: having told, it comes again).
 */
static void
announce(QueueSlot *slot)
{
	uint64 before;

	if (slot == NULL || !idemq_notify)
		return;
	before = pg_atomic_fetch_add_u64(&slot->announced, 1);
	if (before == pg_atomic_read_u64(&slot->notified))
		idemq_worker_need_by(idemq_mono_now() + idemq_notify_delay * INT64CONST(1000));
}

/* Has the worker look whether the queue has something ready, and tell those who LISTEN. */
static void
look_soon(QueueSlot *slot)
{
	if (idemq_notify)
		idemq_wake_due_at(slot, idemq_now() + idemq_notify_delay * INT64CONST(1000));
}

/*
 * Follows a lowering of a ready cursor by a commit: count jobs are ready, and
 * later, unless it is DT_NOEND, is when the next comes due.
 */
void
idemq_wake_ready(QueueSlot *slot, int32 queue_id, int count, TimestampTz later)
{
	if (!idemq_slot_is_of(slot, queue_id))
		slot = idemq_slot_find(MyDatabaseId, queue_id);
	if (later < DT_NOEND)
		idemq_wake_due_at(slot, later);
	if (count == 0)
		return;
	announce(slot);
	if (idemq_sleepers_wake(idemq_sleepers_of_queue(slot), count) > 0)
		note_signal(slot);
}

/*
 * As idemq_wake_ready, when nobody knows whether there is something: those who
 * LISTEN are told if the worker finds it.
 */
void
idemq_wake_perhaps(QueueSlot *slot, int32 queue_id, int count)
{
	if (!idemq_slot_is_of(slot, queue_id))
		slot = idemq_slot_find(MyDatabaseId, queue_id);
	look_soon(slot);
	if (idemq_sleepers_wake(idemq_sleepers_of_queue(slot), count) > 0)
		note_signal(slot);
}

/* Signals one sleeper again, for the background worker. */
void
idemq_wake_again(QueueSlot *slot)
{
	if (idemq_sleepers_wake(idemq_sleepers_of_queue(slot), 1) > 0)
		note_signal(slot);
}

/* Wakes all who wait for results: what they wait for may be gone. */
void
idemq_wake_for_results(void)
{
	for (int i = 0; i < RESULT_SETS; i++)
		(void) idemq_sleepers_wake(set_at(idemq_max_queues + 1 + i), PG_INT32_MAX);
}

/* Wakes all who wait for a dropped queue, or for a result of its jobs. */
void
idemq_wake_queue(QueueSlot *slot, int32 queue_id)
{
	if (!idemq_slot_is_of(slot, queue_id))
		slot = idemq_slot_find(MyDatabaseId, queue_id);
	(void) idemq_sleepers_wake(idemq_sleepers_of_queue(slot), PG_INT32_MAX);
	idemq_wake_for_results();
}

static void
wake_slot(const SlotView *view, void *arg)
{
	if (*(bool *) arg)
		look_soon(view->slot);
	(void) idemq_sleepers_wake(idemq_sleepers_of_queue(view->slot), PG_INT32_MAX);
}

/*
 * Wakes all who wait for any queue or result of a database: what they know of it
 * is old.  With ready, those who LISTEN are told as well if there is something.
 */
void
idemq_wake_database(Oid database, bool ready)
{
	idemq_for_each_slot(database, wake_slot, &ready);
	(void) idemq_sleepers_wake(idemq_sleepers_of_queue(NULL), PG_INT32_MAX);
	idemq_wake_for_results();
}

/* Notes a claim, which answers the signals so far. */
void
idemq_wake_claimed(QueueSlot *slot)
{
	if (slot != NULL && pg_atomic_read_u64(&slot->unclaimed_at) != 0)
		pg_atomic_write_u64(&slot->unclaimed_at, 0);
}

/* Wakes those who wait for the result of a job of this database, which has one now. */
void
idemq_wake_for_result(int64 job_id)
{
	(void) idemq_sleepers_wake(idemq_sleepers_of_job(MyDatabaseId, job_id), PG_INT32_MAX);
}
