/*
 * job/dependencies.c
 *		Children whose parents have finished: released, or cancelled with a parent.
 *
 * A job with depends_on is blocked until its parents are done.  Neither its enqueue nor the
 * end of a parent waits for the other, or touches the other's row.  After the commit of either
 * a mark is set (shared/groups/dependencies.c, where it is proved that none is missed).
 * Whoever takes the mark, the worker or a claim, looks at the rows with a snapshot that is
 * younger.  The kind of mark decides what is done:
 *
 *	parent		it has finished: the children that watch it are marked; and, if it is dead or
 *				cancelled, those that are cancelled with it.  Nothing is written.
 *	child		its parents are looked at, in the order of their ids, from the watched one on.
 *				If all are done, the child becomes pending, or joins its group, and its row in
 *				idemq.children goes.  If one is not, the child watches that one from now on.
 *	failure		of a child: if any parent has failed, the child is cancelled.
 *
 * Never forgotten: for a child whose parents are done there is a mark, of itself or of the
 * parent that it watches, or a session owns that mark, or its queue is to be scanned, or a session
 * is between its commit and its callback.  For a look that ends without a mark has seen the watched
 * parent unfinished, and the watch was committed before the look: a look that moves the watch marks
 * the child again at its own commit.  The end of that parent comes later than the look's snapshot,
 * so the mark of that end is taken with a snapshot that sees the watch.
 *		Model: test/model/dependencies.pml, as for shared/groups/dependencies.c.
 *
 * Never too soon: the row of the child and its row in idemq.children are written in one
 * transaction, the former on the very version that was blocked when all parents were seen done.
 * A look knows which transaction had written that version, and does not count for another one.
 * A parent that is brought back afterwards runs again, and holds up nobody.
 *
 * One query looks at all children of a batch of marks, after the marks and the table's snapshot
 * were taken; one statement ends the waiting of those that are released.  What the batch itself
 * writes of a parent, or of a watch, has its own mark at the commit.
 *
 * Why there are marks, and no table that lists the children to look at: such a list, filled by
 * enqueues and ends, loses a child in a chain A -> X -> Y.  X's row, kept for its second look,
 * meets the one that X's end adds (ON CONFLICT DO NOTHING), and is deleted before that end is
 * visible.
 *
 * A session may hold its transaction open for long after a claim.  So where there is a worker,
 * a claim that cannot make a child pending leaves the child to the worker: a watch that is moved
 * and not committed would keep others from looking.
 *
 * Above READ COMMITTED a claim leaves children alone, as it does groups that have changed.
 *
 * Up to MAX_TOLD children of a parent are marked one by one; if there are more, their queues
 * are scanned, some children at a time.
 *
 * Locks: none is waited for; a child whose row is held is looked at again a moment later.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/waiters/waiters.h"
#include "table/table.h"
#include "txn/txn.h"

/* Looks at a child that changes each time, at most. */
#define MAX_LOOKS 10
/* Children of a parent that are marked one by one, at most. */
#define MAX_TOLD 1000
/* Edges that are read in one go. */
#define LEARN_BATCH 10000

/* Returns whether this session's transactions are short, or nobody else is there to look. */
static bool
may_look_for_others(void)
{
	return idemq_worker_self() != NULL || !idemq_worker_present();
}

/* Marks the children of a parent that has finished, or has their queues scanned. */
static Promotion
tell_children(JobsTable *table, int64 parent)
{
	DependencyChild *children;
	QueueInfo queue = {0};
	int count;
	Job job;

	/* It runs again: its next end tells them. */
	if (idemq_jobs_fetch(table, parent, &job) && !job_status_is_finished(job.status))
		return HAS_HEAD;
	if (!idemq_dependencies_exist())
		return HAS_HEAD;
	idemq_jitter();
	children = idemq_dependency_children(parent, &count);
	for (int i = 0; i < count; i++)
	{
		const DependencyChild *child = &children[i];
		bool same_queue = child->queue_id == queue.id;

		CHECK_FOR_INTERRUPTS();
		if (!same_queue && !idemq_queue_by_id(child->queue_id, &queue))
			continue;
		/* At once: the mark does not depend on this transaction, which may be long. */
		if (count <= MAX_TOLD)
			idemq_dependency_mark(queue.qstate, queue.id,
								  child->watches ? DEPENDENCY_CHILD : DEPENDENCY_FAILURE,
								  child->id);
		else if (!same_queue)
			idemq_groups_want_scan(queue.qstate, queue.id, false);
	}
	pfree(children);
	return HAS_HEAD;
}

