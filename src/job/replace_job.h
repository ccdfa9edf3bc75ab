/*
 * job/replace_job.h
 *		A request for a job that waits: it takes the request's payload, time and priority.
 */
#ifndef IDEMQ_JOB_REPLACE_JOB_H
#define IDEMQ_JOB_REPLACE_JOB_H

#include "datatype/timestamp.h"

#include "table/jobs.h"
#include "queue/queue_settings.h"

extern bool idemq_job_replace(JobsTable *table, const QueueInfo *queue, const Job *job,
							  const JobChange *columns, bool rerun);
extern void idemq_job_wait_no_longer(JobChange *columns, const Job *job, const Interval *max_wait);

#endif
