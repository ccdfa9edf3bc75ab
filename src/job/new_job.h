/*
 * job/new_job.h
 *		A new job: the columns that each one has, and adding it without a key.
 */
#ifndef IDEMQ_JOB_NEW_JOB_H
#define IDEMQ_JOB_NEW_JOB_H

#include "table/jobs.h"
#include "table/jobs_batch.h"
#include "queue/queue_settings.h"

extern void idemq_new_job(JobChange *columns, const QueueInfo *queue, TimestampTz now,
						  Datum payload);
extern JobStatus idemq_new_job_note_as(const QueueInfo *queue, const JobChange *columns, int64 id);
extern JobStatus idemq_new_job_note(const QueueInfo *queue, const JobChange *columns);
extern JobStatus idemq_new_job_insert(JobsTable *table, const QueueInfo *queue, JobChange *columns);
extern JobStatus idemq_new_job_add(JobsBatch *batch, const QueueInfo *queue, JobChange *columns);

#endif
