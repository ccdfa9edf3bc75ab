/*
 * shared/queue_states/unfinished.c
 *		How many unfinished jobs a queue with max_unfinished has, open transactions included.
 *
 * An enqueue takes room before it writes its row, and its transaction keeps the room to its end.
 * Two numbers are under one lock: jobs, the unfinished jobs that are committed, and taken, the room
 * that open transactions have.  Room is taken only while jobs + taken stays within the limit.
 *
 * Call U the unfinished jobs that are committed, as any latest snapshot shows them, and A(T) the
 * unfinished jobs that an open transaction T has added, less those that it has ended.  The limit
 * holds for U plus every A(T) above 0, because jobs + taken is never below that sum:
 *	 - T enqueues only while A(T), with the new job, is at most the room that T has taken: so a
 *	   transaction may use the room of jobs that it ends itself (txn/pending_queues.c).
 *	 - T's other new jobs, which are never refused (redrive, dead-letter records, rows by hand),
 *	   take room without asking, before T's commit begins.
 *	 - After T's commit is visible, jobs changes by A(T) and taken by T's room, in one step.  Until
 *	   then the sum is too high, never too low.
 *	 - A rollback, even to a savepoint, gives back the room that was taken since.  What T has added
 *	   and ended until then is as it was at the savepoint, and so is its room.
 *
 * What jobs rests on: a count of the rows, by the first session that asks, under a snapshot S.  From
 * then on
 *
 *		jobs = unfinished jobs that S saw + A(T) of every T that has committed and that S did not see
 *
 * as for the gauges (shared/counts/counters.c), and for the same reasons:
 *	 - S is taken under the lock, exclusively: it sees every T that has changed jobs before.
 *	 - A T that comes later asks S, which is published here, whether S saw it.  If so, its rows are
 *	   in the count, and only its room is given back.
 *	 - S does not show what the counting transaction itself has done (idemq_unfinished_begin_count):
 *	   that is in its A(T), and S is published as not having seen it.
 *	 - A T that commits reads is_counted without the lock.  If that is not set yet, T is visible
 *	   already, and S, which is taken after is_counted was set, sees it.
 * COMMIT PREPARED, and all else that changes rows that nobody has noted, makes jobs unknown, and a
 * count that is under way void: the next enqueue counts again.  taken stays as it is.  (A transaction
 * that has taken room cannot be prepared: txn/pending.c.)
 *
 * A count reads one entry beyond the limit at most.  If it gets that far, jobs is a lower bound, and
 * refuses; when the bound comes below the limit, the rows are counted again, and twice as far.
 *
 * Waiters for room (CALL idemq.wait_for_room) have a set in shared/waiters/wake.c.  A waiter sets its
 * bit, asks whether there is room (idemq_room_peek), and sleeps if not.  A session that lowers
 * jobs + taken wakes, still under the lock, those that want no more than the room that is neither
 * used nor promised; what they want is promised to them.  Both hold the lock, so either the waiter
 * sees the room, or the waker sees the bit.  An enqueue, by whomever, uses up as much of what is
 * promised as it takes.  So no more waiters are woken than there is room for, and none sleeps while
 * there is room for it, but for what is promised to a session that does not use it: the worker takes
 * such a promise back after ROOM_UNUSED_AFTER, and wakes others (DUE_ROOM).  What the limit is, the
 * last waiter has said that has asked; when the limit changes, all waiters are woken and ask again.
 * All are also woken when jobs becomes unknown, because they must count.
 *
 * A queue state goes to another queue: its lives are numbered, and room that was taken in a former
 * life is not given back in another.
 *
 * Transactions that have written jobs before the limit was set have not asked.  The limit holds from
 * the first enqueue on that asks; what they add, at their commit, is as if it had come before.
 *
 * Locks: see README.md, level 4.  Everything is under the lock of its queue, but is_counted and the
 * condition variable.  Under the lock, PostgreSQL's ProcArrayLock and XidGenLock are taken.  What is
 * called after commit and abort neither allocates nor raises.
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
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

typedef enum CountState
{
	COUNT_UNKNOWN,	 /* nobody has counted; jobs means nothing */
	COUNT_UNDER_WAY, /* jobs has what has changed since S */
	COUNT_KNOWN
} CountState;

#define NO_COUNTER (-1)
/* Room that was promised to a waiter, and that nobody has used for so long, is offered again. */
#define ROOM_UNUSED_AFTER INT64CONST(100000)

/* On cache lines of its own. */
typedef struct Unfinished
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLock lock;
	pg_atomic_uint32 is_counted; /* an enqueue has asked in this life; read without the lock */
	Oid database;				 /* InvalidOid: no queue's */
	int32 queue_id;
	uint32 life; /* of the queue state */
	CountState state;
	bool is_bound; /* jobs is a lower bound */
	bool is_void;  /* of a count under way: rows have changed that nobody has noted */
	int32 counter; /* the session that counts; NO_COUNTER: none */
	int64 bound;   /* entries that the last count has read at most; 0: it was exact */
	int64 jobs;
	int64 taken;
	int64 promised;	 /* room that waiters were woken for, and that is not taken yet */
	int64 limit;	 /* as the last waiter has read it */
	int next_waiter; /* the session whose turn it is to be woken, or the next one that waits */
	/* S: full transaction ids, and the transactions that were open, in open_xids */
	uint64 xmin;
	uint64 xmax;
	int nopen;
	ConditionVariable counted;
} Unfinished;

