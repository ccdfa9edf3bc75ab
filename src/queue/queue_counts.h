/*
 * queue/queue_counts.h
 *		Counting the jobs of each queue by SQL.
 */
#ifndef IDEMQ_QUEUE_QUEUE_COUNTS_H
#define IDEMQ_QUEUE_QUEUE_COUNTS_H

#include "queue/queue_settings.h"
#include "shared/counters.h"

extern void idemq_queue_counts_run(void);
extern bool idemq_queue_counts_run_if_due(void);
extern CountStart idemq_queue_counts_try(int64 *jobs);
extern QueueCount *idemq_queue_counts_by_sql(int *ncounts);
extern void idemq_queue_counts_set_empty(int32 queue_id);
extern void idemq_queue_count_refusal(const QueueInfo *queue, Counter counter);

#endif
