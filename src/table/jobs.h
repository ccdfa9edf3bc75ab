/*
 * table/jobs.h
 *		The jobs table.
 */
#ifndef IDEMQ_TABLE_JOBS_H
#define IDEMQ_TABLE_JOBS_H

#include "access/genam.h"
#include "access/htup_details.h"
#include "executor/tuptable.h"
#include "nodes/lockoptions.h"
#include "nodes/nodes.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "base/idemq.h"

/* Columns of idemq.jobs, in order, from 0. */
typedef enum JobColumn
{
	COL_ID,
	COL_QUEUE_ID,
	COL_CREATED_AT,
	COL_PRIORITY,
	COL_MAX_ATTEMPTS,
	COL_EXPIRES_AT,
	COL_RUN_AT,
	COL_STATUS,
	COL_ATTEMPT,
	COL_TOKEN,
	COL_READY_AT,
	COL_CLAIMED_AT,
	COL_DEADLINE,
	COL_FINISHED_AT,
	COL_WORKER,
	COL_KEY,
	COL_GROUP_KEY,
	COL_HEADERS,
	COL_PAYLOAD,
	COL_CHECKPOINT,
	COL_RESULT,
	COL_LAST_ERROR
} JobColumn;

#define JOB_COLUMNS 22
#define COLUMN_BIT(column) (1U << (column))

/* The table, open for one call; see table/jobs.c. */
typedef struct JobsTable
{
	Relation rel;
	MemoryContext context; /* of what lives as long as the table is open */
	bool simple;		   /* nothing on the table asks for the executor */
	CmdType checked;	   /* the replica identity was, for this command */
	Snapshot snapshot;	   /* registered; taken for this call */
	Snapshot crosscheck;   /* above READ COMMITTED, the transaction's own */
	TupleTableSlot *row;   /* the version last fetched */
	TupleTableSlot *lock_row;
	TupleTableSlot *new_row;
	Relation pkey; /* with its scan, from the first fetch by id on */
	IndexScanDesc by_id;
	Relation ready; /* or the index of finished jobs; with its scan, while one is open */
	IndexScanDesc by_ready;
} JobsTable;

/* A row version as fetched; text and jsonb stay in row, valid until the next fetch. */
typedef struct Job
{
	int64 id;
	int32 queue_id;
	int32 priority;
	int32 max_attempts;
	JobStatus status;
	int32 attempt;
	int64 token;
	bool is_ready; /* ready_at is not NULL */
	TimestampTz ready_at;
	TimestampTz claimed_at; /* with deadline: of a job in processing */
	TimestampTz deadline;
	TimestampTz expires_at; /* DT_NOEND for NULL */
	TupleTableSlot *row;
} Job;

/* Columns to write. */
typedef struct JobChange
{
	uint32 set; /* COLUMN_BITs */
	Datum values[JOB_COLUMNS];
	bool isnull[JOB_COLUMNS];
} JobChange;

/* What a write does when somebody holds the row. */
typedef enum JobWait
{
	JOB_WAITS, /* waits for him */
	JOB_SKIPS, /* never waits: locks the row first */
	/*
	 * As JOB_SKIPS, for a caller whose lease entry keeps claimers off: a row that
	 * looks free is written without a lock; a stranger who comes between is
	 * waited for.
	 */
	JOB_SKIPS_STRANGERS
} JobWait;

typedef enum JobWrite
{
	JOB_WRITTEN,
	JOB_CHANGED, /* no longer the version that was fetched, or not for this snapshot */
	JOB_LOCKED	 /* somebody holds the row, and the caller would not wait */
} JobWrite;

static inline void
job_set(JobChange *change, JobColumn column, Datum value)
{
	change->set |= COLUMN_BIT(column);
	change->values[column] = value;
	change->isnull[column] = false;
}

static inline void
job_set_null(JobChange *change, JobColumn column)
{
	change->set |= COLUMN_BIT(column);
	change->values[column] = (Datum) 0;
	change->isnull[column] = true;
}

static inline ReadyKey
job_ready_key(const Job *job)
{
	ReadyKey key = {job->ready_at, job->id};

	return key;
}

/* The header of a fetched version: who made it, who locks or changes it. */
static inline HeapTupleHeader
job_row_header(const Job *job)
{
	Assert(TTS_IS_BUFFERTUPLE(job->row));
	return ((BufferHeapTupleTableSlot *) job->row)->base.tuple->t_data;
}

/* A position in the index of finished jobs. */
typedef struct FinishedKey
{
	TimestampTz finished_at;
	ItemPointerData tid;
} FinishedKey;

/* What others do with a fetched version. */
typedef enum RowHold
{
	ROW_FREE,	/* nobody else locks or changes it */
	ROW_HELD,	/* an open transaction does */
	ROW_CHANGED /* a newer version, or a deletion, is committed */
} RowHold;

