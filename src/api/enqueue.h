/*
 * api/enqueue.h
 *		Adding a job to a queue, for what adds jobs to several.
 */
#ifndef IDEMQ_API_ENQUEUE_H
#define IDEMQ_API_ENQUEUE_H

#include "job/new_job_keyed.h"
#include "table/jobs.h"
#include "table/jobs_batch.h"
#include "queue/queue_settings.h"

extern void idemq_enqueue_add(JobsTable *table, JobsBatch *batch, const QueueInfo *queue,
							  JobChange *columns, DuplicateRule rule, JobWait wait,
							  EnqueueAnswer *answer);

#endif
