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

#include "job/job.h"
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

/* Looks at a child by a snapshot of its own; as idemq_dependency_look and _failed_parent. */
static bool
check_dependencies_look_again(int64 child, DependencyLook *look, DependencyParent *failed)
{
	JobsTable table;
	bool waits;

	idemq_jobs_open_to_read(&table);
	waits = idemq_dependency_look(&table, child, look);
	if (waits && (look->on_failure != FAILURE_CANCELS ||
				  !idemq_dependency_failed_parent(&table, child, failed)))
		failed->id = 0;
	idemq_jobs_close(&table);
	return waits;
}

/* Returns whether somebody will look at a child. */
static bool
check_dependencies_is_known(const Suspect *suspect)
{
	DependencyLook look;
	DependencyParent parent;
	QueueInfo queue;

	if (!idemq_queue_by_id(suspect->queue_id, &queue) ||
		knows(&queue, DEPENDENCY_CHILD, suspect->id) ||
		knows(&queue, DEPENDENCY_FAILURE, suspect->id))
		return true;
	if (!check_dependencies_look_again(suspect->id, &look, &parent))
		return true;
	/* The mark of a parent may lead to the child: of one that failed, or of the one it watches. */
	if (parent.id != 0 && idemq_queue_by_id(parent.queue_id, &queue) &&
		knows(&queue, DEPENDENCY_PARENT, parent.id))
		return true;
	return idemq_dependency_queue_of(look.waits_for, &parent.queue_id) &&
		   idemq_queue_by_id(parent.queue_id, &queue) &&
		   knows(&queue, DEPENDENCY_PARENT, look.waits_for);
}

/* Adds those of a queue's children that a look would change, up to CHECK_SUSPECTS. */
static void
find_in_queue(JobsTable *table, int32 queue_id, Suspect **suspects, int *count)
{
	DependencyPage page = {.next = PG_INT64_MIN};
	int room = *count + CHECK_SUSPECTS;

	*suspects = repalloc_huge(*suspects, room * sizeof(Suspect));
	while (!page.is_last && *count < room)
	{
		idemq_dependency_waiting(table->snapshot, queue_id, page.next, CHECK_SUSPECTS, &page);
		for (int i = 0; i < page.count && *count < room; i++)
		{
			DependencyMark mark;

			CHECK_FOR_INTERRUPTS();
			if (idemq_child_is_resolvable(table, queue_id, page.children[i].id, &mark))
				(*suspects)[(*count)++] =
					(Suspect){.queue_id = queue_id, .id = page.children[i].id};
		}
		pfree(page.children);
	}
}

/* Returns the children that a look would change; one that was looked at is not there any more. */
static Suspect *
find_children(const CheckCall *call, int *count)
{
	Suspect *suspects = palloc(sizeof(Suspect));
	JobsTable table;

	*count = 0;
	idemq_jobs_open_to_read(&table);
	for (int i = 0; i < call->nqueues; i++)
		find_in_queue(&table, call->queue_ids[i], &suspects, count);
	idemq_jobs_close(&table);
	return suspects;
}

/* Checks that every child is looked at when its parents are done. */
void
idemq_check_dependencies(CheckCall *call)
{
	static const Suspicion forgotten_children =
		{find_children, check_dependencies_is_known, CHECK_ERROR, "children.forgotten",
		 "blocked although their parents are done or have failed, and no session is checking them: "
		 "run UPDATE idemq.jobs SET status = status WHERE id = ..."};

	idemq_check_findings(call, "children");
	if (idemq_dependencies_exist())
		idemq_check_suspicion(call, &forgotten_children);
}
