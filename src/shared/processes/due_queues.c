/*
 * shared/processes/due_queues.c
 *		The queues whose times have changed, for the background worker of a database: so it
 *		visits those, and not all queues of the server.
 *
 * The worker remembers when each queue of its database comes due, as of its last visit
 * (worker/tasks.c).  A session that lowers a time of a queue, or gives it something to do,
 * marks the queue in the set of its database's worker slot; the worker takes the marks,
 * and visits these queues again.  A set is a bit for each queue, a bit for each word of those,
 * and one number for "all".
 *
 *		session							worker
 *		1 writes the time				1 clears a bit of a word
 *		2 full barrier					2 clears the word's bits (each a full barrier)
 *		3 sets the queue's bit,			3 reads the times of these queues
 *		  unless it is set
 *		4 sets its word's bit,
 *		  unless it is set
 *		5 calls the worker (shared/waiters/waiters.h)
 *
 * No time is lost.  If the session sets both bits, the worker takes them after that, and
 * reads the time.  If it finds the queue's bit set, the worker clears it after the session's
 * 2, and reads the time after that.  So it is with the word's bit, which the session ensures
 * by itself: another session that set the queue's bit may not have come to the word's yet.  By
 * the session's 5 the worker is awake in time to take the marks, for it takes them between
 * saying that it is awake and saying that it is asleep.
 *
 * A worker that starts, or begins anew, visits all queues of its database.  A database that
 * has no worker slot when the session looks has no worker that has visited anything yet: either
 * the session sees the worker slot, or that visit, later, sees what the session wrote.  A worker slot
 * may become another database's meanwhile: then a bit is set for nothing, and the worker
 * finds that the queue is another database's.
 *		Model: test/model/worker.pml, with due_times.c and worker_call.c.
 *
 * Locks: none, atomics only.  Marking neither allocates nor raises.
 */
#include "postgres.h"

#include "port/atomics.h"
#include "port/pg_bitutils.h"

#include "base/base.h"
#include "shared/processes/processes.h"

#define BITS 64

static char *due_queues_sets = NULL;

/* The words of a set: "all", the bits of words, the bits of queues. */
static int
qstate_words(void)
{
	return (idemq_max_queues + BITS - 1) / BITS;
}

static int
word_words(void)
{
	return (qstate_words() + BITS - 1) / BITS;
}

static Size
due_queues_set_size(void)
{
	return CACHELINEALIGN(mul_size(sizeof(pg_atomic_uint64), 1 + word_words() + qstate_words()));
}

static pg_atomic_uint64 *
set_of(int worker)
{
	return (pg_atomic_uint64 *) (due_queues_sets + worker * due_queues_set_size());
}

static int
due_queues_line_count(void)
{
	return idemq_workers_max() * (int) (due_queues_set_size() / PG_CACHE_LINE_SIZE);
}

static void
due_queues_init_sets(int tranche)
{
	for (int worker = 0; worker < idemq_workers_max(); worker++)
	{
		for (int i = 0; i < 1 + word_words() + qstate_words(); i++)
			pg_atomic_init_u64(&set_of(worker)[i], 0);
	}
}

const ShmemPart idemq_due_queues_part = {.area = (void **) &due_queues_sets,
										 .each = PG_CACHE_LINE_SIZE,
										 .count = due_queues_line_count,
										 .lies_in = AREA_WORKERS,
										 .init = due_queues_init_sets};

static void
ensure_bit(pg_atomic_uint64 *words, int bit)
{
	uint64 mask = UINT64CONST(1) << (bit % BITS);

	if ((pg_atomic_read_u64(&words[bit / BITS]) & mask) == 0)
		(void) pg_atomic_fetch_or_u64(&words[bit / BITS], mask);
}

/* Marks a queue; to be called after its time was written. */
void
idemq_due_queues_mark(int worker, int qstate_index)
{
	pg_atomic_uint64 *set = set_of(worker);

	pg_memory_barrier();
	ensure_bit(set + 1 + word_words(), qstate_index);
	pg_memory_barrier();
	ensure_bit(set + 1, qstate_index / BITS);
}

/* Marks all queues of a database. */
void
idemq_due_queues_mark_all(int worker)
{
	(void) pg_atomic_exchange_u64(set_of(worker), 1);
}

/*
 * Takes the marks of a worker slot, and calls a function, which must not raise, for each queue.
 * Returns whether all queues of the database are to be visited beside these.
 */
bool
idemq_due_queues_take(int worker, void (*function)(int qstate_index, void *arg), void *arg)
{
	pg_atomic_uint64 *set = set_of(worker);
	pg_atomic_uint64 *qstates = set + 1 + word_words();

	for (int w = 0; w < word_words(); w++)
	{
		uint64 words = 0;

		if (pg_atomic_read_u64(&set[1 + w]) != 0)
			words = pg_atomic_exchange_u64(&set[1 + w], 0);
		for (; words != 0; words &= words - 1)
		{
			int word = w * BITS + pg_rightmost_one_pos64(words);
			uint64 bits = pg_atomic_exchange_u64(&qstates[word], 0);

			for (; bits != 0; bits &= bits - 1)
				function(word * BITS + pg_rightmost_one_pos64(bits), arg);
		}
	}
	return pg_atomic_read_u64(set) != 0 && pg_atomic_exchange_u64(set, 0) != 0;
}
