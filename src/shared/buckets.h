/*
 * shared/buckets.h
 *		The buckets of admission, in shared memory.
 */
#ifndef IDEMQ_SHARED_BUCKETS_H
#define IDEMQ_SHARED_BUCKETS_H

#include "base/gcra.h"

/* One more from a bucket, that can be taken back. */
typedef struct BucketCharge
{
	int64 empty_at; /* ns of the monotonic clock: it counts as empty then; 0: it was never */
	int slot;		/* index of the queue's; -1: it has none */
	int32 cell;		/* of what was charged, where there was no room for a bucket; -1: a bucket */
	uint64 before;	/* its number before the charge */
	GcraAnswer answer;
} BucketCharge;

extern Size idemq_buckets_shmem_size(void);
extern Size idemq_buckets_hash_size(void);
extern void idemq_buckets_shmem_init(void *area, bool found);

extern bool idemq_bucket_call(const char *name, int length, const GcraLimit *limit, int64 cost,
							  GcraAnswer *answer);
extern bool idemq_bucket_charge(const char *name, int length, const GcraLimit *limit,
								BucketCharge *charge);
extern void idemq_bucket_ask(const char *name, int length, const GcraLimit *limit,
							 BucketCharge *charge);
extern void idemq_bucket_undo(const char *name, int length, const BucketCharge *charge);
extern void idemq_buckets_usage(int *used, int64 *no_room);
extern void idemq_buckets_calls(int64 *allowed, int64 *refused, int64 *no_room);
extern void idemq_buckets_forget_database(Oid database);
extern void idemq_buckets_forget_queue(int slot);

#endif
