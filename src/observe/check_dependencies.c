/*
 * observe/check_dependencies.c
 *		Audits children: no child is forgotten after its parents have finished or failed.
 *
 * (That no child runs too early follows from the rows alone: idemq_internal.findings.)
 *
 * A suspect is a child that would change if a session examined it.  Once everything that the
 * snapshot showed has reached shared memory (idemq_check_settled), one of these is true: the
 * child, or the parent that it watches, is marked there; a session has taken the mark; their queue
 * will be scanned; or the child has been examined since.  If none of these is true, no session
 * will examine the child.  A session that scans a queue examines its children one by one, so each
 * suspect is checked repeatedly for a second (idemq_check_suspicion).
 */
#include "postgres.h"

#include "miscadmin.h"

#include "job/job.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "table/table.h"

/* Returns whether shared memory has a mark for a job, or the job's queue will be scanned. */
static bool
is_marked(const QueueInfo *queue, DependencyMark mark, int64 id)
{
	GroupKey key;

	idemq_dependency_key(&key, queue->id, mark, id);
	return idemq_groups_know(queue->qstate, &key);
}

/* Returns whether a session will examine a child. */
static bool
check_dependencies_is_known(const Suspect *suspect)
{
	JobsTable table;
	DependencyLook look;
	DependencyParent failed;
	bool is_waiting;
	bool has_failed;
	int32 queue_id;
	QueueInfo queue;

	if (!idemq_queue_by_id(suspect->queue_id, &queue) ||
		is_marked(&queue, DEPENDENCY_CHILD, suspect->id) ||
		is_marked(&queue, DEPENDENCY_FAILURE, suspect->id))
		return true;
	idemq_jobs_open_to_read(&table);
	is_waiting = idemq_dependency_look(&table, suspect->id, &look);
	has_failed = is_waiting && look.on_failure == FAILURE_CANCELS &&
				 idemq_dependency_failed_parent(&table, suspect->id, &failed);
	idemq_jobs_close(&table);
	if (!is_waiting)
		return true;
	/* A mark of a failed parent, or of the parent that it watches, leads to the child. */
	if (has_failed && idemq_queue_by_id(failed.queue_id, &queue) &&
		is_marked(&queue, DEPENDENCY_PARENT, failed.id))
		return true;
	return idemq_dependency_queue_of(look.waits_for, &queue_id) &&
		   idemq_queue_by_id(queue_id, &queue) &&
		   is_marked(&queue, DEPENDENCY_PARENT, look.waits_for);
}

/* Adds up to CHECK_SUSPECTS of a queue's children that would change if a session examined them. */
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

/* Returns the suspects.  A child that has been examined since is no longer among them. */
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

/* Checks that no child is forgotten; see the top of the file. */
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