/* Has a child watch the parent that is in its way. */
static Promotion
dependencies_wait_for(const QueueInfo *queue, const DependencyLook *look)
{
	const DependencyParent *parent = &look->obstacle;
	QueueInfo of_parent;

	if (look->waits_for != parent->id)
	{
		if (!may_look_for_others())
			return NOT_FOR_US;
		if (!idemq_dependency_watch(look->id, parent->id))
			return HELD;
		idemq_pending_dependency_note(queue->qstate, queue->id, DEPENDENCY_CHILD, look->id);
		return PROMOTED_FOR_LATER;
	}
	/* A parent whose queue is yet to come, by a restore, is looked at now and then. */
	return idemq_queue_by_id(parent->queue_id, &of_parent) ? HAS_HEAD : HELD;
}

/* Returns whether the end of a parent cancels the child. */
static bool
cancels(const DependencyParent *parent, ParentFailure on_failure)
{
	if (parent->status != JOB_DEAD && parent->status != JOB_CANCELLED)
		return false;
	return on_failure == FAILURE_CANCELS || (parent->gone && on_failure == FAILURE_WAITS);
}

/* Cancels a child with its parent; its row in idemq.children stays, should it be brought back. */
static JobWrite
cancel_with(JobsTable *table, const QueueInfo *queue, const Job *job,
			const DependencyParent *parent, EventArgs *args)
{
	args->error =
		cstring_to_text(psprintf("its parent, job %lld, is %s", (long long) parent->id,
								 parent->gone ? "gone" : idemq_status_name(parent->status)));
	return idemq_transition(table, job, queue, EVENT_EXPIRE, args, JOB_SKIPS);
}

/*
 * Decides about a fetched child that is blocked, by what its look has found: it is cancelled,
 * waits, or, when its parents are done, becomes pending or joins its group.
 */
static Promotion
dependencies_decide(JobsTable *table, const QueueInfo *queue, DependencyMark mark, const Job *job,
					const DependencyLook *look, DependencyBatch *batch, Datum *group)
{
	EventArgs args = {.now = idemq_now(), .group = look->group};
	Promotion done = PROMOTED_FOR_LATER;
	DependencyParent parent;
	JobWrite write;

	if (job_has_expired(job, args.now))
		write = idemq_job_expire(table, job, queue, args.now);
	else if (mark == DEPENDENCY_FAILURE)
	{
		if (look->on_failure != FAILURE_CANCELS ||
			!idemq_dependency_failed_parent(job->id, &parent))
			return HAS_HEAD;
		write = cancel_with(table, queue, job, &parent, &args);
	}
	else if (look->is_free)
	{
		bool joins = look->group != (Datum) 0;

		args.ready_at = Max(args.now, job_time(job, COL_RUN_AT));
		if (args.ready_at == args.now)
			done = PROMOTED;
		if (joins)
			done = JOINED;
		write = idemq_transition(table, job, queue, joins ? EVENT_JOIN_GROUP : EVENT_PROMOTE, &args,
								 JOB_SKIPS);
		if (write == JOB_WRITTEN)
			batch->released[batch->nreleased++] = job->id;
		if (write == JOB_WRITTEN && joins)
			*group = look->group;
	}
	else if (cancels(&look->obstacle, look->on_failure))
		write = cancel_with(table, queue, job, &look->obstacle, &args);
	else
		return dependencies_wait_for(queue, look);
	return write == JOB_WRITTEN ? done : write == JOB_LOCKED ? HELD : LOOK_AGAIN;
}

/*
 * Looks at children whose marks this session owns, all at once.  idemq_dependency_batch_end, in
 * the same transaction, ends the waiting of those that are released.
 */
void
idemq_dependency_batch_begin(DependencyBatch *batch, const int64 *children, int count)
{
	*batch = (DependencyBatch){.count = count, .released = palloc(Max(count, 1) * sizeof(int64))};
	if (count == 0)
		return;
	batch->looks = idemq_dependency_looks(children, &batch->count);
	/* Every end that they have seen is of an earlier claim; a parent's next claim comes later. */
	if (batch->count > 0)
		batch->token = idemq_lease_issue_token(0, idemq_token_epoch_base());
}

/* Ends the waiting of the children that were released. */
void
idemq_dependency_batch_end(DependencyBatch *batch)
{
	if (batch->nreleased > 0)
		idemq_dependency_released(batch->released, batch->nreleased, batch->token);
	batch->nreleased = 0;
	pfree(batch->released);
}

