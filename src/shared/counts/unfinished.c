/*
 * shared/counts/unfinished.c
 *		The number of unfinished jobs of a queue with max_unfinished, including those that open
 *		transactions have added.
 *
 * An enqueue takes room before it writes its row, and its transaction keeps the room until it ends.
 * One lock protects two numbers: jobs, the number of committed unfinished jobs, and taken, the room
 * of all open transactions.  An enqueue can take room only if jobs + taken stays within the limit.
 *
 * Let U be the number of committed unfinished jobs, as any latest snapshot shows them, and A(T) the
 * number of unfinished jobs that an open transaction T has added, less those that it has ended.
 * The limit holds for U plus every A(T) above 0, because jobs + taken is never below that sum:
 *	 - T enqueues only if A(T), including the new job, is at most the room that T has taken.  So a
 *	   transaction may use the room of jobs that it ends itself (txn/pending_queues.c).
 *	 - For T's other new jobs, which are never refused (redrive, dead-letter records, rows written
 *	   with SQL), T takes room without asking, before its commit begins.
 *	 - After T's commit is visible, jobs changes by A(T) and taken falls by T's room, in one step.
 *	   Until then the sum is too high, never too low.
 *	 - A rollback, even to a savepoint, gives back the room that was taken since then.  A(T) and T's
 *	   room are then what they were at the savepoint.
 *
 * jobs is known after a session has counted the rows under a snapshot S.  The first session that
 * asks for room does this.  From then on
 *
 *		jobs = unfinished jobs that S saw + A(T) of every T that has committed and that S did not
 *		see
 *
 * as for the gauges (shared/counts/counters.c), and for the same reasons:
 *	 - S is taken while the lock is held exclusively, so it sees every T that has changed jobs
 *	   before.
 *	 - A T that commits later checks whether S saw it; S is published here for this purpose.  If S
 *	   saw it, its rows are already counted, and T only gives its room back.
 *	 - S does not show the changes of the counting transaction itself
 *	   (idemq_unfinished_begin_count).  They are in its A(T), and S is published as not having seen
 *	   that transaction.
 *	 - A T that commits reads is_counted without the lock.  If is_counted is not set yet, T is
 *	   already visible, so S, which is taken after is_counted is set, sees it.
 * COMMIT PREPARED, and anything else that changes rows without noting them, makes jobs unknown and
 * a count that is under way void, so the next enqueue counts again.  taken does not change.  (A
 * transaction that has taken room cannot be prepared: txn/pending.c.)
 *
 * A count reads at most one entry beyond the limit.  If it reads that many, jobs is a lower bound,
 * and enqueues are refused.  When the bound falls below the limit, the rows are counted again, up
 * to twice as many.
 *
 * Waiters for room (CALL idemq.wait_for_room) have a set in shared/waiters/wake.c.  A waiter sets
 * its bit, asks whether there is room (idemq_room_peek), and sleeps if there is not.  A session
 * that lowers jobs + taken wakes waiters before it releases the lock.  It wakes those that ask for
 * no more than the room that is neither used nor promised, and promises it to them.  Both sides
 * hold the lock, so either the waiter sees the room, or the waker sees the bit.  When an enqueue by
 * any session takes room, the promised room falls by the same amount.  Therefore no more waiters
 * are woken than there is room for, and no waiter sleeps while there is room for it, unless the
 * room is promised to a session that does not use it.  The worker takes such a promise back after
 * ROOM_UNUSED_AFTER, and wakes other waiters (DUE_ROOM).  The limit that is compared is the one
 * that the last waiter has read.  When the limit changes, all waiters are woken and ask again.  All
 * waiters are also woken when jobs becomes unknown, because one of them must count.
 *
 * A queue state can pass to another queue.  Its lives are therefore numbered, and room that was
 * taken in one life is not given back in another.
 *
 * A transaction that wrote jobs before the limit was set has not asked for room.  The limit holds
 * from the first enqueue that asks; the jobs of such a transaction are treated as if they had been
 * committed before that.
 *
 * Locks: see README.md, level 4.  Everything except is_counted and the condition variable is
 * protected by the lock of its queue.  PostgreSQL's ProcArrayLock and XidGenLock are taken while
 * that lock is held.  Functions that are called after commit and abort neither allocate nor raise.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

typedef enum CountState
{
	COUNT_UNKNOWN,	 /* the rows have not been counted; jobs is meaningless */
	COUNT_UNDER_WAY, /* jobs is the change since S */
	COUNT_KNOWN
} CountState;

