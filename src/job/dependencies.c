/*
 * job/dependencies.c
 *		Children whose parents have finished: released, or cancelled with a parent.
 *
 * A job with depends_on is blocked until its parents are done.  Neither its enqueue nor the end of
 * a parent waits for the other or touches the other's row.  After either commits, a mark is set
 * (shared/groups/dependencies.c proves that no mark is missed).  The worker or a claim takes the
 * mark, and reads the rows by a snapshot that is younger.  What it does depends on the kind of the
 * mark:
 *
 *	parent		it has finished: the children that watch it are marked; and, if it is dead or
 *				cancelled, those that are cancelled with it.  Nothing is written.  One page
 *				of children at a time: the low-water mark of its mark says where the next begins.
 *	child		its parents are looked at, in the order of their ids, from the watched one on.
 *				If all are done, the child becomes pending, or joins its group, and its row in
 *				idemq.children is deleted.  If one is not, the child watches that one from now on.
 *	failure		of a child: if any parent has failed, the child is cancelled.
 *
 * No child is forgotten.  For a child whose parents are done, one of these is true: the child or
 * the parent that it watches has a mark; a session owns that mark; a scan of its queue is due; or a
 * session is between its commit and its callback.  A look that ends without a mark has seen that
 * the watched parent was unfinished, and the watch was committed before the look, because a look
 * that moves the watch marks the child again when it commits.  So that parent ends after the look's
 * snapshot, and the mark of that end is taken by a snapshot that shows the watch.
 *		Model: test/model/dependencies.pml, as for shared/groups/dependencies.c.
 *
 * No child is forgotten between two pages of a parent's children either.  The snapshot of
 * a later page is later.  A child that belongs to an earlier page but was not visible to it gets a
 * mark of its own: the transaction that enqueued it, or moved its watch to that parent, was not
 * visible to that page either, and marks the child when it commits.
 *
 * No child starts too early.  The row of the child and its row in idemq.children are written in one
 * transaction, and the former is written only if it still has the version that was blocked when all
 * parents were seen to be done: one snapshot shows the child, its watch and its parents.  So once
 * the cancel of a parent has committed, none of its children can be claimed, however many children
 * are still to be cancelled.  Until then each child is blocked, and every session that looks at it,
 * even for a call with its id, sees the cancel.  A parent that is brought back later runs again,
 * and does not delay any child.
 *
 * One statement ends the waiting of all children that a batch of marks has released.  If the batch
 * itself changes a parent or a watch, that change gets its own mark at the commit.
 *
 * Why there are marks, and not a table of the children to look at: such a table, filled by enqueues
 * and ends, loses a child in a chain A -> X -> Y.  The row of X, kept for its second look, meets
 * the row that the end of X adds (ON CONFLICT DO NOTHING), and is deleted before that end is
 * visible.
 *
 * A session may hold its transaction open for a long time after a claim.  Therefore, if there is a
 * worker, a claim that cannot make a child pending leaves the child to the worker, because a watch
 * that has been moved but not committed would keep others from looking.
 *
 * Above READ COMMITTED, a claim leaves children alone, as it does with groups that have changed.
 *
 * If marks may be missing, a scan of a queue's children marks those that a look would change, some
 * children at a time.  The scan goes through the queue's children in the order of their ids, and
 * then starts again (shared/groups/group_scans.c).  So it reads each child once, however many
 * children were cancelled and keep their rows in idemq.children.
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

/* Maximum number of looks at a child that changes each time. */
#define MAX_LOOKS 10
/*
 * Maximum number of children in a page.  The queue of the parent and those of the children get
 * slices of the worker's time, so a page must not mark more children than one slice can look at.
 */
#define TOLD_AT_ONCE 100
/* Maximum number of children that a slice of a scan reads, and marks. */
#define SCANNED_AT_ONCE 500
#define MARKED_AT_ONCE 256
/* Maximum number of dependencies read at a time. */
#define LEARN_BATCH 10000

/*
 * Returns whether this session is the worker, whose transactions are short, or there is no worker.
 */
static bool
may_look_for_others(void)
{
	return idemq_worker_self() != NULL || !idemq_worker_present();
}

/*
 * Marks a page of the children of a parent that has finished, beginning with child *next.  If it
 * returns HAS_MORE, *next is the first child of the next page.
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
		/* It runs again; its next end marks the children. */
		if (!job_status_is_finished(job.status))
			return HAS_HEAD;
		failed = job.status != JOB_COMPLETED;
	}
	if (!idemq_dependencies_exist())
		return HAS_HEAD;
	idemq_jitter();
	idemq_dependency_children(table->snapshot, parent, failed, page.next, TOLD_AT_ONCE, &page);
	/* Not at the commit: the marks do not depend on this transaction, which may be long. */
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

/* Makes a child watch the parent that blocks it, unless it already does. */
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
	/* A parent whose queue a restore has not created yet is looked at now and then. */
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

/* Cancels a child with its parent.  Its row in idemq.children stays, in case it is brought back. */
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
 * Does what the look at a fetched blocked child requires: cancels the child, makes it pending or
 * lets it join its group if its parents are done, or leaves it waiting. failed: a parent that has
 * failed, if the child was looked at because of that. token: for released; issued after the look.
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

/*
 * Looks at a child once, by the table's snapshot.  Returns LOOK_AGAIN if its row has changed since.
 */
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
	/*
	 * Every end that the look has seen belongs to an earlier claim; a parent's next claim gets a
	 * greater token.
	 */
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
 * Does what a mark requires that this session owns; the table's snapshot is younger than the
 * ownership. next: in and out, for the mark of a parent, the first child that must still be told.
 * Children whose waiting has ended are added to released; the caller writes that with
 * idemq_dependency_released, in the same transaction. *group: for JOINED, the name of the group.
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

		/* The same child may come again, with its other mark. */
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
 * Returns whether a look at a child's parents would change the child, according to the table's
 * snapshot: the parent that it watches is done or has failed, or another of its parents has failed.
 * If so, *mark is the kind of mark that the child needs.  Jobs that were fetched from the table
 * before this call can no longer be read.
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
 * Continues a scan of a queue's children: marks those that a look would change, until the slice or
 * the scan is over.  Sets scan->next and scan->at_end.  Returns how many were marked.
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
 * Adds all dependencies of this database to the filter, unless it knows them.  If there are any, a
 * claim leaves that to the worker.
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
 * Called when SQL has deleted a job's row, which had that status: has the job's children looked at,
 * and deletes the job's own dependencies.
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
