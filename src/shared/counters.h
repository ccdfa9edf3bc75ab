/*
 * shared/counters.h
 *		What happened in a queue, and how many jobs it has, in shared memory.
 */
#ifndef IDEMQ_SHARED_COUNTERS_H
#define IDEMQ_SHARED_COUNTERS_H

#include "datatype/timestamp.h"
#include "utils/snapshot.h"

#include "base/histogram.h"
#include "base/idemq.h"

/* Events since the queue got its slot; in the order of idemq.queue_metrics(). */
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
	COUNTER_REPEATED_COMMITS, /* commits of what was committed */
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
	uint64 changes; /* that the gauges have had; read after them */
	uint64 counters[COUNTER_COUNT];
	uint64 timings[TIMING_COUNT][HISTOGRAM_BUCKETS];
} CounterView;

/* The jobs of one queue, counted by SQL. */
typedef struct QueueCount
{
	int32 queue_id;
	int index; /* of its slot, -1 for none */
	int64 jobs[JOB_STATUS_COUNT];
} QueueCount;

typedef enum CountStart
{
	COUNT_BEGUN,
	COUNT_BUSY,	  /* another session counts this database */
	COUNT_CROWDED /* too many transactions, or databases, at a time */
} CountStart;

extern Size idemq_counters_shmem_size(void);
extern void idemq_counters_shmem_init(void *area, bool found);

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

#endif
