/*
 * shared/waiters/wake.c
 *		Waiters: sessions that sleep until there is work (CALL idemq.wait, wait_any), until a job
 *		has a result (wait_result), or until a queue with max_unfinished has room (CALL
 *		idemq.wait_for_room); and what wakes them.
 *
 * Each queue has a set of waiters: a bit for each session, and a count that is never less than the
 * number of bits set.  So has each of RESULT_SETS hash values of a job's id.  A condition variable
 * would not do, because a session may be in the sets of many queues, and one signal must wake
 * exactly one waiter.
 *
 *		waiter							waker
 *		1 increments the count,			1 makes the job visible: its commit
 *		  sets its bit (full barrier)	2 full barrier, reads the count; 0: no one sleeps
 *		2 takes a snapshot, checks		3 clears a bit, atomically; only the session
 *		3 if its bit is still set,		  that has cleared it
 *		  sleeps						4 sets the waiter's latch
 *		4 resets its latch, then
 *		  checks its bit again
 *
 * No signal is lost between the check and the sleep.  If the waker's step 2 sees the waiter in the
 * count, it signals a waiter.  Otherwise the waiter's step 1 comes later, so the waiter's snapshot
 * is newer than the waker's commit, and the waiter finds the job.  The bit is cleared before the
 * latch is set: a waiter that resets the latch first then sees that its bit is cleared, and a
 * waiter that checks the bit first then finds the latch set.
 *		Model: test/model/wake.pml; two waiters, two wakers, one cancel.
 *
 * A cleared bit is one signal to one waiter, so n jobs clear n bits.  All waiters are woken only if
 * what they know is out of date: after a change of settings, resume, DROP, TRUNCATE, COMMIT
 * PREPARED or a result, and when the worker ends, because without a worker they check once per
 * second.
 *
 * A signal is lost if the session that gets it ends.  There are three safety nets:
 *	 - A waiter that leaves without having checked, because of an error, a cancel, a timeout or a
 *	   signal from another queue, passes the signal on (api/wait.c).
 *	 - Fewer waiters may have been signalled than there are jobs.  A claim that leaves a ready job
 *	   behind, even of a lower priority, wakes the next waiter (api/claim.c).
 *	 - A waiter may return from its wait without claiming afterwards.  The worker signals again if a
 *	   queue has had no claim for UNCLAIMED_AFTER since a signal (DUE_SIGNAL).
 *
 * If a job becomes ready only because time passes, no commit signals it.  Its enqueue lowers
 * DUE_READY, and the worker signals at that time.  A waiter also learns from its check when it must
 * check again: when the next job becomes ready, or soon if a row was locked, because the session
 * that holds the lock signals no one.
 *
 * A scan start may have been lowered although no job became ready (after an abort, or when a lease
 * entry is removed).  Then one waiter is signalled, and the worker checks the queue before it sends
 * NOTIFY.  After a commit that makes jobs ready, NOTIFY is sent without a check.  After a commit
 * that only takes a job away (cancel, commit_once, expire), it is not sent.
 *
 * Each queue also has a second set, of waiters for room, each of which announces how much room it
 * needs.  Both the wakers and the waiters that check for room hold the lock of the queue's
 * unfinished jobs. shared/counts/unfinished.c says which waiters are woken.
 *
 * Locks: none, only atomics.  Functions that are called after commit and abort neither allocate nor
 * raise errors.
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

/* Number of sets of waiters for results; a power of two. */
#define RESULT_SETS 256
/* Microseconds without a claim after which the worker signals the waiters of a queue again. */
#define UNCLAIMED_AFTER INT64CONST(100000)
#define BITS 64

static char *wake_sets = NULL;
/* How much room each session needs, by proc number; written before the session sets its bit. */
static pg_atomic_uint32 *wanted_room = NULL;

static int
word_count(void)
{
	return (MaxBackends + BITS - 1) / BITS;
}

