/*
 * shared/queue_states/settings_version.c
 *		Settings versions: numbers that change whenever the settings or grants of a queue change, so
 *		that a session knows when it must reread them.
 *
 * Each queue of a database, whether or not it has a state, has one of QUEUE_STRIPES numbers.  If
 * two queues share a number, a session sometimes rereads a queue that has not changed.  In
 * addition, each database has one number per DatabaseVersion.  Databases may share these, too.
 *
 *		a session that changes a queue	a session that reads it
 *		1 its commit is visible			1 reads the number
 *		2 changes the number			2 takes a snapshot, and reads the rows
 *		3 answers its client			3 uses the rows until the number changes
 *
 * A call that begins after the first session's step 3 sees the new number.  If the second session
 * had already read the new number in its step 1, its snapshot is newer than the commit.  If the
 * number changes between its steps 1 and 2, it reads the rows once more than necessary.
 *
 * On a standby, no number ever changes.  There, sessions follow the invalidation message in the
 * commit record of the change (queue/queue_cache.c).
 *
 * Locks: none, only atomics.  idemq_version_move is called after commit.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"

#include "shared/queue_states/queue_states.h"

/* Powers of two. */
#define QUEUE_STRIPES 4096
#define DATABASE_STRIPES 64

typedef struct VersionsShared
{
	pg_atomic_uint64 queues[QUEUE_STRIPES];
	pg_atomic_uint64 databases[DATABASE_STRIPES][DATABASE_VERSIONS];
} VersionsShared;

static VersionsShared *settings_version_shared = NULL;

static void
init_versions(int tranche)
{
	for (int i = 0; i < QUEUE_STRIPES; i++)
		pg_atomic_init_u64(&settings_version_shared->queues[i], 1);
	for (int i = 0; i < DATABASE_STRIPES; i++)
	{
		for (int which = 0; which < DATABASE_VERSIONS; which++)
			pg_atomic_init_u64(&settings_version_shared->databases[i][which], 1);
	}
}

const ShmemPart idemq_versions_part = {.area = (void **) &settings_version_shared,
									   .size = sizeof(VersionsShared),
									   .init = init_versions};

static pg_atomic_uint64 *
version_of_database(DatabaseVersion which)
{
	return &settings_version_shared->databases[MyDatabaseId % DATABASE_STRIPES][which];
}

/* The ids of a database's queues are consecutive, so a few queues never share a number. */
static pg_atomic_uint64 *
version_of_queue(int32 queue_id)
{
	uint32 stripe = (MyDatabaseId * UINT32_C(2654435761) + (uint32) queue_id) % QUEUE_STRIPES;

	return &settings_version_shared->queues[stripe];
}

/* Notes that a change of a queue of this database is visible; queue_id 0: of all its queues. */
void
idemq_version_move(int32 queue_id)
{
	(void) pg_atomic_fetch_add_u64(queue_id == 0 ? version_of_database(VERSION_ALL_QUEUES)
												 : version_of_queue(queue_id),
								   1);
	(void) pg_atomic_fetch_add_u64(version_of_database(VERSION_ANY_QUEUE), 1);
}

/* Notes the end of a transaction that changed whether this database follows another. */
void
idemq_version_move_following(void)
{
	(void) pg_atomic_fetch_add_u64(version_of_database(VERSION_FOLLOWING), 1);
}

/* Returns the settings version of a queue of this database; never 0. */
uint64
idemq_version_of_queue(int32 queue_id)
{
	return idemq_version_of_database(VERSION_ALL_QUEUES) +
		   pg_atomic_read_u64(version_of_queue(queue_id));
}

/* Returns one of the versions of this database; never 0. */
uint64
idemq_version_of_database(DatabaseVersion which)
{
	return pg_atomic_read_u64(version_of_database(which));
}
