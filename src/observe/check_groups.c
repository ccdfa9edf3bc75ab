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
 * reaches it; so a suspect is checked for a second.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"

/* Times that a group which seems forgotten is checked, and microseconds between them. */
#define HEADLESS_CHECKS 11
#define HEADLESS_PAUSE 100000L

/* Whether a job is its group's head, or has one of its places (job/places.c). */
#define HAS_PLACE                                                                                       \
	"(j.status <> 'blocked' AND (q.group_running = 1 AND j.group_key <> '' OR j.status = 'processing' " \
	"OR j.status = 'pending' AND j.run_at IS NULL))"

#define SUSPECT_COLUMNS                                                                            \
	"queue_id, j.group_key, min(j.id) FILTER (WHERE j.status = 'blocked') AS first_id, "           \
	"count(*) AS jobs, max(j.id) AS last_id, max(j.token) AS token "                               \
	"FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) "                                      \
	"WHERE j.group_key IS NOT NULL AND j.finished_at IS NULL "

/* A job is blocked, none waits to be claimed, and fewer are in processing than may be. */
#define SUSPECT_GROUPS                                                                             \
	"GROUP BY 1, 2, q.group_running HAVING bool_or(j.status = 'blocked') "                         \
	"AND (j.group_key = '' OR count(*) FILTER (WHERE " HAS_PLACE ") < q.group_running) "           \
	"AND NOT bool_or(" HAS_PLACE " AND j.status <> 'processing') "

static SqlStatement headless = {.text = "SELECT " SUSPECT_COLUMNS SUSPECT_GROUPS "LIMIT $1",
								.types = {INT8OID}};

static SqlStatement headless_group = {.text =
										  "SELECT " SUSPECT_COLUMNS
										  "AND queue_id = $1 AND j.group_key = $2 " SUSPECT_GROUPS,
									  .types = {INT4OID, TEXTOID}};

/* A group in which no job can be claimed, and one could be. */
typedef struct Suspect
{
	int32 queue_id;
	text *name;
	int64 first_id;
	int64 last_id;
	int64 jobs;
	int64 token; /* the greatest: of the last claim */
} Suspect;

/* Reads one row of SUSPECT_COLUMNS into the current memory context. */
static void
read_suspect(uint64 row, Suspect *suspect)
{
	suspect->queue_id = DatumGetInt32(idemq_spi_value(row, 1, NULL));
	suspect->name = DatumGetTextPCopy(idemq_spi_value(row, 2, NULL));
	suspect->first_id = DatumGetInt64(idemq_spi_value(row, 3, NULL));
	suspect->jobs = DatumGetInt64(idemq_spi_value(row, 4, NULL));
	suspect->last_id = DatumGetInt64(idemq_spi_value(row, 5, NULL));
	suspect->token = DatumGetInt64(idemq_spi_value(row, 6, NULL));
}

/* Reads the suspects to an array that is palloc'ed; returns how many. */
static int
find_suspects(Suspect **suspects)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum limit = Int64GetDatum(CHECK_SUSPECTS);
	SqlScope scope;
	int rows;

	idemq_spi_begin(&scope);
	rows = (int) idemq_spi_query_latest(&headless, &limit, NULL);
	*suspects = MemoryContextAlloc(caller, Max(rows, 1) * sizeof(Suspect));
	for (int i = 0; i < rows; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(caller);

		read_suspect(i, &(*suspects)[i]);
		MemoryContextSwitchTo(old);
	}
	idemq_spi_end(&scope);
	return rows;
}

/* Returns whether a group is as it was: without a head, with the same jobs, none claimed since. */
static bool
is_unchanged(const Suspect *suspect)
{
	Datum values[] = {Int32GetDatum(suspect->queue_id), PointerGetDatum(suspect->name)};
	SqlScope scope;
	Suspect now = {0};
	uint64 rows;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&headless_group, values, NULL);
	if (rows > 0)
		read_suspect(0, &now);
	idemq_spi_end(&scope);
	return rows > 0 && now.first_id == suspect->first_id && now.last_id == suspect->last_id &&
		   now.jobs == suspect->jobs && now.token == suspect->token;
}

/* Returns whether a group is known in shared memory, and so will get its head. */
static bool
is_known(const Suspect *suspect)
{
	QueueInfo queue;
	GroupKey key;

	if (!idemq_queue_by_id(suspect->queue_id, &queue))
		return true; /* jobs.queue says so */
	idemq_group_key(&key, suspect->queue_id, VARDATA_ANY(suspect->name),
					(int) VARSIZE_ANY_EXHDR(suspect->name));
	return idemq_groups_know(queue.slot, &key);
}

/* Moves the suspects that are forgotten to the array's start; returns how many. */
static int
keep_forgotten(Suspect *suspects, int count)
{
	int kept = 0;

	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!is_known(&suspects[i]) && is_unchanged(&suspects[i]))
			suspects[kept++] = suspects[i];
	}
	return kept;
}

/* Checks that each group has a head, or is known to have none. */
static void
check_headless(CheckCall *call)
{
	Suspect *suspects;
	IdList jobs = {0};
	int count = find_suspects(&suspects);

	if (count == 0)
		return;
	if (!idemq_check_settled(call))
	{
		idemq_check_report(call, CHECK_WARNING, "groups.headless",
						   "not checked: a transaction has been ending for too long");
		return;
	}
	for (int round = 0; round < HEADLESS_CHECKS && count > 0; round++)
	{
		if (round > 0)
			pg_usleep(HEADLESS_PAUSE);
		count = keep_forgotten(suspects, count);
	}
	for (int i = 0; i < count; i++)
		idemq_id_list_add(&jobs, suspects[i].first_id);
	idemq_check_report_jobs(call, CHECK_ERROR, "groups.headless", &jobs,
							"first in a group without a head that nobody promotes: UPDATE "
							"idemq.jobs SET status = status WHERE id = ...");
}

/* Checks FIFO groups. */
void
idemq_check_groups(CheckCall *call)
{
	idemq_check_findings(call, "groups");
	check_headless(call);
}
