/*
 * shared/processes/worker_call.c
 *		How a session wakes the background worker of its database, and how the worker learns which
 *		queues to visit.
 *
 * The worker remembers when each queue of its database is next due, as of its last visit
 * (worker/tasks.c).  A session that makes something due earlier first records it (due_times.c, or
 * a ring of events), then marks the queue, then wakes the worker if necessary.  The worker takes
 * the marks and visits these queues.
 *
 * Waking: no call is lost.  asleep_until is the time until which the worker sleeps, or "never" (the
 * greatest value) while it is awake.
 *
 *		session							worker
 *		1 records work for time t		1 asleep_until = never (idemq_worker_awake)
 *		2 marks the queue				2 full barrier
 *		3 full barrier					3 takes the marks, looks what is due
 *		4 reads asleep_until			4 asleep_until = until (idemq_worker_asleep)
 *		5 if it is later than t,		5 sleeps on its latch
 *		  sets the latch
 *
 * If the session reads "never" or a time later than t, it sets the latch, so the worker does not
 * sleep, or wakes up.  If it reads a time that is not later than t, the worker wakes up by itself
 * in time, and then takes the mark.  If the worker had already been awake at that moment, one of
 * the two would have seen what the other wrote before its barrier.  Therefore a busy queue whose
 * deadlines are all later than the first one does not wake the worker for each claim.
 *
 * Marks: a set of marks has one bit for each queue, one bit for each word of these bits, and one
 * number for "all queues".  The session sets the bit of the queue, and then, after another full
 * barrier, the bit of the word, unless they are set already.  The worker first clears the bit of
 * the word, then the bits in the word (each a full barrier), then reads the due times.  No mark is
 * lost:
 *	 - If the session sets both bits, the worker takes them afterwards, and reads the due time.
 *	 - If the session finds the bit of the queue already set, the worker clears it later, after the
 *	   session has recorded its work, and so sees that work.
 *	 - The session checks the bit of the word itself, because another session that has set the bit
 *	   of the queue may not have reached the word yet.
 *
 * A worker that starts, or starts over, visits all queues.  If a database has no worker slot when
 * the session looks, no worker of the database has visited anything yet: either the session sees
 * the worker slot, or the worker's first visit sees what the session recorded.  A worker slot may
 * also have passed to another database.  Then that database's worker wakes up or finds a bit for
 * nothing, while the right worker has just started, and visits everything.
 *
 * Progress: an awake worker records the time at which it begins each piece of work (beat).  A
 * sleeping worker should wake up at the time that it announced, or when it is called.  The first
 * caller replaces asleep_until with the time of the call and the bit WORKER_CALLED, by
 * compare-and-swap, and then sets the latch.  With this bit, the value is later than every t; and
 * if the worker has woken up in between and sleeps again, the latch wakes it once more.  A worker
 * that has made no progress for IDEMQ_STUCK_AFTER counts as absent: it is stopped, or busy with one
 * long piece of work.  No process monitors it; idemq_worker_present checks when it is asked.
 *		Model: test/model/worker.pml, with due_times.c; the worker, three sessions, two queues, one
 *		task that fails.
 *
 * Locks: none, only atomics.  These functions are called after commit and abort, and under other
 * locks, so they neither allocate nor raise errors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "base/base.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

#define BITS 64

/* A set of marks for each worker slot: "all", the bits of words, the bits of queues. */
static char *mark_sets = NULL;

static int
queue_words(void)
{
	return (idemq_max_queues + BITS - 1) / BITS;
}

static int
word_words(void)
{
	return (queue_words() + BITS - 1) / BITS;
}

static Size
mark_set_size(void)
{
	return CACHELINEALIGN(mul_size(sizeof(pg_atomic_uint64), 1 + word_words() + queue_words()));
}

static pg_atomic_uint64 *
marks_of(int worker)
{
	return (pg_atomic_uint64 *) (mark_sets + worker * mark_set_size());
}

static int
mark_line_count(void)
{
	return idemq_workers_max() * (int) (mark_set_size() / PG_CACHE_LINE_SIZE);
}

static void
init_queue_marks(int tranche)
{
	for (int worker = 0; worker < idemq_workers_max(); worker++)
	{
		for (int i = 0; i < 1 + word_words() + queue_words(); i++)
			pg_atomic_init_u64(&marks_of(worker)[i], 0);
	}
}

const ShmemPart idemq_worker_marks_part = {.area = (void **) &mark_sets,
										   .each = PG_CACHE_LINE_SIZE,
										   .count = mark_line_count,
										   .lies_in = AREA_WORKERS,
										   .init = init_queue_marks};

/*
 * Returns whether a worker runs in this database and has made progress lately, as far as can be
 * seen without a lock.
 */
bool
idemq_worker_present(void)
{
	WorkerSlot *worker = idemq_worker_here();

	return worker != NULL && worker->state == WORKER_RUNNING &&
		   idemq_mono_now() - idemq_worker_still_since(worker) < IDEMQ_STUCK_AFTER;
}

/*
 * Makes sure that this database's worker is awake at a time (mono), for work that belongs to no
 * queue.  Does nothing without a worker.
 */
