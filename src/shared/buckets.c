/*
 * shared/buckets.c
 *		The buckets of admission (base/gcra.c), in shared memory: one number each, for
 *		each name in each database.
 *
 * A bucket is found by 128 bits of its name's hash.  Calls read and replace its
 * number by compare-and-swap, with the partition locked shared: they do not wait
 * for each other.  A bucket that is full again answers as a new one would; when
 * there is no room for another, all full ones are removed at once.  While none is
 * full, a new bucket finds no room, and its calls are not limited: they are counted.
 *
 * Nothing here is undone by a rollback, or known after a restart.
 *
 * Locks: see README.md, level 4.  Each partition's lock covers its entries; an entry's
 * number is atomic, and changes with the lock shared.  All partitions are locked, in
 * order, to remove many entries.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "shared/buckets.h"
#include "base/clock.h"
#include "base/gcra.h"
#include "base/settings.h"

#define BUCKET_PARTITIONS 16
#define NSECS_PER_USEC INT64CONST(1000)

typedef struct BucketKey
{
	Oid database;
	uint32 unused; /* zero: the key is hashed as bytes */
	uint64 name[2];
} BucketKey;

typedef struct Bucket
{
	BucketKey key;
	pg_atomic_uint64 tat; /* ns of the monotonic clock; no lock but the partition's, shared */
} Bucket;

/* Calls of a partition's buckets, since the start of the server; a line of its own. */
typedef union BucketCounts
{
	struct
	{
		pg_atomic_uint64 allowed;
		pg_atomic_uint64 refused;
	};
	char pad[PG_CACHE_LINE_SIZE];
} BucketCounts;

typedef struct BucketsShared
{
	int tranche;
	pg_atomic_uint32 count;	  /* buckets: bounds the table exactly */
	pg_atomic_uint64 no_room; /* calls that found none */
	/* ns: while the table has no room, no bucket is full again before that; 0: unknown */
	pg_atomic_uint64 next_sweep;
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLockPadded locks[BUCKET_PARTITIONS];
	BucketCounts counts[BUCKET_PARTITIONS];
} BucketsShared;

static BucketsShared *shared = NULL;
static HTAB *bucket_hash = NULL;

/* Returns the bytes of shared memory for the locks. */
Size
idemq_buckets_shmem_size(void)
{
	return sizeof(BucketsShared);
}

/* Returns the bytes of shared memory for the hash table. */
Size
idemq_buckets_hash_size(void)
{
	return hash_estimate_size(idemq_max_buckets, sizeof(Bucket));
}

/* Attaches to the table, and makes it when this is the first process. */
void
idemq_buckets_shmem_init(void *area, bool found)
{
	HASHCTL info = {0};

	shared = area;
	if (!found)
	{
		shared->tranche = LWLockNewTrancheId();
		pg_atomic_init_u32(&shared->count, 0);
		pg_atomic_init_u64(&shared->no_room, 0);
		pg_atomic_init_u64(&shared->next_sweep, 0);
		for (int i = 0; i < BUCKET_PARTITIONS; i++)
		{
			LWLockInitialize(&shared->locks[i].lock, shared->tranche);
			pg_atomic_init_u64(&shared->counts[i].allowed, 0);
			pg_atomic_init_u64(&shared->counts[i].refused, 0);
		}
	}
	LWLockRegisterTranche(shared->tranche, "idemq buckets");
	info.keysize = sizeof(BucketKey);
	info.entrysize = sizeof(Bucket);
	info.num_partitions = BUCKET_PARTITIONS;
	bucket_hash = ShmemInitHash("idemq buckets", idemq_max_buckets, idemq_max_buckets, &info,
								HASH_ELEM | HASH_BLOBS | HASH_PARTITION | HASH_FIXED_SIZE);
}

static int64
now_ns(void)
{
	return idemq_mono_now() * NSECS_PER_USEC;
}

static void
lock_all(void)
{
	for (int i = 0; i < BUCKET_PARTITIONS; i++)
		LWLockAcquire(&shared->locks[i].lock, LW_EXCLUSIVE);
}

static void
unlock_all(void)
{
	for (int i = BUCKET_PARTITIONS - 1; i >= 0; i--)
		LWLockRelease(&shared->locks[i].lock);
}

