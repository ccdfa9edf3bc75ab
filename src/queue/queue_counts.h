/*
 * queue/queue_counts.h
 *		Counting the jobs of each queue by SQL.
 */
#ifndef IDEMQ_QUEUE_QUEUE_COUNTS_H
#define IDEMQ_QUEUE_QUEUE_COUNTS_H

#include "shared/counters.h"

extern void idemq_gauges_count(void);
extern bool idemq_gauges_count_if_due(void);
extern CountStart idemq_gauges_try_count(int64 *jobs);
extern QueueCount *idemq_gauges_by_sql(int *ncounts);
extern void idemq_gauges_set_empty(int32 queue_id);

#endif
