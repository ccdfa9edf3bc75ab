/*
 * shared/counts/counts.h
 *		Counters, gauges, unfinished jobs, shares of the lease table, events for NOTIFY, and
 *		buckets.
 */
#ifndef IDEMQ_SHARED_COUNTS_COUNTS_H
#define IDEMQ_SHARED_COUNTS_COUNTS_H

#include "datatype/timestamp.h"
#include "utils/snapshot.h"

#include "base/base.h"
#include "shared/queue_states/queue_states.h"

/*
 * counters.c
 *		What has happened in a queue, and how many jobs it has.
 */

/* Counted since the queue got its state; in the order of idemq_internal.queue_metrics(). */
typedef enum Counter
{
	COUNTER_ENQUEUED,
	COUNTER_DUPLICATES, /* also a refusal, as below */
	COUNTER_CLAIMED,
	COUNTER_COMMITTED,
	COUNTER_FAILED, /* attempts, including the last one of a dead job */
	COUNTER_DEAD,
	COUNTER_RELEASED,
	COUNTER_EXPIRED, /* leases that were reaped */
	COUNTER_CANCELLED,
	COUNTER_RETRIED,
	COUNTER_REDRIVEN,
	COUNTER_ROW_ONLY, /* claims for which there was no room in the lease table */
	COUNTER_PURGED,	  /* jobs deleted after their retention */
	/* Refusals, which idemq_queue_count_refusal counts at once: */
	COUNTER_STALE_COMMITS,	  /* commits with an outdated token */
	COUNTER_STALE_CALLS,	  /* other calls of workers with an outdated token */
	COUNTER_REPEATED_COMMITS, /* commits of jobs that were committed already */
	COUNTER_RERUNS,			  /* finished jobs that run again for a later request */
	COUNTER_STEPS_DONE
} Counter;

#define COUNTER_COUNT 18
#define COUNTER_BIT(counter) (1U << (counter))

/* Durations for which there is a histogram. */
typedef enum Timing
{
	TIMING_WAIT, /* from ready to claimed, or to commit_once */
	TIMING_RUN	 /* from claimed to committed */
} Timing;

#define TIMING_COUNT 2

/* Durations to add to a histogram; the buckets outside of first to last are zero. */
typedef struct TimingDelta
{
	int first; /* first > last: there are none */
	int last;
	uint32 buckets[HISTOGRAM_BUCKETS];
} TimingDelta;

/* What a transaction adds to the counters of a queue. */
typedef struct CounterDelta
{
	int64 gauges[JOB_STATUS_COUNT];
	uint64 counters[COUNTER_COUNT];
	TimingDelta timings[TIMING_COUNT];
} CounterDelta;

/* A copy of a queue's counters. */
typedef struct CounterView
{
	bool known; /* the gauges are known */
	TimestampTz since;
	int64 gauges[JOB_STATUS_COUNT];
	uint64 changes; /* number of changes of the gauges; read after them */
	uint64 counters[COUNTER_COUNT];
	uint64 timings[TIMING_COUNT][HISTOGRAM_BUCKETS];
} CounterView;

/* The jobs of one queue, counted with SQL. */
typedef struct QueueCount
{
	int32 queue_id;
	int index; /* of its queue state; -1: none */
	int64 jobs[JOB_STATUS_COUNT];
} QueueCount;

typedef enum CountStart
{
	COUNT_BEGUN,
	COUNT_BUSY,	  /* another session is counting the jobs of this database */
	COUNT_CROWDED /* there are too many open transactions, or too many databases */
} CountStart;

/* The snapshot of a count.  The caller keeps the list of the transactions that were open. */
typedef struct CountSnapshot
{
	uint64 xmin; /* full transaction ids */
	uint64 xmax;
	int nopen;
} CountSnapshot;

extern const ShmemPart idemq_counters_part;

extern void idemq_count_snapshot_set(CountSnapshot *count, TransactionId *open, Snapshot snapshot);
extern bool idemq_count_snapshot_saw(const CountSnapshot *count, const TransactionId *open,
									 uint64 xid);
extern void idemq_counters_reset(int index, QueueStateKey key);
extern void idemq_counters_forget(int index);
extern void idemq_counters_forget_database(Oid database);
extern void idemq_counters_add(int index, int32 queue_id, uint64 xid, const CounterDelta *delta);
extern bool idemq_counters_read(int index, int32 queue_id, CounterView *view);

