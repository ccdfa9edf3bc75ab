/*
 * worker/expire.c
 *		The background worker's task "expire": cancels jobs that were not claimed in time
 *		(expires_in).  A claim that meets such a job cancels it itself.
 *
 * A queue's state contains a time before which no job of the queue expires (DUE_EXPIRY).  A
 * transaction that makes a job with an expires_at ready lowers this time after its commit
 * (txn/pending_queues.c).  When the time has come, the worker scans the queue's part of the ready
 * index, in steps, and then sets the time to the earliest expires_at that it found.  There is no
 * index on expires_at, so a scan reads every waiting job.  Therefore the queue's next scan begins
 * only after 99 times as long as this one took: scans use at most 1 % of the time.
 *
 * A scan sets the time to never before it begins, so a transaction that lowers the time during the
 * scan is not lost, even if the scan has passed its job.  A claim that is rolled back does not lower
 * the time; therefore a scan that meets an expired job whose row is held is followed by another one.
 *
 * Blocked jobs are not in the ready index.  They are found by SQL at the end of the scan.  If the
 * next job of a group has expired, the one after it is promoted (job/promote.c).
 *
 * State is local to the process; a new worker begins new scans.  Locks: as in table/jobs.c; a row
 * that another transaction holds is skipped.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/processes/processes.h"
#include "table/table.h"
#include "worker/worker.h"

/* Maximum number of index entries that a step reads, and of jobs that it cancels. */
#define STEP_ENTRIES 20000
#define STEP_JOBS 1000
/* Number of entries between two checks of whether the slice is over, if no job is cancelled. */
#define LOOK_EVERY 64
/* Scans take at most 1 / (1 + PAUSES) of the time. */
#define PAUSES 99
/* Delay before the next scan if the row of an expired job is held. */
#define HELD_PAUSE USECS_PER_SEC

/* The current scan of a queue, or the last one. */
typedef struct ExpireScan
{
	int32 queue_id; /* hash key */
	bool under_way;
	int priority; /* with from, the position at which the next step begins */
	ReadyKey from;
	TimestampTz next; /* the earliest expires_at that was found */
	int64 took;		  /* time (us) so far */
	int64 not_before; /* mono: earliest start of the next scan */
} ExpireScan;

static HTAB *scans = NULL;

typedef struct BlockedJob
{
	int64 id;
	TimestampTz expires_at;
} BlockedJob;

/* The blocked jobs of a queue that expire first. */
static SqlStatement blocked_jobs =
	{.text = "SELECT id, expires_at FROM idemq.jobs WHERE queue_id = $1 AND group_key IS NOT NULL "
			 "AND finished_at IS NULL AND status = 'blocked' AND attempt = 0 "
			 "AND expires_at IS NOT NULL ORDER BY expires_at, id LIMIT $2",
	 .types = {INT4OID, INT8OID},
	 .fields = (const SqlField[]){SQL_FIELD(BlockedJob, id), SQL_FIELD(BlockedJob, expires_at)}};

/* Returns the scan of a queue; creates it if there is none. */
static ExpireScan *
scan_of(int32 queue_id)
{
	HASHCTL info = {.keysize = sizeof(int32), .entrysize = sizeof(ExpireScan)};
	ExpireScan *scan;
	bool found;

	if (scans == NULL)
		scans = hash_create("idemq scans for expired jobs", 16, &info, HASH_ELEM | HASH_BLOBS);
	scan = hash_search(scans, &queue_id, HASH_ENTER, &found);
	if (!found)
		*scan = (ExpireScan){.queue_id = queue_id};
	return scan;
}

/* Returns when (mono) task "expire" must run for a queue; PG_INT64_MAX: never. */
int64
idemq_expire_due_at(const QueueStateView *view)
{
	const ExpireScan *scan = scan_of(view->queue_id);
	int64 due = idemq_due_at(view->qstate, DUE_EXPIRY);

	return scan->under_way ? 0 : Max(due, scan->not_before);
}

/* Cancels a job if it has expired and was never claimed, otherwise notes when it expires.  Returns whether it was cancelled. */
static bool
expire(ExpireScan *scan, JobsTable *table, const QueueInfo *queue, const Job *job)
{
	TimestampTz now = idemq_now();
	JobWrite write;

	if (job->attempt > 0 || job->expires_at == DT_NOEND ||
		!idemq_transition_allowed(EVENT_EXPIRE, job->status))
		return false;
	if (!job_has_expired(job, now))
	{
		scan->next = Min(scan->next, job->expires_at);
		return false;
	}
	write = idemq_job_expire(table, job, queue, now);
	if (write == JOB_LOCKED)
		scan->next = Min(scan->next, now + HELD_PAUSE);
	return write == JOB_WRITTEN;
}

