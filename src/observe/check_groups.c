/*
 * observe/check_groups.c
 *		The audit of FIFO groups: at most one head each, and none that is forgotten.
 *
 * Heads: the session that promoted a head had seen the previous head's end, so a
 * snapshot that sees a promotion sees that end: one query under one snapshot finds
 * no race.
 *
 * A group without a head is a suspect.  Once all that its snapshot showed has reached
 * shared memory (idemq_check_settled), the group is known there (shared/groups.c), or
 * has been promoted since.  If it is not known, and afterwards still has no head and
 * the same jobs, no session will promote it.  The exception is a session that scans
 * all groups at that moment and knows of none before it reaches it; so a suspect is
 * checked for a second.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "observe/check_groups.h"
#include "observe/check_report.h"
#include "queue/queues.h"
#include "shared/group_table.h"
#include "shared/groups.h"
#include "base/spi.h"

/* Times that a group which seems forgotten is checked, and microseconds between them. */
#define HEADLESS_CHECKS 11
#define HEADLESS_PAUSE 100000L

static SqlStatement many_heads =
	{.text = "SELECT id FROM (SELECT id, count(*) OVER (PARTITION BY queue_id, group_key) AS heads "
			 "FROM idemq.jobs WHERE group_key IS NOT NULL AND finished_at IS NULL "
			 "AND status <> 'blocked') h WHERE heads > 1 ORDER BY id LIMIT $1",
	 .nargs = 1,
	 .types = {INT8OID}};

#define SUSPECT_COLUMNS                                                                            \
	"queue_id, group_key, min(id) AS first_id, count(*) AS jobs, max(id) AS last_id "              \
	"FROM idemq.jobs WHERE group_key IS NOT NULL AND finished_at IS NULL "

static SqlStatement headless =
	{.text = "SELECT " SUSPECT_COLUMNS
			 "GROUP BY 1, 2 HAVING pg_catalog.bool_and(status = 'blocked') LIMIT $1",
	 .nargs = 1,
	 .types = {INT8OID}};

static SqlStatement headless_group =
	{.text = "SELECT " SUSPECT_COLUMNS "AND queue_id = $1 AND group_key = $2 "
			 "GROUP BY 1, 2 HAVING pg_catalog.bool_and(status = 'blocked')",
	 .nargs = 2,
	 .types = {INT4OID, TEXTOID}};

/* A group in which every job is blocked. */
typedef struct Suspect
{
	int32 queue_id;
	text *name;
	int64 first_id;
	int64 last_id;
	int64 jobs;
} Suspect;

static void
check_heads(CheckCall *call)
{
	Datum limit = Int64GetDatum(CHECK_SUSPECTS);
	IdList jobs = {0};
	SqlScope scope;
	uint64 rows;
	bool isnull;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&many_heads, &limit, NULL);
	for (uint64 i = 0; i < rows; i++)
		idemq_id_list_add(&jobs, DatumGetInt64(idemq_spi_value(i, 1, &isnull)));
	idemq_spi_end(&scope);
	idemq_check_report_jobs(call, CHECK_ERROR, "groups.head", &jobs,
							"not blocked, as another job of its group: cancel all but the first");
}

/* Reads one row of SUSPECT_COLUMNS into the current memory context. */
static void
read_suspect(uint64 row, Suspect *suspect)
{
	bool isnull;

	suspect->queue_id = DatumGetInt32(idemq_spi_value(row, 1, &isnull));
	suspect->name = DatumGetTextPCopy(idemq_spi_value(row, 2, &isnull));
	suspect->first_id = DatumGetInt64(idemq_spi_value(row, 3, &isnull));
	suspect->jobs = DatumGetInt64(idemq_spi_value(row, 4, &isnull));
	suspect->last_id = DatumGetInt64(idemq_spi_value(row, 5, &isnull));
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

/* Returns whether a group is as it was: without a head, and with the same jobs. */
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
		   now.jobs == suspect->jobs;
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
	check_heads(call);
	check_headless(call);
}
