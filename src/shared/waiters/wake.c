/*
 * shared/waiters/wake.c
 *		The sessions that sleep until there is work (CALL idemq.wait, wait_any,
 *		wait_result) or until a queue with max_unfinished has room
 *		(CALL idemq.wait_for_room), and what wakes them.
 *
 * Each queue has a set of waiters, a bit for each session, and a count that is never
 * less than the bits set; so has each of RESULT_SETS hash values of a job's id.  A
 * condition variable would not do: one session may be in the sets of many queues, and one
 * signal must reach one waiter.
 *
 *		waiter							waker
 *		1 counts itself, sets its bit	1 makes the job visible: its commit
 *		  (full barrier)				2 full barrier, reads the count; 0: none sleeps
 *		2 takes a snapshot, checks		3 clears a bit, atomically; the one that
 *		3 bit still set: sleeps			  clears it, and no other,
 *		4 resets its latch, checks		4 sets that session's latch
 *		  its bit again
 *
 * No signal is lost between check and sleep: if the waker's 2 sees the count, it signals
 * a waiter.  If not, the waiter's 1 comes after it, so the waiter's snapshot is newer
 * than the waker's commit, and finds the job.  The bit is cleared before the latch is
 * set: a waiter that resets the latch first sees the bit cleared, and one that checks
 * the bit first finds the latch set.
 *		Model: test/model/wake.pml; two waiters, two wakers, one cancel.
 *
 * A bit is one signal to one waiter: n jobs clear n bits.  All waiters are woken only
 * where what they know is old: settings, resume, DROP, TRUNCATE, COMMIT PREPARED, a result,
 * and the worker's end, since without a worker they check once a second.
 *
 * A signal can be lost with the session that got it.  There are three nets:
 *	 - A waiter that leaves without having checked, by an error, a cancel, a timeout or
 *	   another queue's signal, passes the signal on (api/wait.c).
 *	 - Fewer waiters were signalled than there are jobs: a claim that leaves something
 *	   due behind wakes the next, of lower priorities too (api/claim.c).
 *	 - A waiter returned, and its client never claims: the worker signals again when a
 *	   queue has had no claim for UNCLAIMED_AFTER since a signal (DUE_SIGNAL).
 *
 * What comes due by time alone has no commit that signals.  Its enqueue lowers DUE_READY,
 * and the worker signals at that time.  A waiter also knows from its check when to check
 * again: at the next due time, or soon if a row was held, whose holder signals nobody.
 *
 * A lowering that may mean nothing (after an abort, by a drop of a lease entry) signals a
 * waiter, and has the worker check the queue before it notifies those who LISTEN.  A
 * commit that makes jobs ready is announced for NOTIFY without a check; one that only takes
 * a job away (cancel, commit_once, expire) announces nothing.
 *
 * Each queue has a second set, of waiters for room, and each of these says how much room it needs.
 * Both the wakers and the waiters that check for room hold the lock of the queue's unfinished jobs.
 * shared/counts/unfinished.c says which waiters are woken.
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

#include "base/base.h"
#include "base/compat.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/* Sets of the sessions that wait for a job's result: a power of two. */
#define RESULT_SETS 256
/* A queue whose waiters got a signal, but that has had no claim for so long, gets another. */
#define UNCLAIMED_AFTER INT64CONST(100000)
#define BITS 64

static char *wake_sets = NULL;
/* How much room each session needs, by session number; written before the session sets its bit. */
static pg_atomic_uint32 *wanted_room = NULL;

static int
word_count(void)
{
	return (MaxBackends + BITS - 1) / BITS;
}

static Size
wake_set_size(void)
{
	/* A set has cache lines of its own: every commit in a queue reads its count. */
	return CACHELINEALIGN(offsetof(Waiters, bits) +
						  mul_size(sizeof(pg_atomic_uint64), word_count()));
}

