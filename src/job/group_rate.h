/*
 * job/group_rate.h
 *		group_rate: how many jobs of a group may be started in group_period.
 */
#ifndef IDEMQ_JOB_GROUP_RATE_H
#define IDEMQ_JOB_GROUP_RATE_H

#include "table/jobs_write.h"
#include "queue/queue_settings.h"
#include "shared/buckets.h"

/* What a start has taken from its group's rate. */
typedef struct GroupCharge
{
	bool charged;	  /* false: there was nothing to take */
	TimestampTz next; /* of a start that is refused: when to try again */
	BucketCharge bucket;
} GroupCharge;

extern bool idemq_group_rate_pass(const QueueInfo *queue, const Job *job, GroupCharge *charge);
extern void idemq_group_rate_undo(const QueueInfo *queue, const Job *job,
								  const GroupCharge *charge);
extern bool idemq_group_rate_is_sooner(const QueueInfo *queue, const Job *job, TimestampTz *until);
extern TimestampTz idemq_group_rate_next(const QueueInfo *queue, Datum name);
extern JobWrite idemq_job_put_off(JobsTable *table, const Job *job, const QueueInfo *queue,
								  TimestampTz until);

#endif
