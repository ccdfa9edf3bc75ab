/*
 * worker/retention_fronts.h
 *		Which finished jobs are to be checked, whether their retention is over.
 */
#ifndef IDEMQ_WORKER_RETENTION_FRONTS_H
#define IDEMQ_WORKER_RETENTION_FRONTS_H

#include "table/jobs.h"
#include "table/jobs_finished.h"
#include "queue/queue_settings.h"

/* A part of the index of finished jobs: what is behind at, and finished before until. */
typedef struct FinishedScan
{
	FinishedKey at;
	TimestampTz until;
} FinishedScan;

static inline bool
finished_scan_is_over(const FinishedScan *scan)
{
	return scan->at.finished_at >= scan->until;
}

/* Jobs that a scan may have missed, until every transaction before xid has ended. */
typedef struct Missed
{
	TimestampTz from; /* from >= until: none */
	TimestampTz until;
	uint64 xid;
} Missed;

/* What the next transaction's number was at a time. */
typedef struct XidMark
{
	TimestampTz at;
	uint64 xid;
} XidMark;

#define XID_MARKS 16

/* What is known of one length of time, for which one queue or more keeps jobs. */
typedef struct Retention
{
	int64 keep;
	FinishedScan front; /* goes on where it ended, round after round */
	FinishedScan again; /* a second scan of what was missed */
	Missed waiting;		/* for the end of transactions, to be scanned again */
	Missed gathered;	/* missed since then */
	int nmarks;
	XidMark marks[XID_MARKS]; /* in the order of time */
} Retention;

extern int64 idemq_retention_of(const Job *job, const QueueInfo *queue);
extern TimestampTz idemq_retention_shortest(TimestampTz now);
extern void idemq_retentions_begin_round(TimestampTz now);
extern FinishedScan *idemq_retentions_next_scan(Retention **retention);
extern void idemq_retention_note_held(Retention *retention, TimestampTz finished_at);

#endif
