/*
 * worker/retention.c
 *		Deletes rows that are past their retention: finished jobs with their attempts and steps,
 *		the operations seen by idemq.once, events, and the audit log.
 *
 * The background worker does this in passes.  A pass begins idemq.purge_interval after the previous
 * one began.  It consists of batches of 5 ms, each in its own transaction; between two batches, all
 * other tasks can run.  worker/retention_ranges.c decides which jobs a pass visits.  A batch never
 * waits for a row that another transaction holds, and deletes only the version that it has fetched;
 * so a job that is redriven in the meantime is not deleted.
 *
 * Each pass ends with a part of the sweep: a scan of all jobs, in the order of their ids, for jobs
 * that the passes have missed.  The sweep takes 1 % of the time, and at least one batch per pass.
 *
 * If a job was deleted by hand, its history stays, because a job that pg_restore has not restored
 * yet looks the same.
 *
 * If idemq.jobs has triggers, constraints and so on that a user has added, each row is deleted by
 * SQL in a subtransaction, and deferred constraints are checked at once.  So if the deletion of a row
 * is refused, only this row stays.
 *
 * State is local to the process.  If the transaction of a batch fails, even at its commit, the
 * changes of the batch to this state are undone.  Locks: as in table/jobs.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"
#include "worker/worker.h"

/* Maximum size of a batch: jobs deleted, jobs deleted by SQL, and ids read. */
#define BATCH_ROWS 2000
#define BATCH_ROWS_BY_SQL 50
#define BATCH_IDS 20000
/* Number of ids between two checks of whether the slice is over, if no row is deleted. */
#define LOOK_EVERY 64
/* Sweeps take at most 1 / SWEEP_SHARE of the time, and begin at least SWEEP_PAUSE apart. */
#define SWEEP_SHARE 100
#define SWEEP_PAUSE (10 * USECS_PER_MINUTE)
/* Delay before the next visit of a job with an unfinished child, or whose relatives are held. */
#define NEEDED_PAUSE (10 * USECS_PER_SEC)
/* Delay before the next visit of a job whose deletion was refused. */
#define REFUSED_PAUSE (10 * USECS_PER_MINUTE)

typedef struct Batch
{
	JobsTable table;
	TimestampTz now;
	bool bounded; /* it ends after a slice, or after BATCH_IDS */
	Slice slice;
	int max_rows;
	int rows;		 /* number of jobs deleted */
	int ids_read;	 /* number of ids read */
	int rows_before; /* rows at the last call of is_over */
	int64 *ids;		 /* of the deleted jobs */
	QueueInfo queue; /* of the last row */
	bool notes;		 /* jobs that stay are noted in the ranges, for their next visit */
} Batch;

/* What the next batch does. */
typedef enum Stage
{
	STAGE_BEGIN,
	STAGE_JOBS,
	STAGE_BY_TIME,
	STAGE_SWEEP
} Stage;

/*
 * How far the deletion of seen operations, events and audit entries has come: rows whose time is
 * before this one have been deleted.
 */
typedef struct ByTime
{
	TimestampTz seen;
	TimestampTz events;
	TimestampTz audit;
	int64 rows; /* number of rows deleted last time */
} ByTime;

#define ALL_TIMES ((ByTime){DT_NOBEGIN, DT_NOBEGIN, DT_NOBEGIN, 0})

typedef struct Passes
{
	Stage stage;
	int64 began;	  /* mono: when the last pass began; 0: the next one begins at once */
	TimestampTz now;  /* the time as of which the pass deletes */
	IdScan sweep;	  /* the rest of the current sweep */
	int64 swept;	  /* time (us) that this pass has spent sweeping */
	int64 next_sweep; /* mono */
	bool whole;		  /* this pass does not end before the sweep does */
	ByTime by_time;
} Passes;

static Passes passes = {.stage = STAGE_BEGIN};
/* The state before the current batch, and the range that the batch visits. */
static Passes passes_before;
static IdScan visit;
static bool visiting = false;
/* A refused deletion was logged in this pass. */
static bool refusal_logged = false;

static SqlStatement delete_by_time =
	{.text = "SELECT * FROM idemq_internal.delete_by_time($1, $2, $3, $4, $5, $6)",
	 .types = {TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
			   INT8OID},
	 .few = true,
	 .locks = true,
	 .fields = (const SqlField[]){SQL_FIELD(ByTime, seen), SQL_FIELD(ByTime, events),
								  SQL_FIELD(ByTime, audit), SQL_FIELD(ByTime, rows)}};

/*
 * Deletes seen operations, events and audit entries that are past their retention, at most limit
 * rows; moves by_time on.  Returns whether there may be more.
 */
static bool
purge_by_time(ByTime *by_time, TimestampTz now, int64 limit)
{
	TimestampTz audit_until =
		idemq_audit_retention < 0 ? DT_NOBEGIN : now - idemq_audit_retention * USECS_PER_MINUTE;
	Datum values[] = {TimestampTzGetDatum(by_time->seen),  TimestampTzGetDatum(by_time->events),
					  TimestampTzGetDatum(by_time->audit), TimestampTzGetDatum(now),
					  TimestampTzGetDatum(audit_until),	   Int64GetDatum(limit)};

	(void) idemq_spi_row(&delete_by_time, values, by_time, sizeof(*by_time));
	return by_time->rows == limit;
}