/* Each queue state has a set for jobs, before the sets for results, and a set for room, after them. */
static int
set_count(void)
{
	return 2 * idemq_max_queues + RESULT_SETS;
}

static int
wake_line_count(void)
{
	return set_count() * (int) (wake_set_size() / PG_CACHE_LINE_SIZE);
}

static Waiters *
set_at(int index)
{
	return (Waiters *) (wake_sets + index * wake_set_size());
}

static void
wake_init_sets(int tranche)
{
	for (int i = 0; i < set_count(); i++)
	{
		pg_atomic_init_u32(&set_at(i)->count, 0);
		for (int w = 0; w < word_count(); w++)
			pg_atomic_init_u64(&set_at(i)->bits[w], 0);
	}
}

const ShmemPart idemq_wake_part = {.area = (void **) &wake_sets,
								   .each = PG_CACHE_LINE_SIZE,
								   .count = wake_line_count,
								   .lies_in = AREA_QUEUES,
								   .init = wake_init_sets};

static int
session_count(void)
{
	return MaxBackends;
}

static void
init_wanted_room(int tranche)
{
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&wanted_room[i], 0);
}

const ShmemPart idemq_wanted_room_part = {.area = (void **) &wanted_room,
										  .each = sizeof(pg_atomic_uint32),
										  .count = session_count,
										  .lies_in = AREA_QUEUES,
										  .init = init_wanted_room};

/* Returns the set of waiters of the queue that has a queue state. */
Waiters *
idemq_waiters_of_queue(const QueueState *qstate)
{
	return set_at(idemq_qstate_index(qstate));
}

/* Returns the set of waiters for a job's result, which jobs with the same hash value share. */
Waiters *
idemq_waiters_of_job(Oid database, int64 job_id)
{
	uint64 key[2] = {database, (uint64) job_id};
	uint32 hash = hash_bytes((const unsigned char *) key, sizeof(key));

	return set_at(idemq_max_queues + (hash & (RESULT_SETS - 1)));
}

/* Returns the set of waiters for room in the queue of a queue state. */
Waiters *
idemq_waiters_for_room(int qstate_index)
{
	return set_at(idemq_max_queues + RESULT_SETS + qstate_index);
}

/* Returns the index of the queue state that has a set of waiters for room. */
int
idemq_waiters_room_index(const Waiters *waiters)
{
	return (int) (((const char *) waiters - wake_sets) / wake_set_size()) - idemq_max_queues -
		   RESULT_SETS;
}

/* Says how much room this session needs.  Must be called before it joins a set of waiters for room. */
void
idemq_waiters_want_room(uint32 jobs)
{
	pg_atomic_write_u32(&wanted_room[IDEMQ_MY_PROC_NUMBER], jobs);
}

/* Returns whether a session sleeps; to be called after the work is visible. */
bool
idemq_waiters_any(Waiters *waiters)
{
	pg_memory_barrier();
	return pg_atomic_read_u32(&waiters->count) > 0;
}

/* Sets this session's bit.  Returns false when it was still set: there was no signal. */
bool
idemq_waiters_join(Waiters *waiters)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);
	uint64 before;

	IDEMQ_STOP("idemq_waiters_join");
	/* First: a waker that reads a count of 0 misses no bit on which a session sleeps. */
	pg_atomic_fetch_add_u32(&waiters->count, 1);
	before = pg_atomic_fetch_or_u64(&waiters->bits[IDEMQ_MY_PROC_NUMBER / BITS], bit);
	if (before & bit)
		pg_atomic_fetch_sub_u32(&waiters->count, 1);
	return (before & bit) == 0;
}

/* Returns whether this session's bit is still set. */
bool
idemq_waiters_waits(Waiters *waiters)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);

	return (pg_atomic_read_u64(&waiters->bits[IDEMQ_MY_PROC_NUMBER / BITS]) & bit) != 0;
}

