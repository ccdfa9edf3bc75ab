/*
 * shared/buckets.h
 *		The buckets of admission, in shared memory.
 */
#ifndef IDEMQ_SHARED_BUCKETS_H
#define IDEMQ_SHARED_BUCKETS_H

#include "base/gcra.h"

extern Size idemq_buckets_shmem_size(void);
extern Size idemq_buckets_hash_size(void);
extern void idemq_buckets_shmem_init(void *area, bool found);

extern bool idemq_bucket_call(const char *name, int length, const GcraLimit *limit, int64 cost,
							  GcraAnswer *answer);
extern void idemq_buckets_usage(int *used, int64 *no_room);
extern void idemq_buckets_calls(int64 *allowed, int64 *refused);
extern void idemq_buckets_forget_database(Oid database);

#endif
