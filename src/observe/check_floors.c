/*
 * observe/check_floors.c
 *		The audit of the floors of FIFO groups (shared/groups/groups.c): no job is below one.
 *
 * A job that a later snapshot shows below its group's floor is a suspect: its writer may
 * be about to lower the floor.  Once all that the snapshot showed has reached shared
 * memory (idemq_check_settled), the writer's mark has done so.  From then on the floor
 * rises above the job by a promotion alone, whose owner had seen this version of the row,
 * as its group's head, or as the one to promote unless an earlier one was: in neither case
 * does the floor rise above that version.  So if the floor, read again, is still above
 * it, and a later snapshot shows the same version, then that floor is wrong.
 *
 * The group without a name may have jobs below its first floor (job/places.c).  Groups that have
 * an owner are left out: what has lowered their floors is not in them
 * yet.  So are those with long names, of which memory knows a hash.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "observe/observe.h"
#include "shared/groups/groups.h"

/* The first job of a group below its floor, and the version of its row. */
static SqlStatement below_floor = {
	.text = "(SELECT id, xmin::text FROM idemq.jobs WHERE queue_id = $1 AND group_key = $2 "
			"AND group_key <> '' AND finished_at IS NULL AND ready_at < $3 AND status <> 'blocked' "
			"AND (status = 'processing' OR status = 'pending' AND run_at IS NULL "
			"OR (SELECT group_running = 1 FROM idemq.queues WHERE queue_id = $1)) "
			"ORDER BY ready_at LIMIT 1) UNION ALL "
			"(SELECT id, xmin::text FROM idemq.jobs WHERE queue_id = $1 AND group_key = $2 "
			"AND finished_at IS NULL AND ready_at IS NULL AND id < $4 AND status = 'blocked' "
			"ORDER BY id LIMIT 1) LIMIT 1",
	.types = {INT4OID, TEXTOID, TIMESTAMPTZOID, INT8OID}};

/* Returns the job of a group that is below its floor, in that memory context; NULL for none. */
static Suspect *
find_below(const GroupEntry *group, MemoryContext context)
{
	Datum values[] = {
		Int32GetDatum(group->key.queue_id),
		PointerGetDatum(cstring_to_text_with_len(group->key.name, group->key.length)),
		TimestampTzGetDatum(group->floor.heads),
		Int64GetDatum(group->floor.blocked),
	};
	Suspect *suspect = NULL;
	SqlScope scope;

	idemq_spi_begin(&scope);
	idemq_spi_no_seqscan();
	if (idemq_spi_query_latest(&below_floor, values, NULL) > 0)
	{
		suspect = MemoryContextAllocZero(context, sizeof(Suspect));
		suspect->queue_id = group->key.queue_id;
		suspect->id = idemq_spi_int64(0, 1, NULL);
		suspect->version =
			MemoryContextStrdup(context, TextDatumGetCString(idemq_spi_value(0, 2, NULL)));
	}
	idemq_spi_end(&scope);
	pfree(DatumGetPointer(values[1]));
	return suspect;
}

/* Reads the floors of this database's groups to an array that is palloc'ed; returns how many. */
static int
read_floors(GroupEntry **groups)
{
	int size = idemq_groups_usage().room;
	int count;
	int kept = 0;

	*groups = palloc(size * sizeof(GroupEntry));
	count = idemq_groups_copy(MyDatabaseId, *groups, size);
	for (int i = 0; i < count; i++)
	{
		const GroupEntry *group = &(*groups)[i];

		if (group->owner == NOBODY && group->key.length != LONG_NAME &&
			group->floor.blocked != GROUP_NO_FLOOR.blocked)
			(*groups)[kept++] = *group;
	}
	return kept;
}

/* Returns a job of each group that has one below its floor. */
static List *
find_suspects(const CheckCall *call)
{
	List *suspects = NIL;
	GroupEntry *groups;
	int count = read_floors(&groups);

	for (int i = 0; i < count && list_length(suspects) < CHECK_SUSPECTS; i++)
	{
		Suspect *suspect = find_below(&groups[i], CurrentMemoryContext);

		CHECK_FOR_INTERRUPTS();
		if (suspect != NULL)
			suspects = lappend(suspects, suspect);
	}
	pfree(groups);
	return suspects;
}

/* Checks that no job is below the floor of its group. */
void
idemq_check_floors(CheckCall *call)
{
	static const Suspicion below_floors = {
		find_suspects, NULL, "groups.floor",
		"below its group's floor, where no promotion finds it: UPDATE idemq.jobs SET status = status "
		"WHERE id = ..."};

	idemq_check_suspicion(call, &below_floors);
}
