/*
 * observe/check_groups.c
 *		Audits groups: each has at most one head, or at most group_max_running permits taken
 *		(job/permits.c); no group is forgotten; and no job is below its group's low-water mark.
 *
 * The first of these follows from the rows alone (idemq_internal.findings).
 *
 * Forgotten groups: a suspect is the first job of a group without a head, or of a group with a
 * free permit and no ready job.  Once everything that the snapshot showed has reached shared
 * memory (idemq_check_settled), the group is known there (shared/groups/groups.c), or one of its
 * jobs has been promoted since.  If the group is not known, and afterwards still has no head and
 * the same jobs, no session will promote one.  There is one exception: a session that scans all
 * groups of a queue learns of each group only when the scan reaches it.  Therefore, each suspect
 * is checked repeatedly for a second (idemq_check_suspicion).
 *
 * Low-water marks (shared/groups/groups.c): a suspect is a job that a snapshot shows below its
 * group's low-water mark, which was read before.  The job's writer may still have to lower it, but
 * has done so once everything that the snapshot showed has reached shared memory.  From then on,
 * only a promoter could raise it above the job.  But the promoter has seen this version of the
 * row, either as the group's head, or as the job to promote if there is no earlier one.  In
 * neither case does it raise the low-water mark above that version.  So if the low-water mark,
 * read again, is still above the job, and a later snapshot shows the same version, the low-water
 * mark is wrong.
 *
 * Low-water marks are not checked for groups that have a promoter, because they do not reflect yet
 * what has lowered them, nor for groups with long names, of which memory has only a hash.  The
 * group without a name may have jobs below its first low-water mark (job/permits.c), so only its
 * other one is checked.
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

/* Returns the first jobs of groups that need a head. */
static Suspect *
find_headless(const CheckCall *call, int *count)
{
	return idemq_check_suspects("groups", 0, count);
}

/*
 * Returns whether a suspect's group is known in shared memory, so that a session will promote a
 * job.
 */
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

/*
 * Finds a job of a group that is below one of the group's two low-water marks, under the table's
 * snapshot: a head, or a blocked job.  Returns false if there is none.
 */
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
			found = job->status != JOB_BLOCKED &&
					(queue.group_max_running == 1 || idemq_job_has_permit(job));
		}
		idemq_jobs_scan_end(table);
	}
	return found || (idemq_jobs_group_blocked(table, queue.id, name, PG_INT64_MIN, job) &&
					 job->status == JOB_BLOCKED && job->id < low_water->blocked);
}

/*
 * Returns one job of each group that has a job below its low-water mark.  Each group is searched
 * through the index: SQL for all groups might read the whole queue for each of them.
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
	/* After the low-water marks were copied, so that the snapshot is later. */
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

/* Checks groups; see the top of the file. */
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
