/*
 * observe/check_kin.c
 *		The audit of children: none is forgotten whose parents are done, or have failed.
 *
 * That none runs too early the rows say by themselves.
 *
 * A child that a look would change is a suspect.  Once all that its snapshot showed has reached
 * shared memory (idemq_check_settled), the child or the parent that it watches is marked
 * there, or somebody has them, or their queue is to be scanned; or the look has been done
 * since.  If neither, nobody will look at it.  A session that scans takes children one by one,
 * so a suspect is checked for a second, as a group without a head is (observe/check_groups.c).
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "table/table.h"

/* Times that a child which seems forgotten is checked, and microseconds between them. */
#define FORGOTTEN_CHECKS 11
#define FORGOTTEN_PAUSE 100000L

typedef struct Suspects
{
	int32 queue_id;
	int64 *ids;
	int count;
} Suspects;

/* Returns whether shared memory knows of a mark, or will look at all. */
static bool
knows(const QueueInfo *queue, KinMark mark, int64 id)
{
	char name[KIN_NAME];
	GroupKey key;

	idemq_kin_name(name, mark, id);
	idemq_group_key(&key, queue->id, name, KIN_NAME);
	return idemq_groups_know(queue->slot, &key);
}

/* Returns whether somebody will look at a child. */
static bool
is_known(const QueueInfo *queue, int64 id)
{
	KinWait wait;
	KinParent parent;
	QueueInfo of_parent;

	if (knows(queue, KIN_CHILD, id) || knows(queue, KIN_FAILURE, id) ||
		!idemq_kin_wait_of(id, &wait))
		return true;
	/* The mark of a parent that the child may come with; any of the failed ones. */
	if (wait.on_failure == FAILURE_CANCELS && idemq_kin_failed_parent(id, &parent) &&
		idemq_queue_by_id(parent.queue_id, &of_parent) && knows(&of_parent, KIN_PARENT, parent.id))
		return true;
	return idemq_kin_queue_of(wait.waits_for, &parent.queue_id) &&
		   idemq_queue_by_id(parent.queue_id, &of_parent) &&
		   knows(&of_parent, KIN_PARENT, wait.waits_for);
}

/* Keeps those that still are to be looked at, and nobody will; returns how many. */
static int
keep_forgotten(Suspects *suspects)
{
	QueueInfo queue;
	int kept = 0;
	int count;
	int64 *now;

	if (!idemq_queue_by_id(suspects->queue_id, &queue))
		return 0;
	for (int i = 0; i < suspects->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!is_known(&queue, suspects->ids[i]))
			suspects->ids[kept++] = suspects->ids[i];
	}
	if (kept == 0)
		return 0;
	/* What was looked at in between is not there any more. */
	now = idemq_kin_resolvable(suspects->queue_id, CHECK_SUSPECTS, &count);
	suspects->count = kept;
	kept = 0;
	for (int i = 0; i < suspects->count; i++)
	{
		if (count == CHECK_SUSPECTS ||
			bsearch(&suspects->ids[i], now, count, sizeof(int64), idemq_compare_int64) != NULL)
			suspects->ids[kept++] = suspects->ids[i];
	}
	pfree(now);
	return kept;
}

/* Checks that every child is looked at when its parents are done. */
void
idemq_check_kin(CheckCall *call)
{
	bool settled = false;
	IdList jobs = {0};

	idemq_check_findings(call, "children");
	if (!idemq_kin_any())
		return;
	for (int i = 0; i < call->nqueues; i++)
	{
		Suspects suspects = {.queue_id = call->queue_ids[i]};

		suspects.ids = idemq_kin_resolvable(suspects.queue_id, CHECK_SUSPECTS, &suspects.count);
		if (suspects.count > 0 && !settled && !(settled = idemq_check_settled(call)))
		{
			idemq_check_report(call, CHECK_WARNING, "children.forgotten",
							   "not checked: a transaction has been ending for too long");
			return;
		}
		for (int round = 0; round < FORGOTTEN_CHECKS && suspects.count > 0; round++)
		{
			if (round > 0)
				pg_usleep(FORGOTTEN_PAUSE);
			suspects.count = keep_forgotten(&suspects);
		}
		for (int j = 0; j < suspects.count; j++)
			idemq_id_list_add(&jobs, suspects.ids[j]);
		pfree(suspects.ids);
	}
	idemq_check_report_jobs(call, CHECK_ERROR, "children.forgotten", &jobs,
							"blocked though its parents are done, or have failed, and nobody looks "
							"at it: UPDATE idemq.jobs SET status = status WHERE id = ...");
}
