/*
 * shared/counts/publish_counts.c
 *		How often idemq.publish was called on the whole server, and what became of it.
 *
 * A call is counted when it is answered, and a rollback does not undo it.  Lost at a restart.
 *
 * Locks: none; the numbers are atomics.
 */
#include "postgres.h"

#include "port/atomics.h"

#include "shared/counts/counts.h"

typedef struct PublishCounts
{
	pg_atomic_uint64 counts[PUBLISH_COUNTS];
} PublishCounts;

static PublishCounts *shared = NULL;

/* Returns the bytes of shared memory for the counts. */
Size
idemq_publish_counts_shmem_size(void)
{
	return sizeof(PublishCounts);
}

/* Attaches to the counts, and makes them when this is the first process. */
void
idemq_publish_counts_shmem_init(void *area, bool found)
{
	shared = area;
	for (int i = 0; i < PUBLISH_COUNTS && !found; i++)
		pg_atomic_init_u64(&shared->counts[i], 0);
}

/* Counts a call, with the jobs that it made and the bindings that it skipped. */
void
idemq_publish_counts_add(int jobs, int skipped)
{
	pg_atomic_fetch_add_u64(&shared->counts[PUBLISH_CALLS], 1);
	pg_atomic_fetch_add_u64(&shared->counts[PUBLISH_JOBS], jobs);
	pg_atomic_fetch_add_u64(&shared->counts[PUBLISH_SKIPPED], skipped);
}

/* Copies the counts since the start of the server, PUBLISH_COUNTS of them. */
void
idemq_publish_counts_read(int64 *counts)
{
	for (int i = 0; i < PUBLISH_COUNTS; i++)
		counts[i] = (int64) pg_atomic_read_u64(&shared->counts[i]);
}
