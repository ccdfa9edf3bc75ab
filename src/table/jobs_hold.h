/*
 * table/jobs_hold.h
 *		Which transactions hold a fetched version of a job's row.
 */
#ifndef IDEMQ_TABLE_JOBS_HOLD_H
#define IDEMQ_TABLE_JOBS_HOLD_H

#include "table/jobs.h"

/* What other transactions do with a fetched version. */
typedef enum RowHold
{
	ROW_FREE,	/* none locks or changes it */
	ROW_HELD,	/* an open transaction does */
	ROW_CHANGED /* a newer version, or a deletion, is committed */
} RowHold;

extern RowHold idemq_jobs_hold(const Job *job, TransactionId *holder);
extern bool idemq_jobs_is_free(const Job *job);
extern bool idemq_jobs_lets_delete(const Job *job);
extern bool idemq_jobs_is_outdated(JobsTable *table, const Job *job);
extern bool idemq_jobs_is_own(const Job *job);
extern bool idemq_jobs_fetch_deleted(JobsTable *table, int64 id, Job *job);
extern bool idemq_jobs_is_mine(const Job *job);
extern int idemq_transaction_pid(TransactionId xid);

#endif
