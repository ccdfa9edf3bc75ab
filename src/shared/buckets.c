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
 * The buckets of group_rate (job/group_rate.c) are among them.  One that has no room refuses;
 * one that is not there, be it after a restart, counts as full since a time that the caller
 * says; and a charge that came to nothing is taken back, if it is still the last one: out of a
 * number that others have built on nothing can be taken exactly.
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
	pg_atomic_uint32 count;		/* buckets: bounds the table exactly */
	pg_atomic_uint64 no_room;	/* calls that found none */
	pg_atomic_uint64 no_charge; /* the same, of charges */
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
		pg_atomic_init_u64(&shared->no_charge, 0);
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

/* Makes the key of a bucket of this database. */
static void
make_key(BucketKey *key, const char *name, int length)
{
	*key = (BucketKey){MyDatabaseId, 0, {0, 0}};
	key->name[0] = hash_bytes_extended((const unsigned char *) name, length, 0);
	key->name[1] = hash_bytes_extended((const unsigned char *) name, length, 1);
}

/* Makes room by removing the buckets that are full; false when none is, as far as is known. */
static bool
make_room(void)
{
	int64 now = now_ns();

	if (pg_atomic_read_u64(&shared->next_sweep) > (uint64) now)
		return false;
	remove_buckets(InvalidOid, now);
	return true;
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
	BucketKey key;
	uint32 hash;

	make_key(&key, name, length);
	hash = get_hash_value(bucket_hash, &key);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (call_existing(&key, hash, limit, cost, answer))
			return true;
	} while (enter(&key, hash) || make_room());
	*answer = idemq_gcra(limit, 0, now_ns(), cost);
	pg_atomic_fetch_add_u64(&shared->no_room, 1);
	return false;
}

/*
 * Returns a bucket's number: never fuller than one that was empty at charge->empty_at, and never
 * emptier than empty, as it may be after another rate was set.
 */
static int64
bounded(const BucketCharge *charge, const GcraLimit *limit, uint64 tat, int64 now)
{
	int64 least = charge->empty_at == 0 ? 0 : charge->empty_at + limit->period;

	return Min(Max((int64) tat, least), now + limit->period);
}

/*
 * Charges a bucket that is there, or asks it; false when it is not.  One that is emptier than
 * empty, since the period was shortened, is empty from now on, and fills: or it would be so at
 * each call, until the former period is over.
 */
static bool
charge_existing(BucketCharge *charge, const BucketKey *key, const GcraLimit *limit, bool asks)
{
	uint32 hash = get_hash_value(bucket_hash, key);
	LWLock *lock = &shared->locks[hash % BUCKET_PARTITIONS].lock;
	Bucket *bucket;

	LWLockAcquire(lock, LW_SHARED);
	bucket = hash_search_with_hash_value(bucket_hash, key, hash, HASH_FIND, NULL);
	charge->before = bucket == NULL ? 0 : pg_atomic_read_u64(&bucket->tat);
	for (;;)
	{
		int64 now = now_ns();
		int64 after;

		charge->answer = idemq_gcra(limit, bounded(charge, limit, charge->before, now), now, 1);
		if (charge->answer.allowed && !asks)
			after = charge->answer.tat;
		else
			after = Min((int64) charge->before, now + limit->period);
		if (bucket == NULL || after == (int64) charge->before ||
			pg_atomic_compare_exchange_u64(&bucket->tat, &charge->before, (uint64) after))
			break;
	}
	LWLockRelease(lock);
	return bucket != NULL;
}

/*
 * Charges one to the bucket of that name in this database, if that is allowed; takes effect
 * at once.  Returns false when there is no room for the bucket: then it is not allowed, and
 * counted.  charge->empty_at is given.
 */
bool
idemq_bucket_charge(const char *name, int length, const GcraLimit *limit, BucketCharge *charge)
{
	BucketKey key;

	make_key(&key, name, length);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (charge_existing(charge, &key, limit, false))
			return true;
	} while (enter(&key, get_hash_value(bucket_hash, &key)) || make_room());
	charge->answer.allowed = false;
	pg_atomic_fetch_add_u64(&shared->no_charge, 1);
	return false;
}

/*
 * Says in charge->answer whether a charge would be allowed; returns false when there would be no
 * room for it.
 */
bool
idemq_bucket_ask(const char *name, int length, const GcraLimit *limit, BucketCharge *charge)
{
	BucketKey key;

	make_key(&key, name, length);
	return charge_existing(charge, &key, limit, true) ||
		   pg_atomic_read_u32(&shared->count) < (uint32) idemq_max_buckets ||
		   pg_atomic_read_u64(&shared->next_sweep) <= (uint64) now_ns();
}

/* Takes a charge back that came to nothing, unless there was another since. */
void
idemq_bucket_undo(const char *name, int length, const BucketCharge *charge)
{
	uint64 after = (uint64) charge->answer.tat;
	BucketKey key;
	uint32 hash;
	LWLock *lock;
	Bucket *bucket;

	make_key(&key, name, length);
	hash = get_hash_value(bucket_hash, &key);
	lock = &shared->locks[hash % BUCKET_PARTITIONS].lock;
	LWLockAcquire(lock, LW_SHARED);
	bucket = hash_search_with_hash_value(bucket_hash, &key, hash, HASH_FIND, NULL);
	if (bucket != NULL)
		(void) pg_atomic_compare_exchange_u64(&bucket->tat, &after, charge->before);
	LWLockRelease(lock);
}

/* Returns how many buckets there are, and how many calls and charges found no room for theirs. */
void
idemq_buckets_usage(int *used, int64 *no_room)
{
	*used = (int) Min(pg_atomic_read_u32(&shared->count), (uint32) idemq_max_buckets);
	*no_room =
		(int64) (pg_atomic_read_u64(&shared->no_room) + pg_atomic_read_u64(&shared->no_charge));
}

/*
 * Returns how many calls of all databases were allowed and refused by a limit, and how many had
 * no room for their bucket.
 */
void
idemq_buckets_calls(int64 *allowed, int64 *refused, int64 *no_room)
{
	*no_room = (int64) pg_atomic_read_u64(&shared->no_room);
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