/* Which of idemq's own indexes. */
typedef enum JobsIndex
{
	INDEX_READY,
	INDEX_KEY,
	INDEX_GROUP,
	INDEX_FINISHED
} JobsIndex;

/* table/jobs.c */
extern void idemq_jobs_check_writable(void);
extern void idemq_jobs_open(JobsTable *table);
extern void idemq_jobs_open_to_read(JobsTable *table);
extern void idemq_jobs_refresh(JobsTable *table);
extern void idemq_jobs_close(JobsTable *table);
extern bool idemq_jobs_fetch(JobsTable *table, int64 id, Job *job);
extern void idemq_jobs_decode(TupleTableSlot *row, Job *job);
extern JobWrite idemq_jobs_lock(JobsTable *table, const Job *job, LockTupleMode mode, JobWait wait);
extern bool idemq_jobs_is_free(const Job *job);
extern bool idemq_jobs_is_outdated(JobsTable *table, const Job *job);
extern bool idemq_jobs_is_own(const Job *job);
extern bool idemq_jobs_is_mine(const Job *job);
extern JobWrite idemq_jobs_update(JobsTable *table, const Job *job, const JobChange *change,
								  JobWait wait);
extern JobWrite idemq_jobs_delete(JobsTable *table, const Job *job, JobWait wait);
extern int64 idemq_jobs_next_id(void);
extern void idemq_jobs_fill_row(JobsTable *table, JobChange *columns);
extern void idemq_jobs_insert(JobsTable *table, JobChange *columns);

/* table/jobs_ready.c */
extern ReadyKey idemq_jobs_scan_limit(ReadyKey from, ReadyKey stretch);
extern void idemq_jobs_scan_begin(JobsTable *table, int32 queue_id, int priority, ReadyKey from,
								  ReadyKey until);
extern bool idemq_jobs_scan_next(JobsTable *table, ReadyKey *key);
extern bool idemq_jobs_scan_row(JobsTable *table, Job *job);
extern bool idemq_jobs_scan_attempt(JobsTable *table, Job *job);
extern void idemq_jobs_scan_end(JobsTable *table);

/* table/jobs_finished.c */
extern FinishedKey idemq_jobs_finished_from(TimestampTz finished_at);
extern void idemq_jobs_finished_begin(JobsTable *table, const FinishedKey *after,
									  TimestampTz until);
extern bool idemq_jobs_finished_next(JobsTable *table, FinishedKey *key);

/* table/jobs_hold.c */
extern RowHold idemq_jobs_hold(const Job *job, TransactionId *holder);
extern bool idemq_jobs_lets_claim(const Job *job);
extern bool idemq_jobs_fetch_deleted(JobsTable *table, int64 id, Job *job);
extern int idemq_transaction_pid(TransactionId xid);

/* table/jobs_key.c */
extern bool idemq_jobs_find_key(JobsTable *table, int32 queue_id, Datum key, Job *job);
extern bool idemq_jobs_key_in_doubt(JobsTable *table, int32 queue_id, Datum key);
extern bool idemq_jobs_insert_keyed(JobsTable *table, JobChange *columns, JobWait wait);

/* table/jobs_group.c */
extern bool idemq_jobs_group_first(JobsTable *table, int32 queue_id, Datum name, Job *job);
extern bool idemq_jobs_group_head(JobsTable *table, int32 queue_id, Datum name, TimestampTz from,
								  Job *job);
extern bool idemq_jobs_group_blocked(JobsTable *table, int32 queue_id, Datum name, int64 from,
									 Job *job);
extern bool idemq_jobs_group_head_in_doubt(JobsTable *table, int32 queue_id, Datum name,
										   TimestampTz from);
extern bool idemq_jobs_group_next(JobsTable *table, int32 queue_id, const Datum *name, Job *job);

/* table/jobs_index.c */
extern void idemq_jobs_index_install(void);
extern Oid idemq_jobs_index(Relation rel, JobsIndex which);
extern void idemq_jobs_index_insert(Relation rel, TupleTableSlot *row, const uint32 *changed,
									bool only_summarizing);

extern bool idemq_jobs_indexes_are_simple(Relation rel);
extern bool idemq_jobs_index_insert_keyed(Relation rel, TupleTableSlot *row);

/* table/jobs_sql.c */
extern bool idemq_jobs_insert_sql(const JobChange *columns);
extern void idemq_jobs_update_sql(int64 id, const JobChange *change);
extern void idemq_jobs_delete_sql(int64 id);
extern bool idemq_jobs_delete_finished_sql(int64 id, TimestampTz finished_at);
pg_noreturn extern void idemq_jobs_refused(void);

#endif
