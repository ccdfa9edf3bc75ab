/*
 * shared/publish_counts.h
 *		How often idemq.publish was called, and what became of it.
 */
#ifndef IDEMQ_SHARED_PUBLISH_COUNTS_H
#define IDEMQ_SHARED_PUBLISH_COUNTS_H

/* Calls, the jobs that they have made, bindings that were skipped. */
typedef enum PublishCount
{
	PUBLISH_CALLS,
	PUBLISH_JOBS,
	PUBLISH_SKIPPED
} PublishCount;

#define PUBLISH_COUNTS 3

extern Size idemq_publish_counts_shmem_size(void);
extern void idemq_publish_counts_shmem_init(void *area, bool found);
extern void idemq_publish_counts_add(int jobs, int skipped);
extern void idemq_publish_counts_read(int64 *counts);

#endif
