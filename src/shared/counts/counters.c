/*
 * shared/counts/counters.c
 *		Counters of what has happened in a queue, histograms of how long it took, and gauges: the
 *		number of jobs with each status.
 *
 * The counters of a queue are at the index of its state (shared/queue_states/queue_states.c).  They
 * change after a transaction has committed, by the changes that txn/pending_queues.c has added up
 * for it.
 *
 * Counters and histograms only grow, from zero.  Gauges are unknown when the queue gets its state.
 * From the first count on
 *
 *		gauge = rows that a snapshot S saw + changes of every committed transaction that S did not
 *		see
 *
 * This is the number of rows in the committed state whenever no transaction is between its commit
 * and its callback.  Other sessions may change rows during the count:
 *
 *	 - A transaction adds its changes after it has become visible, under a lock.  S is taken while
 *	   all of these locks are held exclusively, so it sees every transaction that has added its
 *	   changes before, and the gauges are then set to zero.
 *	 - A transaction that adds its changes later checks whether S, which was published under the
 *	   same locks, saw it.  If so, its rows are in the count, and its changes are not added, however
 *	   late it comes.  If not, they are added, during the count and afterwards.
 *	 - S remains published for its database until the next count replaces it.  The new snapshot sees
 *	   everything that the old one saw.
 *
 * Transactions are identified by their 64-bit ids, which are never reused.  If rows change without
 * having been counted (COMMIT PREPARED), the gauges become unknown, and a count in progress becomes
 * void.
 *
 * Locks: see src/shared/README.md, level 4.  Everything except the atomics is changed while all of
 * the locks are held exclusively, and read while any one is held.  A session that adds changes
 * takes one of them in shared mode, depending on its proc number, so that sessions do not contend
 * for one cache line.  PostgreSQL's ProcArrayLock and XidGenLock are taken while the locks are
 * held.  Functions that are called after commit or abort neither allocate nor raise errors.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"

#define COUNTER_LOCKS 16
/* Maximum number of databases whose gauges are known. */
#define MAX_BASES 64
/* Maximum number of transactions that are open when a count begins. */
#define MAX_OPEN 1000
#define NO_COUNTER (-1)
/* Counting takes at most 1/COUNT_SHARE of the time, and begins at most once per second. */
#define COUNT_SHARE 100
#define COUNT_INTERVAL USECS_PER_SEC

/*
 * The snapshot S of a database's last count.  Locks: see the top of this file, as for
 * QueueCounters.
 */
typedef struct CountBase
{
	Oid database;	  /* InvalidOid: free */
	int32 counter;	  /* the session that counts; NO_COUNTER: none */
	int64 next_count; /* mono: earliest time of the next count */
	CountSnapshot snapshot;
	TransactionId
		open[MAX_OPEN]; /* transactions that S does not see, although they are below its xmax */
} CountBase;

/* Indexes of the numbers of a queue. */
#define GAUGE(status) (status) /* int64 */
#define CHANGES                                                                                    \
	JOB_STATUS_COUNT /* number of changes of the gauges; incremented before they change */
#define COUNTER(counter) (CHANGES + 1 + (counter))
#define TIMING(timing, bucket) (COUNTER(COUNTER_COUNT) + (timing) *HISTOGRAM_BUCKETS + (bucket))
#define NUMBERS TIMING(TIMING_COUNT, 0)

/* What every transaction reads and what every transaction changes are on different cache lines. */
typedef struct QueueCounters
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE)
		QueueStateKey key; /* database InvalidOid: no queue's */
	bool known;			   /* the gauges are known */
	bool counting;		   /* a count in progress will make them known */
	int base;			   /* index of the CountBase on whose snapshot they are based; -1: none */
	TimestampTz since;
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint64 numbers[NUMBERS];
} QueueCounters;

typedef struct CountersShared
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLockPadded locks[COUNTER_LOCKS];
	CountBase bases[MAX_BASES];
	QueueCounters queues[FLEXIBLE_ARRAY_MEMBER]; /* idemq_max_queues */
} CountersShared;