static Size
wake_set_size(void)
{
	/* Each set has its own cache lines, because every commit in a queue reads the count. */
	return CACHELINEALIGN(offsetof(Waiters, bits) +
						  mul_size(sizeof(pg_atomic_uint64), word_count()));
}

/*
 * Sets for jobs, one per queue state; then sets for results; then sets for room, one per queue
 * state.
 */
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

static void
init_wanted_room(int tranche)
{
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&wanted_room[i], 0);
}

const ShmemPart idemq_wanted_room_part = {.area = (void **) &wanted_room,
										  .each = sizeof(pg_atomic_uint32),
										  .count = idemq_session_count,
										  .lies_in = AREA_QUEUES,
										  .init = init_wanted_room};

/* Returns the set of waiters for jobs of a queue. */
Waiters *
idemq_waiters_of_queue(const QueueState *qstate)
{
	return set_at(idemq_qstate_index(qstate));
}

/* Returns the set of waiters for the result of a job; jobs with the same hash value share a set. */
Waiters *
idemq_waiters_of_job(Oid database, int64 job_id)
{
	uint64 key[2] = {database, (uint64) job_id};
	uint32 hash = hash_bytes((const unsigned char *) key, sizeof(key));

	return set_at(idemq_max_queues + (hash & (RESULT_SETS - 1)));
}

/* Returns the set of waiters for room in the queue whose state has that index. */
Waiters *
idemq_waiters_for_room(int qstate_index)
{
	return set_at(idemq_max_queues + RESULT_SETS + qstate_index);
}

/* Returns the index of the queue state to which a set of waiters for room belongs. */
int
idemq_waiters_room_index(const Waiters *waiters)
{
	return (int) (((const char *) waiters - wake_sets) / wake_set_size()) - idemq_max_queues -
		   RESULT_SETS;
}

/* Announces how much room this session needs, before it joins a set of waiters for room. */
void
idemq_waiters_want_room(uint32 jobs)
{
	pg_atomic_write_u32(&wanted_room[IDEMQ_MY_PROC_NUMBER], jobs);
}

/* Returns whether a set contains a waiter; called after the work is visible. */
bool
idemq_waiters_any(Waiters *waiters)
{
	pg_memory_barrier();
	return pg_atomic_read_u32(&waiters->count) > 0;
}

/* Sets this session's bit.  Returns false if it was still set, so there has been no signal. */
bool
idemq_waiters_join(Waiters *waiters)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);
	uint64 before;

	IDEMQ_STOP("idemq_waiters_join");
	/* The count first, so that a waker that reads 0 does not miss a waiter that sleeps. */
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

/*
 * Clears this session's bit.  Returns whether a waker had cleared it already, which was a signal.
 */
bool
idemq_waiters_leave(Waiters *waiters)
{
	uint64 bit = UINT64CONST(1) << (IDEMQ_MY_PROC_NUMBER % BITS);
	uint64 before = pg_atomic_fetch_and_u64(&waiters->bits[IDEMQ_MY_PROC_NUMBER / BITS], ~bit);

	if (before & bit)
		pg_atomic_fetch_sub_u32(&waiters->count, 1);
	return (before & bit) == 0;
}

/*
 * Signals the waiter at a bit; returns false if another waker has signalled it, or if it has left.
 */
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
 * Signals up to max waiters of a set, of one database unless that is InvalidOid; returns how many.
 */
int
idemq_waiters_wake(Waiters *waiters, Oid database, int max)
{
	static uint32 last = 0;
	int words = word_count();
	int first;
	int woken = 0;

	if (!idemq_waiters_any(waiters))
		return 0;
	/* Begins at a different word each time, and in each session, so that waiters take turns. */
	first = (int) ((last++ + (uint32) MyProcPid) % (uint32) words);
	for (int i = 0; i < words && woken < max; i++)
	{
		int word = (first + i) % words;

		/*
		 * A word is read once.  A session that sets its bit after that sees what we signal.  If it
		 * were signalled as well, a session that finds no work could keep us here for long.
		 */
		for (uint64 bits = pg_atomic_read_u64(&waiters->bits[word]); woken < max && bits != 0;
			 bits &= bits - 1)
		{
			int n = pg_rightmost_one_pos64(bits);

			if (OidIsValid(database) && GetPGProcByNumber(word * BITS + n)->databaseId != database)
				continue;
			woken += signal_session(waiters, word, n);
		}
	}
	return woken;
}

