/*
 * job/dead_queue.h
 *		The queue to which the dead jobs of another queue go.
 */
#ifndef IDEMQ_JOB_DEAD_QUEUE_H
#define IDEMQ_JOB_DEAD_QUEUE_H

#include "table/jobs.h"
#include "table/jobs_write.h"
#include "queue/queue_settings.h"

extern void idemq_dead_queue_check(const char *queue, int32 queue_id, const char *dead_queue);
extern bool idemq_dead_queue_allowed(const QueueInfo *queue, const QueueInfo *dead);
extern bool idemq_dead_queue_wants(const QueueInfo *queue, const Job *job, JobStatus becomes);
extern bool idemq_dead_queue_hold(const QueueInfo *queue, JobWait wait, QueueInfo *dead);
extern void idemq_dead_queue_add(const Job *job, const QueueInfo *queue, const QueueInfo *dead,
								 JobStatus status, TimestampTz died_at, text *error);

#endif