/* Continues the scan to the end of the queue's part of the index, or of the step. */
static void
scan_on(ExpireScan *scan, JobsTable *table, const QueueInfo *queue, const Slice *slice)
{
	int entries = 0;
	int jobs = 0;
	bool over = false;
	ReadyKey key;
	Job job;

	while (!over && scan->priority < IDEMQ_PRIORITIES)
	{
		idemq_jobs_scan_begin(table, queue->id, scan->priority, scan->from, READY_KEY_MAX);
		while (!over && idemq_jobs_scan_next(table, &key))
		{
			bool cancelled;

			CHECK_FOR_INTERRUPTS();
			cancelled = idemq_jobs_scan_row(table, &job) && expire(scan, table, queue, &job);
			jobs += cancelled;
			entries++;
			scan->from = ready_key_after(key);
			over = jobs == STEP_JOBS || entries == STEP_ENTRIES ||
				   ((cancelled || entries % LOOK_EVERY == 0) && idemq_slice_is_over(slice));
		}
		idemq_jobs_scan_end(table);
		if (!over)
		{
			scan->priority++;
			scan->from = READY_KEY_MIN;
		}
	}
}

/*
 * The end of a scan: cancels the queue's blocked jobs that have expired, at most STEP_JOBS of them
 * and for one slice, and notes the earliest expires_at of the others.
 */
static void
expire_blocked(ExpireScan *scan, JobsTable *table, const QueueInfo *queue, const Slice *slice)
{
	Datum values[] = {Int32GetDatum(queue->id), Int64GetDatum(STEP_JOBS)};
	TimestampTz now = idemq_now();
	int count;
	BlockedJob *jobs = idemq_spi_rows(&blocked_jobs, values, sizeof(BlockedJob), &count);

	/* There may be more. */
	if (count == STEP_JOBS)
		scan->next = Min(scan->next, Max(jobs[count - 1].expires_at, now));
	for (int i = 0; i < count; i++)
	{
		Job job;

		CHECK_FOR_INTERRUPTS();
		/* They are sorted, so the others have not expired either. */
		if (jobs[i].expires_at > now)
		{
			scan->next = Min(scan->next, jobs[i].expires_at);
			break;
		}
		if (idemq_jobs_fetch(table, jobs[i].id, &job))
			(void) expire(scan, table, queue, &job);
		if (i + 1 < count && idemq_slice_is_over(slice))
		{
			scan->next = Min(scan->next, now);
			break;
		}
	}
	pfree(jobs);
}

/*
 * Task "expire": does one step of a queue's scan.  Call idemq_expire_ended after the transaction.
 */
void
idemq_expire_some(const QueueInfo *queue)
{
	ExpireScan *scan = scan_of(queue->id);
	int64 started = idemq_stopwatch();
	JobsTable table;
	Slice slice;

	idemq_slice_begin(&slice, SLICE_OF_TASK);
	if (!scan->under_way)
	{
		*scan = (ExpireScan){.queue_id = queue->id,
							 .under_way = true,
							 .from = READY_KEY_MIN,
							 .next = DT_NOEND};
		/* Before the snapshot, so that jobs that the snapshot does not see lower the time again. */
		(void) idemq_due_take(queue->qstate, DUE_EXPIRY);
	}
	idemq_jobs_open(&table);
	scan_on(scan, &table, queue, &slice);
	if (scan->priority == IDEMQ_PRIORITIES)
		expire_blocked(scan, &table, queue, &slice);
	idemq_jobs_close(&table);
	scan->took += idemq_stopwatch() - started;
}

/* Makes all scans due that were postponed because of the time that they take. */
void
idemq_expire_make_due(void)
{
	HASH_SEQ_STATUS all;
	ExpireScan *scan;

	if (scans == NULL)
		return;
	hash_seq_init(&all, scans);
	while ((scan = hash_seq_search(&all)) != NULL)
		scan->not_before = 0;
}

/*
 * Called after the transaction of a step.  At the end of the scan, sets when jobs expire next; if the
 * step failed, makes a new scan due.
 */
void
idemq_expire_ended(const QueueStateView *view, bool done)
{
	ExpireScan *scan = scan_of(view->queue_id);

	IDEMQ_STOP("idemq_expire_ended");
	if (!scan->under_way || (done && scan->priority < IDEMQ_PRIORITIES))
		return;
	scan->under_way = false;
	idemq_due_by(view->qstate, DUE_EXPIRY, done ? scan->next : 0);
	scan->not_before = idemq_mono_now() + PAUSES * scan->took;
}
