/*
 * table/jobs.h
 *		The jobs table.
 */
#ifndef IDEMQ_TABLE_JOBS_H
#define IDEMQ_TABLE_JOBS_H

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
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
	COL_DEAD_AT,
	COL_KEY_EXPIRES_AT,
	COL_RERUN_AT,
	COL_WORKER,
	COL_KEY,
	COL_GROUP_KEY,
	COL_KIND,
	COL_HEADERS,
	COL_RERUN_PAYLOAD,
	COL_RERUN_HEADERS,
	COL_RERUN_KIND,
	COL_CHECKPOINT,
	COL_RESULT,
	COL_LAST_ERROR,
	COL_PAYLOAD /* last: see sql/parts/20_tables.sql */
} JobColumn;

#define JOB_COLUMNS 29
#define COLUMN_BIT(column) (1U << (column))

/* The table, open for one call; see table/jobs.c. */
typedef struct JobsTable
{
	Relation rel;
	MemoryContext context; /* of what lives as long as the table is open */
	LOCKMODE mode;		   /* of its lock */
	bool written;		   /* a write was tried: the lock stays */
	bool simple;		   /* nothing on the table asks for the executor */
	CmdType checked;	   /* the replica identity was, for this command */
	Snapshot snapshot;	   /* registered; taken for this call */
	Snapshot crosscheck;   /* above READ COMMITTED, the transaction's own */
	TupleTableSlot *row;   /* the version last fetched */
	TupleTableSlot *lock_row;
	TupleTableSlot *new_row;
	Relation pkey; /* with its scan, from the first fetch by id on */
	IndexScanDesc by_id;
	Relation index; /* of ready jobs, or of all by id; with its scan, while one is open */
	IndexScanDesc scan;
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
	TimestampTz expires_at;		/* DT_NOEND for NULL */
	ItemPointerData root;		/* what its index entries name; invalid: not known */
	HeapTupleHeaderData header; /* as it was when it was fetched by root */
	TupleTableSlot *row;
} Job;

/* Columns to write. */
typedef struct JobChange
{
	uint32 set; /* COLUMN_BITs */
	Datum values[JOB_COLUMNS];
	bool isnull[JOB_COLUMNS];
} JobChange;

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

/* Returns whether a job is in processing by the attempt of that token. */
static inline bool
job_is_attempt(const Job *job, int64 token)
{
	return job->status == JOB_PROCESSING && job->token == token;
}

/* Returns whether a job's last attempt was claimed by a handler's process. */
static inline bool
job_is_handled(const Job *job)
{
	struct varlena *worker = (struct varlena *) DatumGetPointer(job->row->tts_values[COL_WORKER]);
	Size length = sizeof(IDEMQ_HANDLER_WORKER) - 1;

	return !job->row->tts_isnull[COL_WORKER] && !VARATT_IS_EXTERNAL(worker) &&
		   !VARATT_IS_COMPRESSED(worker) && VARSIZE_ANY_EXHDR(worker) >= length &&
		   memcmp(VARDATA_ANY(worker), IDEMQ_HANDLER_WORKER, length) == 0;
}

/* Returns whether nobody claimed a job in time, by its expires_at. */
static inline bool
job_has_expired(const Job *job, TimestampTz now)
{
	return job->attempt == 0 && job->expires_at <= now;
}

extern void idemq_jobs_prevent_writes(const char *function);
extern void idemq_jobs_check_writable(void);
extern void idemq_jobs_open(JobsTable *table);
extern void idemq_jobs_open_to_read(JobsTable *table);
extern void idemq_jobs_refresh(JobsTable *table);
extern void idemq_jobs_refresh_or_raise(JobsTable *table);
extern void idemq_jobs_close(JobsTable *table);
extern Oid idemq_jobs_primary_key(Relation rel);
extern bool idemq_jobs_fetch(JobsTable *table, int64 id, Job *job);
extern RowPlace idemq_jobs_place(const JobsTable *table, const Job *job);
extern bool idemq_jobs_fetch_at(JobsTable *table, const RowPlace *place, int64 id, Job *job);
extern void idemq_jobs_decode(TupleTableSlot *row, Job *job);
extern bool idemq_jobs_fetch_entry(JobsTable *table, IndexScanDesc scan, Job *job);
extern bool idemq_jobs_scan_row(JobsTable *table, Job *job);
extern void idemq_jobs_scan_end(JobsTable *table);

#endif