/* Clears this session's bit.  Returns whether a waker had: a signal that was not answered. */
bool
idemq_waiters_leave(Waiters *waiters)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);
	uint64 before = pg_atomic_fetch_and_u64(&waiters->bits[IDEMQ_MY_PROC_NUMBER / BITS], ~bit);

	if (before & bit)
		pg_atomic_fetch_sub_u32(&waiters->count, 1);
	return (before & bit) == 0;
}

/* Signals a session; returns false if another waker has signalled it, or if it has left. */
static bool
signal_session(Waiters *waiters, int word, int n)
{
	uint64 bit = UINT64CONST(1) << n;

	if ((pg_atomic_fetch_and_u64(&waiters->bits[word], ~bit) & bit) == 0)
		return false;
	pg_atomic_fetch_sub_u32(&waiters->count, 1);
	SetLatch(&GetPGProcByNumber(word * BITS + n)->procLatch);
	return true;
}

/*
 * Signals up to max of the waiters of one word; of one database, unless that is InvalidOid.
 * Returns how many.  Each is signalled once: a session that sets its bit from here on sees what
 * we tell of, and would keep us here as long as it finds nothing.
 */
static int
wake_word(Waiters *waiters, int word, Oid database, int max)
{
	int woken = 0;
	uint64 bits = pg_atomic_read_u64(&waiters->bits[word]);

	for (; woken < max && bits != 0; bits &= bits - 1)
	{
		int n = pg_rightmost_one_pos64(bits);

		if (OidIsValid(database) && GetPGProcByNumber(word * BITS + n)->databaseId != database)
			continue;
		woken += signal_session(waiters, word, n);
	}
	return woken;
}

static int
wake_some(Waiters *waiters, Oid database, int max)
{
	static uint32 last = 0;
	int words = word_count();
	int first;
	int woken = 0;

	if (!idemq_waiters_any(waiters))
		return 0;
	/* No word is always the first: each waker begins at another, and at the next one each time. */
	first = (int) ((last++ + (uint32) MyProcPid) % (uint32) words);
	for (int i = 0; i < words && woken < max; i++)
		woken += wake_word(waiters, (first + i) % words, database, max - woken);
	return woken;
}

/* Signals up to max waiters; returns how many. */
int
idemq_waiters_wake(Waiters *waiters, int max)
{
	return wake_some(waiters, InvalidOid, max);
}

/*
 * Signals waiters that together need no more than that room, skipping each one that needs more than is
 * left.  Returns how much room the signalled waiters need.  The search begins at session *next and
 * wraps around once, so that waiters take turns.  Otherwise, a session that soon waits again could get
 * all the room.  Sets *next to the session after the last one that was signalled.
 */
int64
idemq_waiters_wake_for_room(Waiters *waiters, int64 room, int *next)
{
	int words = word_count();
	int first = *next;
	int64 left = room;

	if (!idemq_waiters_any(waiters))
		return 0;
	/* The first word is read twice: first for the sessions from first on, at the end for those below. */
	for (int i = 0; i <= words && left > 0; i++)
	{
		int word = (first / BITS + i) % words;
		uint64 from_first = ~UINT64CONST(0) << (first % BITS);
		uint64 bits = pg_atomic_read_u64(&waiters->bits[word]);

		if (i == 0)
			bits &= from_first;
		else if (i == words)
			bits &= ~from_first;
		for (; left > 0 && bits != 0; bits &= bits - 1)
		{
			int n = pg_rightmost_one_pos64(bits);
			int64 wanted = pg_atomic_read_u32(&wanted_room[word * BITS + n]);

			if (wanted > left || !signal_session(waiters, word, n))
				continue;
			left -= wanted;
			*next = (word * BITS + n + 1) % (words * BITS);
		}
	}
	return room - left;
}

/*
 * Signals up to count waiters, and asks for a process of the queue's handler; the worker checks
 * whether a claim follows.
 */
