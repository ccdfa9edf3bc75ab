/*
 * observe/check_groups.c
 *		The audit of groups: at most one head each, no more places taken than group_running
 *		says (job/places.c), which the rows say by themselves; and none that is forgotten.
 *
 * A group without a head, or with a free place and nobody that waits to be claimed, is a
 * suspect.  Once all that its snapshot showed has reached shared memory (idemq_check_settled),
 * the group is known there (shared/groups/groups.c), or has been promoted since.  If it is not known,
 * and afterwards still has no head and the same jobs, no session will promote it.  The
 * exception is a session that scans all groups at that moment and knows of none before it
 * reaches it; so a suspect is checked for a second (idemq_check_suspicion).
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"

/* Whether a job is its group's head, or has one of its places (job/places.c). */
#define HAS_PLACE                                                                                       \
	"(j.status <> 'blocked' AND (q.group_running = 1 AND j.group_key <> '' OR j.status = 'processing' " \
	"OR j.status = 'pending' AND j.run_at IS NULL))"

/*
 * Groups in which a job is blocked, none waits to be claimed, and fewer are in processing than
 * may be; with the first of these jobs.  They have changed when they have other jobs, or one was
 * claimed.
 */
static SqlStatement headless =
	{.text = "SELECT queue_id, j.group_key, min(j.id) FILTER (WHERE j.status = 'blocked'), "
			 "concat_ws(' ', count(*), max(j.id), max(j.token)) "
			 "FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) "
			 "WHERE j.group_key IS NOT NULL AND j.finished_at IS NULL "
			 "GROUP BY 1, 2, q.group_running HAVING bool_or(j.status = 'blocked') "
			 "AND (j.group_key = '' OR count(*) FILTER (WHERE " HAS_PLACE ") < q.group_running) "
			 "AND NOT bool_or(" HAS_PLACE " AND j.status <> 'processing') ORDER BY 1, 2 LIMIT $1",
	 .types = {INT8OID}};

/* Returns the groups in which no job can be claimed, and one could be. */
static List *
find_headless(const CheckCall *call)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum limit = Int64GetDatum(CHECK_SUSPECTS);
	List *suspects = NIL;
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&headless, &limit, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(caller);
		Suspect *suspect = palloc(sizeof(Suspect));

		suspect->queue_id = DatumGetInt32(idemq_spi_value(i, 1, NULL));
		suspect->group = DatumGetTextPCopy(idemq_spi_value(i, 2, NULL));
		suspect->id = idemq_spi_int64(i, 3, NULL);
		suspect->version = TextDatumGetCString(idemq_spi_value(i, 4, NULL));
		suspects = lappend(suspects, suspect);
		MemoryContextSwitchTo(old);
	}
	idemq_spi_end(&scope);
	return suspects;
}

/* Returns whether a group is known in shared memory, and so will get its head. */
static bool
is_known(const Suspect *suspect)
{
	QueueInfo queue;
	GroupKey key;

	if (!idemq_queue_by_id(suspect->queue_id, &queue))
		return true; /* jobs.queue says so */
	idemq_group_key(&key, suspect->queue_id, VARDATA_ANY(suspect->group),
					(int) VARSIZE_ANY_EXHDR(suspect->group));
	return idemq_groups_know(queue.slot, &key);
}

/* Checks FIFO groups. */
void
idemq_check_groups(CheckCall *call)
{
	static const Suspicion headless_groups = {
		find_headless, is_known, "groups.headless",
		"first in a group without a head that nobody promotes: UPDATE idemq.jobs SET status = status "
		"WHERE id = ..."};

	idemq_check_findings(call, "groups");
	idemq_check_suspicion(call, &headless_groups);
}
