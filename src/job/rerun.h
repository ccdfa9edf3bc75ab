/*
 * job/rerun.h
 *		A request for a job that is in progress, or finished: it runs once more.
 */
#ifndef IDEMQ_JOB_RERUN_H
#define IDEMQ_JOB_RERUN_H

#include "job/new_job_keyed.h"
#include "table/jobs.h"
#include "table/jobs_write.h"
#include "queue/queue_settings.h"

extern void idemq_new_job_or_rerun(JobsTable *table, const QueueInfo *queue, JobChange *columns,
								   JobWait wait, EnqueueAnswer *answer);

#endif