#define NO_COUNTER (-1)
/* Microseconds after which room that was promised to a waiter, and not taken, is offered again. */
#define ROOM_UNUSED_AFTER INT64CONST(100000)

/* What is counted of a queue.  Starts on a new cache line, because it has a lock. */
typedef struct Unfinished
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLock lock;
	pg_atomic_uint32 is_counted; /* a count has begun in this life; read without the lock */
	QueueStateKey key;			 /* database InvalidOid: belongs to no queue */
	uint32 life;				 /* of the queue state */
	CountState state;
	bool is_bound; /* jobs is a lower bound */
	bool is_void;  /* during the current count, rows were changed without being noted */
	int32 counter; /* the session that counts; NO_COUNTER: none */
	int64 bound;   /* maximum number of entries that the last count read; 0: it was exact */
	int64 jobs;
	int64 taken;
	int64 promised;			/* room that waiters were woken for, and that has not been taken yet */
	int64 limit;			/* as the last waiter has read it */
	int next_waiter;		/* session at which the search for the next waiter begins */
	CountSnapshot snapshot; /* S; the transactions that were open are in open_xids */
	ConditionVariable counted;
} Unfinished;

static Unfinished *unfinished_queues = NULL;
static char *open_xids = NULL;
/* Index of the queue state for which this session counts; -1: none. */
static int counting_index = -1;

/* Returns the maximum number of transactions open at a time, including this one. */
static int
max_open(void)
{
	return MaxBackends + max_prepared_xacts + 1;
}

/* Returns the number of cache lines that a list of max_open() transactions takes up. */
static int
open_lines(void)
{
	return (max_open() * (int) sizeof(TransactionId) + PG_CACHE_LINE_SIZE - 1) / PG_CACHE_LINE_SIZE;
}

static int
open_line_count(void)
{
	return idemq_max_queues * open_lines();
}

static void
init_unfinished(int tranche)
{
	for (int i = 0; i < idemq_max_queues; i++)
	{
		Unfinished *queue = &unfinished_queues[i];

		LWLockInitialize(&queue->lock, tranche);
		pg_atomic_init_u32(&queue->is_counted, 0);
		queue->counter = NO_COUNTER;
		ConditionVariableInit(&queue->counted);
	}
}

const ShmemPart idemq_unfinished_part = {.area = (void **) &unfinished_queues,
										 .each = sizeof(Unfinished),
										 .count = idemq_queue_count,
										 .lies_in = AREA_QUEUES,
										 .tranche = "idemq unfinished",
										 .init = init_unfinished};

const ShmemPart idemq_unfinished_open_part = {.area = (void **) &open_xids,
											  .each = PG_CACHE_LINE_SIZE,
											  .count = open_line_count,
											  .lies_in = AREA_QUEUES};

/* Returns the list of the transactions that were open when a queue's S was taken. */
static TransactionId *
open_list(const Unfinished *queue)
{
	return (TransactionId *) (open_xids +
							  (queue - unfinished_queues) * open_lines() * PG_CACHE_LINE_SIZE);
}

static int
index_of(const Unfinished *queue)
{
	return (int) (queue - unfinished_queues);
}

static Waiters *
waiters_of(const Unfinished *queue)
{
	return idemq_waiters_for_room(index_of(queue));
}

/*
 * Wakes waiters for the room that is free, and releases the queue's lock, which must be held.
 * Calls the worker after that.
 */
