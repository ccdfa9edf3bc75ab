/*
 * table/jobs_key.h
 *		Jobs by their idempotency key, through the unique index jobs_key: lookups,
 *		and inserts that give way to the job that has the key.
 */
#ifndef IDEMQ_TABLE_JOBS_KEY_H
#define IDEMQ_TABLE_JOBS_KEY_H

#include "table/jobs.h"
#include "table/jobs_write.h"

extern bool idemq_jobs_find_key(JobsTable *table, int32 queue_id, Datum key, Job *job);
extern bool idemq_jobs_key_in_doubt(JobsTable *table, int32 queue_id, Datum key);
extern bool idemq_jobs_insert_keyed(JobsTable *table, JobChange *columns, JobWait wait);
extern bool idemq_jobs_insert_heir(JobsTable *table, JobChange *columns, const Job *taken_from);

#endif