static CountersShared *counters_shared = NULL;

/* Whether this session is counting, and since when (mono). */
static bool counting_here = false;
static int64 count_began;

static void
counters_init_counts(QueueCounters *queue)
{
	for (int i = 0; i < NUMBERS; i++)
		pg_atomic_init_u64(&queue->numbers[i], 0);
}

static void
init_counters(int tranche)
{
	for (int i = 0; i < COUNTER_LOCKS; i++)
		LWLockInitialize(&counters_shared->locks[i].lock, tranche);
	for (int i = 0; i < idemq_max_queues; i++)
		counters_init_counts(&counters_shared->queues[i]);
}

const ShmemPart idemq_counters_part = {.area = (void **) &counters_shared,
									   .size = offsetof(CountersShared, queues),
									   .each = sizeof(QueueCounters),
									   .count = idemq_queue_count,
									   .lies_in = AREA_QUEUES,
									   .tranche = "idemq counters",
									   .init = init_counters};

static uint64
number(QueueCounters *queue, int which)
{
	return pg_atomic_read_u64(&queue->numbers[which]);
}

static inline void
add(QueueCounters *queue, int which, uint64 more)
{
	if (more != 0)
		pg_atomic_fetch_add_u64(&queue->numbers[which], (int64) more);
}

/* Returns the lock that this session takes to add its changes. */
static LWLock *
own_lock(void)
{
	return &counters_shared->locks[IDEMQ_MY_PROC_NUMBER % COUNTER_LOCKS].lock;
}

static void
lock_all(void)
{
	for (int i = 0; i < COUNTER_LOCKS; i++)
		LWLockAcquire(&counters_shared->locks[i].lock, LW_EXCLUSIVE);
}

static void
unlock_all(void)
{
	for (int i = COUNTER_LOCKS - 1; i >= 0; i--)
		LWLockRelease(&counters_shared->locks[i].lock);
}

/* Resets the counters of a queue that has got the state with that index. */
void
idemq_counters_reset(int index, QueueStateKey key)
{
	QueueCounters *queue = &counters_shared->queues[index];
	TimestampTz now = idemq_now();

	lock_all();
	counters_init_counts(queue);
	queue->key = key;
	queue->known = queue->counting = false;
	queue->base = -1;
	queue->since = now;
	unlock_all();
}

/* Ends the counters of a queue that has lost the state with that index. */
void
idemq_counters_forget(int index)
{
	lock_all();
	counters_shared->queues[index].key.database = InvalidOid;
	unlock_all();
}

/* Returns the base of a database, or NULL.  At least one of the locks must be held. */
static CountBase *
find_base(Oid database)
{
	for (int i = 0; i < MAX_BASES; i++)
	{
		if (counters_shared->bases[i].database == database)
			return &counters_shared->bases[i];
	}
	return NULL;
}

/*
 * Frees the base of a database whose queues have lost their states, because it was dropped or its
 * jobs were truncated.  No session can be counting its jobs.
 */
void
idemq_counters_forget_database(Oid database)
{
	CountBase *base;

	lock_all();
	base = find_base(database);
	if (base != NULL)
		base->database = InvalidOid;
	unlock_all();
}

/*
 * Records the snapshot of a count, and the transactions that were open in the array open, which
 * must have room for snapshot->xcnt ids.  Never called during recovery, so snapshot->xip lists all
 * of them.
 */
void
idemq_count_snapshot_set(CountSnapshot *count, TransactionId *open, Snapshot snapshot)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint64 next_xid = U64FromFullTransactionId(next);
	TransactionId next_low = XidFromFullTransactionId(next);

	count->xmin = next_xid - (TransactionId) (next_low - snapshot->xmin);
	count->xmax = next_xid - (TransactionId) (next_low - snapshot->xmax);
	count->nopen = (int) snapshot->xcnt;
	memcpy(open, snapshot->xip, count->nopen * sizeof(TransactionId));
}