/*
 * Deletes a row by SQL, in a subtransaction.  Returns false if the row stays.  Logs the
 * first error of a pass; raises the error if the query was cancelled.
 */
static bool
delete_by_sql(const Job *job, TimestampTz finished_at)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData *volatile error = NULL;
	volatile bool deleted = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		deleted = idemq_jobs_delete_finished_sql(job->id, finished_at);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		deleted = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error == NULL)
		return deleted;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	if (!refusal_logged)
		ereport(
			LOG,
			errmsg("job %lld has passed its retention period but cannot be deleted: %s",
				   (long long) job->id, error->message),
			errhint(
				"A user-defined trigger or foreign key on idemq.jobs prevents the deletion. Other "
				"jobs that cannot be deleted in the same pass are not logged."));
	refusal_logged = true;
	FreeErrorData(error);
	return false;
}

/*
 * Deletes the job of the current index entry, if it is past its retention.  Returns when to visit it
 * again; DT_NOEND: never.
 */
static TimestampTz
retention_consider(Batch *batch)
{
	bool simple = batch->table.simple;
	TimestampTz finished_at;
	int64 keep;
	JobWrite write;
	bool related;
	Job job;

	if (!idemq_jobs_scan_row(&batch->table, &job))
	{
		if (!batch->notes || !idemq_jobs_ids_in_doubt(&batch->table, &job))
			return DT_NOEND;
		return idemq_retention_visit_unfinished(&job, NULL, batch->now);
	}
	if (job.queue_id != batch->queue.id && !idemq_queue_by_id(job.queue_id, &batch->queue))
		return idemq_retention_visit_unfinished(&job, NULL, batch->now);
	if (!job_status_is_finished(job.status) || job.row->tts_isnull[COL_FINISHED_AT])
		return idemq_retention_visit_unfinished(&job, &batch->queue, batch->now);
	finished_at = DatumGetTimestampTz(job.row->tts_values[COL_FINISHED_AT]);
	keep = idemq_retention_of(&job, &batch->queue);
	if (finished_at > batch->now - keep)
		return idemq_retention_visit_finished(finished_at, keep, batch->now);
	write = idemq_jobs_may_delete(&batch->table, &job, batch->queue.qstate, job.status, &related);
	if (write != JOB_WRITTEN)
		return write == JOB_LOCKED && related ? batch->now + NEEDED_PAUSE : batch->now;
	if (!simple && !delete_by_sql(&job, finished_at))
		return batch->now + REFUSED_PAUSE;
	if (simple && idemq_jobs_delete(&batch->table, &job) != JOB_WRITTEN)
		return batch->now;
	/* A job that was cancelled because of this one may be retried. */
	if (simple && job.status != JOB_COMPLETED && related)
		idemq_dependency_row_gone(job.id, job.status);
	idemq_jobs_check_deleted(batch->queue.qstate, job.id, related);
	idemq_pending_counts_event(job.queue_id, COUNTER_BIT(COUNTER_PURGED));
	batch->ids[batch->rows++] = job.id;
	return DT_NOEND;
}

/* Called at each new id: returns whether the batch must end before it. */
static bool
is_over(Batch *batch)
{
	bool deleted = batch->rows > batch->rows_before;

	batch->rows_before = batch->rows;
	if (batch->rows == batch->max_rows)
		return true;
	return batch->bounded &&
		   (batch->ids_read++ == BATCH_IDS ||
			((deleted || batch->ids_read % LOOK_EVERY == 0) && idemq_slice_is_over(&batch->slice)));
}

/*
 * Continues a scan: deletes at most max_rows jobs that are past their retention, with their attempts
 * and steps.  notes and bounded: as in Batch.  Returns the number of jobs that it deleted.
 */
static int
purge_jobs(IdScan *scan, bool notes, TimestampTz now, int max_rows, bool bounded)
{
	Batch batch = {.now = now, .bounded = bounded, .max_rows = max_rows, .notes = notes};
	int64 last = scan->at;
	int64 id;
	bool stopped = false;

	idemq_slice_begin(&batch.slice, SLICE_OF_TASK);
	idemq_jobs_open(&batch.table);
	if (bounded && !batch.table.simple)
	{
		/*
		 * Like SET CONSTRAINTS ALL IMMEDIATE, so that a constraint that refuses a deletion fails at
		 * this row, and not at the commit of the whole batch.
		 */
		batch.max_rows = BATCH_ROWS_BY_SQL;
		AfterTriggerSetState(makeNode(ConstraintsSetStmt));
	}
	batch.ids = palloc(batch.max_rows * sizeof(int64));
	idemq_jobs_ids_begin(&batch.table, scan->at, scan->until);
	while (!stopped && idemq_jobs_ids_next(&batch.table, &id))
	{
		TimestampTz next_visit;

		CHECK_FOR_INTERRUPTS();
		/* Several versions of a row have the same id.  A scan can only be continued at another id. */
		if (id != last && is_over(&batch))
		{
			scan->at = id;
			stopped = true;
			continue;
		}
		last = id;
		next_visit = retention_consider(&batch);
		if (notes && next_visit < DT_NOEND)
			idemq_ranges_stays(id, next_visit);
	}
	idemq_jobs_scan_end(&batch.table);
	idemq_attempt_history_forget(batch.ids, batch.rows);
	idemq_steps_forget(batch.ids, batch.rows);
	idemq_dependency_forget(batch.ids, batch.rows);
	idemq_jobs_close(&batch.table);
	pfree(batch.ids);
	if (!stopped)
		scan->at = scan->until;
	return batch.rows;
}