static void
signal_and_unlock(Unfinished *queue)
{
	int64 room = queue->limit - queue->jobs - queue->taken - queue->promised;
	int64 promised = 0;

	if (queue->state == COUNT_KNOWN && room > 0)
		promised = idemq_waiters_wake_for_room(waiters_of(queue), room, &queue->next_waiter);
	queue->promised += promised;
	LWLockRelease(&queue->lock);
	if (promised > 0)
		idemq_due_in(idemq_qstate_at(index_of(queue)), DUE_ROOM, ROOM_UNUSED_AFTER);
}

/* Makes the number of jobs unknown, and wakes all waiters.  The lock must be held. */
static void
unset(Unfinished *queue)
{
	if (queue->state == COUNT_UNDER_WAY)
		queue->is_void = true;
	else
		queue->state = COUNT_UNKNOWN;
	queue->bound = 0;
	(void) idemq_waiters_wake(waiters_of(queue), InvalidOid, PG_INT32_MAX);
}

/* Begins a new life of a queue state. */
void
idemq_unfinished_reset(int index, QueueStateKey key)
{
	Unfinished *queue = &unfinished_queues[index];

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&queue->is_counted, 0);
	queue->key = key;
	queue->life++;
	queue->state = COUNT_UNKNOWN;
	queue->counter = NO_COUNTER;
	queue->bound = queue->jobs = queue->taken = queue->promised = queue->limit = 0;
	LWLockRelease(&queue->lock);
}

/* Ends the life of a queue state, and wakes the sessions that wait for room or for a count. */
void
idemq_unfinished_forget(int index)
{
	Unfinished *queue = &unfinished_queues[index];

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	queue->key.database = InvalidOid;
	(void) idemq_waiters_wake(waiters_of(queue), InvalidOid, PG_INT32_MAX);
	LWLockRelease(&queue->lock);
	ConditionVariableBroadcast(&queue->counted);
}

/* Makes the numbers of unfinished jobs of all queues of a database unknown. */
void
idemq_unfinished_unset_database(Oid database)
{
	for (int i = 0; i < idemq_max_queues; i++)
	{
		Unfinished *queue = &unfinished_queues[i];

		if (pg_atomic_read_u32(&queue->is_counted) == 0)
			continue;
		LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
		if (queue->key.database == database)
			unset(queue);
		LWLockRelease(&queue->lock);
	}
}

/*
 * Locks what is counted of a queue; returns NULL, without a lock, if the state is another queue's.
 */
static Unfinished *
unfinished_lock(const QueueState *qstate, int32 queue_id, LWLockMode mode)
{
	Unfinished *queue = &unfinished_queues[idemq_qstate_index(qstate)];

	LWLockAcquire(&queue->lock, mode);
	if (queue_state_key_is(queue->key, queue_id))
		return queue;
	LWLockRelease(&queue->lock);
	return NULL;
}

/* Returns whether unfinished jobs are being counted for a queue state; takes no lock. */
bool
idemq_unfinished_is_counted(const QueueState *qstate)
{
	return pg_atomic_read_u32(&unfinished_queues[idemq_qstate_index(qstate)].is_counted) != 0;
}

/* Adds to the room of a transaction.  The lock must be held. */
static void
add_room(Unfinished *queue, RoomTaken *room, int64 jobs)
{
	int32 index = index_of(queue);

	if (room->jobs == 0 || room->qstate_index != index || room->life != queue->life)
		*room = (RoomTaken){0, index, queue->life};
	room->jobs += jobs;
	queue->taken += jobs;
	queue->promised -= Min(queue->promised, jobs);
}

/* Returns whether jobs fit into a queue.  The lock must be held exclusively. */
static RoomAnswer
answer_for(Unfinished *queue, int64 jobs, int64 limit)
{
	if (queue->state == COUNT_UNDER_WAY)
		return ROOM_COUNTING;
	if (queue->state == COUNT_UNKNOWN)
		return ROOM_UNKNOWN;
	if (queue->jobs + queue->taken + jobs > limit)
		return ROOM_FULL;
	if (!queue->is_bound)
		return ROOM_TAKEN;
	queue->state = COUNT_UNKNOWN;
	return ROOM_UNKNOWN;
}