/*
 * Returns whether the snapshot of a count saw the changes of a committed transaction (a full id).
 */
bool
idemq_count_snapshot_saw(const CountSnapshot *count, const TransactionId *open, uint64 xid)
{
	if (xid >= count->xmax)
		return false;
	for (int i = 0; xid >= count->xmin && i < count->nopen; i++)
	{
		if (open[i] == (TransactionId) xid)
			return false;
	}
	return true;
}

/*
 * Adds the changes of a committed transaction of this session to the queue whose state has that
 * index. xid: the transaction's full id.  Does nothing if the queue state belongs to another queue
 * now.
 */
void
idemq_counters_add(int index, int32 queue_id, uint64 xid, const CounterDelta *delta)
{
	QueueCounters *queue = &counters_shared->queues[index];
	LWLock *lock = own_lock();
	const CountBase *base;

	IDEMQ_STOP("idemq_counters_add");
	LWLockAcquire(lock, LW_SHARED);
	if (!queue_state_key_is(queue->key, queue_id))
	{
		LWLockRelease(lock);
		return;
	}
	add(queue, CHANGES, 1);
	base = queue->base < 0 ? NULL : &counters_shared->bases[queue->base];
	if (base == NULL || !idemq_count_snapshot_saw(&base->snapshot, base->open, xid))
	{
		for (int i = 0; i < JOB_STATUS_COUNT; i++)
			add(queue, GAUGE(i), (uint64) delta->gauges[i]);
	}
	for (int i = 0; i < COUNTER_COUNT; i++)
		add(queue, COUNTER(i), delta->counters[i]);
	for (int t = 0; t < TIMING_COUNT; t++)
	{
		const TimingDelta *timing = &delta->timings[t];

		for (int i = timing->first; i <= timing->last; i++)
			add(queue, TIMING(t, i), timing->buckets[i]);
	}
	LWLockRelease(lock);
}

/*
 * Copies the counters of a queue of this database; returns false if its state belongs to another.
 */
bool
idemq_counters_read(int index, int32 queue_id, CounterView *view)
{
	QueueCounters *queue = &counters_shared->queues[index];
	LWLock *lock = own_lock();
	bool found;

	LWLockAcquire(lock, LW_SHARED);
	found = queue_state_key_is(queue->key, queue_id);
	view->known = queue->known;
	view->since = queue->since;
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		view->gauges[i] = (int64) number(queue, GAUGE(i));
	pg_read_barrier();
	view->changes = number(queue, CHANGES);
	for (int i = 0; i < COUNTER_COUNT; i++)
		view->counters[i] = number(queue, COUNTER(i));
	for (int t = 0; t < TIMING_COUNT; t++)
	{
		for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
			view->timings[t][i] = number(queue, TIMING(t, i));
	}
	LWLockRelease(lock);
	return found;
}

/*
 * Makes the gauges of a queue known, because this transaction has just created it without any jobs.
 */
void
idemq_counters_set_empty(int index, int32 queue_id)
{
	QueueCounters *queue = &counters_shared->queues[index];

	lock_all();
	if (queue_state_key_is(queue->key, queue_id))
		queue->known = true;
	unlock_all();
}

/*
 * Begins a count of this database's jobs.  If this returns COUNT_BEGUN, *snapshot is S, registered,
 * and the transaction must call idemq_counters_end_count.  The
 * caller holds a lock on idemq.jobs, and has no transaction id, because otherwise the snapshot
 * would show changes that may be rolled back.
 */
