/*
 * table/jobs_ready.h
 *		Scans of the ready index: the jobs of one queue and priority in the order
 *		in which they are claimed.
 */
#ifndef IDEMQ_TABLE_JOBS_READY_H
#define IDEMQ_TABLE_JOBS_READY_H

#include "table/jobs.h"

extern ReadyKey idemq_jobs_scan_limit(ReadyKey from, ReadyKey bound);
extern ItemPointerData idemq_jobs_scan_tid(const JobsTable *table);
extern void idemq_jobs_scan_begin(JobsTable *table, int32 queue_id, int priority, ReadyKey from,
								  ReadyKey until);
extern bool idemq_jobs_scan_next(JobsTable *table, ReadyKey *key);
extern bool idemq_jobs_scan_attempt(JobsTable *table, Job *job);

#endif
