/*
 * observe/check_dependencies.c
 *		The audit of children: none is forgotten whose parents are done, or have failed.
 *
 * The rows say by themselves that none runs too early.
 *
 * A child that a look would change is a suspect.  Once all that its snapshot showed has reached
 * shared memory (idemq_check_settled), the child or the parent that it watches is marked
 * there, or a session has taken the mark, or their queue is to be scanned; or the look has been
 * done since.  If none of these is so, nobody will look at it.  A session that scans takes
 * children one by one, so a suspect is checked for a second (idemq_check_suspicion).
 */
#include "postgres.h"

#include "miscadmin.h"

#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "table/table.h"

/* Returns whether shared memory knows of a mark, or will look at all. */
static bool
knows(const QueueInfo *queue, DependencyMark mark, int64 id)
{
	GroupKey key;

	idemq_dependency_key(&key, queue->id, mark, id);
	return idemq_groups_know(queue->qstate, &key);
}

/* Returns whether somebody will look at a child. */
static bool
check_dependencies_is_known(const Suspect *suspect)
{
	int count = 1;
	const DependencyLook *look;
	DependencyParent parent;
	QueueInfo queue;

	if (!idemq_queue_by_id(suspect->queue_id, &queue) ||
		knows(&queue, DEPENDENCY_CHILD, suspect->id) ||
		knows(&queue, DEPENDENCY_FAILURE, suspect->id))
		return true;
	look = idemq_dependency_looks(&suspect->id, &count);
	if (count == 0)
		return true;
	/* The mark of a parent may lead to the child: of one that failed, or of the one it watches. */
	if (look->on_failure == FAILURE_CANCELS &&
		idemq_dependency_failed_parent(suspect->id, &parent) &&
		idemq_queue_by_id(parent.queue_id, &queue) && knows(&queue, DEPENDENCY_PARENT, parent.id))
		return true;
	return idemq_dependency_queue_of(look->waits_for, &parent.queue_id) &&
		   idemq_queue_by_id(parent.queue_id, &queue) &&
		   knows(&queue, DEPENDENCY_PARENT, look->waits_for);
}

/* Returns the children that a look would change; one that was looked at is not there any more. */
static Suspect *
find_children(const CheckCall *call, int *count)
{
	Suspect *suspects = palloc(sizeof(Suspect));

	*count = 0;
	for (int i = 0; i < call->nqueues; i++)
	{
		int found;
		int64 *ids = idemq_dependency_resolvable(call->queue_ids[i], CHECK_SUSPECTS, &found);

		suspects = repalloc_huge(suspects, (*count + found + 1) * sizeof(Suspect));
		for (int j = 0; j < found; j++)
			suspects[(*count)++] = (Suspect){.queue_id = call->queue_ids[i], .id = ids[j]};
		pfree(ids);
	}
	return suspects;
}

/* Checks that every child is looked at when its parents are done. */
void
idemq_check_dependencies(CheckCall *call)
{
	static const Suspicion forgotten_children =
		{find_children, check_dependencies_is_known, CHECK_ERROR, "children.forgotten",
		 "blocked though its parents are done, or have failed, and nobody looks at it: UPDATE "
		 "idemq.jobs SET status = status WHERE id = ..."};

	idemq_check_findings(call, "children");
	if (idemq_dependencies_exist())
		idemq_check_suspicion(call, &forgotten_children);
}