CountStart
idemq_counters_begin_count(Snapshot *snapshot)
{
	CountStart start = COUNT_CROWDED;
	Snapshot latest = NULL;
	CountBase *base;

	lock_all();
	base = find_base(MyDatabaseId);
	if (base == NULL && (base = find_base(InvalidOid)) != NULL)
	{
		base->database = MyDatabaseId;
		base->counter = NO_COUNTER;
		base->snapshot = (CountSnapshot){0};
	}
	if (base != NULL && base->counter != NO_COUNTER)
		start = COUNT_BUSY;
	else if (base != NULL)
	{
		base->next_count = idemq_mono_now() + COUNT_INTERVAL;
		latest = GetLatestSnapshot();
		if (latest->xcnt <= MAX_OPEN)
			start = COUNT_BEGUN;
	}
	if (start == COUNT_BEGUN)
	{
		idemq_count_snapshot_set(&base->snapshot, base->open, latest);
		base->counter = IDEMQ_MY_PROC_NUMBER;
		counting_here = true;
		count_began = idemq_stopwatch();
		/* From now on, the gauges of this database are based on S. */
		for (int i = 0; i < idemq_max_queues; i++)
		{
			QueueCounters *queue = &counters_shared->queues[i];

			if (queue->key.database != MyDatabaseId)
				continue;
			queue->known = false;
			queue->counting = true;
			queue->base = (int) (base - counters_shared->bases);
			for (int s = 0; s < JOB_STATUS_COUNT; s++)
				pg_atomic_write_u64(&queue->numbers[GAUGE(s)], 0);
		}
	}
	unlock_all();
	if (start == COUNT_BEGUN)
		*snapshot = RegisterSnapshot(latest);
	return start;
}

/*
 * Ends the count of this session, if any.  completed: counts is the result, and queues that are not
 * in it have no jobs; otherwise the count is cancelled.
 */
void
idemq_counters_end_count(bool completed, const QueueCount *counts, int ncounts)
{
	CountBase *base;

	if (!counting_here)
		return;
	if (completed)
		IDEMQ_STOP("idemq_counters_end_count");
	lock_all();
	counting_here = false;
	base = find_base(MyDatabaseId);
	if (base == NULL || base->counter != IDEMQ_MY_PROC_NUMBER)
	{
		unlock_all(); /* the database was forgotten in the meantime */
		return;
	}
	for (int i = 0; i < ncounts; i++)
	{
		QueueCounters *queue = counts[i].index < 0 ? NULL
												   : &counters_shared->queues[counts[i].index];

		if (queue == NULL || !queue_state_key_is(queue->key, counts[i].queue_id) ||
			!queue->counting)
			continue;
		for (int s = 0; s < JOB_STATUS_COUNT; s++)
			add(queue, GAUGE(s), (uint64) counts[i].jobs[s]);
	}
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueCounters *queue = &counters_shared->queues[i];

		if (queue->key.database != MyDatabaseId)
			continue;
		add(queue, CHANGES, 1);
		queue->known |= completed && queue->counting;
		queue->counting = false;
	}
	base->counter = NO_COUNTER;
	base->next_count = idemq_mono_now() +
					   Max(COUNT_INTERVAL, (idemq_stopwatch() - count_began) * COUNT_SHARE);
	unlock_all();
}

/* Makes the gauges of a database unknown, because rows have changed without having been counted. */
void
idemq_counters_unset_gauges(Oid database)
{
	lock_all();
	for (int i = 0; i < idemq_max_queues; i++)
	{
		if (counters_shared->queues[i].key.database == database)
			counters_shared->queues[i].known = counters_shared->queues[i].counting = false;
	}
	unlock_all();
	idemq_worker_need_by(0);
}

/* Returns when (mono) this database must be counted; PG_INT64_MAX: all gauges are known. */
int64
idemq_counters_count_due_at(void)
{
	LWLock *lock = own_lock();
	bool all_known = true;
	int64 due = PG_INT64_MAX;

	if (RecoveryInProgress())
		return due;
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < idemq_max_queues && all_known; i++)
		all_known = counters_shared->queues[i].key.database != MyDatabaseId ||
					counters_shared->queues[i].known;
	if (!all_known)
	{
		const CountBase *base = find_base(MyDatabaseId);

		if (base == NULL)
			due = 0;
		else
			due = base->counter == NO_COUNTER ? base->next_count : idemq_mono_now() + USECS_PER_SEC;
	}
	LWLockRelease(lock);
	return due;
}