extern void idemq_counters_set_empty(int index, int32 queue_id);
extern CountStart idemq_counters_begin_count(Snapshot *snapshot);
extern void idemq_counters_end_count(bool completed, const QueueCount *counts, int ncounts);
extern void idemq_counters_unset_gauges(Oid database);
extern int64 idemq_counters_count_due_at(void);

/*
 * server_counts.c
 *		Counts for the whole server.
 */

/* Their names for SQL are in server_counts.c. */
typedef enum ServerCount
{
	COUNT_ONCE_FIRST,
	COUNT_ONCE_REPEATED,
	COUNT_PUBLISH_CALLS,
	COUNT_PUBLISH_JOBS,	   /* jobs that they have enqueued */
	COUNT_PUBLISH_SKIPPED, /* bindings that they have skipped */
	COUNT_ADMIT_ALLOWED,
	COUNT_ADMIT_REFUSED,
	COUNT_ADMIT_SHARED, /* calls for which there was no room for a bucket */
	/* How often a table was full: */
	COUNT_FULL_LEASES,
	COUNT_FULL_BUCKETS,
	COUNT_FULL_GROUPS,
	COUNT_FULL_QUEUES,
	COUNT_FULL_GROUP_ROOM
} ServerCount;

#define SERVER_COUNTS (COUNT_FULL_GROUP_ROOM + 1)

/* Counts one more, if that leaves a count, which others change too, within its room. */
static inline bool
count_one_within(pg_atomic_uint32 *count, uint32 room)
{
	if (pg_atomic_read_u32(count) >= room)
		return false;
	if (pg_atomic_fetch_add_u32(count, 1) < room)
		return true;
	pg_atomic_fetch_sub_u32(count, 1);
	return false;
}

extern const char *const idemq_server_count_names[];
extern const ShmemPart idemq_server_counts_part;

extern void idemq_count(ServerCount what, uint64 times);
extern int64 idemq_count_read(ServerCount what);
extern bool idemq_count_full(ServerCount table);
extern bool idemq_count_take_full(ServerCount table);
extern void idemq_count_forget_database(Oid database);

/*
 * notify_ring.c
 *		Events of single jobs, and finished jobs, that wait to be sent with NOTIFY.
 */

typedef enum RingKind
{
	RING_EVENTS,
	RING_FINISHED,
	RING_KINDS
} RingKind;

typedef enum EventKind
{
	JOB_LEASE_EXPIRED,
	JOB_WORKER_LOST,
	JOB_DIED
} EventKind;

/* An element of a ring. */
typedef struct JobNews
{
	int what;	   /* EventKind, or for a finished job its JobStatus */
	int32 attempt; /* of an event */
	int64 job_id;
} JobNews;

/* Maximum number of events of a queue that are waiting to be sent. */
#define EVENTS_KEPT 128
/* The same for finished jobs: so many ids, of 20 bytes each, always fit into one notification. */
#define FINISHED_KEPT (BLCKSZ / 32)

/* A copy of a ring. */
typedef struct RingBatch
{
	int count;
	bool unknown; /* an unknown number of jobs may have finished */
	uint64 until; /* for idemq_ring_sent */
	uint64 lost;  /* elements that found no room */
	JobNews news[Max(EVENTS_KEPT, FINISHED_KEPT)];
} RingBatch;

/* What a transaction has sent of a copy. */
typedef enum RingSent
{
	RING_SENT_ALL,
	RING_SENT_NEWS,		/* all but the overflow */
	RING_SENT_OVERFLOW, /* only that */
	RING_REFUSED		/* nothing, and the news must be reported as lost */
} RingSent;

extern const ShmemPart idemq_rings_part;
extern const ShmemPart idemq_queue_events_part;
extern const ShmemPart idemq_finished_jobs_part;

extern void idemq_rings_reset(int qstate_index, QueueStateKey key);
extern void idemq_ring_set_unknown(int qstate_index);
extern void idemq_ring_add(RingKind kind, QueueState *qstate, int32 queue_id, JobNews news);
extern bool idemq_ring_is_waiting(RingKind kind, const QueueState *qstate);
extern bool idemq_ring_copy(RingKind kind, const QueueState *qstate, int32 queue_id,
							RingBatch *batch);
extern void idemq_ring_sent(RingKind kind, const QueueState *qstate, int32 queue_id,
							const RingBatch *batch, RingSent sent);

/*
 * buckets.c
 *		The buckets of admission, in shared memory.
 */

