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
 *				cancelled, those that are cancelled with it.  Nothing is written.  One page
 *				of children at a time: the low-water mark of its mark says where the next begins.
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
 * Nor is one forgotten between two pages of a parent's children.  A later page has a later snapshot.
 * A child that an earlier page would have had, and did not see, has its own mark: it was enqueued,
 * or its watch was moved to that parent, by a transaction that was not visible to that page and
 * marks the child at its commit.
 *
 * Never too soon: the row of the child and its row in idemq.children are written in one
 * transaction, the former on the very version that was blocked when all parents were seen done:
 * one snapshot shows the child, what it waits for, and its parents.  So no child can be claimed
 * once the cancel of its parent has committed, however many children are still to be cancelled:
 * until then each is blocked, and every session that looks at one, even for a call that asks for
 * it by its id, sees the cancel.
 * A parent that is brought back afterwards runs again, and holds up nobody.
 *
 * One statement ends the waiting of all children that a batch of marks has released.  What the
 * batch itself writes about a parent, or a watch, gets its own mark at the commit.
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
 * A scan of a queue's children, for when marks may be missing, marks those that a look would change,
 * some children at a time.  It goes round the queue's children in the order of their ids
 * (shared/groups/group_scans.c), so each is read once in a scan, however many were cancelled and
 * keep their rows in idemq.children.
 *
 * Locks: none is waited for; a child whose row is held is looked at again a moment later.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "table/table.h"
#include "txn/txn.h"

/* Looks at a child that changes each time, at most. */
#define MAX_LOOKS 10
/*
 * Rows that are read for a page of a parent's children.  The parent's queue and the children's
 * queues are served in slices, so no more are marked at a time than a slice of the latter can do.
 */
#define TOLD_AT_ONCE 100
/* Maximum number of children that a slice of a scan reads, and marks. */
#define SCANNED_AT_ONCE 500
#define MARKED_AT_ONCE 256
/* Edges that are read in one go. */
#define LEARN_BATCH 10000

/* Returns whether this session's transactions are short, or nobody else is there to look. */
static bool
may_look_for_others(void)
{
	return idemq_worker_self() != NULL || !idemq_worker_present();
}

/*
 * Marks a page of the children of a parent that has finished, from the child *next on.  HAS_MORE:
 * *next is where the next page begins.
 */
static Promotion
tell_children(JobsTable *table, int64 parent, int64 *next)
{
	bool failed = true;
	QueueInfo queue = {0};
	DependencyPage page = {.next = *next};
	Job job;

	*next = PG_INT64_MIN;
	if (idemq_jobs_fetch(table, parent, &job))
	{
		/* It runs again: its next end tells them. */
		if (!job_status_is_finished(job.status))
			return HAS_HEAD;
		failed = job.status != JOB_COMPLETED;
	}
	if (!idemq_dependencies_exist())
		return HAS_HEAD;
	idemq_jitter();
	idemq_dependency_children(table->snapshot, parent, failed, page.next, TOLD_AT_ONCE, &page);
	/* At once: the marks do not depend on this transaction, which may be long. */
	for (int i = 0; i < page.count; i++)
	{
		const DependencyChild *child = &page.children[i];

		if (child->queue_id == queue.id || idemq_queue_by_id(child->queue_id, &queue))
			idemq_dependency_mark(queue.qstate, queue.id,
								  child->watches ? DEPENDENCY_CHILD : DEPENDENCY_FAILURE,
								  child->id);
	}
	pfree(page.children);
	if (page.is_last)
		return HAS_HEAD;
	*next = page.next;
	return HAS_MORE;
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
 * waits, or, when its parents are done, becomes pending or joins its group.  failed: the parent
 * that has failed, when that is what it was looked at for.
 */
static Promotion
dependencies_decide(JobsTable *table, const QueueInfo *queue, const Job *job,
					const DependencyLook *look, const DependencyParent *failed, int64 token,
					ReleasedChildren *released, Datum *group)
{
	EventArgs args = {.now = idemq_now(), .group = look->group};
	Promotion done = PROMOTED_FOR_LATER;
	JobWrite write;

	if (job_has_expired(job, args.now))
		write = idemq_job_expire(table, job, queue, args.now);
	else if (failed != NULL)
		write = cancel_with(table, queue, job, failed, &args);
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
		{
			int room = released->room;

			released->ids = idemq_grow(released->ids, &room, released->count + 1, sizeof(int64));
			released->tokens =
				idemq_grow(released->tokens, &released->room, released->count + 1, sizeof(int64));
			released->ids[released->count] = job->id;
			released->tokens[released->count++] = token;
			if (joins)
				*group = look->group;
		}
	}
	else if (cancels(&look->obstacle, look->on_failure))
		write = cancel_with(table, queue, job, &look->obstacle, &args);
	else
		return dependencies_wait_for(queue, look);
	return write == JOB_WRITTEN ? done : write == JOB_LOCKED ? HELD : LOOK_AGAIN;
}

/* Fetches a child that is blocked by its parents; false when it is not, or is of another queue. */
static bool
fetch_child(JobsTable *table, int32 queue_id, int64 id, Job *job)
{
	return idemq_jobs_fetch(table, id, job) && job->status == JOB_BLOCKED &&
		   !job_has(job, COL_GROUP_KEY) && job->queue_id == queue_id;
}

