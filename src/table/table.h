/*
 * table/table.h
 *		Rows of idemq.jobs, through the access methods, and rows of related tables.
 */
#ifndef IDEMQ_TABLE_TABLE_H
#define IDEMQ_TABLE_TABLE_H

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "nodes/lockoptions.h"
#include "nodes/nodes.h"
#include "storage/lockdefs.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "base/base.h"
#include "queue/queue.h"

/*
 * jobs.c
 *		The table idemq.jobs: opens it for a call, and fetches rows.
 */

/* Columns of idemq.jobs, in order, counted from 0. */
typedef enum JobColumn
{
	COL_ID,
	COL_QUEUE_ID,
	COL_PRIORITY,
	COL_ENQUEUED_AT,
	COL_EXPIRES_AT,
	COL_RUN_AT,
	COL_MAX_ATTEMPTS,
	COL_FLAGS,
	COL_STATUS,
	COL_ATTEMPT,
	COL_TOKEN,
	COL_READY_AT,
	COL_CLAIMED_AT,
	COL_DEADLINE,
	COL_RENEWED_AT,
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
	COL_PAYLOAD /* last of the oldest version: see sql/parts/20_tables.sql */
} JobColumn;

/* Every version of the table with which the library works has these columns (base/version.c). */
#define JOB_COLUMNS_OLDEST (COL_PAYLOAD + 1)
/*
 * Later columns may be NULL, or may not exist yet: job_has tells, and writes leave out a column
 * that does not exist.  Their names are in table/jobs.c.
 */
#define JOB_COLUMNS (COL_PAYLOAD + 1)
#define COLUMN_BIT(column) (1U << (column))
/* The bits of all columns before a column, which need not have a bit itself. */
#define COLUMNS_BELOW(column) (PG_UINT32_MAX >> (32 - (column)))

/* Number of our columns in the table when this session last opened it. */
extern int idemq_jobs_columns;

/* Returns that number, which is a constant as long as there are no later columns. */
static inline int
job_columns(void)
{
	return JOB_COLUMNS == JOB_COLUMNS_OLDEST ? JOB_COLUMNS : idemq_jobs_columns;
}

/* A scan of a table other than idemq.jobs, by an index (table/jobs_scan.c). */
typedef struct TableScan
{
	Relation rel;
	Relation index;
	IndexScanDesc scan;
	TupleTableSlot *slot;
} TableScan;

/* The table, open for one call; see table/jobs.c. */
typedef struct JobsTable
{
	Relation rel;
	MemoryContext context; /* for what lives as long as the table is open */
	LOCKMODE mode;		   /* of the lock on the table */
	bool written;		   /* a write was tried, so the lock is kept */
	bool simple;		   /* nothing that a DBA has added to the table requires SQL */
	CmdType checked;	   /* the command for which the replica identity was checked */
	Snapshot snapshot;	   /* registered; the latest one when the table was opened or refreshed */
	Snapshot crosscheck;   /* above READ COMMITTED, the transaction's own; see jobs.c */
	TupleTableSlot *row;   /* the version that was fetched last */
	TupleTableSlot *lock_row;
	TupleTableSlot *new_row;
	Relation pkey; /* the primary key and its scan, from the first fetch by id on */
	IndexScanDesc by_id;
	Relation index; /* the index of an open scan (jobs_scan.c), and the scan */
	IndexScanDesc scan;
	TableScan *
		pauses; /* of idemq.paused_groups, under this snapshot, from the first lookup on; NULL: none */
} JobsTable;

/*
 * Flags of a job, in idemq.jobs.flags, for what no other column says.  job/transition.c sets and
 * clears them; JOB_FLAGS_OF (job/job.h) says which of them are possible with a status.  A row
 * written by hand has none of them.
 */
#define JOB_ATTACHED 1 /* running: the lease also ends with the session that claimed */
#define JOB_HANDLER 2  /* running: a process of a handler has claimed it */
/*
 * running: a heartbeat for a job without a lease entry has moved the deadline in the row.  The
 * length of the lease is deadline - renewed_at, and no longer deadline - claimed_at.
 */
