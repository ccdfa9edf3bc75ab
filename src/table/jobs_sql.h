/*
 * table/jobs_sql.h
 *		Writes to idemq.jobs the long way, by SQL: every write when a DBA has added
 *		to the table (user triggers, foreign keys that point here, generated columns,
 *		check constraints, further columns), and inserts with a key when a user's
 *		index needs the executor.  All that any INSERT, UPDATE or DELETE of these
 *		columns fires is fired.
 */
#ifndef IDEMQ_TABLE_JOBS_SQL_H
#define IDEMQ_TABLE_JOBS_SQL_H

#include "table/jobs.h"

extern bool idemq_jobs_insert_sql(const JobChange *columns);
extern void idemq_jobs_update_sql(int64 id, const JobChange *change);
extern void idemq_jobs_delete_sql(int64 id);
extern bool idemq_jobs_delete_finished_sql(int64 id, TimestampTz finished_at);
pg_noreturn extern void idemq_jobs_refused(void);

#endif