static Unfinished *unfinished_queues = NULL;
static char *open_xids = NULL;
/* What this session counts; -1: nothing. */
static int counting_index = -1;

/* Returns how many transactions can be open at a time, this one included. */
static int
max_open(void)
{
	return MaxBackends + max_prepared_xacts + 1;
}

/* Returns the cache lines that a list of so many transactions takes. */
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
 * Wakes waiters for the room that there is.  Its lock held: it is released.  The worker is called
 * without it.
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

/* Makes what is known unknown.  Its lock held. */
static void
unset(Unfinished *queue)
{
	if (queue->state == COUNT_UNDER_WAY)
		queue->is_void = true;
	else
		queue->state = COUNT_UNKNOWN;
	queue->bound = 0;
	(void) idemq_waiters_wake(waiters_of(queue), PG_INT32_MAX);
}

/* Begins the life of a queue's state. */
void
idemq_unfinished_reset(int index, Oid database, int32 queue_id)
{
	Unfinished *queue = &unfinished_queues[index];

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&queue->is_counted, 0);
	queue->database = database;
	queue->queue_id = queue_id;
	queue->life++;
	queue->state = COUNT_UNKNOWN;
	queue->counter = NO_COUNTER;
	queue->bound = queue->jobs = queue->taken = queue->promised = queue->limit = 0;
	LWLockRelease(&queue->lock);
}

/* Ends the life of a queue's state, and wakes the sessions that wait for a count. */
void
idemq_unfinished_forget(int index)
{
	Unfinished *queue = &unfinished_queues[index];

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	queue->database = InvalidOid;
	(void) idemq_waiters_wake(waiters_of(queue), PG_INT32_MAX);
	LWLockRelease(&queue->lock);
	ConditionVariableBroadcast(&queue->counted);
}

/* Makes the unfinished jobs of all queues of a database unknown. */
void
idemq_unfinished_unset_database(Oid database)
{
	for (int i = 0; i < idemq_max_queues; i++)
	{
		Unfinished *queue = &unfinished_queues[i];

		if (pg_atomic_read_u32(&queue->is_counted) == 0)
			continue;
		LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
		if (queue->database == database)
			unset(queue);
		LWLockRelease(&queue->lock);
	}
}

/* Locks what a queue state counts; NULL, with no lock held, if it is another queue's. */
static Unfinished *
unfinished_lock(const QueueState *qstate, int32 queue_id, LWLockMode mode)
{
	Unfinished *queue = &unfinished_queues[idemq_qstate_index(qstate)];

	LWLockAcquire(&queue->lock, mode);
	if (queue->database == MyDatabaseId && queue->queue_id == queue_id)
		return queue;
	LWLockRelease(&queue->lock);
	return NULL;
}

/* Returns whether S saw the changes of a transaction that has committed.  The lock held. */
static bool
was_seen(const Unfinished *queue, uint64 xid)
{
	const TransactionId *open = open_list(queue);

	if (xid >= queue->xmax)
		return false;
	for (int i = 0; xid >= queue->xmin && i < queue->nopen; i++)
	{
		if (open[i] == (TransactionId) xid)
			return false;
	}
	return true;
}

/* Returns whether a queue state counts unfinished jobs; without a lock. */
bool
idemq_unfinished_is_counted(const QueueState *qstate)
{
	return pg_atomic_read_u32(&unfinished_queues[idemq_qstate_index(qstate)].is_counted) != 0;
}

/* Adds to the room that a transaction has.  The lock held. */
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

/* Returns whether jobs fit into a queue.  The lock held exclusively. */
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
 * Takes room for jobs, if the queue stays within its limit; adds it to *room.  What came of it is
 * ROOM_UNKNOWN if the jobs must be counted first, and ROOM_COUNTING while another session does
 * that.
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
 * As idemq_room_take, but takes nothing: ROOM_TAKEN only says that there is room.  For a waiter, after
 * it has set its bit: from ROOM_FULL on, it is woken when there is room.
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

/* Gives the room that was promised to this session to other waiters. */
void
idemq_room_pass_on(int qstate_index, int64 jobs)
{
	Unfinished *queue = &unfinished_queues[qstate_index];

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	queue->promised -= Min(queue->promised, jobs);
	signal_and_unlock(queue);
}

/* Takes back what was promised and is not taken, and wakes waiters for the room that there is. */
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
 * Takes room for jobs that are never refused, before their transaction commits; none if the queue
 * state does not count.
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

/* Gives back some of the room that a transaction has. */
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
 * Follows the commit of this transaction, which has added so many unfinished jobs (below 0: has
 * ended more than it has added), and gives all of its room back.  xid: the transaction's full id.
 */
