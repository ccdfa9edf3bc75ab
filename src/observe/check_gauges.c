/*
 * observe/check_gauges.c
 *		The audit of how many jobs shared memory knows of: the gauges of each queue, and its count
 *		for max_unfinished, are compared with a count of its rows.  Rows that were written with
 *		triggers off are in neither.
 *
 * A gauge changes after the rows do, so a difference is a suspect.  The number of changes of a
 * queue's gauges is read before the rows are counted, under one snapshot; after
 * idemq_check_settled the gauges are read, and the number again.  If it is the same, no
 * transaction has added anything in between: what the snapshot shows was added before, since
 * all that was visible to it has paid by then; what it does not show has added nothing yet.  So
 * the gauges were those of the snapshot, and a difference is a fact.  Otherwise it is tried
 * again, some times, and nothing is said of a queue that never stands still: no false alarm, and
 * the next call may meet it at rest.  A new count of the gauges moves the number as well.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"

#define MAX_TRIES 5

/* Reads what memory counts of a queue; false when it does not know how many jobs there are. */
static bool
read_view(int32 queue_id, CounterView *view)
{
	const QueueState *qstate = idemq_qstate_find(MyDatabaseId, queue_id);

	return qstate != NULL && idemq_counters_read(idemq_qstate_index(qstate), queue_id, view) &&
		   view->known;
}

/* Reports a queue's gauges, and its count for max_unfinished, if they differ from the counted rows. */
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
 * Returns by how much the count for max_unfinished exceeds those rows; negative if it is below them,
 * and 0 if there is no exact count.
 */
static int64
unfinished_excess(int32 queue_id, const int64 *jobs)
{
	const QueueState *qstate = idemq_qstate_find(MyDatabaseId, queue_id);
	UnfinishedView view;

	if (qstate == NULL || !idemq_unfinished_view(qstate, queue_id, &view) || view.is_bound)
		return 0;
	return view.jobs -
		   (jobs[JOB_BLOCKED] + jobs[JOB_PENDING] + jobs[JOB_RUNNING] + jobs[JOB_RETRYING]);
}

/*
 * Returns whether a queue's gauges and its count for max_unfinished agree with those rows, or are not
 * known.  The count is read before the number of changes, because a commit changes that number first.
 */
static bool
agrees(int32 queue_id, const int64 *jobs, CounterView *view, int64 *excess)
{
	*excess = unfinished_excess(queue_id, jobs);
	return !read_view(queue_id, view) ||
		   (*excess == 0 && memcmp(view->gauges, jobs, sizeof(view->gauges)) == 0);
}

/*
 * Checks the gauges of all queues; see the file's header.  done: the queues whose gauges agree,
 * or are proved not to.
 */
void
idemq_check_gauges(CheckCall *call)
{
	static const int64 none[JOB_STATUS_COUNT] = {0};
	/* By a queue's position in call->queue_ids. */
	bool *done = palloc0(Max(call->nqueues, 1) * sizeof(bool));
	uint64 *changes = palloc(Max(call->nqueues, 1) * sizeof(uint64));
	bool in_doubt = true;

	for (int try = 0; try < MAX_TRIES && in_doubt; try++)
	{
		bool settled = false;
		QueueCount *counts;
		int ncounts;

		for (int i = 0; i < call->nqueues; i++)
		{
			CounterView view = {0};

			(void) read_view(call->queue_ids[i], &view);
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
			done[i] = done[i] || agrees(queue_id, jobs, &view, &excess);
			if (done[i])
				continue;
			if (!settled && !(settled = idemq_check_settled(call)))
				return;
			done[i] = agrees(queue_id, jobs, &view, &excess);
			if (!done[i] && view.changes == changes[i])
			{
				gauges_report(call, queue_id, &view, jobs, excess);
				done[i] = true;
			}
			in_doubt = in_doubt || !done[i];
		}
		pfree(counts);
	}
	pfree(changes);
	pfree(done);
}
