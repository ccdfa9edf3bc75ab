/*
 * shared/counts/counters.c
 *		Per queue, in shared memory: counters of what happened, histograms of how
 *		long it took, and gauges, the number of rows of each status.
 *
 * A queue's counters are at the index of its state (shared/queue_states/queue_states.c).  They
 * change when a transaction has committed, by what txn/pending_queues.c has added up for it.
 *
 * Counters and histograms only ever grow from zero.  Gauges need a base: they
 * are unknown when the queue gets its state.  From the first count on
 *
 *		gauge = rows that a snapshot S saw + changes by every committed
 *				transaction that S did not see
 *
 * which is the number of rows of the committed state whenever no transaction is
 * between its commit and its callback.  Nothing has to stand still for that:
 *
 *	 - A transaction adds its changes after it has become visible, under a lock.
 *	   S is taken under all locks, exclusively: it sees every transaction that
 *	   has added before, and the gauges start from zero there.
 *	 - A transaction that adds later asks S, which was published under those locks,
 *	   whether S saw it.  If so, its rows are in the count, and its changes are not
 *	   added, however late it comes; if not, they are, during the count and after it.
 *	 - S stays published for its database until the next count replaces it.  The
 *	   new one sees all that the old one saw.
 *
 * Transactions are known by their 64-bit ids, which never come again.  A change of
 * rows without a tally (COMMIT PREPARED) has the gauges unset, which also voids a
 * count that is under way.
 *
 * Locks: see README.md, level 4.  All but the atomics is changed under all the locks,
 * exclusively, and read under any one.  A session that adds takes one of them, by its
 * proc number, shared, so that sessions do not meet on a lock's cache line.  Under the
 * locks, PostgreSQL's ProcArrayLock and XidGenLock are taken.
 *
 * What is called after commit or abort neither allocates nor raises.
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
/* Databases whose gauges are known at a time. */
#define MAX_BASES 64
/* Transactions that may be open when a count begins. */
#define MAX_OPEN 1000
#define NO_COUNTER (-1)
/* Counting takes 1/COUNT_SHARE of the time at most, and comes at most once a second. */
#define COUNT_SHARE 100
#define COUNT_INTERVAL USECS_PER_SEC

/* The snapshot of a database's last count.  Its locks, and QueueCounters': see above. */
typedef struct CountBase
{
	Oid database;	  /* InvalidOid: free */
	int32 counter;	  /* the session that counts; NO_COUNTER: none */
	int64 next_count; /* mono: the next count comes no earlier */
	uint64 xmin;	  /* with xmax: full transaction ids */
	uint64 xmax;
	int nopen;
	TransactionId open[MAX_OPEN];
} CountBase;

/* Where the numbers of a queue stand. */
#define GAUGE(status) (status)	 /* int64 */
#define CHANGES JOB_STATUS_COUNT /* of the gauges; moves before they do */
#define COUNTER(counter) (CHANGES + 1 + (counter))
#define TIMING(timing, bucket) (COUNTER(COUNTER_COUNT) + (timing) *HISTOGRAM_BUCKETS + (bucket))
#define NUMBERS TIMING(TIMING_COUNT, 0)

/* On cache lines of its own; what every transaction reads is on others than what it changes. */
typedef struct QueueCounters
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) Oid database; /* InvalidOid: no queue's */
	int32 queue_id;
	bool known;	   /* the gauges are */
	bool counting; /* a count under way will make them known */
	int base;	   /* whose snapshot they rest on; -1: on none */
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

/* Whether this session counts; since when (mono). */
static bool counting_here = false;
static int64 count_began;

static void
counters_init_counts(QueueCounters *queue)
{
	for (int i = 0; i < NUMBERS; i++)
		pg_atomic_init_u64(&queue->numbers[i], 0);
}

/* Makes the counters; their memory is zeros. */
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

/* Returns the lock of this session's number. */
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

/* Begins the counters of a queue that has got the state of that index. */
void
idemq_counters_reset(int index, Oid database, int32 queue_id)
{
	QueueCounters *queue = &counters_shared->queues[index];
	TimestampTz now = idemq_now();

	lock_all();
	counters_init_counts(queue);
	queue->database = database;
	queue->queue_id = queue_id;
	queue->known = queue->counting = false;
	queue->base = -1;
	queue->since = now;
	unlock_all();
}

/* Ends the counters of a queue that has lost the state of that index. */
void
idemq_counters_forget(int index)
{
	lock_all();
	counters_shared->queues[index].database = InvalidOid;
	unlock_all();
}

/* Returns the base of a database; NULL when it has none.  A lock held. */
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
 * Frees what a database has, once its queues have lost their states: it is
 * dropped, or its jobs are truncated, and no session can be counting them.
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

static inline bool
counters_is_of(const QueueCounters *queue, int32 queue_id)
{
	return queue->database == MyDatabaseId && queue->queue_id == queue_id;
}

/* Returns whether the count saw the changes of a transaction that has committed. */
static bool
was_counted(const CountBase *base, uint64 xid)
{
	if (xid >= base->xmax)
		return false;
	for (int i = 0; xid >= base->xmin && i < base->nopen; i++)
	{
		if (base->open[i] == (TransactionId) xid)
			return false;
	}
	return true;
}

/*
 * Adds what a committed transaction of this session has done to a queue whose queue state has that
 * index.  xid: the transaction's full id.  Adds nothing if the queue state is another queue's now.
 */