void
idemq_unfinished_apply(const QueueState *qstate, int32 queue_id, uint64 xid, int64 added,
					   RoomTaken *room)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);

	if (queue == NULL)
		return;
	if (queue->state != COUNT_UNKNOWN && !was_seen(queue, xid))
		queue->jobs += added;
	if (room->jobs > 0 && room->life == queue->life &&
		room->qstate_index == idemq_qstate_index(qstate))
		queue->taken -= room->jobs;
	room->jobs = 0;
	signal_and_unlock(queue);
}

/* Publishes S.  The lock held. */
static void
unfinished_publish(Unfinished *queue, Snapshot snapshot)
{
	TransactionId *open = open_list(queue);
	FullTransactionId next = ReadNextFullTransactionId();
	uint64 next_xid = U64FromFullTransactionId(next);
	TransactionId next_low = XidFromFullTransactionId(next);
	TransactionId own = GetTopTransactionIdIfAny();

	Assert((int) snapshot->xcnt < max_open());
	queue->xmin = next_xid - (TransactionId) (next_low - snapshot->xmin);
	queue->xmax = next_xid - (TransactionId) (next_low - snapshot->xmax);
	queue->nopen = (int) snapshot->xcnt;
	memcpy(open, snapshot->xip, queue->nopen * sizeof(TransactionId));
	/* A snapshot does not name its own transaction, and S does not show what that has done. */
	if (TransactionIdIsValid(own))
	{
		open[queue->nopen++] = own;
		queue->xmin = Min(queue->xmin, next_xid - (TransactionId) (next_low - own));
	}
}

/*
 * Begins a count of a queue's unfinished jobs, unless another session counts them or they are known.
 * When it returns true, *snapshot is S, registered: it does not show what this transaction has
 * done.  The caller counts at most *bound rows, and calls idemq_unfinished_end_count; an abort
 * cancels the count.
 */
bool
idemq_unfinished_begin_count(const QueueState *qstate, int32 queue_id, int64 limit,
							 Snapshot *snapshot, int64 *bound)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_EXCLUSIVE);
	Snapshot latest;

	if (queue == NULL)
		return false;
	if (queue->state != COUNT_UNKNOWN)
	{
		LWLockRelease(&queue->lock);
		return false;
	}
	/* Before the snapshot: see the top of this file.  Its lock is a barrier. */
	pg_atomic_write_u32(&queue->is_counted, 1);
	latest = GetLatestSnapshot();
	unfinished_publish(queue, latest);
	*bound = Max(limit + 1, queue->bound * 2);
	queue->bound = *bound;
	queue->jobs = queue->promised = 0;
	queue->is_void = false;
	queue->counter = IDEMQ_MY_PROC_NUMBER;
	queue->state = COUNT_UNDER_WAY;
	counting_index = idemq_qstate_index(qstate);
	LWLockRelease(&queue->lock);
	*snapshot = RegisterSnapshot(latest);
	/* The version of a row before all commands of this transaction is the visible one. */
	(*snapshot)->curcid = FirstCommandId;
	return true;
}

/* Ends the count that this session has begun, if there is one; counted: it found so many jobs. */
static void
unfinished_finish_count(bool counted, int64 jobs)
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
			(void) idemq_waiters_wake(waiters_of(queue), PG_INT32_MAX);
	}
	signal_and_unlock(queue);
	ConditionVariableBroadcast(&queue->counted);
}

/* Ends the count that this session has begun: the snapshot showed so many jobs. */
void
idemq_unfinished_end_count(int64 jobs)
{
	unfinished_finish_count(true, jobs);
}

/* Ends a count that did not come to its end, if this session has begun one. */
void
idemq_unfinished_cancel_count(void)
{
	unfinished_finish_count(false, 0);
}

/* Returns whether another session counts the jobs of a queue. */
static bool
is_under_way(const QueueState *qstate, int32 queue_id)
{
	Unfinished *queue = unfinished_lock(qstate, queue_id, LW_SHARED);
	bool under_way;

	if (queue == NULL)
		return false;
	under_way = queue->state == COUNT_UNDER_WAY;
	LWLockRelease(&queue->lock);
	return under_way;
}

/* Waits until nobody counts the jobs of a queue, to that time of the stopwatch; false: too long. */
bool
idemq_unfinished_await_count(const QueueState *qstate, int32 queue_id, int64 until)
{
	ConditionVariable *counted = &unfinished_queues[idemq_qstate_index(qstate)].counted;
	bool over;

	ConditionVariablePrepareToSleep(counted);
	while (!(over = !is_under_way(qstate, queue_id)))
	{
		int64 left = until - idemq_stopwatch();

		if (left <= 0)
			break;
		(void) ConditionVariableTimedSleep(counted, left / 1000 + 1, compat_wait_event_wait());
	}
	ConditionVariableCancelSleep();
	return over;
}

/* Says what a queue state counts; false when that is not known. */
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
