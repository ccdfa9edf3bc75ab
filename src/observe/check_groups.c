/*
 * observe/check_groups.c
 *		The audit of groups: each has at most one head, or no more permits taken than
 *		group_max_running (job/permits.c), which the rows alone show; and none is forgotten.
 *
 * A group without a head, or with a free permit and no job that waits to be claimed, is a
 * suspect.  Once all that its snapshot showed has reached shared memory (idemq_check_settled),
 * the group is known there (shared/groups/groups.c), or a job of it has been promoted since.  If
 * it is not known, and afterwards still has no head and the same jobs, no session will promote
 * one.  The exception is a session that scans all groups at that moment, and knows of a group
 * only when it reaches it; so a suspect is checked for a second (idemq_check_suspicion).
 *
 * Low-water marks (shared/groups/groups.c): no job is below one.
 *
 * A job that a later snapshot shows below its group's low-water mark is a suspect: its writer may
 * be about to lower the low-water mark.  Once all that the snapshot showed has reached shared
 * memory (idemq_check_settled), the writer's mark has done so.  From then on only a
 * promotion could raise the low-water mark above the job.  Its promoter has seen this version of
 * the row, as the group's head, or as the one to promote unless there was an earlier one: in
 * neither case does the low-water mark rise above that version.  So if the low-water mark, read
 * again, is still above it, and a later snapshot shows the same version, then that low-water mark
 * is wrong.
 *
 * The group without a name may have jobs below its first low-water mark (job/permits.c).  Groups
 * that have a promoter are left out: what has lowered their low-water marks is not in them yet.  So
 * are groups with long names, of which memory knows only a hash.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "table/table.h"

/* Returns the groups in which no job can be claimed, and one could be. */
static Suspect *
find_headless(const CheckCall *call, int *count)
{
	return idemq_check_suspects("groups", 0, count);
}

/* Returns whether a group is known in shared memory, and so will get its head. */
static bool
check_groups_is_known(const Suspect *suspect)
{
	text *group = DatumGetTextPP(suspect->group);
	QueueInfo queue;
	GroupKey key;

	if (!idemq_queue_by_id(suspect->queue_id, &queue))
		return true; /* the finding jobs.queue reports that */
	idemq_group_key(&key, suspect->queue_id, VARDATA_ANY(group), (int) VARSIZE_ANY_EXHDR(group));
	return idemq_groups_know(queue.qstate, &key);
}

/* Returns whether a job that has a ready_at is, or may become, the head of its group. */
static bool
may_be_head(const QueueInfo *queue, const Job *job)
{
	return job->status != JOB_BLOCKED &&
		   (queue->group_max_running == 1 || idemq_job_has_permit(job));
}

/* Fetches a job of a group that is below its low-water mark, by the table's snapshot. */
static bool
find_below_mark(JobsTable *table, const GroupEntry *group, Job *job)
{
	const GroupLowWater *low_water = &group->low_water;
	Datum name = PointerGetDatum(cstring_to_text_with_len(group->key.name, group->key.length));
	QueueInfo queue;
	bool found = false;

	if (!idemq_queue_by_id(group->key.queue_id, &queue))
		return false; /* the finding jobs.queue reports that */
	if (!idemq_is_no_group(name) && low_water->heads > DT_NOBEGIN)
	{
		idemq_jobs_group_scan_begin(table, queue.id, name, DT_NOBEGIN, low_water->heads - 1);
		while (!found && idemq_jobs_group_scan_next(table, job))
		{
			CHECK_FOR_INTERRUPTS();
			found = may_be_head(&queue, job);
		}
		idemq_jobs_scan_end(table);
	}
	return found || (idemq_jobs_group_blocked(table, queue.id, name, PG_INT64_MIN, job) &&
					 job->status == JOB_BLOCKED && job->id < low_water->blocked);
}

/*
 * Returns a job of each group that has one below its low-water mark.  Group by group, through the
 * index: a plan for all of them may read the whole queue for each.
 */
static Suspect *
check_groups_find_below(const CheckCall *call, int *count)
{
	int room = idemq_groups_usage().room;
	GroupEntry *groups = palloc(room * sizeof(GroupEntry));
	int copied = idemq_groups_copy(MyDatabaseId, groups, room);
	Suspect *suspects = palloc(CHECK_SUSPECTS * sizeof(Suspect));
	JobsTable table;

	*count = 0;
	/* Its snapshot is younger than the copies. */
	idemq_jobs_open_to_read(&table);
	for (int i = 0; i < copied && *count < CHECK_SUSPECTS; i++)
	{
		const GroupKey *key = &groups[i].key;
		Suspect *suspect = &suspects[*count];
		bool isnull;
		Job job;

		CHECK_FOR_INTERRUPTS();
		if (groups[i].promoter != NOBODY || key->kind != KIND_GROUP ||
			groups[i].low_water.blocked == GROUP_NO_LOW_WATER.blocked ||
			!find_below_mark(&table, &groups[i], &job))
			continue;
		*suspect = (Suspect){.queue_id = key->queue_id, .id = job.id};
		suspect->group = PointerGetDatum(cstring_to_text_with_len(key->name, key->length));
		snprintf(suspect->version, sizeof(suspect->version), "%u",
				 DatumGetTransactionId(
					 slot_getsysattr(job.row, MinTransactionIdAttributeNumber, &isnull)));
		(*count)++;
	}
	idemq_jobs_close(&table);
	pfree(groups);
	return suspects;
}

void
idemq_check_groups(CheckCall *call)
{
	static const Suspicion headless_groups =
		{find_headless, check_groups_is_known, CHECK_ERROR, "groups.headless",
		 "first in a group without a head, and no session is promoting it: run UPDATE idemq.jobs "
		 "SET status = status WHERE id = ..."};
	static const Suspicion low_water =
		{check_groups_find_below, NULL, CHECK_ERROR, "groups.low_water",
		 "below the low-water mark of its group, so that no promotion finds it: run UPDATE "
		 "idemq.jobs SET status = status WHERE id = ..."};

	idemq_check_findings(call, "groups");
	idemq_check_suspicion(call, &headless_groups);
	idemq_check_suspicion(call, &low_water);
}