/*
 * Takes room for jobs if the queue then stays within its limit, and adds it to *room.  Returns
 * ROOM_UNKNOWN if the caller must first count the jobs, and ROOM_COUNTING while another session is
 * counting them.
 */
RoomAnswer
idemq_room_take(const QueueState *qstate, int32 queue_id, int64 jobs, int64 limit, RoomTaken *room)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);
	RoomAnswer answer;

	if (queue == NULL)
		return ROOM_UNKNOWN;
	answer = answer_for(queue, jobs, limit);
	if (answer == ROOM_TAKEN)
		add_room(queue, room, jobs);
	LWLockRelease(&queue->lock);
	return answer;
}

/*
 * Like idemq_room_take, but takes no room: ROOM_TAKEN only means that there is room.  For a waiter
 * that has set its bit: after ROOM_FULL, it will be woken when there is room.
 */
RoomAnswer
idemq_room_peek(const QueueState *qstate, int32 queue_id, int64 jobs, int64 limit)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);
	RoomAnswer answer;

	if (queue == NULL)
		return ROOM_UNKNOWN;
	queue->limit = limit;
	answer = answer_for(queue, jobs, limit);
	LWLockRelease(&queue->lock);
	return answer;
}

/* Offers the room that was promised to this session to other waiters. */
void
idemq_room_pass_on(int qstate_index, int64 jobs)
{
	Unfinished *queue = &unfinished_queues[qstate_index];

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	queue->promised -= Min(queue->promised, jobs);
	signal_and_unlock(queue);
}

/* Takes back all promises that have not been used, and wakes waiters for the room that is free. */
void
idemq_room_signal_again(const QueueState *qstate, int32 queue_id)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);

	if (queue == NULL)
		return;
	queue->promised = 0;
	signal_and_unlock(queue);
}

/*
 * Takes room for jobs that are never refused, before their transaction commits; takes none if
 * unfinished jobs are not being counted.
 */
void
idemq_room_take_unasked(const QueueState *qstate, int32 queue_id, int64 jobs, RoomTaken *room)
{
	Unfinished *queue;

	if (!idemq_unfinished_is_counted(qstate))
		return;
	queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);
	if (queue == NULL)
		return;
	add_room(queue, room, jobs);
	LWLockRelease(&queue->lock);
}

/* Gives back some of a transaction's room. */
void
idemq_room_give_back(RoomTaken *room, int64 jobs)
{
	Unfinished *queue = &unfinished_queues[room->qstate_index];

	if (jobs == 0)
		return;
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	if (queue->life == room->life)
		queue->taken -= jobs;
	signal_and_unlock(queue);
	room->jobs -= jobs;
}

/*
 * Applies the commit of this transaction: counts the jobs that it has added, and gives back all of
 * its room.  added: the number of unfinished jobs added, less those ended; may be negative.  xid:
 * the transaction's full id.
 */
void
idemq_unfinished_apply(const QueueState *qstate, int32 queue_id, uint64 xid, int64 added,
					   RoomTaken *room)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);

	if (queue == NULL)
		return;
	if (queue->state != COUNT_UNKNOWN &&
		!idemq_count_snapshot_saw(&queue->snapshot, open_list(queue), xid))
		queue->jobs += added;
	if (room->jobs > 0 && room->life == queue->life &&
		room->qstate_index == idemq_qstate_index(qstate))
		queue->taken -= room->jobs;
	room->jobs = 0;
	signal_and_unlock(queue);
}

/*
 * Begins a count of a queue's unfinished jobs, unless another session is counting them or their
 * number is known.  If this returns true, *snapshot is S, registered, which does not show the
 * changes of this transaction.  The caller must then count at most *bound rows, and call
 * idemq_unfinished_end_count.  An abort cancels the count.
 */