/* Removes every bucket of a database, or, of all, those that are full at now. */
static void
remove_buckets(Oid database, int64 now)
{
	HASH_SEQ_STATUS seq;
	Bucket *bucket;
	bool removed = false;
	int64 next = PG_INT64_MAX;

	lock_all();
	hash_seq_init(&seq, bucket_hash);
	while ((bucket = hash_seq_search(&seq)) != NULL)
	{
		int64 tat = (int64) pg_atomic_read_u64(&bucket->tat);
		bool gone = OidIsValid(database) ? bucket->key.database == database : tat <= now;

		if (!gone)
			next = Min(next, tat);
		else if (hash_search(bucket_hash, &bucket->key, HASH_REMOVE, NULL) != NULL)
		{
			pg_atomic_fetch_sub_u32(&shared->count, 1);
			removed = true;
		}
	}
	/* Where there is room, a bucket may come that is full again before these. */
	pg_atomic_write_u64(&shared->next_sweep, removed ? 0 : (uint64) next);
	unlock_all();
}

/* Enters a bucket that was not there; false when there is no room. */
static bool
enter(const BucketKey *key, uint32 hash)
{
	LWLock *lock = &shared->locks[hash % BUCKET_PARTITIONS].lock;
	Bucket *bucket = NULL;
	bool there = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (pg_atomic_fetch_add_u32(&shared->count, 1) < (uint32) idemq_max_buckets)
		bucket = hash_search_with_hash_value(bucket_hash, key, hash, HASH_ENTER_NULL, &there);
	if (bucket == NULL || there)
		pg_atomic_fetch_sub_u32(&shared->count, 1);
	if (bucket != NULL && !there)
		pg_atomic_init_u64(&bucket->tat, 0);
	LWLockRelease(lock);
	return bucket != NULL;
}

/* Calls a bucket that is there; false when it is not. */
static bool
call_existing(const BucketKey *key, uint32 hash, const GcraLimit *limit, int64 cost,
			  GcraAnswer *answer)
{
	LWLock *lock = &shared->locks[hash % BUCKET_PARTITIONS].lock;
	Bucket *bucket;

	LWLockAcquire(lock, LW_SHARED);
	bucket = hash_search_with_hash_value(bucket_hash, key, hash, HASH_FIND, NULL);
	if (bucket != NULL)
	{
		uint64 tat = pg_atomic_read_u64(&bucket->tat);

		do
		{
			*answer = idemq_gcra(limit, (int64) tat, now_ns(), cost);
		} while (answer->allowed && cost > 0 &&
				 !pg_atomic_compare_exchange_u64(&bucket->tat, &tat, (uint64) answer->tat));
	}
	LWLockRelease(lock);
	if (bucket != NULL && cost > 0)
	{
		BucketCounts *counts = &shared->counts[hash % BUCKET_PARTITIONS];

		pg_atomic_fetch_add_u64(answer->allowed ? &counts->allowed : &counts->refused, 1);
	}
	return bucket != NULL;
}

/*
 * Calls the bucket of that name in this database; takes effect at once.  Returns
 * false when there was no room for it: then the call is allowed, and counted.
 */
bool
idemq_bucket_call(const char *name, int length, const GcraLimit *limit, int64 cost,
				  GcraAnswer *answer)
{
	BucketKey key = {MyDatabaseId, 0, {0, 0}};
	uint32 hash;

	key.name[0] = hash_bytes_extended((const unsigned char *) name, length, 0);
	key.name[1] = hash_bytes_extended((const unsigned char *) name, length, 1);
	hash = get_hash_value(bucket_hash, &key);
	for (;;)
	{
		int64 now;

		CHECK_FOR_INTERRUPTS();
		if (call_existing(&key, hash, limit, cost, answer))
			return true;
		if (enter(&key, hash))
			continue;
		now = now_ns();
		if (pg_atomic_read_u64(&shared->next_sweep) > (uint64) now)
			break;
		remove_buckets(InvalidOid, now);
	}
	*answer = idemq_gcra(limit, 0, now_ns(), cost);
	pg_atomic_fetch_add_u64(&shared->no_room, 1);
	return false;
}

/* Returns how many buckets there are, and how many calls found no room for theirs. */
void
idemq_buckets_usage(int *used, int64 *no_room)
{
	*used = (int) Min(pg_atomic_read_u32(&shared->count), (uint32) idemq_max_buckets);
	*no_room = (int64) pg_atomic_read_u64(&shared->no_room);
}

/* Returns how many calls of all databases were allowed and refused by a limit. */
void
idemq_buckets_calls(int64 *allowed, int64 *refused)
{
	*allowed = *refused = 0;
	for (int i = 0; i < BUCKET_PARTITIONS; i++)
	{
		*allowed += (int64) pg_atomic_read_u64(&shared->counts[i].allowed);
		*refused += (int64) pg_atomic_read_u64(&shared->counts[i].refused);
	}
}

/* Removes the buckets of a dropped database. */
void
idemq_buckets_forget_database(Oid database)
{
	remove_buckets(database, 0);
}
