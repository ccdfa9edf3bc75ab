/*
 * shared/queue_states/settings_version.c
 *		Numbers that move when the settings of a queue change, its grants included.  A
 *		session that has read a queue reads it again when its number has moved.
 *
 * A queue's number is one of QUEUE_STRIPES, whether or not it has a state.  Queues may share
 * one: then a session reads a queue again that has not changed.  A database has three
 * numbers: for changes of any of its queues; for changes of all at once (TRUNCATE,
 * COMMIT PREPARED, DROP EXTENSION); and, moved and read in the same order, for whether it
 * follows another database (queue/following.c).  Databases may share these.
 *
 *		a session that changes a queue	a session that reads it
 *		1 its commit is visible			1 reads the number
 *		2 moves the number				2 takes a snapshot, reads the rows
 *		3 answers its client			3 keeps both; they hold while the number stays
 *
 * A call that begins after 3 on the left finds the number moved, or has read it after 2,
 * and then its snapshot is newer than 1.  What changes between 1 and 2 on the right moves
 * the number after it was read: the rows are read once more than needed.
 *
 * A standby's numbers stay: there a session goes by the invalidation that the change's
 * commit record carries (queue/queue_cache.c).
 *
 * Locks: none, atomics only.  idemq_version_move is called after commit.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"

#include "shared/queue_states/queue_states.h"

/* Powers of two. */
#define QUEUE_STRIPES 4096
#define DATABASE_STRIPES 64

typedef enum DatabaseNumber
{
	ANY_QUEUE,	/* changes of any queue */
	ALL_QUEUES, /* changes of all queues at once */
	FOLLOWING,	/* switches of whether it follows another (queue/following.c) */
	DATABASE_NUMBERS
} DatabaseNumber;

typedef struct VersionsShared
{
	/* The queues' numbers, then the databases'. */
	pg_atomic_uint64 numbers[QUEUE_STRIPES + DATABASE_STRIPES * DATABASE_NUMBERS];
} VersionsShared;

struct SettingsVersions
{
	uint64 all;
	uint64 queues[QUEUE_STRIPES];
};

static VersionsShared *settings_version_shared = NULL;

static void
init_versions(int tranche)
{
	for (int i = 0; i < (int) lengthof(settings_version_shared->numbers); i++)
		pg_atomic_init_u64(&settings_version_shared->numbers[i], 1);
}

const ShmemPart idemq_versions_part = {.area = (void **) &settings_version_shared,
									   .size = sizeof(VersionsShared),
									   .init = init_versions};

static pg_atomic_uint64 *
of_database(DatabaseNumber number)
{
	return &settings_version_shared
				->numbers[QUEUE_STRIPES + MyDatabaseId % DATABASE_STRIPES * DATABASE_NUMBERS +
						  number];
}

/* The ids of a database's queues are in a row: they share no number while they are few. */
static int
stripe_of(int32 queue_id)
{
	return (int) ((MyDatabaseId * UINT32_C(2654435761) + (uint32) queue_id) % QUEUE_STRIPES);
}

/* Notes a change, whose commit is visible, of a queue of this database; with 0, of all. */
void
idemq_version_move(int32 queue_id)
{
	(void) pg_atomic_fetch_add_u64(queue_id == 0
									   ? of_database(ALL_QUEUES)
									   : &settings_version_shared->numbers[stripe_of(queue_id)],
								   1);
	(void) pg_atomic_fetch_add_u64(of_database(ANY_QUEUE), 1);
}

/* Returns a number, never 0, that stays as it is while this queue does not change. */
uint64
idemq_version_of_queue(int32 queue_id)
{
	return idemq_version_of_all() +
		   pg_atomic_read_u64(&settings_version_shared->numbers[stripe_of(queue_id)]);
}

/* Returns a number, never 0, that stays as it is while no queue of this database changes. */
uint64
idemq_version_of_list(void)
{
	return pg_atomic_read_u64(of_database(ANY_QUEUE));
}

/* Returns a number, never 0, that moves when all queues of this database change at once. */
uint64
idemq_version_of_all(void)
{
	return pg_atomic_read_u64(of_database(ALL_QUEUES));
}

/* Notes the end of a transaction that switched whether this database follows another. */
void
idemq_version_move_following(void)
{
	(void) pg_atomic_fetch_add_u64(of_database(FOLLOWING), 1);
}

/* Returns a number, never 0, that stays as it is while no such transaction ends. */
uint64
idemq_version_of_following(void)
{
	return pg_atomic_read_u64(of_database(FOLLOWING));
}

/* Copies the numbers of all queues, in the current memory context. */
SettingsVersions *
idemq_versions_copy(void)
{
	SettingsVersions *versions = palloc(sizeof(SettingsVersions));

	versions->all = idemq_version_of_all();
	for (int i = 0; i < QUEUE_STRIPES; i++)
		versions->queues[i] = pg_atomic_read_u64(&settings_version_shared->numbers[i]);
	return versions;
}

/* As idemq_version_of_queue, when the copy was made. */
uint64
idemq_versions_copied(const SettingsVersions *versions, int32 queue_id)
{
	return versions->all + versions->queues[stripe_of(queue_id)];
}