bool
idemq_unfinished_begin_count(const QueueState *qstate, int32 queue_id, int64 limit,
							 Snapshot *snapshot, int64 *bound)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);
	FullTransactionId own = GetTopFullTransactionIdIfAny();
	Snapshot latest;

	if (queue == NULL)
		return false;
	if (queue->state != COUNT_UNKNOWN)
	{
		LWLockRelease(&queue->lock);
		return false;
	}
	/*
	 * Must be set before the snapshot is taken, whose lock is a barrier: see the top of this file.
	 */
	pg_atomic_write_u32(&queue->is_counted, 1);
	latest = GetLatestSnapshot();
	Assert((int) latest->xcnt < max_open());
	idemq_count_snapshot_set(&queue->snapshot, open_list(queue), latest);
	/* A snapshot does not list its own transaction, but S does not show that one's changes. */
	if (FullTransactionIdIsValid(own))
	{
		open_list(queue)[queue->snapshot.nopen++] = XidFromFullTransactionId(own);
		queue->snapshot.xmin = Min(queue->snapshot.xmin, U64FromFullTransactionId(own));
	}
	*bound = Max(limit + 1, queue->bound * 2);
	queue->bound = *bound;
	queue->jobs = queue->promised = 0;
	queue->is_void = false;
	queue->counter = IDEMQ_MY_PROC_NUMBER;
	queue->state = COUNT_UNDER_WAY;
	counting_index = idemq_qstate_index(qstate);
	LWLockRelease(&queue->lock);
	*snapshot = RegisterSnapshot(latest);
	/* Rows are visible as they were before the first command of this transaction. */
	(*snapshot)->curcid = FirstCommandId;
	return true;
}

/*
 * Ends the count that this session has begun, if any.  counted: it was completed, and the snapshot
 * showed that number of jobs; otherwise it is cancelled.
 */
void
idemq_unfinished_end_count(bool counted, int64 jobs)
{
	Unfinished *queue;

	if (counting_index < 0)
		return;
	queue = &unfinished_queues[counting_index];
	counting_index = -1;
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	if (queue->state == COUNT_UNDER_WAY && queue->counter == IDEMQ_MY_PROC_NUMBER)
	{
		queue->state = counted && !queue->is_void ? COUNT_KNOWN : COUNT_UNKNOWN;
		queue->jobs += jobs;
		queue->is_bound = jobs >= queue->bound;
		if (!queue->is_bound || queue->state == COUNT_UNKNOWN)
			queue->bound = 0;
		queue->counter = NO_COUNTER;
		if (queue->state == COUNT_UNKNOWN)
			(void) idemq_waiters_wake(waiters_of(queue), InvalidOid, PG_INT32_MAX);
	}
	signal_and_unlock(queue);
	ConditionVariableBroadcast(&queue->counted);
}

/*
 * Waits until no session is counting a queue's jobs; returns false if one still is at the time
 * until.
 */
bool
idemq_unfinished_await_count(const QueueState *qstate, int32 queue_id, int64 until)
{
	ConditionVariable *counted = &unfinished_queues[idemq_qstate_index(qstate)].counted;
	bool over;

	ConditionVariablePrepareToSleep(counted);
	for (;;)
	{
		Unfinished *queue = unfinished_lock(qstate, queue_id, LW_SHARED);
		int64 left = until - idemq_stopwatch();

		over = queue == NULL || queue->state != COUNT_UNDER_WAY;
		if (queue != NULL)
			LWLockRelease(&queue->lock);
		if (over || left <= 0)
			break;
		(void) ConditionVariableTimedSleep(counted, left / 1000 + 1, compat_wait_event_wait());
	}
	ConditionVariableCancelSleep();
	return over;
}

/* Sets *view to what is counted of a queue; returns false if the number of jobs is not known. */
bool
idemq_unfinished_view(const QueueState *qstate, int32 queue_id, UnfinishedView *view)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_SHARED);
	bool known;

	if (queue == NULL)
		return false;
	known = queue->state == COUNT_KNOWN;
	*view = (UnfinishedView){queue->jobs, queue->taken, queue->is_bound};
	LWLockRelease(&queue->lock);
	return known;
}