void
idemq_worker_need_by(int64 mono)
{
	WorkerSlot *worker = idemq_worker_here();
	int32 proc;
	uint64 until;

	if (worker == NULL || worker == idemq_worker_self())
		return; /* a worker looks again before it sleeps */
	proc = worker->proc;
	/* After what our caller has written. */
	pg_memory_barrier();
	until = pg_atomic_read_u64(&worker->asleep_until);
	if ((uint64) Max(mono, 0) >= until || proc < 0)
		return;
	/* An overdue worker has made no progress since it should have woken up, not since this call. */
	if (until < WORKER_CALLED)
		(void) pg_atomic_compare_exchange_u64(&worker->asleep_until, &until,
											  WORKER_CALLED |
												  Min(until, (uint64) idemq_mono_now()));
	SetLatch(&GetPGProcByNumber(proc)->procLatch);
}

static void
ensure_bit(pg_atomic_uint64 *words, int bit)
{
	uint64 mask = UINT64CONST(1) << (bit % BITS);

	if ((pg_atomic_read_u64(&words[bit / BITS]) & mask) == 0)
		(void) pg_atomic_fetch_or_u64(&words[bit / BITS], mask);
}

/* Marks the queue whose state has that index.  The caller then calls idemq_worker_need_by. */
void
idemq_worker_mark_queue(int qstate_index)
{
	WorkerSlot *worker = idemq_worker_here();
	pg_atomic_uint64 *set;

	if (worker == NULL)
		return;
	set = marks_of(idemq_worker_index(worker));
	pg_memory_barrier();
	ensure_bit(set + 1 + word_words(), qstate_index);
	pg_memory_barrier();
	ensure_bit(set + 1, qstate_index / BITS);
}

/* Like idemq_worker_need_by, for work that belongs to a queue of this database. */
void
idemq_worker_need_for_queue(const QueueState *qstate, int64 mono)
{
	idemq_worker_mark_queue(idemq_qstate_index(qstate));
	idemq_worker_need_by(mono);
}

/* Makes this database's worker visit all queues at once. */
void
idemq_worker_need_all(void)
{
	WorkerSlot *worker = idemq_worker_here();

	if (worker != NULL)
		(void) pg_atomic_exchange_u64(marks_of(idemq_worker_index(worker)), 1);
	idemq_worker_need_by(0);
}

/*
 * Takes the marks of this worker, and calls a function, which must not raise errors, for each
 * marked queue.  Returns whether all queues of the database must be visited in addition.
 */
bool
idemq_worker_take_marks(void (*function)(int qstate_index))
{
	pg_atomic_uint64 *set = marks_of(idemq_worker_index(idemq_worker_self()));
	pg_atomic_uint64 *queues = set + 1 + word_words();

	for (int w = 0; w < word_words(); w++)
	{
		uint64 words = 0;

		if (pg_atomic_read_u64(&set[1 + w]) != 0)
			words = pg_atomic_exchange_u64(&set[1 + w], 0);
		for (; words != 0; words &= words - 1)
		{
			int word = w * BITS + pg_rightmost_one_pos64(words);
			uint64 bits = pg_atomic_exchange_u64(&queues[word], 0);

			for (; bits != 0; bits &= bits - 1)
				function(word * BITS + pg_rightmost_one_pos64(bits));
		}
	}
	return pg_atomic_read_u64(set) != 0 && pg_atomic_exchange_u64(set, 0) != 0;
}

/* Tells this database's worker that schedules have changed; called after the commit. */
void
idemq_worker_note_schedules(void)
{
	WorkerSlot *worker = idemq_worker_here();

	if (worker == NULL)
		return; /* a worker that starts reads the schedules */
	(void) pg_atomic_fetch_or_u32(&worker->asked, WORKER_ASKED_SCHEDULES);
	idemq_worker_need_by(0);
}

/*
 * Tells this database's worker that something has been counted for the current row of the history;
 * called after the commit, and after it has been counted.
 */
void
idemq_worker_note_counts(void)
{
	WorkerSlot *worker = idemq_worker_here();

	if (worker == NULL || !idemq_history)
		return;
	pg_memory_barrier();
	if ((pg_atomic_read_u32(&worker->asked) & WORKER_ASKED_HISTORY) != 0)
		return; /* the worker has not read the counters yet */
	if (unlikely(idemq_test_clock))
		pg_atomic_write_u64(&worker->counted_at, (uint64) idemq_now());
	(void) pg_atomic_fetch_or_u32(&worker->asked, WORKER_ASKED_HISTORY);
	idemq_worker_need_by(idemq_mono_now() + IDEMQ_HISTORY_STEP);
}

/* Returns whether this worker has been asked for something (WORKER_ASKED_...); take: clears it. */
bool
idemq_worker_is_asked(uint32 what, bool take)
{
	pg_atomic_uint32 *asked = &idemq_worker_self()->asked;
	uint32 were = take ? pg_atomic_fetch_and_u32(asked, ~what) : pg_atomic_read_u32(asked);

	return (were & what) != 0;
}

/*
 * Announces that this worker is awake, before it looks for work: from now on, every call wakes it.
 */
void
idemq_worker_awake(void)
{
	idemq_worker_beats();
	pg_write_barrier();
	pg_atomic_write_u64(&idemq_worker_self()->asleep_until, PG_UINT64_MAX);
	pg_memory_barrier();
}

/* Announces that this worker begins another piece of work. */
void
idemq_worker_beats(void)
{
	pg_atomic_write_u64(&idemq_worker_self()->beat, (uint64) idemq_mono_now());
}

/* Announces until when (mono) this worker will sleep, before it waits on its latch. */
void
idemq_worker_asleep(int64 until)
{
	pg_atomic_write_u64(&idemq_worker_self()->asleep_until, (uint64) Max(until, 0));
}