/*
 * Continues the sweep, or begins a new one if it is time.  Returns whether this pass must go on
 * sweeping.
 */
static bool
sweep(void)
{
	int64 mono = idemq_mono_now();
	int64 started = idemq_stopwatch();

	if (id_scan_is_over(&passes.sweep) && mono >= passes.next_sweep)
	{
		passes.sweep = ALL_IDS;
		passes.by_time = ALL_TIMES;
		passes.next_sweep = mono + SWEEP_PAUSE;
	}
	if (!id_scan_is_over(&passes.sweep))
		(void) purge_jobs(&passes.sweep, false, passes.now, BATCH_ROWS, true);
	passes.swept += idemq_stopwatch() - started;
	if (!id_scan_is_over(&passes.sweep))
		return passes.whole || passes.swept < idemq_purge_interval * INT64CONST(1000) / SWEEP_SHARE;
	passes.whole = false;
	return false;
}

/* Returns when (mono) the next batch must run; PG_INT64_MAX: never. */
int64
idemq_retention_due_at(const QueueStateView *view)
{
	if (idemq_purge_interval <= 0)
		return PG_INT64_MAX;
	if (passes.stage != STAGE_BEGIN || passes.began == 0)
		return 0;
	return passes.began + idemq_purge_interval * INT64CONST(1000);
}

/* Makes a pass due that visits all jobs. */
void
idemq_retention_make_due(void)
{
	passes.stage = STAGE_BEGIN;
	passes.began = 0;
	passes.whole = true;
	passes.sweep = ALL_IDS;
	passes.by_time = ALL_TIMES;
}

/* Task "purge": runs one batch.  Call idemq_retention_ended after the transaction. */
void
idemq_retention_run(void)
{
	passes_before = passes;
	visiting = false;
	if (passes.stage == STAGE_BEGIN)
	{
		/*
		 * This reads the sequence, and therefore locks it.  TRUNCATE ... RESTART IDENTITY locks first
		 * the table and then the sequence, so this transaction must not lock the table afterwards.
		 */
		passes.now = idemq_now();
		passes.began = idemq_mono_now();
		passes.swept = 0;
		refusal_logged = false;
		idemq_ranges_begin_pass(passes.now, idemq_jobs_last_id());
		passes.stage = STAGE_JOBS;
		return;
	}
	if (passes.stage == STAGE_JOBS)
	{
		visiting = idemq_ranges_begin_visit(&visit);
		if (visiting)
		{
			(void) purge_jobs(&visit, true, passes.now, BATCH_ROWS, true);
			return;
		}
		passes.stage = STAGE_BY_TIME;
	}
	if (passes.stage == STAGE_BY_TIME && !purge_by_time(&passes.by_time, passes.now, BATCH_ROWS))
		passes.stage = STAGE_SWEEP;
	else if (passes.stage == STAGE_SWEEP && !sweep())
		passes.stage = STAGE_BEGIN;
}

/* Called after the transaction of a batch; if it failed, undoes the changes of the batch. */
void
idemq_retention_ended(const QueueStateView *view, bool done)
{
	IDEMQ_STOP("idemq_retention_ended");
	if (!done)
		passes = passes_before;
	else if (visiting)
		idemq_ranges_end_visit(&visit);
	visiting = false;
}

/*
 * apply_retention(max_jobs) -> the number of jobs that were deleted.  Also deletes other rows that
 * are past their retention.  22023, 25006.
 */
SQL_FUNCTION(idemq_sql_apply_retention)
{
	int64 max_jobs = idemq_arg_int(fcinfo, 0, "max_jobs", 1, PG_INT32_MAX);
	TimestampTz now = idemq_now();
	IdScan scan = ALL_IDS;
	ByTime by_time = ALL_TIMES;
	int64 purged = 0;

	idemq_jobs_check_writable();
	refusal_logged = false;
	while (purged < max_jobs && !id_scan_is_over(&scan))
		purged += purge_jobs(&scan, false, now, (int) Min(BATCH_ROWS, max_jobs - purged), false);
	(void) purge_by_time(&by_time, now, 3 * max_jobs);
	PG_RETURN_INT64(purged);
}