/*
 * Does what a mark is for that this session owns; the table's snapshot is younger than that.
 * batch: has looked at the child since.  *group: for JOINED, the name of the group.
 */
Promotion
idemq_dependency_promote(JobsTable *table, const QueueInfo *queue, DependencyMark mark, int64 id,
						 DependencyBatch *batch, Datum *group)
{
	DependencyBatch again;

	if (mark == DEPENDENCY_PARENT)
		return tell_children(table, id);
	for (int looks = 0; looks < MAX_LOOKS; looks++)
	{
		const DependencyLook *look;
		Promotion promotion;
		TransactionId writer;
		bool isnull;
		Job job;

		if (!idemq_jobs_fetch(table, id, &job) || job.status != JOB_BLOCKED ||
			job_has(&job, COL_GROUP_KEY) || job.queue_id != queue->id)
			return HAS_HEAD;
		look = batch->count == 0 ? NULL
								 : bsearch(&id, batch->looks, batch->count, sizeof(DependencyLook),
										   idemq_compare_int64);
		if (look == NULL)
			return HAS_HEAD;
		if (table->crosscheck != InvalidSnapshot)
			return NOT_FOR_US;
		idemq_jitter();
		writer = DatumGetTransactionId(
			slot_getsysattr(job.row, MinTransactionIdAttributeNumber, &isnull));
		promotion = look->version == writer
						? dependencies_decide(table, queue, mark, &job, look, batch, group)
						: LOOK_AGAIN;
		/* A child may be met twice, with both of its marks. */
		if (promotion == PROMOTED || promotion == PROMOTED_FOR_LATER || promotion == JOINED)
			CommandCounterIncrement();
		if (batch == &again)
			idemq_dependency_batch_end(batch);
		idemq_jobs_refresh(table);
		if (promotion != LOOK_AGAIN)
			return promotion;
		batch = &again;
		idemq_dependency_batch_begin(batch, &id, 1);
	}
	return NOT_FOR_US;
}

/* Adds the jobs of an edge to the filter. */
static void
note_edge(const DependencyEdge *edge)
{
	const int64 ids[] = {edge->child, edge->parent};
	const int32 queues[] = {edge->child_queue, edge->parent_queue};
	QueueInfo queue;

	for (int i = 0; i < (int) lengthof(ids); i++)
		idemq_dependency_note(idemq_queue_by_id(queues[i], &queue) ? queue.qstate : NULL, ids[i]);
}

/*
 * Has the filter know all dependencies of this database, if it does not yet.  When there are any,
 * a claim leaves that to the worker.
 */
void
idemq_dependencies_learn(const QueueInfo *queue)
{
	DependencyEdge last = {PG_INT64_MIN, PG_INT64_MIN, 0, 0};
	bool unseen = false;
	uint32 *begun;
	int count;

	if (idemq_dependencies_is_known(queue->qstate))
		return;
	if (!may_look_for_others() && idemq_dependencies_exist())
		return;
	begun = idemq_dependencies_learn_begin();
	count = idemq_dependencies_exist() ? LEARN_BATCH : 0;
	while (count == LEARN_BATCH)
	{
		DependencyEdge *edges = idemq_dependency_edges(&last, LEARN_BATCH, &count);

		for (int i = 0; i < count; i++)
		{
			note_edge(&edges[i]);
			unseen |= edges[i].parent_queue == 0;
		}
		if (count > 0)
			last = edges[count - 1];
		pfree(edges);
	}
	idemq_dependencies_learn_end(begun, unseen);
}

/*
 * Follows the deletion by SQL of a job's row, which had that status: has its children looked at,
 * and forgets its parents.
 */
void
idemq_dependency_gone(int64 id, JobStatus status)
{
	DependencyChild *children;
	QueueInfo queue;
	int count;

	if (!idemq_dependencies_exist())
		return;
	idemq_dependency_row_gone(id, status);
	CommandCounterIncrement();
	children = idemq_dependency_children(id, &count);
	for (int i = 0; i < count; i++)
	{
		if (idemq_queue_by_id(children[i].queue_id, &queue))
			idemq_pending_dependency_note_blocked(queue.qstate, queue.id, children[i].id);
	}
	pfree(children);
}

/*
 * Returns whether a finished job waits before it runs again: for its turn in its group, or for
 * its parents, if it was cancelled before they were done.
 */
bool
idemq_job_waits_again(const Job *job)
{
	return job_has(job, COL_GROUP_KEY) ||
		   (job->status == JOB_CANCELLED && idemq_dependency_waits(job->id));
}
