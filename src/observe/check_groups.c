/*
 * observe/check_groups.c
 *		The audit of groups: each has at most one head, or no more permits taken than
 *		group_max_running (job/permits.c), which the rows say by themselves; and none is forgotten.
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

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"

static SqlStatement below_low_water =
	{.text = "SELECT * FROM idemq_internal.below_low_water($1, $2, $3, $4, $5)",
	 .types = {INT4ARRAYOID, TEXTARRAYOID, TIMESTAMPTZARRAYOID, INT8ARRAYOID, INT8OID},
	 .few = true,
	 .fields = SUSPECT_FIELDS};

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
		return true; /* the finding jobs.queue says that */
	idemq_group_key(&key, suspect->queue_id, VARDATA_ANY(group), (int) VARSIZE_ANY_EXHDR(group));
	return idemq_groups_know(queue.qstate, &key);
}

/* Returns a job of each group that has one below its low-water mark. */
static Suspect *
check_groups_find_below(const CheckCall *call, int *count)
{
	int room = idemq_groups_usage().room;
	GroupEntry *groups = palloc(room * sizeof(GroupEntry));
	int copied = idemq_groups_copy(MyDatabaseId, groups, room);
	Datum *columns[] = {palloc(room * sizeof(Datum)), palloc(room * sizeof(Datum)),
						palloc(room * sizeof(Datum)), palloc(room * sizeof(Datum))};
	Datum args[5];
	int n = 0;

	for (int i = 0; i < copied; i++)
	{
		const GroupKey *key = &groups[i].key;
		const GroupLowWater *low_water = &groups[i].low_water;

		if (groups[i].promoter != NOBODY || key->kind != KIND_GROUP ||
			low_water->blocked == GROUP_NO_LOW_WATER.blocked)
			continue;
		columns[0][n] = Int32GetDatum(key->queue_id);
		columns[1][n] = PointerGetDatum(cstring_to_text_with_len(key->name, key->length));
		columns[2][n] = TimestampTzGetDatum(low_water->heads);
		columns[3][n++] = Int64GetDatum(low_water->blocked);
	}
	args[0] = PointerGetDatum(construct_array(columns[0], n, INT4OID, 4, true, TYPALIGN_INT));
	args[1] = PointerGetDatum(construct_array(columns[1], n, TEXTOID, -1, false, TYPALIGN_INT));
	args[2] = PointerGetDatum(
		construct_array(columns[2], n, TIMESTAMPTZOID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	args[3] = PointerGetDatum(
		construct_array(columns[3], n, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	args[4] = Int64GetDatum(CHECK_SUSPECTS);
	return idemq_spi_rows(&below_low_water, args, sizeof(Suspect), count);
}

void
idemq_check_groups(CheckCall *call)
{
	static const Suspicion headless_groups = {
		find_headless, check_groups_is_known, CHECK_ERROR, "groups.headless",
		"first in a group without a head that nobody promotes: UPDATE idemq.jobs SET status = status "
		"WHERE id = ..."};
	static const Suspicion low_water =
		{check_groups_find_below, NULL, CHECK_ERROR, "groups.low_water",
		 "below its group's low-water mark, where no promotion finds it: UPDATE idemq.jobs "
		 "SET status = status WHERE id = ..."};

	idemq_check_findings(call, "groups");
	idemq_check_suspicion(call, &headless_groups);
	idemq_check_suspicion(call, &low_water);
}