/* What a bucket limits: for one name, each kind has a bucket of its own. */
typedef enum BucketKind
{
	BUCKET_ADMIT, /* calls of idemq.admit */
	BUCKET_GROUP  /* the starts of a group of a queue (job/group_rate_limit.c) */
} BucketKind;

/* A bucket of this database. */
typedef struct BucketName
{
	BucketKind kind;
	const char *name;
	int length; /* bytes of the name */
} BucketName;

/* A charge of one to a bucket. */
typedef struct BucketCharge
{
	int64 used_up_at; /* ns of the monotonic clock: the limit counts as used up then; 0: never */
	int qstate_index; /* index of the queue's */
	RateAnswer answer;
} BucketCharge;

extern const ShmemPart idemq_buckets_part;

extern void idemq_bucket_call(const BucketName *name, const RateLimit *limit, int64 cost,
							  RateAnswer *answer);
extern void idemq_bucket_charge(const BucketName *name, const RateLimit *limit,
								BucketCharge *charge);
extern void idemq_bucket_ask(const BucketName *name, const RateLimit *limit, BucketCharge *charge);
extern TableUsage idemq_buckets_usage(void);
extern void idemq_buckets_forget_database(Oid database);
extern void idemq_buckets_forget_queue(int qstate_index);

/*
 * unfinished.c
 *		The number of unfinished jobs of a queue with max_unfinished, including those that open
 *		transactions have added.
 */

typedef enum RoomAnswer
{
	ROOM_TAKEN,
	ROOM_FULL,
	ROOM_UNKNOWN, /* the jobs must be counted first */
	ROOM_COUNTING /* another session is counting the jobs */
} RoomAnswer;

/* Room that a transaction has taken in a queue, and the queue state and its life that count it. */
typedef struct RoomTaken
{
	int64 jobs; /* 0: none, and the other fields are meaningless */
	int32 qstate_index;
	uint32 life;
} RoomTaken;

/* What is counted of a queue. */
typedef struct UnfinishedView
{
	int64 jobs;	   /* committed unfinished jobs */
	int64 taken;   /* room of all open transactions */
	bool is_bound; /* jobs is a lower bound */
} UnfinishedView;

extern const ShmemPart idemq_unfinished_part;
extern const ShmemPart idemq_unfinished_open_part;

extern void idemq_unfinished_reset(int index, QueueStateKey key);
extern void idemq_unfinished_forget(int index);
extern void idemq_unfinished_unset_database(Oid database);
extern bool idemq_unfinished_is_counted(const QueueState *qstate);
extern RoomAnswer idemq_room_take(const QueueState *qstate, int32 queue_id, int64 jobs, int64 limit,
								  RoomTaken *room);
extern RoomAnswer idemq_room_peek(const QueueState *qstate, int32 queue_id, int64 jobs,
								  int64 limit);
extern void idemq_room_pass_on(int qstate_index, int64 jobs);
extern void idemq_room_signal_again(const QueueState *qstate, int32 queue_id);
extern void idemq_room_take_unasked(const QueueState *qstate, int32 queue_id, int64 jobs,
									RoomTaken *room);
extern void idemq_room_give_back(RoomTaken *room, int64 jobs);
extern void idemq_unfinished_apply(const QueueState *qstate, int32 queue_id, uint64 xid,
								   int64 added, RoomTaken *room);
extern bool idemq_unfinished_begin_count(const QueueState *qstate, int32 queue_id, int64 limit,
										 Snapshot *snapshot, int64 *bound);
extern void idemq_unfinished_end_count(bool counted, int64 jobs);
extern bool idemq_unfinished_await_count(const QueueState *qstate, int32 queue_id, int64 until);
extern bool idemq_unfinished_view(const QueueState *qstate, int32 queue_id, UnfinishedView *view);

/*
 * lease_shares.c
 *		How many entries of the lease table each database may have.
 */

/* Number of shares, including the one that all other databases use together. */
#define LEASE_SHARES 256

extern const ShmemPart idemq_lease_shares_part;
extern int idemq_lease_share_mine(void);
extern int idemq_lease_share_take(bool limited);
extern void idemq_lease_share_give_back(int share);
extern bool idemq_lease_share_is_full(bool limited);
extern int idemq_lease_share_of(Oid database);
extern void idemq_lease_share_forget(Oid database);
extern TableUsage idemq_leases_usage(void);
extern TableUsage idemq_leases_usage_mine(void);

#endif
