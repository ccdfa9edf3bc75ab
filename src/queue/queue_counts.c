/*
 * queue/queue_counts.c
 *		Counts the jobs of each queue and status with SQL, either to give the gauges in shared
 *		memory their base, or to return the counts if the gauges are not known.
 *
 * shared/counts/counters.c explains why a count is exact while other sessions change jobs.  A
 * session that finds the gauges unknown (idemq.metrics, the worker, idemq.recount) counts the jobs,
 * but counting takes at most 1 % of the time.  If it cannot count for all sessions, idemq.metrics counts only for
 * itself.
 *
 * A new queue is known to be empty, because create_queue never gives an id twice.  A DBA must run
 * idemq.recount() after truncating idemq.queues with RESTART IDENTITY without truncating the jobs,
 * or after writing jobs while triggers were disabled.
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

static SqlStatement count_by_status =
	{.fields = (const SqlField[]){SQL_FIELD(StatusCount, queue_id), SQL_FIELD(StatusCount, status),
								  SQL_FIELD(StatusCount, jobs)},
	 .text = "SELECT queue_id, status, count(*) FROM idemq.jobs GROUP BY queue_id, status "
			 "ORDER BY queue_id"};

/* Reads the rows of count_by_status into an array, allocated in a context, in the order of queue_id. */
static QueueCount *
read_counts(uint64 rows, MemoryContext context, int *ncounts)
{
	QueueCount *counts = MemoryContextAllocHuge(context, Max(rows, 1) * sizeof(QueueCount));
	int n = 0;

	for (uint64 i = 0; i < rows; i++)
	{
		StatusCount row;

		idemq_spi_read(i, count_by_status.fields, &row, context);
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
 * Counts all jobs of this database under the latest snapshot.  Returns one element per queue that
 * has jobs, in the order of queue_id.  Also works on a standby.
 */
QueueCount *
idemq_queue_counts_by_sql(int *ncounts)
{
	MemoryContext caller = CurrentMemoryContext;
	QueueCount *counts;
	SqlScope scope;

	idemq_spi_begin(&scope);
	counts = read_counts(idemq_spi_query_latest(&count_by_status, NULL, NULL), caller, ncounts);
	idemq_spi_end(&scope);
	return counts;
}

/*
 * Counts all jobs of this database, and makes the gauges known; *jobs is the total.  Reads the
 * whole table.  Raises 25001 in a transaction that has made changes, 25006 on a standby.
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
	/* Keeps other sessions from truncating the table or dropping the extension. */
	LockRelationOid(idemq_oids()->jobs, AccessShareLock);
	idemq_queues_give_qstates();
	start = idemq_counters_begin_count(&snapshot);
	if (start == COUNT_BEGUN)
	{
		uint64 rows = idemq_spi_query_at(&count_by_status, NULL, NULL, snapshot);
		int ncounts;
		QueueCount *counts = read_counts(rows, CurrentMemoryContext, &ncounts);

		*jobs = 0;
		for (int i = 0; i < ncounts; i++)
		{
			QueueState *qstate = idemq_qstate_find(MyDatabaseId, counts[i].queue_id);

			if (qstate != NULL)
				counts[i].index = idemq_qstate_index(qstate);
			for (int s = 0; s < JOB_STATUS_COUNT; s++)
				*jobs += counts[i].jobs[s];
		}
		idemq_counters_end_count(true, counts, ncounts);
		UnregisterSnapshot(snapshot);
	}
	idemq_spi_end(&scope);
	return start;
}

/*
 * Makes the gauges known by counting, if a count is due and possible in this transaction.  Returns
 * whether they are known; otherwise the caller counts for itself.
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
 * Counts a refusal, or a repeated result, immediately, so that the count survives a rollback.
 * Because this is not an event of a transaction, it needs no transaction id.  Does nothing for a
 * queue without a state.
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
