/*
 * shared/counts/server_counts.c
 *		Counts for the whole server since its start: calls that have no queue, and so no queue state
 *		in which they could be counted, and how often a table in shared memory was full.
 *
 * A result is counted when it is returned; a rollback does not undo that.
 *
 * The background worker also logs which table is full (worker/worker_log.c).  The session that
 * finds a table full usually cannot log it, because it holds locks, or because its transaction is
 * over.  So it writes a note with its database, at most once per SAID_PAUSE for each table, and the
 * worker of that database takes the note when it is next awake.  A note of one database replaces a
 * note of another, because the table belongs to the whole server, and one log line is enough.
 * Without a worker, nothing is logged, but the counts are still right.
 *
 * Locks: none, only atomics.  Nothing here allocates or raises errors.
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/proc.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/counts/counts.h"

/* Number of cache lines over which sessions are spread, to avoid contention. */
#define STRIPES 16
/* Minimum number of seconds between two log lines for the same table. */
#define SAID_PAUSE (USECS_PER_MINUTE / USECS_PER_SEC)
#define TABLES (SERVER_COUNTS - COUNT_FULL_LEASES)

const char *const idemq_server_count_names[] = {
	"once_first",	  "once_repeated",	"publish_calls",	  "publish_jobs",	"publish_skipped",
	"admit_allowed",  "admit_refused",	"admit_shared",		  "leases_refused", "buckets_refused",
	"groups_refused", "queues_refused", "group_room_refused",
};

StaticAssertDecl(lengthof(idemq_server_count_names) == SERVER_COUNTS, "each count has a name");

typedef struct CountsShared
{
	struct
	{
		pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint64 counts[SERVER_COUNTS];
	} stripes[STRIPES];
	/*
	 * For each table: in the lower half, the database whose worker must log that the table was
	 * full, or InvalidOid; in the upper half, when that was last logged (mono, in seconds; 0:
	 * never).
	 */
	pg_atomic_uint64 full[TABLES];
} CountsShared;

static CountsShared *server_counts_shared = NULL;

static void
server_counts_init(int tranche)
{
	for (int i = 0; i < STRIPES * SERVER_COUNTS; i++)
		pg_atomic_init_u64(
			&server_counts_shared->stripes[i / SERVER_COUNTS].counts[i % SERVER_COUNTS], 0);
	for (int i = 0; i < TABLES; i++)
		pg_atomic_init_u64(&server_counts_shared->full[i], 0);
}

const ShmemPart idemq_server_counts_part = {.area = (void **) &server_counts_shared,
											.size = sizeof(CountsShared),
											.init = server_counts_init};

/* Adds to a count. */
void
idemq_count(ServerCount what, uint64 times)
{
	pg_atomic_fetch_add_u64(
		&server_counts_shared->stripes[IDEMQ_MY_PROC_NUMBER % STRIPES].counts[what], times);
}

/* Returns a count since the start of the server. */
int64
idemq_count_read(ServerCount what)
{
	uint64 count = 0;

	for (int i = 0; i < STRIPES; i++)
		count += pg_atomic_read_u64(&server_counts_shared->stripes[i].counts[what]);
	return (int64) count;
}

/*
 * Counts that a table had no room for something of this database.  Returns true if the caller must
 * wake the worker, which will log it.
 */
bool
idemq_count_full(ServerCount table)
{
	pg_atomic_uint64 *full = &server_counts_shared->full[table - COUNT_FULL_LEASES];
	uint64 note = pg_atomic_read_u64(full);
	int64 said = (int64) (note >> 32);

	idemq_count(table, 1);
	if ((Oid) note == MyDatabaseId ||
		(said != 0 && idemq_mono_now() / USECS_PER_SEC - said < SAID_PAUSE))
		return false;
	/* If another session has written a note in the meantime, its note suffices. */
	return pg_atomic_compare_exchange_u64(full, &note,
										  (note & ~(uint64) PG_UINT32_MAX) | MyDatabaseId);
}

/* Removes the notes of a dropped database. */
void
idemq_count_forget_database(Oid database)
{
	for (int i = 0; i < TABLES; i++)
	{
		uint64 note = pg_atomic_read_u64(&server_counts_shared->full[i]);

		if ((Oid) note == database)
			(void) pg_atomic_compare_exchange_u64(&server_counts_shared->full[i], &note,
												  note & ~(uint64) PG_UINT32_MAX);
	}
}

/* Takes the note of a table; returns whether this database's worker must log that it was full. */
bool
idemq_count_take_full(ServerCount table)
{
	pg_atomic_uint64 *full = &server_counts_shared->full[table - COUNT_FULL_LEASES];
	uint64 note = pg_atomic_read_u64(full);
	uint64 now = (uint64) (idemq_mono_now() / USECS_PER_SEC);

	return (Oid) note == MyDatabaseId &&
		   pg_atomic_compare_exchange_u64(full, &note, Max(now, 1) << 32);
}