#define JOB_EXTENDED 4
#define JOB_HISTORY 8 /* idemq.attempts has rows of the job */
#define JOB_LOST 16	  /* not finished: the lease of its last attempt that counts was lost */
/* For jobs in groups (job/permits.c, job/group_rate_limit.c): */
#define JOB_PERMIT 32		/* pending or running: it was promoted when due, and has a permit */
#define JOB_RATE_LIMITED 64 /* pending or retrying: waits until ready_at for the rate or a hold */
/*
 * not finished: how many consecutive attempts have ended because their handler's process crashed,
 * and because it was told to exit; two numbers up to JOB_COUNT_MAX.
 */
#define JOB_CRASHED 256
#define JOB_INTERRUPTED 1024
#define JOB_COUNT_MAX 3

/*
 * A row version as fetched.  Its text and jsonb values remain in row, valid until the next fetch.
 */
typedef struct Job
{
	int64 id;
	int32 queue_id;
	int32 priority;
	int32 max_attempts;
	int16 flags; /* JOB_ATTACHED ... */
	JobStatus status;
	int32 attempt;
	int64 token;
	bool is_ready; /* ready_at is not NULL */
	TimestampTz ready_at;
	TimestampTz claimed_at; /* this and deadline: of a running job */
	TimestampTz deadline;
	TimestampTz expires_at;	  /* DT_NOEND for NULL */
	ItemPointerData root_tid; /* HOT root TID, which is in its index entries; invalid: not known */
	HeapTupleHeaderData header; /* as it was when the row was fetched by root_tid */
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

/* Returns whether a column of a fetched job exists and is not NULL. */
static inline bool
job_has(const Job *job, JobColumn column)
{
	return (column < JOB_COLUMNS_OLDEST || (int) column < job_columns()) &&
		   !job->row->tts_isnull[column];
}

/* Returns a column of a fetched job for which job_has is true. */
static inline Datum
job_value(const Job *job, JobColumn column)
{
	return job->row->tts_values[column];
}

/* Returns a timestamp column of a fetched job; DT_NOBEGIN for NULL. */
static inline TimestampTz
job_time(const Job *job, JobColumn column)
{
	return job_has(job, column) ? DatumGetTimestampTz(job_value(job, column)) : DT_NOBEGIN;
}

static inline ReadyKey
job_ready_key(const Job *job)
{
	ReadyKey key = {job->ready_at, job->id};

	return key;
}

/* Returns whether a job is running, in the attempt with that token. */
static inline bool
job_is_attempt(const Job *job, int64 token)
{
	return job->status == JOB_RUNNING && job->token == token;
}

/* Returns whether a running job was claimed by a handler's process. */
static inline bool
job_is_handled(const Job *job)
{
	return (job->flags & JOB_HANDLER) != 0;
}

/* Returns one of the numbers in a job's flags: JOB_CRASHED or JOB_INTERRUPTED. */
static inline int
job_count(int16 flags, int16 which)
{
	return flags / which & JOB_COUNT_MAX;
}

/* Returns whether a job has expired, because it was not claimed before its expires_at. */
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
extern void idemq_jobs_index_close(JobsTable *table, Relation index);
extern bool idemq_jobs_fetch(JobsTable *table, int64 id, Job *job);
extern TidHint idemq_jobs_tid_hint(const JobsTable *table, const Job *job);
extern bool idemq_jobs_fetch_at(JobsTable *table, const TidHint *tid_hint, int64 id, Job *job);
extern void idemq_jobs_decode(TupleTableSlot *row, Job *job);
extern bool idemq_jobs_fetch_entry(JobsTable *table, IndexScanDesc scan, Job *job);

/*
 * attempt_history.c
 *		The history of attempts that did not commit, or whose job ran again.
 */

extern void idemq_attempt_history_add(const Job *job, TimestampTz ended_at, const char *outcome,
									  text *error, Jsonb *details);
extern void idemq_attempt_history_add_commit(const Job *job, Jsonb *details);
extern bool idemq_attempt_history_has_commit(int64 job_id, int64 token);
extern void idemq_attempt_history_forget(const int64 *job_ids, int count);

/*
 * steps.c
 *		What attempts have done, or may have done: the rows of idemq.steps.
 */

#define STEP_MAX_NAME 256 /* bytes */

typedef enum StepState
{
	STEP_NONE, /* no row */
	STEP_OPEN, /* begun, and not finished */
	STEP_DONE,
	STEP_REFUSED, /* the other side did not do it */
	STEP_VOID,	  /* belongs to an earlier payload of the job */
	STEP_WAITING, /* a wait for an event (table/events.c), like the two below */
	STEP_ARRIVED,
	STEP_TIMED_OUT
} StepState;

/* Returns whether a step is a wait for an event. */
static inline bool
step_is_wait(StepState state)
{
	return state >= STEP_WAITING;
}

/* A step, and the attempt that asks about it. */
typedef struct StepName
{
	int64 job_id;
	Datum name;	 /* text */
	int64 token; /* of the attempt */
} StepName;

/* A row, locked.  Its values are in the caller's memory context. */
typedef struct Step
{
	StepState state;
	int32 round; /* number of refusals and earlier payloads */
	int64 token; /* of the attempt that began it last */
	bool mine;	 /* the attempt that asks has begun it in this round */
	bool inside; /* done in a transaction here, and never begun */
	bool same_request;
	TimestampTz begun_at; /* this and call_until: not set if inside */
	TimestampTz call_until;
	Datum request; /* jsonb; 0: NULL */
	Datum response;
	Datum effect_key; /* text; 0 if inside */
} Step;

/* A call that begins. */
typedef struct StepCall
{
	Datum request;
	TimestampTz begun_at;
	TimestampTz call_until;
} StepCall;

extern void idemq_step_database_uuid(unsigned char *uuid);
extern void idemq_step_lock(const StepName *name, Datum request, Step *step);
extern bool idemq_step_write(const StepName *name, int32 queue_id, const Step *step, bool locked);
extern bool idemq_step_begin(const StepName *name, int32 queue_id, const StepCall *call,
							 Step *step);
extern void idemq_step_take_over(const StepName *name, const StepCall *call);
extern void idemq_step_answer(const StepName *name, Datum response);
extern void idemq_step_refuse(const StepName *name, Datum error);

/*
 * events.c
 *		Events that were sent to a queue, and the waits of jobs for them.
 */

#define EVENT_MAX_NAME 256 /* bytes, as of a step: a wait is one */

/* An event. */
typedef struct EventName
{
	int32 queue_id;
	Datum name; /* text */
} EventName;

extern void idemq_event_lock(const EventName *event, LOCKMODE mode);
extern bool idemq_event_find(const EventName *event, TimestampTz now, Datum *payload);
extern void idemq_event_write(const EventName *event, Datum payload, TimestampTz now,
							  TimestampTz keep_until);

/* A job that waits for an event. */
typedef struct EventWait
{
	int64 job_id;
	int64 token; /* of the attempt that waited last */
} EventWait;

extern EventWait *idemq_waits_for(const EventName *event, int *count);
extern void idemq_waits_arrived(const EventName *event, const int64 *job_ids, int count,
								Datum payload);
extern void idemq_event_wait_moved(int64 job_id);

/*
 * jobs_steps.c
 *		Deletes all steps of a job, or marks them void.
 */

extern void idemq_steps_void(int64 job_id);
extern void idemq_steps_forget(const int64 *job_ids, int count);

/*
 * jobs_dependencies_scan.c
 *		Scans of idemq.dependencies and idemq.children.
 */

/* Which rows a scan reads, from idemq.children or idemq.dependencies. */
typedef enum DependencyIndex
{
	CHILDREN_BY_ID,		 /* the row of one child */
	CHILDREN_BY_WATCHED, /* children that watch a parent, in the order of their ids */
	CHILDREN_BY_QUEUE,	 /* children in a queue, in the order of their ids */
	EDGES_BY_CHILD,		 /* the parents of a child, in the order of their ids */
	EDGES_BY_PARENT		 /* the children of a parent, in the order of their ids */
} DependencyIndex;

/* Columns of idemq.dependencies and idemq.children, counted from 1. */
enum
{
	EDGE_CHILD = 1,
	EDGE_PARENT,
	EDGE_QUEUE_ID,
	EDGE_GONE_AS,
	EDGE_SEEN_TOKEN
};
enum
{
	CHILD_ID = 1,
	CHILD_QUEUE_ID,
	CHILD_ON_PARENT_FAILURE,
	CHILD_GROUP_KEY,
	CHILD_WAITS_FOR
};

typedef struct DependencyScan
{
	DependencyIndex which;
	TableScan table;
	TupleTableSlot *slot; /* table.slot: the current row */
} DependencyScan;

extern void idemq_dependency_scan_open(DependencyScan *scan, DependencyIndex which,
									   Snapshot snapshot);
extern void idemq_dependency_scan_from(DependencyScan *scan, int64 of, int64 from);
extern bool idemq_dependency_scan_next(DependencyScan *scan);
extern int64 idemq_dependency_scan_int64(const DependencyScan *scan, int column);
extern void idemq_dependency_scan_close(DependencyScan *scan);

/*
 * jobs_dependencies.c
 *		Parents and children: the rows of idemq.dependencies and idemq.children.
 */

/* What becomes of a child whose parent is dead or cancelled. */
typedef enum ParentFailure
{
	FAILURE_CANCELS,
	FAILURE_WAITS,
	FAILURE_RUNS
} ParentFailure;

/* A parent that is in the way of its child. */
typedef struct DependencyParent
{
	int64 id;
	bool gone; /* its row was deleted, and it was not completed */
	JobStatus status;
	int32 queue_id;
} DependencyParent;

/* What a child waits for, by the snapshot of the table that was looked at. */
typedef struct DependencyLook
{
	int64 id;
	int64 waits_for; /* all its parents with lesser ids are done */
	ParentFailure on_failure;
	Datum group;			   /* in the caller's memory context */
	bool is_free;			   /* all parents are done */
	DependencyParent obstacle; /* the first that is not */
} DependencyLook;

/* A child that waits for a parent. */
typedef struct DependencyChild
{
	int64 id;
	int32 queue_id;
	bool watches; /* it watches this parent at the moment */
} DependencyChild;

/* Some of the children of a parent, or of a queue, in the order of their ids. */
typedef struct DependencyPage
{
	DependencyChild *children; /* palloc'ed */
	int count;
	bool is_last;
	int64 next; /* otherwise: the id from which the next page begins */
} DependencyPage;

/* A parent, for its child. */
typedef struct DependencyGone
{
	int64 id;
	bool gone; /* it was deleted, as: */
	JobStatus gone_as;
	int64 seen_token; /* the child has seen its parents' attempts of lesser tokens end; 0: none */
} DependencyGone;

/* An edge: both ends with their queues; 0 is not known. */
typedef struct DependencyEdge
{
	int64 child;
	int64 parent;
	int32 child_queue;
	int32 parent_queue;
} DependencyEdge;

/* Whether there is a row for a child and a parent. */
typedef enum DependencyRow
{
	DEPENDENCY_NONE,
	DEPENDENCY_THERE,
	DEPENDENCY_IN_DOUBT /* an open transaction has written it */
} DependencyRow;

extern const char *idemq_failure_name(ParentFailure failure);
extern bool idemq_dependencies_exist(void);
extern bool idemq_dependency_look(JobsTable *table, int64 child, DependencyLook *look);
extern bool idemq_dependency_waits(int64 child);
extern bool idemq_dependency_failed_parent(JobsTable *table, int64 child, DependencyParent *parent);
extern bool idemq_dependency_child(Snapshot snapshot, int64 child, DependencyLook *look);
extern DependencyRow idemq_dependency_row(int64 child, int64 parent);
extern bool idemq_dependency_queue_of(int64 job_id, int32 *queue_id);
extern void idemq_dependency_children(Snapshot snapshot, int64 parent, bool failed, int64 from,
									  int max, DependencyPage *page);
extern void idemq_dependency_waiting(Snapshot snapshot, int32 queue_id, int64 from, int max,
									 DependencyPage *page);
extern DependencyGone *idemq_dependency_parents(JobsTable *table, int64 child, int *count);
extern DependencyEdge *idemq_dependency_edges(const DependencyEdge *behind, int max, int *count);

/*
 * jobs_dependencies_write.c
 *		Writes to idemq.dependencies and idemq.children.
 */

/* A new job that must wait for its parents. */
typedef struct NewDependencies
{
	int64 child;
	int32 queue_id;
	int count;		/* of parents; one at least */
	int64 *parents; /* in order, each once */
	int failed;		/* of them, dead or cancelled: */
	int64 *failures;
	ParentFailure on_failure;
	Datum group; /* text: the group that it joins afterwards; 0 for none */
} NewDependencies;

extern bool idemq_dependencies_is_writing(void);
/*
 * The rows of idemq.dependencies of a parent, in SQL.  With old statistics all plans cost the same,
 * so the condition leaves one: only the index (parent, child + 0) serves both columns, and the
 * primary key (child, parent) lacks queue_id, which is never 0, so it is not read alone.
 */
#define DEPENDENCIES_OF_PARENT(parent_id)                                                          \
	"(parent, child + 0) >= (" parent_id ", -9223372036854775808) "                                \
	"AND (parent, child + 0) <= (" parent_id ", 9223372036854775807) AND queue_id <> 0 "
extern void idemq_dependencies_add(const NewDependencies *depends);
extern void idemq_dependencies_add_more(const NewDependencies *depends);
extern bool idemq_dependency_watch(int64 child, int64 parent);
extern void idemq_dependency_released(const int64 *children, const int64 *tokens, int count);
extern void idemq_dependency_forget(const int64 *job_ids, int count);
extern void idemq_dependency_row_gone(int64 job_id, JobStatus status);
extern void idemq_dependency_all_gone(void);
extern void idemq_dependency_child_moved(int64 job_id, int32 queue_id);

/*
 * audit_log.c
 *		What was decided about queues and jobs, by which role, and when: idemq.audit.
 */

/* An action, as a row of idemq.audit.  Fields other than queue may be 0 or NULL. */
typedef struct AuditEntry
{
	const char *action;		/* name of the function */
	const QueueInfo *queue; /* its id is 0 if there is none */
	int64 job_id;
	int64 jobs;				/* number of jobs, if not one */
	Datum details;			/* jsonb */
	const char *members[6]; /* or the members of details: a name and its text, ... */
} AuditEntry;

extern void idemq_audit(const AuditEntry *entry);

/*
 * jobs_write.c
 *		Writes to the jobs table: lock, update, delete and insert a row.
 */

/* What a write does if another transaction holds the row. */
typedef enum JobWait
{
	JOB_WAITS, /* waits until that transaction ends */
	JOB_SKIPS, /* never waits, because it locks the row first */
	/*
	 * Like JOB_SKIPS, for a caller whose lease entry keeps other claims away.  If the row looks
	 * free, it is written without being locked first.  If another transaction locks the row in
	 * between, the write waits for it.
	 */
	JOB_SKIPS_STRANGERS
} JobWait;

typedef enum JobWrite
{
	JOB_WRITTEN,
	JOB_CHANGED, /* the fetched version is not the latest, or not in the transaction's snapshot */
	JOB_LOCKED	 /* another transaction holds the row, and the caller must not wait */
} JobWrite;

extern JobWrite idemq_jobs_lock(JobsTable *table, const Job *job, LockTupleMode mode, JobWait wait);
extern JobWrite idemq_jobs_keep(JobsTable *table, const Job *job, JobWait wait);
extern JobWrite idemq_jobs_update(JobsTable *table, const Job *job, const JobChange *change,
								  JobWait wait);
extern JobWrite idemq_jobs_delete(JobsTable *table, const Job *job);
extern void idemq_jobs_fill_row(JobsTable *table, JobChange *columns);
extern void idemq_jobs_count_new(const TupleTableSlot *row);
extern void idemq_jobs_insert(JobsTable *table, JobChange *columns);

/*
 * jobs_deletable.c
 *		Which jobs may be deleted.
 */

extern int idemq_jobs_deletable(const QueueState *qstate, int64 *ids, int count, bool holds,
								bool told);
extern JobWrite idemq_jobs_may_delete(JobsTable *table, const Job *job, const QueueState *qstate,
									  JobStatus status, bool *related);
extern void idemq_jobs_check_deleted(const QueueState *qstate, int64 id, bool related);

/*
 * jobs_key.c
 *		Idempotency keys of jobs: lookups, and inserts that give way to the job that has the key.
 */

extern bool idemq_jobs_find_key(JobsTable *table, int32 queue_id, Datum key, Job *job);
extern bool idemq_jobs_key_in_doubt(JobsTable *table, int32 queue_id, Datum key);
extern bool idemq_jobs_await_key(JobsTable *table, int32 queue_id, Datum key);
extern bool idemq_jobs_insert_keyed(JobsTable *table, JobChange *columns, JobWait wait);
extern bool idemq_jobs_insert_successor(JobsTable *table, JobChange *columns,
										const Job *taken_from);

/*
 * jobs_index.c
 *		The indexes of idemq.jobs, and their entries for rows that are written without the executor.
 */

/* idemq's own indexes. */
typedef enum JobsIndex
{
	INDEX_READY,
	INDEX_KEY,
	INDEX_GROUP
} JobsIndex;

extern void idemq_jobs_index_install(void);
extern Oid idemq_jobs_index(Relation rel, JobsIndex which, bool missing_ok);
extern void idemq_jobs_index_insert(Relation rel, TupleTableSlot *row, const uint32 *changed,
									bool only_summarizing);
extern bool idemq_jobs_index_insert_simple(Relation rel, TupleTableSlot **rows, int count,
										   const uint32 *changed, IndexUniqueCheck check_key);
extern bool idemq_jobs_indexes_are_simple(Relation rel);

/*
 * jobs_sql.c
 *		Writes to idemq.jobs through SQL, if something that a DBA has added to the table requires
 *		it.
 */

extern bool idemq_jobs_insert_sql(const JobsTable *table, const JobChange *columns);
extern void idemq_jobs_update_sql(const JobsTable *table, int64 id, const JobChange *change);
extern void idemq_jobs_delete_sql(int64 id);
extern bool idemq_jobs_delete_finished_sql(int64 id, TimestampTz finished_at);
pg_noreturn extern void idemq_jobs_refused(void);

/*
 * jobs_hold.c
 *		Which transactions hold a fetched version of a job's row.
 */

/* How other transactions hold a fetched version. */
typedef enum RowHold
{
	ROW_FREE,	/* none has locked or changed it */
	ROW_HELD,	/* an open transaction has */
	ROW_CHANGED /* a newer version, or a deletion, has been committed */
} RowHold;

extern RowHold idemq_jobs_hold(const Job *job, TransactionId *holder);
extern bool idemq_jobs_is_free(const Job *job);
extern bool idemq_jobs_lets_delete(const Job *job);
extern bool idemq_jobs_is_outdated(JobsTable *table, const Job *job);
extern bool idemq_jobs_is_own(const Job *job);
extern bool idemq_jobs_is_held_here(const Job *job);
extern bool idemq_jobs_fetch_before(JobsTable *table, int64 id, Job *job);
extern bool idemq_jobs_fetch_deleted(JobsTable *table, int64 id, Job *job);
extern bool idemq_jobs_is_mine(const Job *job);
extern int idemq_transaction_pid(TransactionId xid);

/*
 * jobs_scan.c
 *		Scans of idemq.jobs by an index: the ready jobs of one queue and priority in the order in
 *		which they are claimed; all jobs in the order of their ids.
 */

extern void idemq_jobs_scan_open(JobsTable *table, Oid index, LOCKMODE mode, ScanKeyData *keys,
								 int nkeys, bool entries);
extern bool idemq_jobs_scan_row(JobsTable *table, Job *job);
extern void idemq_jobs_scan_end(JobsTable *table);
extern ReadyKey idemq_jobs_scan_limit(ReadyKey from, ReadyKey bound);
extern void idemq_jobs_scan_begin(JobsTable *table, int32 queue_id, int priority, ReadyKey from,
								  ReadyKey until);
extern bool idemq_jobs_scan_next(JobsTable *table, ReadyKey *key);
extern ItemPointerData idemq_jobs_scan_tid(const JobsTable *table);
extern void idemq_jobs_ids_begin(JobsTable *table, int64 from, int64 until);
extern bool idemq_jobs_ids_next(JobsTable *table, int64 *id);
extern bool idemq_jobs_ids_in_doubt(JobsTable *table, Job *job);
extern void idemq_table_scan_open(TableScan *scan, Relation rel, Relation index, Snapshot snapshot,
								  int nkeys);
extern void idemq_table_scan_close(TableScan *scan);

/*
 * jobs_version.c
 *		Finds the visible version of a row from its HOT root TID.
 */

extern bool idemq_version_fetch(Relation rel, Snapshot snapshot, const ItemPointerData *root_tid,
								TupleTableSlot *row, bool *all_dead, HeapTupleHeaderData *header);

/*
 * jobs_batch.c
 *		Inserts of many rows that have no key.
 */

typedef struct JobsBatch JobsBatch;

extern JobsBatch *idemq_jobs_batch_begin(JobsTable *table);
extern void idemq_jobs_batch_add(JobsBatch *batch, JobChange *columns);
extern void idemq_jobs_batch_end(JobsBatch *batch);

/*
 * jobs_id.c
 *		New job ids, none of which was given before.
 */

extern int64 idemq_jobs_next_id(void);
extern void idemq_jobs_next_ids(int64 *ids, int count);
extern void idemq_jobs_ids_take_over(int64 greatest);
extern int64 idemq_jobs_last_id(void);
extern void idemq_jobs_ids_changed(void);
extern void idemq_jobs_ids_unknown(void);
extern void idemq_jobs_id_install(void);

/*
 * jobs_shard.c
 *		Makes this database a shard of a cluster.
 */

/* The number of a shard is above these bits of its ids, so the ids of 64 shards are below 2^53. */
#define SHARD_ID_BITS 47
#define MAX_SHARDS 64

extern bool idemq_shard_set(int32 shard, int32 shards);
extern void idemq_shard_assert(int32 shard, int32 shards);

/*
 * jobs_group.c
 *		The jobs of a FIFO group.
 */

extern bool idemq_jobs_group_first(JobsTable *table, int32 queue_id, Datum name, Job *job);
extern bool idemq_jobs_group_head(JobsTable *table, int32 queue_id, Datum name, TimestampTz from,
								  Job *job);
extern bool idemq_jobs_group_blocked(JobsTable *table, int32 queue_id, Datum name, int64 from,
									 Job *job);
extern void idemq_jobs_group_scan_begin(JobsTable *table, int32 queue_id, Datum name,
										TimestampTz from, TimestampTz until);
extern bool idemq_jobs_group_scan_next(JobsTable *table, Job *job);
extern int64 idemq_jobs_group_count(JobsTable *table, int32 queue_id, Datum name, Snapshot snapshot,
									int64 most);
extern bool idemq_jobs_group_next(JobsTable *table, int32 queue_id, const Datum *name, Job *job);

/*
 * jobs_paused.c
 *		Which groups are paused.
 */

extern void idemq_jobs_paused_end(JobsTable *table);
extern bool idemq_jobs_group_pause_find(JobsTable *table, int32 queue_id, Datum name,
										TimestampTz *until);
extern bool idemq_jobs_group_is_paused(JobsTable *table, const QueueInfo *queue, Datum name,
									   TimestampTz *until);

#endif
