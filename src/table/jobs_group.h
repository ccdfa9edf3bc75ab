/*
 * table/jobs_group.h
 *		Jobs of a FIFO group, through the index jobs_group.
 */
#ifndef IDEMQ_TABLE_JOBS_GROUP_H
#define IDEMQ_TABLE_JOBS_GROUP_H

#include "table/jobs.h"

extern bool idemq_jobs_group_first(JobsTable *table, int32 queue_id, Datum name, Job *job);
extern bool idemq_jobs_group_head(JobsTable *table, int32 queue_id, Datum name, TimestampTz from,
								  Job *job);
extern bool idemq_jobs_group_blocked(JobsTable *table, int32 queue_id, Datum name, int64 from,
									 Job *job);
extern bool idemq_jobs_group_head_in_doubt(JobsTable *table, int32 queue_id, Datum name,
										   TimestampTz from);
extern bool idemq_jobs_group_uncommitted(JobsTable *table, int32 queue_id, Datum name,
										 TimestampTz from, int64 *id);
extern void idemq_jobs_group_scan_begin(JobsTable *table, int32 queue_id, Datum name,
										TimestampTz from, TimestampTz until);
extern bool idemq_jobs_group_scan_next(JobsTable *table, Job *job);
extern bool idemq_jobs_group_next(JobsTable *table, int32 queue_id, const Datum *name, Job *job);

#endif