/* Looks at a child once, by the table's snapshot, and does what is necessary. */
static Promotion
look_at(JobsTable *table, const QueueInfo *queue, DependencyMark mark, int64 id,
		ReleasedChildren *released, Datum *group)
{
	DependencyParent parent;
	DependencyParent *failed = NULL;
	DependencyLook look;
	int64 token = 0;
	Job job;

	if (!fetch_child(table, queue->id, id, &job))
		return HAS_HEAD;
	if (!idemq_dependency_look(table, id, &look))
		return HAS_HEAD;
	if (table->crosscheck != InvalidSnapshot)
		return NOT_FOR_US;
	/* Every end that it has seen is of an earlier claim; a parent's next claim comes later. */
	if (look.is_free)
		token = idemq_lease_issue_token(0, idemq_token_epoch_base());
	if (mark == DEPENDENCY_FAILURE)
	{
		if (look.on_failure != FAILURE_CANCELS ||
			!idemq_dependency_failed_parent(table, id, &parent))
			return HAS_HEAD;
		failed = &parent;
	}
	idemq_jitter();
	/* The same version: the snapshot is the same. */
	if (!fetch_child(table, queue->id, id, &job))
		return HAS_HEAD;
	return dependencies_decide(table, queue, &job, &look, failed, token, released, group);
}

/*
 * Does what a mark is for that this session owns; the table's snapshot is younger than that.
 * next: the low-water mark of a parent's mark, that is, the child from which on its children must
 * be told; set to what is left.  Children whose waiting has ended are added to released: the caller
 * writes that by idemq_dependency_released, in the same transaction.  *group: for JOINED, the name of
 * the group.
 */
Promotion
idemq_dependency_promote(JobsTable *table, const QueueInfo *queue, DependencyMark mark, int64 id,
						 int64 *next, ReleasedChildren *released, Datum *group)
{
	if (mark == DEPENDENCY_PARENT)
		return tell_children(table, id, next);
	for (int looks = 0; looks < MAX_LOOKS; looks++)
	{
		Promotion promotion = look_at(table, queue, mark, id, released, group);

		/* A child may be met twice, with both of its marks. */
		if (promotion == PROMOTED || promotion == PROMOTED_FOR_LATER || promotion == JOINED)
			CommandCounterIncrement();
		if (promotion != HAS_HEAD)
			idemq_jobs_refresh(table);
		if (promotion != LOOK_AGAIN)
			return promotion;
	}
	return NOT_FOR_US;
}

/*
 * Returns whether a look would change a child, by the table's snapshot, and sets *mark to the mark
 * that it needs: the parent that it watches is done or has failed; or another of its parents has
 * failed.  What was fetched from the table before is void.
 */
bool
idemq_child_is_resolvable(JobsTable *table, int32 queue_id, int64 id, DependencyMark *mark)
{
	DependencyParent parent;
	DependencyLook look;
	Job job;

	if (!fetch_child(table, queue_id, id, &job) || !idemq_dependency_look(table, id, &look))
		return false;
	*mark = DEPENDENCY_CHILD;
	if (look.is_free || look.obstacle.id != look.waits_for ||
		cancels(&look.obstacle, look.on_failure))
		return true;
	*mark = DEPENDENCY_FAILURE;
	return look.on_failure == FAILURE_CANCELS && idemq_dependency_failed_parent(table, id, &parent);
}

/*
 * Goes on with a scan of a queue's children: marks those that a look would change, until the slice
 * or the scan is over.  Sets scan->next, or scan->is_over.  Returns how many were marked.
 */
int
idemq_children_scan(JobsTable *table, const QueueInfo *queue, Slice *slice, ChildrenScan *scan)
{
	DependencyMark mark;
	DependencyPage page;
	int marked = 0;
	int done = 0;

	idemq_dependency_waiting(table->snapshot, queue->id, scan->from, SCANNED_AT_ONCE, &page);
	scan->next = page.next;
	scan->at_end = page.is_last;
	while (done < page.count)
	{
		int64 id = page.children[done].id;

		CHECK_FOR_INTERRUPTS();
		if (id >= scan->until ||
			(done > 0 && (marked == MARKED_AT_ONCE || idemq_slice_is_over(slice))))
		{
			scan->next = id;
			scan->at_end = id >= scan->until;
			break;
		}
		done++;
		if (!idemq_child_is_resolvable(table, queue->id, id, &mark))
			continue;
		idemq_dependency_mark(queue->qstate, queue->id, mark, id);
		marked++;
	}
	pfree(page.children);
	return marked;
}

/*
 * Has the filter know all dependencies of this database, if it does not yet.  When there are any,
 * a claim leaves that to the worker.
 */
void
idemq_dependencies_learn(const QueueInfo *queue)
{
	DependencyEdge last = {PG_INT64_MIN, PG_INT64_MIN, 0, 0};
	QueueInfo of_job;
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
			const DependencyEdge *edge = &edges[i];

			idemq_dependency_note(idemq_queue_by_id(edge->child_queue, &of_job) ? of_job.qstate
																				: NULL,
								  edge->child);
			idemq_dependency_note(idemq_queue_by_id(edge->parent_queue, &of_job) ? of_job.qstate
																				 : NULL,
								  edge->parent);
			unseen |= edge->parent_queue == 0;
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
	DependencyPage page = {.next = PG_INT64_MIN};
	QueueInfo queue = {0};
	Snapshot snapshot;

	if (!idemq_dependencies_exist())
		return;
	idemq_dependency_row_gone(id, status);
	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	while (!page.is_last)
	{
		idemq_dependency_children(snapshot, id, true, page.next, LEARN_BATCH, &page);
		for (int i = 0; i < page.count; i++)
		{
			int32 queue_id = page.children[i].queue_id;

			if (queue_id == queue.id || idemq_queue_by_id(queue_id, &queue))
				idemq_pending_dependency_note_blocked(queue.qstate, queue.id, page.children[i].id);
		}
		pfree(page.children);
	}
	UnregisterSnapshot(snapshot);
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