void
idemq_counters_add(int index, int32 queue_id, uint64 xid, const CounterDelta *delta)
{
	QueueCounters *queue = &counters_shared->queues[index];
	LWLock *lock = own_lock();

	IDEMQ_STOP("idemq_counters_add");
	LWLockAcquire(lock, LW_SHARED);
	if (!counters_is_of(queue, queue_id))
	{
		LWLockRelease(lock);
		return;
	}
	add(queue, CHANGES, 1);
	if (queue->base < 0 || !was_counted(&counters_shared->bases[queue->base], xid))
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

/* Copies the counters of a queue of this database; false when the queue state is another's now. */
bool
idemq_counters_read(int index, int32 queue_id, CounterView *view)
{
	QueueCounters *queue = &counters_shared->queues[index];
	LWLock *lock = own_lock();
	bool found;

	LWLockAcquire(lock, LW_SHARED);
	found = counters_is_of(queue, queue_id);
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
 * Makes the gauges of a queue known that this transaction has just created:
 * no other session can have a job in it.
 */
void
idemq_counters_set_empty(int index, int32 queue_id)
{
	QueueCounters *queue = &counters_shared->queues[index];

	lock_all();
	if (counters_is_of(queue, queue_id))
		queue->known = true;
	unlock_all();
}

/* Publishes a snapshot; false when too many transactions are open.  All locks held. */
static bool
publish(CountBase *base, Snapshot snapshot)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint64 next_xid = U64FromFullTransactionId(next);
	TransactionId next_low = XidFromFullTransactionId(next);

	if (snapshot->xcnt > MAX_OPEN)
		return false;
	base->xmin = next_xid - (TransactionId) (next_low - snapshot->xmin);
	base->xmax = next_xid - (TransactionId) (next_low - snapshot->xmax);
	base->nopen = (int) snapshot->xcnt;
	memcpy(base->open, snapshot->xip, base->nopen * sizeof(TransactionId));
	return true;
}

/*
 * Begins a count of this database's jobs.  On COUNT_BEGUN *snapshot is the one to
 * count by, registered, and idemq_counters_end_count or _cancel_count must follow
 * before the transaction ends.  The caller has no transaction id, since otherwise the
 * snapshot would show what may be rolled back; and it holds a lock on idemq.jobs.
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
		base->xmin = base->xmax = 0;
	}
	if (base != NULL && base->counter != NO_COUNTER)
		start = COUNT_BUSY;
	else if (base != NULL)
	{
		base->next_count = idemq_mono_now() + COUNT_INTERVAL;
		latest = GetLatestSnapshot();
		if (publish(base, latest))
			start = COUNT_BEGUN;
	}
	if (start == COUNT_BEGUN)
	{
		base->counter = IDEMQ_MY_PROC_NUMBER;
		counting_here = true;
		count_began = idemq_stopwatch();
		/* The gauges of this database start from zero on it. */
		for (int i = 0; i < idemq_max_queues; i++)
		{
			QueueCounters *queue = &counters_shared->queues[i];

			if (queue->database != MyDatabaseId)
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

/* Ends this session's count; counted: it has a result.  All locks held. */
static void
finish_count(bool counted, const QueueCount *counts, int ncounts)
{
	CountBase *base = find_base(MyDatabaseId);

	counting_here = false;
	if (base == NULL || base->counter != IDEMQ_MY_PROC_NUMBER)
		return; /* all was forgotten meanwhile */
	for (int i = 0; i < ncounts; i++)
	{
		QueueCounters *queue = counts[i].index < 0 ? NULL
												   : &counters_shared->queues[counts[i].index];

		if (queue == NULL || !counters_is_of(queue, counts[i].queue_id) || !queue->counting)
			continue;
		for (int s = 0; s < JOB_STATUS_COUNT; s++)
			add(queue, GAUGE(s), (uint64) counts[i].jobs[s]);
	}
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueCounters *queue = &counters_shared->queues[i];

		if (queue->database != MyDatabaseId)
			continue;
		add(queue, CHANGES, 1);
		queue->known |= counted && queue->counting;
		queue->counting = false;
	}
	base->counter = NO_COUNTER;
	base->next_count = idemq_mono_now() +
					   Max(COUNT_INTERVAL, (idemq_stopwatch() - count_began) * COUNT_SHARE);
}

/* Ends the count that this session began, with what it found; queues not in counts have no jobs. */
void
idemq_counters_end_count(const QueueCount *counts, int ncounts)
{
	IDEMQ_STOP("idemq_counters_end_count");
	lock_all();
	finish_count(true, counts, ncounts);
	unlock_all();
}

/* Ends a count that did not come to its end, if this session began one. */
void
idemq_counters_cancel_count(void)
{
	if (!counting_here)
		return;
	lock_all();
	finish_count(false, NULL, 0);
	unlock_all();
}

/* Makes the gauges of a database unknown: rows changed without a tally (COMMIT PREPARED). */
void
idemq_counters_unset_gauges(Oid database)
{
	lock_all();
	for (int i = 0; i < idemq_max_queues; i++)
	{
		if (counters_shared->queues[i].database == database)
			counters_shared->queues[i].known = counters_shared->queues[i].counting = false;
	}
	unlock_all();
	idemq_worker_need_by(0);
}

/* Returns when (mono) this database is to be counted; PG_INT64_MAX: all its gauges are known. */
int64
idemq_counters_count_due_at(void)
{
	LWLock *lock = own_lock();
	const CountBase *base;
	int64 due = PG_INT64_MAX;

	if (RecoveryInProgress())
		return due;
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < idemq_max_queues && due > 0; i++)
	{
		if (counters_shared->queues[i].database == MyDatabaseId &&
			!counters_shared->queues[i].known)
			due = 0;
	}
	base = find_base(MyDatabaseId);
	if (due == 0 && base != NULL)
		due = base->counter == NO_COUNTER ? base->next_count : idemq_mono_now() + USECS_PER_SEC;
	LWLockRelease(lock);
	return due;
}
