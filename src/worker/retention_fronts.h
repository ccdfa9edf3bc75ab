/*
 * worker/retention_fronts.h
 *		Which finished jobs are to be looked at, whether their retention is over.
 */
#ifndef IDEMQ_WORKER_RETENTION_FRONTS_H
#define IDEMQ_WORKER_RETENTION_FRONTS_H

#include "table/jobs.h"
#include "table/jobs_finished.h"
#include "queue/queue_settings.h"

/* A part of the index of finished jobs: what is behind at, and finished before until. */
typedef struct Look
{
	FinishedKey at;
	TimestampTz until;
} Look;

static inline bool
look_is_over(const Look *look)
{
	return look->at.finished_at >= look->until;
}

/* Jobs that a look may have missed, until every transaction before xid has ended. */
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
	Look front;		 /* goes on where it ended, round after round */
	Look again;		 /* a second look at what was missed */
	Missed waiting;	 /* for the end of transactions, to be looked at again */
	Missed gathered; /* missed since then */
	int nmarks;
	XidMark marks[XID_MARKS]; /* in the order of time */
} Retention;

extern int64 idemq_retention_of(const Job *job, const QueueInfo *queue);
extern TimestampTz idemq_retention_shortest(TimestampTz now);
extern void idemq_retentions_begin_round(TimestampTz now);
extern Look *idemq_retentions_look(Retention **retention);
extern void idemq_retention_note_held(Retention *retention, TimestampTz finished_at);

#endif
