/*
 * worker/retention_ranges.h
 *		Which ids are to be visited, and when, for jobs past their retention.
 */
#ifndef IDEMQ_WORKER_RETENTION_RANGES_H
#define IDEMQ_WORKER_RETENTION_RANGES_H

#include "table/jobs.h"
#include "queue/queue_settings.h"

/* A part of the primary key: what is not below at, and below until. */
typedef struct IdScan
{
	int64 at;
	int64 until;
} IdScan;

#define ALL_IDS ((IdScan){PG_INT64_MIN, PG_INT64_MAX})

static inline bool
id_scan_is_over(const IdScan *scan)
{
	return scan->at >= scan->until;
}

extern int64 idemq_retention_of(const Job *job, const QueueInfo *queue);
extern TimestampTz idemq_retention_visit_unfinished(const Job *job, const QueueInfo *queue,
													TimestampTz now);
extern TimestampTz idemq_retention_visit_finished(TimestampTz finished_at, int64 keep,
												  TimestampTz now);
extern void idemq_ranges_begin_round(TimestampTz now, int64 last_id);
extern bool idemq_ranges_begin_visit(IdScan *scan);
extern void idemq_ranges_stays(int64 id, TimestampTz next_visit);
extern void idemq_ranges_end_visit(const IdScan *scan);

#endif
