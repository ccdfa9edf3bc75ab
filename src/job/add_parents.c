/*
 * job/add_parents.c
 *		A running job makes a child wait for further parents: idemq.add_parents.
 *
 * table/jobs_dependencies.c proves that the child cannot start too early and is not forgotten, and
 * that no cycle can be closed.  The order of these steps is part of that proof:
 *
 *		1. Lock the row of the running job FOR SHARE.
 *		2. Check that no other session owns the child's mark.
 *		3. Take a snapshot.  Check that the child waits, and watches the running job or one with a
 *		   lesser id.  Lock its row against deletion.
 *		4. For each new parent: set its bit in the filter, lock its row against deletion, and check
 *		   its ancestors.
 *		5. Write the rows.  The commit marks the child.
 *
 * No lock is waited for.  If another transaction holds the running job, looks at the child or deletes
 * it, no parent is added, and all are reported as locked.  If another transaction deletes a parent, or
 * adds the same parent, only that parent is reported as locked.
 *
 * A role learns nothing about jobs in queues on which it has no privilege, except whether a job waits
 * for the job that the role is running: only then is the privilege on the child's queue checked.
 */
#include "postgres.h"

#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "table/table.h"
#include "txn/txn.h"

/* New parents and their ancestors: those that were seen, and the stack of those still to check. */
typedef struct Ancestors
{
	HTAB *seen;
	int64 *stack;
	int depth;
	int room;
} Ancestors;

/*
 * Locks the row of the running job, as idemq_attempt_hold does, but does not wait: returns false if
 * another transaction holds it.  Raises IQ001, IQ002 and IQ006; 42501 for a role that has the token
 * and some privilege on the queue, but not claim.
 */
static bool
hold_job(JobsTable *table, const ParentsCall *call)
{
	Attempt attempt;
	Outcome outcome =
		idemq_attempt_try_lock(table, call->id, call->token, LockTupleShare, &attempt);
	QueueInfo queue;
	Job job;

	if (outcome == OUTCOME_NOT_FOUND && idemq_jobs_fetch(table, call->id, &job) &&
		job_is_attempt(&job, call->token) &&
		idemq_queue_allows(job.queue_id, PRIVILEGE_ALL, &queue))
		idemq_queue_denied(queue.name, PRIVILEGE_CLAIM);
	if (outcome == OUTCOME_LOCKED)
		idemq_attempt_raise_cancelled(&attempt);
	else if (outcome != OUTCOME_CURRENT)
		idemq_attempt_refuse(&attempt, outcome);
	return outcome == OUTCOME_CURRENT;
}

/* Raises 55000 for a child that does not wait for the running job, or does not exist. */
pg_noreturn static void
refuse_child(const ParentsCall *call)
{
	ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("job %lld does not wait for job %lld", (long long) call->child,
				   (long long) call->id),
			errhint("Pass a blocked job that was enqueued with the running job in depends_on. If "
					"that job was cancelled, call idemq.retry for it first."));
}

/*
 * Reads the child by a new snapshot, younger than the lock of the running job; *queue: its queue.
 * Raises 55000 unless it waits for that job and watches it or one with a lesser id; 42501, 53400.
 */
static void
read_child(JobsTable *table, const ParentsCall *call, Job *child, QueueInfo *queue)
{
	DependencyLook look;
	Job before;

	idemq_jobs_refresh(table);
	/* If this transaction itself has brought the job back, others still see it as finished. */
	if (idemq_jobs_fetch_before(table, call->id, &before) && job_status_is_finished(before.status))
		refuse_child(call);
	if (!idemq_dependency_child(table->snapshot, call->child, &look) || look.waits_for > call->id ||
		idemq_dependency_row(call->child, call->id) != DEPENDENCY_THERE ||
		!idemq_jobs_fetch(table, call->child, child) || child->status != JOB_BLOCKED ||
		job_has(child, COL_GROUP_KEY) || !idemq_queue_by_id(child->queue_id, queue))
		refuse_child(call);
	if ((queue->privileges & PRIVILEGE_ENQUEUE) == 0)
	{
		if (queue->privileges != 0)
			idemq_queue_denied(queue->name, PRIVILEGE_ENQUEUE);
		/* A role without any privilege does not learn the queue's name. */
		ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("permission denied for the queue of job %lld", (long long) call->child),
				errhint("Ask an administrator of the child's queue to grant you enqueue on it."));
	}
	idemq_queue_need_qstate(queue);
}

/*
 * Returns whether all looks at the child that began before the running job was locked have ended.  If
 * the worker is looking, waits for the end of its pass, which takes some milliseconds.  A session
 * that looks while it claims may keep its transaction open, so it is not waited for.
 */
static bool
looks_are_over(const ParentsCall *call, const QueueInfo *queue)
{
	GroupKey key;

	idemq_dependency_key(&key, queue->id, DEPENDENCY_CHILD, call->child);
	if (!idemq_group_is_busy(&key))
		return true;
	IDEMQ_STOP("looks_are_over");
	idemq_promote_pass_await(queue->qstate);
	return !idemq_group_is_busy(&key);
}

/*
 * Finds the child and locks it against deletion; *queue: its queue.  Returns false if another
 * transaction is deleting the child, or is looking at it.
 */