/*
 * Signals waiters for room as long as they fit into that room together, skipping each waiter that
 * needs more than is left.  Returns how much room the signalled waiters need.  The search begins at
 * session *next and wraps around once, so that waiters take turns; otherwise, a session that soon
 * waits again could get all the room.  Sets *next to the session after the last one that was
 * signalled.
 */
int64
idemq_waiters_wake_for_room(Waiters *waiters, int64 room, int *next)
{
	int words = word_count();
	int first = *next;
	int64 left = room;

	if (!idemq_waiters_any(waiters))
		return 0;
	/*
	 * The first word is read twice: at first for the sessions from first on, at the end for the
	 * others.
	 */
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
 * Signals up to count waiters for jobs of a queue, and requests a process for the queue's handler.
 * The worker checks whether a claim follows.
 */
void
idemq_wake_again(QueueState *qstate, int count)
{
	idemq_handler_call(qstate);
	if (idemq_waiters_wake(idemq_waiters_of_queue(qstate), InvalidOid, count) > 0)
		idemq_due_in(qstate, DUE_SIGNAL, UNCLAIMED_AFTER);
}

/*
 * Called after a commit has lowered a scan start: count jobs are ready now, and the next one will
 * be ready at the time later (DT_NOEND: none).  Does nothing if the queue has no state, because
 * then it has no waiters.
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
	/* Only the first call since the worker's last NOTIFY has to set the due time. */
	if (idemq_notify)
		idemq_due_in(qstate, DUE_NOTIFY, idemq_notify_delay * INT64CONST(1000));
	idemq_wake_again(qstate, count);
}

/*
 * Like idemq_wake_ready, if it is not known whether a job is ready; the worker checks before
 * NOTIFY.
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

/*
 * Wakes the waiters for results of a database, but not those of other databases in the same sets.
 */
void
idemq_wake_for_results(Oid database)
{
	for (int i = 0; i < RESULT_SETS; i++)
		(void) idemq_waiters_wake(set_at(idemq_max_queues + i), database, PG_INT32_MAX);
}

/* Wakes all waiters for jobs of a queue, and all waiters for room in it. */
static void
wake_all_of(const QueueState *qstate)
{
	(void) idemq_waiters_wake(idemq_waiters_of_queue(qstate), InvalidOid, PG_INT32_MAX);
	(void) idemq_waiters_wake(idemq_waiters_for_room(idemq_qstate_index(qstate)), InvalidOid,
							  PG_INT32_MAX);
}

/* Wakes all waiters of a queue that was changed or dropped, and all waiters for results. */
void
idemq_wake_queue(QueueState *qstate, int32 queue_id)
{
	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate != NULL)
		wake_all_of(qstate);
	idemq_wake_for_results(MyDatabaseId);
}

/*
 * Wakes all waiters of a database, because what they know is out of date.  ready: the worker must
 * also check each queue for ready jobs, and send NOTIFY.
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
	idemq_wake_for_results(database);
}

/* Notes a claim, which answers the signals so far. */
void
idemq_wake_claimed(QueueState *qstate)
{
	if (pg_atomic_read_u64(&qstate->due[DUE_SIGNAL]) != DUE_NEVER)
		pg_atomic_write_u64(&qstate->due[DUE_SIGNAL], DUE_NEVER);
}

/* Wakes the waiters for the result of a job of this database, because it has one now. */
void
idemq_wake_for_result(int64 job_id)
{
	IDEMQ_STOP("idemq_wake_for_result");
	(void) idemq_waiters_wake(idemq_waiters_of_job(MyDatabaseId, job_id), InvalidOid, PG_INT32_MAX);
}
