/*
 * api/enqueue.h
 *		SQL functions that add jobs: enqueue, enqueue_many.
 */
#ifndef IDEMQ_API_ENQUEUE_H
#define IDEMQ_API_ENQUEUE_H

#include "table/jobs.h"
#include "queue/queues.h"

extern void idemq_new_job(JobChange *columns, const QueueInfo *queue, TimestampTz now,
						  Datum payload);

#endif
