/*
 * table/jobs_write.h
 *		Writes to the jobs table: lock, update, delete and insert a row.
 */
#ifndef IDEMQ_TABLE_JOBS_WRITE_H
#define IDEMQ_TABLE_JOBS_WRITE_H

#include "table/jobs.h"

/* What a write does when another transaction holds the row. */
typedef enum JobWait
{
	JOB_WAITS, /* waits until that one ends */
	JOB_SKIPS, /* never waits: locks the row first */
	/*
	 * As JOB_SKIPS, for a caller whose lease entry keeps claimers off: a row that
	 * looks free is written without a lock.  A transaction that is no claim and
	 * comes between is waited for.
	 */
	JOB_SKIPS_STRANGERS
} JobWait;

typedef enum JobWrite
{
	JOB_WRITTEN,
	JOB_CHANGED, /* no longer the version that was fetched, or not for this snapshot */
	JOB_LOCKED	 /* another transaction holds the row, and the caller would not wait */
} JobWrite;

extern JobWrite idemq_jobs_lock(JobsTable *table, const Job *job, LockTupleMode mode, JobWait wait);
extern JobWrite idemq_jobs_keep(JobsTable *table, const Job *job);
extern JobWrite idemq_jobs_update(JobsTable *table, const Job *job, const JobChange *change,
								  JobWait wait);
extern JobWrite idemq_jobs_delete(JobsTable *table, const Job *job);
extern void idemq_jobs_fill_row(JobsTable *table, JobChange *columns);
extern void idemq_jobs_insert(JobsTable *table, JobChange *columns);

#endif
