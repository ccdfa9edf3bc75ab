/*
 * shared/counts/full_tables.c
 *		Which tables in shared memory had no room for something, until a background worker
 *		has told the server's log (worker/worker_log.c).
 *
 * Who finds a table full is mostly where nothing may be said: it holds locks, or its
 * transaction is over.  It notes its database, once in SAID_PAUSE for each table; that
 * database's worker takes the note when it is awake next.  A note of one database replaces
 * another's: the table is the server's, and one line is enough.  Without a worker nobody
 * tells the log; idemq.memory counts all the same.
 *
 * Locks: none, atomics only.  Nothing here allocates or raises.
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "port/atomics.h"

#include "base/base.h"
#include "shared/counts/counts.h"

/* A table is said to be full once in that time. */
#define SAID_PAUSE USECS_PER_MINUTE

typedef struct FullTables
{
	struct
	{
		pg_atomic_uint32 database; /* whose worker is to say so; InvalidOid: none */
		pg_atomic_uint64 said_at;  /* mono; 0: never */
	} tables[FULL_TABLE_COUNT];
} FullTables;

static FullTables *shared = NULL;

/* Returns the bytes of shared memory for the notes. */
Size
idemq_full_tables_shmem_size(void)
{
	return sizeof(FullTables);
}

/* Attaches to the notes, and makes them when this is the first process. */
void
idemq_full_tables_shmem_init(void *area, bool found)
{
	shared = area;
	if (found)
		return;
	for (int i = 0; i < FULL_TABLE_COUNT; i++)
	{
		pg_atomic_init_u32(&shared->tables[i].database, InvalidOid);
		pg_atomic_init_u64(&shared->tables[i].said_at, 0);
	}
}

/*
 * Notes that a table had no room for something of this database.  Returns true when that is
 * news, for which the worker is to be woken.
 */
bool
idemq_full_table_note(FullTable table)
{
	uint64 said = pg_atomic_read_u64(&shared->tables[table].said_at);

	if (pg_atomic_read_u32(&shared->tables[table].database) == MyDatabaseId ||
		(said != 0 && idemq_mono_now() - (int64) said < SAID_PAUSE))
		return false;
	pg_atomic_write_u32(&shared->tables[table].database, MyDatabaseId);
	return true;
}

/* Returns whether this database's worker is to say that a table was full; it is once. */
bool
idemq_full_table_take(FullTable table)
{
	uint32 mine = MyDatabaseId;

	if (!pg_atomic_compare_exchange_u32(&shared->tables[table].database, &mine, InvalidOid))
		return false;
	pg_atomic_write_u64(&shared->tables[table].said_at, (uint64) idemq_mono_now());
	return true;
}
