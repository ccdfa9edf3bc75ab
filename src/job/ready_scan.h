/*
 * job/ready_scan.h
 *		Going through what is due in a queue, from its ready cursors on.
 */
#ifndef IDEMQ_JOB_READY_SCAN_H
#define IDEMQ_JOB_READY_SCAN_H

#include "table/jobs.h"
#include "queue/queue_settings.h"
#include "shared/ready_cursor.h"

/* What is to become of an entry of the ready index that is due. */
typedef enum Step
{
	STEP_PASS, /* not claimable, or ours now: the cursor may pass it */
	STEP_STAY, /* claimable still, or its row is held: the cursor stays before it */
	STEP_STOP  /* as STEP_PASS, and enough of it */
} Step;

/* One way through a queue. */
typedef struct ReadyScan
{
	QueueInfo queue;
	Step (*consider)(struct ReadyScan *scan, JobsTable *table, int priority, ReadyKey key);
	bool reads;				   /* consider writes nothing */
	int wanted;				   /* jobs that consider may take */
	MemoryContext row_context; /* current in consider, reset for each entry */
	/* set on the way */
	CursorView view;
	const ReadyEntry *entry; /* of the ring, in consider; NULL: the table's scan stands on it */
	TimestampTz now;
	bool stopped;
	bool held;			  /* met a row that was held */
	bool more;			  /* stopped where something due may follow */
	TimestampTz next_due; /* the earliest entry met that is not due yet; DT_NOEND: none */
} ReadyScan;

extern void idemq_ready_scan(ReadyScan *scan, JobsTable *table, bool from_start);
extern bool idemq_ready_job(ReadyScan *scan, JobsTable *table, int priority, ReadyKey key,
							Job *job);
extern bool idemq_ready_check(const QueueInfo *queue, TimestampTz *next_due, bool *held);
extern TimestampTz idemq_ready_next_due(const QueueInfo *queue);

#endif
