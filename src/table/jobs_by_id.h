/*
 * table/jobs_by_id.h
 *		Scans of the primary key: all jobs, in the order of their ids.
 */
#ifndef IDEMQ_TABLE_JOBS_BY_ID_H
#define IDEMQ_TABLE_JOBS_BY_ID_H

#include "table/jobs.h"

extern void idemq_jobs_ids_begin(JobsTable *table, int64 from, int64 until);
extern bool idemq_jobs_ids_next(JobsTable *table, int64 *id);
extern bool idemq_jobs_ids_in_doubt(JobsTable *table, Job *job);

#endif
