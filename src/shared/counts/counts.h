/*
 * shared/counts/counts.h
 *		Counters, gauges, events for NOTIFY, and the buckets of admission.
 */
#ifndef IDEMQ_SHARED_COUNTS_COUNTS_H
#define IDEMQ_SHARED_COUNTS_COUNTS_H

#include "datatype/timestamp.h"
#include "utils/snapshot.h"

#include "base/base.h"
#include "shared/queue_states/queue_states.h"

/*
 * counters.c
 *		What happened in a queue, and how many jobs it has, in shared memory.
 */

/* Events since the queue got its state, in the order of idemq_internal.queue_metrics(). */
typedef enum Counter
{
	COUNTER_ENQUEUED,
	COUNTER_DUPLICATES, /* a refusal too */
	COUNTER_CLAIMED,
	COUNTER_COMMITTED,
	COUNTER_FAILED, /* attempts, also the last of a job that is dead then */
	COUNTER_DEAD,
	COUNTER_RELEASED,
	COUNTER_EXPIRED, /* leases reaped */
	COUNTER_CANCELLED,
	COUNTER_RETRIED,
	COUNTER_REDRIVEN,
	COUNTER_ROW_ONLY, /* claims whose lease had no room in the lease table */
	COUNTER_PURGED,	  /* jobs deleted after their retention */
	/* Refusals: counted when they are answered, by idemq_queue_count_refusal. */
	COUNTER_STALE_COMMITS,	  /* commits with a token that is not the job's any more */
	COUNTER_STALE_CALLS,	  /* other calls of workers with such a token */
	COUNTER_REPEATED_COMMITS, /* commits of what was committed already */
	COUNTER_RERUNS,			  /* finished jobs made ready for a later request */
	COUNTER_STEPS_DONE
} Counter;

#define COUNTER_COUNT 18
#define COUNTER_BIT(counter) (1U << (counter))

/* Lengths of time of which there is a histogram. */
typedef enum Timing
{
	TIMING_WAIT, /* ready to claimed, or committed once */
	TIMING_RUN	 /* claimed to committed */
} Timing;

#define TIMING_COUNT 2

/* Some lengths of time; buckets outside of first to last are zero. */
typedef struct TimingDelta
{
	int first; /* first > last: none */
	int last;
	uint32 buckets[HISTOGRAM_BUCKETS];
} TimingDelta;

/* What a transaction adds to a queue. */
typedef struct CounterDelta
{
	int64 gauges[JOB_STATUS_COUNT];
	uint64 counters[COUNTER_COUNT];
	TimingDelta timings[TIMING_COUNT];
} CounterDelta;

/* A copy of a queue's counters. */
typedef struct CounterView
{
	bool known; /* the gauges are */
	TimestampTz since;
	int64 gauges[JOB_STATUS_COUNT];
	uint64 changes; /* of the gauges; read after them */
	uint64 counters[COUNTER_COUNT];
	uint64 timings[TIMING_COUNT][HISTOGRAM_BUCKETS];
} CounterView;

/* The jobs of one queue, counted by SQL. */
typedef struct QueueCount
{
	int32 queue_id;
	int index; /* of its state, -1 for none */
	int64 jobs[JOB_STATUS_COUNT];
} QueueCount;

typedef enum CountStart
{
	COUNT_BEGUN,
	COUNT_BUSY,	  /* another session counts this database */
	COUNT_CROWDED /* too many transactions, or databases, at a time */
} CountStart;

extern const ShmemPart idemq_counters_part;

extern void idemq_counters_reset(int index, Oid database, int32 queue_id);
extern void idemq_counters_forget(int index);
extern void idemq_counters_forget_database(Oid database);
extern void idemq_counters_add(int index, int32 queue_id, uint64 xid, const CounterDelta *delta);
extern bool idemq_counters_read(int index, int32 queue_id, CounterView *view);

extern void idemq_counters_set_empty(int index, int32 queue_id);
extern CountStart idemq_counters_begin_count(Snapshot *snapshot);
extern void idemq_counters_end_count(const QueueCount *counts, int ncounts);
extern void idemq_counters_cancel_count(void);
extern void idemq_counters_unset_gauges(Oid database);
extern int64 idemq_counters_count_due_at(void);

/*
 * server_counts.c
 *		What is counted on the whole server, not by queue.
 */

/* The name of each, which SQL sees, is in server_counts.c. */
typedef enum ServerCount
{
	COUNT_ONCE_FIRST,
	COUNT_ONCE_REPEATED,
	COUNT_PUBLISH_CALLS,
	COUNT_PUBLISH_JOBS,	   /* that they have made */
	COUNT_PUBLISH_SKIPPED, /* bindings */
	COUNT_ADMIT_ALLOWED,
	COUNT_ADMIT_REFUSED,
	COUNT_ADMIT_SHARED, /* calls without room for a bucket of their own */
	/* How often something found no room in a table. */
	COUNT_FULL_LEASES,
	COUNT_FULL_BUCKETS,
	COUNT_FULL_GROUPS,
	COUNT_FULL_QUEUES,
	COUNT_FULL_GROUP_ROOM
} ServerCount;