static bool
hold_child(JobsTable *table, const ParentsCall *call, QueueInfo *queue)
{
	JobWrite write;
	Job child;

	do
	{
		CHECK_FOR_INTERRUPTS();
		read_child(table, call, &child, queue);
		if (!looks_are_over(call, queue))
			return false;
		/* By a snapshot that shows what the looks have done. */
		read_child(table, call, &child, queue);
		if (!idemq_queue_try_lock(queue->id, AccessShareLock))
			return false;
		write = idemq_jobs_is_own(&child) ? JOB_WRITTEN : idemq_jobs_keep(table, &child, JOB_SKIPS);
	} while (write == JOB_CHANGED);
	return write == JOB_WRITTEN;
}

/* Raises 22023 for a parent that cannot be added. */
pg_noreturn static void
refuse_parent(const ParentsCall *call, int64 parent, const char *why)
{
	ereport(
		ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
		errmsg("job %lld cannot be added as a parent of job %lld because it %s", (long long) parent,
			   (long long) call->child, why),
		errhint(
			"Add jobs that were enqueued after job %lld and do not wait for parents, or jobs that "
			"this transaction has enqueued.",
			(long long) call->id));
}

/* Pushes a job onto the stack of jobs to check, unless it has been seen before. */
static void
push(Ancestors *ancestors, int64 id)
{
	bool seen;

	(void) hash_search(ancestors->seen, &id, HASH_ENTER, &seen);
	if (seen)
		return;
	ancestors->stack =
		idemq_grow(ancestors->stack, &ancestors->room, ancestors->depth + 1, sizeof(int64));
	ancestors->stack[ancestors->depth++] = id;
}

/*
 * Checks a new parent and its ancestors.  Raises 22023 if the child is one of them, or if one of them
 * waits for parents and was not enqueued by this transaction.
 */
static void
check_ancestors(JobsTable *table, const ParentsCall *call, Ancestors *ancestors, int64 parent)
{
	push(ancestors, parent);
	while (ancestors->depth > 0)
	{
		int64 id = ancestors->stack[--ancestors->depth];
		DependencyLook look;
		DependencyGone *parents;
		Job before;
		int count;

		CHECK_FOR_INTERRUPTS();
		if (id == call->child)
			refuse_parent(call, parent, "waits for that job");
		if (!idemq_dependency_child(table->snapshot, id, &look))
			continue;
		if (idemq_jobs_fetch_before(table, id, &before))
			refuse_parent(call, parent,
						  id == parent ? "waits for parents of its own"
									   : "waits for an earlier job that waits for parents");
		parents = idemq_dependency_parents(table, id, &count);
		for (int i = 0; i < count; i++)
			push(ancestors, parents[i].id);
		if (parents != NULL)
			pfree(parents);
	}
}

/* Checks a new parent, and keeps it from being deleted; *queue: as for idemq_parent_hold. */
static Outcome
check_parent(JobsTable *table, const ParentsCall *call, Ancestors *ancestors, int64 parent,
			 QueueInfo *queue, NewDependencies *more)
{
	DependencyRow row;
	Job job;

	if (parent == call->child)
		refuse_parent(call, parent, "is that job");
	if (parent <= call->id)
		refuse_parent(call, parent,
					  parent == call->id ? "is the running job"
										 : "was enqueued before the running job");
	if (!idemq_parent_hold(table, "parents", parent, JOB_SKIPS, queue, &job))
		return OUTCOME_LOCKED;
	row = idemq_dependency_row(call->child, parent);
	if (row != DEPENDENCY_NONE)
		return row == DEPENDENCY_THERE ? OUTCOME_ALREADY : OUTCOME_LOCKED;
	more->parents[more->count++] = parent;
	idemq_parent_note(more, &job);
	check_ancestors(table, call, ancestors, parent);
	return OUTCOME_ADDED;
}

/* Checks all new parents, and writes their rows. */
static void
add_all(JobsTable *table, ParentsCall *call, const QueueInfo *queue)
{
	HASHCTL control = {.keysize = sizeof(int64), .entrysize = sizeof(int64)};
	NewDependencies more = {.child = call->child,
							.queue_id = queue->id,
							.parents = palloc(call->count * sizeof(int64)),
							.failures = palloc(call->count * sizeof(int64))};
	Ancestors ancestors = {
		.seen = hash_create("idemq ancestors", call->count, &control, HASH_ELEM | HASH_BLOBS)};
	QueueInfo last = {0};

	/* Before any row is written, as at an enqueue. */
	idemq_dependency_note(queue->qstate, call->child);
	for (int i = 0; i < call->count; i++)
		call->outcomes[i] = check_parent(table, call, &ancestors, call->parents[i], &last, &more);
	hash_destroy(ancestors.seen);
	if (ancestors.stack != NULL)
		pfree(ancestors.stack);
	if (more.count == 0)
		return;
	idemq_pending_dependency_note_blocked(queue->qstate, queue->id, call->child);
	idemq_dependencies_add_more(&more);
}

/*
 * Adds parents to a child of a running job.  Sorts call->parents by id, removes duplicates, and sets
 * call->outcomes.  Raises 22023, 42501, 53400, 55000, IQ001, IQ002 and IQ006.
 */
void
idemq_add_parents(ParentsCall *call)
{
	JobsTable table;
	QueueInfo queue;

	if (call->count > 0)
	{
		qsort(call->parents, call->count, sizeof(int64), idemq_compare_int64);
		call->count = (int) qunique(call->parents, call->count, sizeof(int64), idemq_compare_int64);
	}
	idemq_jobs_open(&table);
	if (hold_job(&table, call) && hold_child(&table, call, &queue))
		add_all(&table, call, &queue);
	else
		for (int i = 0; i < call->count; i++)
			call->outcomes[i] = OUTCOME_LOCKED;
	idemq_jobs_close(&table);
}
