/*
 * observe/check_gauges.c
 *		Audits the gauges, which count each queue's jobs by status, and its count for
 *		max_unfinished: they must equal a count of its rows.  Rows written with triggers disabled
 *		are in neither.
 *
 * A gauge changes after the rows have changed, so a difference only makes a queue a suspect.  Each
 * queue has a number of changes of its gauges, which also grows when the gauges are counted again.
 * We read this number before we count the rows, under one snapshot.  After idemq_check_settled, we
 * read the gauges, and then the number again.  If it is the same, no transaction has added
 * anything in between.  So everything that the snapshot shows had been added before, because
 * idemq_check_settled has waited for it, and nothing that it does not show has been added.  Thus
 * the gauges were those of the snapshot, and a difference is a fact.  If the number has changed,
 * we try again, at most MAX_TRIES times.  Nothing is reported about a queue that keeps changing,
 * so there is no false alarm.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"

#define MAX_TRIES 5

/*
 * Reports a queue whose counts differ from its rows.  jobs: the rows by status; excess: by how
 * much the count for max_unfinished is too large.
 */
static void
gauges_report(CheckCall *call, int32 queue_id, const CounterView *view, const int64 *jobs,
			  int64 excess)
{
	QueueInfo queue;

	if (!idemq_queue_by_id(queue_id, &queue))
		return;
	for (int s = 0; s < JOB_STATUS_COUNT; s++)
	{
		if (view->gauges[s] != jobs[s])
			idemq_check_report(
				call, CHECK_WARNING, "gauges",
				"queue \"%s\" has %lld %s jobs, but idemq.metrics shows %lld, because rows were "
				"written with triggers disabled: run SELECT idemq.recount()",
				queue.name, (long long) jobs[s], idemq_status_name((JobStatus) s),
				(long long) view->gauges[s]);
	}
	if (excess != 0)
		idemq_check_report(
			call, CHECK_WARNING, "limits.unfinished",
			"queue \"%s\" counts %lld more unfinished jobs for max_unfinished than it has, because "
			"rows were written with triggers disabled: run SELECT idemq.recount()",
			queue.name, (long long) excess);
}

/*
 * Compares what shared memory counts for a queue with jobs, the number of its rows in each status.
 * Returns false if they differ; then sets *view to its counters, and *excess to how much the count
 * for max_unfinished is too large (below 0: too small).  Returns true if they agree.  Also returns
 * true if the gauges are unknown, even if the other count differs, because without them it cannot
 * be proved that nothing has changed meanwhile.
 */
static bool
gauges_agree(int32 queue_id, const int64 *jobs, CounterView *view, int64 *excess)
{
	const QueueState *qstate = idemq_qstate_find(MyDatabaseId, queue_id);
	UnfinishedView unfinished;

	*excess = 0;
	if (qstate == NULL)
		return true;
	/*
	 * Read this count before the number of changes.  A commit raises that number first, so a commit
	 * between the two reads is noticed.
	 */
	if (idemq_unfinished_view(qstate, queue_id, &unfinished) && !unfinished.is_bound)
		*excess = unfinished.jobs -
				  (jobs[JOB_BLOCKED] + jobs[JOB_PENDING] + jobs[JOB_RUNNING] + jobs[JOB_RETRYING]);
	return !idemq_counters_read(idemq_qstate_index(qstate), queue_id, view) || !view->known ||
		   (*excess == 0 && memcmp(view->gauges, jobs, sizeof(view->gauges)) == 0);
}

/* Checks the gauges of all queues; see the top of the file. */
void
idemq_check_gauges(CheckCall *call)
{
	static const int64 none[JOB_STATUS_COUNT] = {0};
	/* By position in call->queue_ids.  is_done: the queue agrees, or was reported. */
	bool *is_done = palloc0(Max(call->nqueues, 1) * sizeof(bool));
	uint64 *changes = palloc(Max(call->nqueues, 1) * sizeof(uint64));
	bool in_doubt = true;

	for (int try = 0; try < MAX_TRIES && in_doubt; try++)
	{
		bool settled = false;
		QueueCount *counts;
		int ncounts;

		for (int i = 0; i < call->nqueues; i++)
		{
			const QueueState *qstate = idemq_qstate_find(MyDatabaseId, call->queue_ids[i]);
			CounterView view = {0};

			if (qstate != NULL)
				(void) idemq_counters_read(idemq_qstate_index(qstate), call->queue_ids[i], &view);
			changes[i] = view.changes;
		}
		counts = idemq_queue_counts_by_sql(&ncounts);
		in_doubt = false;
		for (int i = 0; i < call->nqueues; i++)
		{
			int32 queue_id = call->queue_ids[i];
			const QueueCount *count =
				bsearch(&queue_id, counts, ncounts, sizeof(QueueCount), idemq_compare_int32);
			const int64 *jobs = count == NULL ? none : count->jobs;
			CounterView view;
			int64 excess;

			CHECK_FOR_INTERRUPTS();
			is_done[i] = is_done[i] || gauges_agree(queue_id, jobs, &view, &excess);
			if (is_done[i])
				continue;
			if (!settled && !(settled = idemq_check_settled(call)))
				return;
			is_done[i] = gauges_agree(queue_id, jobs, &view, &excess);
			if (!is_done[i] && view.changes == changes[i])
			{
				gauges_report(call, queue_id, &view, jobs, excess);
				is_done[i] = true;
			}
			in_doubt = in_doubt || !is_done[i];
		}
		pfree(counts);
	}
	pfree(changes);
	pfree(is_done);
}
