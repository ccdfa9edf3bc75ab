/*
 * table/jobs_finished.h
 *		Scans of the index of finished jobs, all queues in the order of finished_at.
 */
#ifndef IDEMQ_TABLE_JOBS_FINISHED_H
#define IDEMQ_TABLE_JOBS_FINISHED_H

#include "table/jobs.h"

/* A position in the index of finished jobs. */
typedef struct FinishedKey
{
	TimestampTz finished_at;
	ItemPointerData tid;
} FinishedKey;

extern FinishedKey idemq_jobs_finished_from(TimestampTz finished_at);
extern void idemq_jobs_finished_begin(JobsTable *table, const FinishedKey *after,
									  TimestampTz until);
extern bool idemq_jobs_finished_next(JobsTable *table, FinishedKey *key);

#endif
