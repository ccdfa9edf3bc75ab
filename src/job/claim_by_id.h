/*
 * job/claim_by_id.h
 *		Taking one job by its id.
 */
#ifndef IDEMQ_JOB_CLAIM_BY_ID_H
#define IDEMQ_JOB_CLAIM_BY_ID_H

#include "job/transition.h"

/* What is asked of one job. */
typedef struct JobCall
{
	int64 id;
	JobEvent event; /* EVENT_CLAIM or EVENT_COMMIT_ONCE */
	int64 lease;	/* microseconds, 0 for the queue's */
	bool attach;
	EventArgs args;
	bool fetched; /* job is fetched already, under the table's snapshot */
	/* what came of it */
	Job job;
	QueueInfo queue;
	TimestampTz retry_after; /* DT_NOEND: none */
} JobCall;

extern Outcome idemq_claim_by_id(JobCall *call, JobsTable *table);
extern bool idemq_job_is_settled(const JobCall *call);
extern Outcome idemq_claim_by_id_check(JobCall *call, JobsTable *table);

#endif