void
idemq_wake_again(QueueState *qstate, int count)
{
	idemq_handler_call(qstate);
	if (idemq_waiters_wake(idemq_waiters_of_queue(qstate), count) > 0)
		idemq_due_in(qstate, DUE_SIGNAL, UNCLAIMED_AFTER);
}

/*
 * To be called after a commit has lowered a scan start: count jobs are ready, and later, unless
 * it is DT_NOEND, is when the next comes due.  A queue that has no state has no waiters.
 */
void
idemq_wake_ready(QueueState *qstate, int32 queue_id, int count, TimestampTz later)
{
	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate == NULL)
		return;
	idemq_due_by(qstate, DUE_READY, later);
	if (count == 0)
		return;
	/*
	 * Those who LISTEN are notified, soon.  The first call since the worker's last NOTIFY wakes
	 * it, or comes while it is awake.
	 */
	if (idemq_notify)
		idemq_due_in(qstate, DUE_NOTIFY, idemq_notify_delay * INT64CONST(1000));
	idemq_wake_again(qstate, count);
}

/*
 * As idemq_wake_ready, when it is not known whether something is ready: those who
 * LISTEN are notified if the worker finds it.
 */
void
idemq_wake_if_ready(QueueState *qstate, int32 queue_id, int count)
{
	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate == NULL)
		return;
	if (idemq_notify)
		idemq_due_by(qstate, DUE_READY, idemq_now() + idemq_notify_delay * INT64CONST(1000));
	idemq_wake_again(qstate, count);
}

/* Wakes a database's waiters for results; those of others share the sets, and are not woken. */
static void
wake_result_waiters(Oid database)
{
	for (int i = 0; i < RESULT_SETS; i++)
		(void) wake_some(set_at(idemq_max_queues + i), database, PG_INT32_MAX);
}

/* Wakes all waiters of this database for results: what they wait for may be gone. */
void
idemq_wake_for_results(void)
{
	wake_result_waiters(MyDatabaseId);
}

/* Wakes all sessions that wait for jobs of a queue or for room in it. */
static void
wake_all_of(const QueueState *qstate)
{
	(void) idemq_waiters_wake(idemq_waiters_of_queue(qstate), PG_INT32_MAX);
	(void) idemq_waiters_wake(idemq_waiters_for_room(idemq_qstate_index(qstate)), PG_INT32_MAX);
}

/* Wakes all waiters of a queue that was changed or dropped, and this database's for results. */
void
idemq_wake_queue(QueueState *qstate, int32 queue_id)
{
	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate != NULL)
		wake_all_of(qstate);
	idemq_wake_for_results();
}

/*
 * Wakes all waiters for any queue or result of a database: what they know of it is
 * old.  With ready, the worker also looks at each queue, and notifies those who LISTEN if
 * something is ready.
 */
void
idemq_wake_database(Oid database, bool ready)
{
	QueueStateView view = {0};

	while (idemq_qstate_next(database, &view))
	{
		if (ready)
			idemq_due_by(view.qstate, DUE_READY,
						 idemq_now() + idemq_notify_delay * INT64CONST(1000));
		idemq_due_by(view.qstate, DUE_HANDLER, 0);
		wake_all_of(view.qstate);
	}
	wake_result_waiters(database);
}

/* Notes a claim: it answers the signals so far. */
void
idemq_wake_claimed(QueueState *qstate)
{
	if (pg_atomic_read_u64(&qstate->due[DUE_SIGNAL]) != DUE_NEVER)
		pg_atomic_write_u64(&qstate->due[DUE_SIGNAL], DUE_NEVER);
}

/* Wakes the waiters for the result of a job of this database: it has one now. */
void
idemq_wake_for_result(int64 job_id)
{
	IDEMQ_STOP("idemq_wake_for_result");
	(void) idemq_waiters_wake(idemq_waiters_of_job(MyDatabaseId, job_id), PG_INT32_MAX);
}
