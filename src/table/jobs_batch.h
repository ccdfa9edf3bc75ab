/*
 * table/jobs_batch.h
 *		Inserts of many rows that have no key.
 */
#ifndef IDEMQ_TABLE_JOBS_BATCH_H
#define IDEMQ_TABLE_JOBS_BATCH_H

#include "table/jobs.h"

typedef struct JobsBatch JobsBatch;

extern JobsBatch *idemq_jobs_batch_begin(JobsTable *table);
extern void idemq_jobs_batch_add(JobsBatch *batch, JobChange *columns);
extern void idemq_jobs_batch_end(JobsBatch *batch);

#endif
