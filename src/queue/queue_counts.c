/*
 * queue/queue_counts.c
 *		Counts the jobs of each queue and status by SQL, to give the gauges in
 *		shared memory their base, or to answer in their place.
 *
 * See shared/counts/counters.c for why a count is exact while others change jobs.  A session
 * that finds gauges unknown (idemq.metrics, the worker, idemq.recount) counts, for 1 % of
 * the time at most; where it cannot count so, idemq.metrics counts by SQL for itself.
 *
 * A queue that create_queue makes is known to be empty, because the id of a queue is never
 * given twice.  A DBA who truncates idemq.queues with RESTART IDENTITY and keeps the jobs,
 * or who writes jobs with triggers disabled, has to run idemq.recount().
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"

/* How many jobs of a queue have a status. */
typedef struct StatusCount
{
	int32 queue_id;
	JobStatus status;
	int64 jobs;
} StatusCount;

static SqlStatement count_jobs =
	{.fields = (const SqlField[]){SQL_FIELD(StatusCount, queue_id), SQL_FIELD(StatusCount, status),
								  SQL_FIELD(StatusCount, jobs)},
	 .text = "SELECT queue_id, status, count(*) FROM idemq.jobs GROUP BY queue_id, status "
			 "ORDER BY queue_id"};

/* Reads the rows of count_jobs into an array of the context, in the order of queue_id. */
static QueueCount *
read_counts(uint64 rows, MemoryContext context, int *ncounts)
{
	QueueCount *counts = MemoryContextAllocHuge(context, Max(rows, 1) * sizeof(QueueCount));
	int n = 0;

	for (uint64 i = 0; i < rows; i++)
	{
		StatusCount row;

		idemq_spi_read(i, count_jobs.fields, &row, context);
		if (n == 0 || counts[n - 1].queue_id != row.queue_id)
		{
			memset(&counts[n], 0, sizeof(QueueCount));
			counts[n].queue_id = row.queue_id;
			counts[n].index = -1;
			n++;
		}
		counts[n - 1].jobs[row.status] = row.jobs;
	}
	*ncounts = n;
	return counts;
}

/*
 * Counts all jobs of this database under the latest snapshot: one element a queue
 * that has any, in the order of queue_id.  Works on a standby as well.
 */
QueueCount *
idemq_queue_counts_by_sql(int *ncounts)
{
	MemoryContext caller = CurrentMemoryContext;
	QueueCount *counts;
	SqlScope scope;

	idemq_spi_begin(&scope);
	counts = read_counts(idemq_spi_query_latest(&count_jobs, NULL, NULL), caller, ncounts);
	idemq_spi_end(&scope);
	return counts;
}

/* Counts under a snapshot that idemq_counters_begin_count gave, and ends the count. */
static int64
count_at(Snapshot snapshot)
{
	uint64 rows = idemq_spi_query_at(&count_jobs, NULL, NULL, snapshot);
	int64 jobs = 0;
	int ncounts;
	QueueCount *counts = read_counts(rows, CurrentMemoryContext, &ncounts);

	for (int i = 0; i < ncounts; i++)
	{
		QueueState *qstate = idemq_qstate_find(MyDatabaseId, counts[i].queue_id);

		if (qstate != NULL)
			counts[i].index = idemq_qstate_index(qstate);
		for (int s = 0; s < JOB_STATUS_COUNT; s++)
			jobs += counts[i].jobs[s];
	}
	idemq_counters_end_count(counts, ncounts);
	return jobs;
}

/*
 * Counts all jobs of this database, and makes the gauges known; *jobs: how many
 * there are.  Reads the whole table.  Raises 25001 in a transaction that has
 * changed something, 25006 on a standby.
 */
CountStart
idemq_queue_counts_try(int64 *jobs)
{
	Snapshot snapshot;
	CountStart start;
	SqlScope scope;

	PreventCommandDuringRecovery("a count of jobs");
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR, errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				errmsg("jobs cannot be counted in a transaction that has made changes"),
				errhint("Count them in a separate transaction."));
	idemq_spi_begin(&scope);
	/* So that the table is not truncated, nor the extension dropped, meanwhile. */
	LockRelationOid(idemq_oids()->jobs, AccessShareLock);
	idemq_queues_give_qstates();
	start = idemq_counters_begin_count(&snapshot);
	if (start == COUNT_BEGUN)
	{
		*jobs = count_at(snapshot);
		UnregisterSnapshot(snapshot);
	}
	idemq_spi_end(&scope);
	return start;
}

/*
 * For a caller that is about to count by SQL: makes the gauges known by a count, when
 * one is due and possible here; returns whether it did.
 */
bool
idemq_queue_counts_run_if_due(void)
{
	int64 jobs;

	return !TransactionIdIsValid(GetTopTransactionIdIfAny()) &&
		   idemq_counters_count_due_at() <= idemq_mono_now() &&
		   idemq_queue_counts_try(&jobs) == COUNT_BEGUN;
}

/*
 * Counts a refusal, or an answer from the past, when it is given: the error or the caller
 * rolls back, and the count stays.  It is no event of a transaction, so it needs no
 * transaction id.  A queue without a state has no counters; it may be a dead-letter queue.
 */
void
idemq_queue_count_refusal(const QueueInfo *queue, Counter counter)
{
	CounterDelta delta = {0};

	if (queue->qstate == NULL)
		return;
	for (int t = 0; t < TIMING_COUNT; t++)
		delta.timings[t].last = -1;
	delta.counters[counter] = 1;
	idemq_counters_add(idemq_qstate_index(queue->qstate), queue->id, 0, &delta);
}