#define SERVER_COUNTS (COUNT_FULL_GROUP_ROOM + 1)

extern const char *const idemq_server_count_names[];
extern const ShmemPart idemq_server_counts_part;

extern void idemq_count(ServerCount what, uint64 times);
extern int64 idemq_count_read(ServerCount what);
extern bool idemq_count_full(ServerCount table);
extern bool idemq_count_take_full(ServerCount table);
extern void idemq_count_forget_database(Oid database);

/*
 * notify_ring.c
 *		Events of single jobs, for NOTIFY.
 */

typedef enum EventKind
{
	JOB_LEASE_EXPIRED,
	JOB_WORKER_LOST,
	JOB_DIED
} EventKind;

typedef struct JobNews
{
	EventKind kind;
	int32 attempt;
	int64 job_id;
} JobNews;

/* Events of a queue that are kept until they are notified. */
#define NEWS_KEPT 128

/* A copy of the events that are to be notified. */
typedef struct NewsBatch
{
	int count;
	uint64 until; /* for idemq_notify_ring_sent */
	uint64 lost;  /* events that found no room before these */
	JobNews news[NEWS_KEPT];
} NewsBatch;

extern const ShmemPart idemq_notify_ring_part;

extern void idemq_notify_ring_reset(int qstate_index);
extern void idemq_notify_ring_add(QueueState *qstate, int32 queue_id, const JobNews *news);
extern bool idemq_notify_ring_waiting(const QueueState *qstate);
extern void idemq_notify_ring_copy(const QueueState *qstate, NewsBatch *batch);
extern void idemq_notify_ring_sent(const QueueState *qstate, const NewsBatch *batch);

/*
 * finished_ring.c
 *		Finished jobs of queues with notify_finished, for NOTIFY.
 */

/*
 * Jobs of a queue that are kept until they are announced: so many ids, at 20 bytes each, always fit
 * into one notification.
 */
#define FINISHED_KEPT (BLCKSZ / 32)

/* A copy of the finished jobs that are to be announced. */
typedef struct FinishedBatch
{
	int count;
	bool unknown; /* jobs may have finished that nobody counted */
	uint64 until; /* for idemq_finished_ring_remove */
	uint64 lost;  /* jobs that were left out */
	int64 ids[FINISHED_KEPT];
	uint8 statuses[FINISHED_KEPT]; /* JobStatus */
} FinishedBatch;

extern const ShmemPart idemq_finished_rings_part;
extern const ShmemPart idemq_finished_jobs_part;

extern void idemq_finished_ring_reset(int qstate_index, Oid database, int32 queue_id);
extern void idemq_finished_ring_set_unknown(int qstate_index);
extern void idemq_finished_ring_add(QueueState *qstate, int32 queue_id, int64 job_id,
									JobStatus status);
extern bool idemq_finished_ring_is_waiting(const QueueState *qstate);
extern bool idemq_finished_ring_copy(const QueueState *qstate, int32 queue_id,
									 FinishedBatch *batch);
extern void idemq_finished_ring_remove(const QueueState *qstate, int32 queue_id,
									   const FinishedBatch *batch, bool is_lost);
extern void idemq_finished_ring_overflow_sent(const QueueState *qstate, int32 queue_id,
											  const FinishedBatch *batch);

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

/* A charge of one to a bucket, which can be taken back. */
typedef struct BucketCharge
{
	int64 used_up_at; /* ns of the monotonic clock: the limit counts as used up then; 0: never */
	int qstate_index; /* index of the queue's */
	bool is_shared;	  /* there was no room for a bucket: it is what names without one share */
	RateAnswer answer;
} BucketCharge;

extern const ShmemPart idemq_buckets_part;

extern void idemq_bucket_call(const BucketName *name, const RateLimit *limit, int64 cost,
							  RateAnswer *answer);
extern void idemq_bucket_charge(const BucketName *name, const RateLimit *limit,
								BucketCharge *charge);
extern void idemq_bucket_ask(const BucketName *name, const RateLimit *limit, BucketCharge *charge);
extern void idemq_bucket_undo(const BucketName *name, const RateLimit *limit,
							  const BucketCharge *charge);
extern TableUsage idemq_buckets_usage(void);
extern void idemq_buckets_forget_database(Oid database);
extern void idemq_buckets_forget_queue(int qstate_index);

#endif
