/*
 * shared/counts/once_counts.c
 *		How often idemq.once was asked on the whole server, and what it answered.
 *
 * once has no queue at whose slot it could be counted.  An answer is counted when it is
 * given, and a rollback does not undo it.  Lost at a restart.
 *
 * Locks: none; the numbers are atomics.
 */
#include "postgres.h"

#include "port/atomics.h"

#include "shared/counts/counts.h"

typedef struct OnceCounts
{
	pg_atomic_uint64 first;	   /* answered true */
	pg_atomic_uint64 repeated; /* answered false */
} OnceCounts;

static OnceCounts *shared = NULL;

/* Returns the bytes of shared memory for the counts. */
Size
idemq_once_counts_shmem_size(void)
{
	return sizeof(OnceCounts);
}

/* Attaches to the counts, and makes them when this is the first process. */
void
idemq_once_counts_shmem_init(void *area, bool found)
{
	shared = area;
	if (found)
		return;
	pg_atomic_init_u64(&shared->first, 0);
	pg_atomic_init_u64(&shared->repeated, 0);
}

/* Counts an answer. */
void
idemq_once_counts_add(bool first)
{
	pg_atomic_fetch_add_u64(first ? &shared->first : &shared->repeated, 1);
}

/* Returns how many answers there were since the start of the server. */
void
idemq_once_counts_read(int64 *first, int64 *repeated)
{
	*first = (int64) pg_atomic_read_u64(&shared->first);
	*repeated = (int64) pg_atomic_read_u64(&shared->repeated);
}
