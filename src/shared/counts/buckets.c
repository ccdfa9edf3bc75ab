/*
 * shared/counts/buckets.c
 *		The buckets of admission (base/gcra.c), in shared memory: one number each, for
 *		each name in each database.
 *
 * A bucket is found by 128 bits of its name's hash.  Calls read and replace its
 * number by compare-and-swap, with the partition locked shared: they do not wait
 * for each other.  A bucket that is full again answers as a new one would; when
 * there is no room for another, all full ones are removed at once.
 *
 * The buckets of group_rate_limit (job/group_rate_limit.c) are among them.  If one is not there, as
 * after a restart, the caller says when it was empty last, and it has filled since.  A charge that
 * came to nothing is taken back if it is still the last one: once others have built on a number,
 * nothing can be taken out of it exactly.
 *
 * No holder gets the whole table: a holder, which is the groups of a queue, or admit in a database,
 * has half of it at most.  And no holder needs it: while there is no room, the names of a holder
 * that have no bucket share one, whose number is in the holder's cell.  No limit is exceeded by
 * that: a name's own number would be the cell's at most, since each of its calls was charged to the
 * bucket that it had, which is full again, or to the cell.  So a new bucket begins with the cell's
 * number, read under the partition's lock, exclusively; a call is charged to the cell with that
 * lock held, shared, and no bucket there.  Names without a bucket are limited more than they ask
 * for, all together as one of them; the calls of others have no part in that.  The names of admit
 * have limits of their own: so it has PERIODS cells in a database, by the order of magnitude of the
 * period, and no name waits for one whose period is more than PERIOD_RATIO times as long.
 *
 * A queue that loses its state loses its buckets with it, and the cell is empty.  The same holds
 * for a database that is dropped: another database may get its share, and so its cells.  Nothing
 * here is undone by a rollback, or known after a restart.
 *
 * Locks: see README.md, level 4.  Each partition's lock covers its entries; an entry's
 * number is atomic, and changes with the lock shared.  All partitions are locked, in
 * order, to remove many entries.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/leases/leases.h"
#include "shared/waiters/waiters.h"

#define BUCKET_PARTITIONS 16
/* Cells by the order of magnitude of a period, which is below 2^62 ns. */
#define PERIOD_BITS 2
#define PERIOD_RATIO (1 << PERIOD_BITS)
#define PERIODS (62 / PERIOD_BITS)
/* The holders: the queue of each queue state; then admit, in each share of the databases. */
#define HOLDER_OF_ADMIT idemq_max_queues
/* After all holders, the cell that counts the whole table. */
#define ALL_HOLDERS (HOLDER_OF_ADMIT + LEASE_SHARES * PERIODS)

typedef struct BucketKey
{
	Oid database;
	uint16 kind;	/* BucketKind */
	uint16 unused;	/* zero: the key is hashed as bytes */
	uint64 name[2]; /* a hash of the name */
} BucketKey;

typedef struct Bucket
{
	BucketKey key;
	pg_atomic_uint64 tat; /* ns of the monotonic clock; no lock but the partition's, shared */
	int32 holder;		  /* the holder's first cell, which counts this bucket; set once */
} Bucket;

/* A holder, and the bucket that its names without one share; locks: see the top of the file. */
typedef struct Cell
{
	pg_atomic_uint32 count; /* of its buckets: bounds them exactly */
	pg_atomic_uint64 tat;
	/*
	 * ns: an unsuccessful search found that no bucket is full again before that; 0: unknown.  It
	 * does not hold for buckets that were added later, for which a removal made room: removals is
	 * the count of removals at the time of the search.  Both are written with all partitions locked
	 * exclusively, and read with one.
	 */
	int64 next_sweep;
	uint64 removals;
} Cell;

typedef struct BucketsShared
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLockPadded locks[BUCKET_PARTITIONS];
	uint64 removals; /* of buckets that need not be full; locks: as for those of a cell */
	Cell cells[FLEXIBLE_ARRAY_MEMBER]; /* to ALL_HOLDERS */
} BucketsShared;

static BucketsShared *buckets_shared = NULL;
static HTAB *bucket_hash = NULL;

static int
cell_count(void)
{
	return ALL_HOLDERS + 1;
}

/* Makes locks and cells; their memory is zeros. */
static void
init_buckets(int tranche)
{
	for (int i = 0; i <= ALL_HOLDERS; i++)
	{
		pg_atomic_init_u32(&buckets_shared->cells[i].count, 0);
		pg_atomic_init_u64(&buckets_shared->cells[i].tat, 0);
	}
	for (int i = 0; i < BUCKET_PARTITIONS; i++)
		LWLockInitialize(&buckets_shared->locks[i].lock, tranche);
}

const ShmemPart idemq_buckets_part = {.area = (void **) &buckets_shared,
									  .size = offsetof(BucketsShared, cells),
									  .each = sizeof(Cell),
									  .count = cell_count,
									  .lies_in = AREA_QUEUES,
									  .tranche = "idemq buckets",
									  .init = init_buckets,
									  .hash = &bucket_hash,
									  .hash_name = "idemq buckets",
									  .hash_entries = &idemq_max_buckets,
									  .key_size = sizeof(BucketKey),
									  .entry_size = sizeof(Bucket),
									  .partitions = BUCKET_PARTITIONS};

static int64
now_ns(void)
{
	return idemq_mono_now() * NSECS_PER_USEC;
}

typedef enum Removal
{
	OF_DATABASE,
	OF_HOLDER,
	FULL /* of all holders, for one that needs room */
} Removal;

/* Removes buckets; returns whether there were any. */
static bool
remove_buckets(Removal which, Oid database, int32 holder)
{
	int64 now = now_ns();
	HASH_SEQ_STATUS seq;
	Bucket *bucket;
	bool removed = false;
	int64 next = PG_INT64_MAX;

	for (int i = 0; i < BUCKET_PARTITIONS; i++)
		LWLockAcquire(&buckets_shared->locks[i].lock, LW_EXCLUSIVE);
	hash_seq_init(&seq, bucket_hash);
	while ((bucket = hash_seq_search(&seq)) != NULL)
	{
		int64 tat = (int64) pg_atomic_read_u64(&bucket->tat);
		int32 of = bucket->holder;
		bool gone = which == OF_DATABASE ? bucket->key.database == database
					: which == OF_HOLDER ? of == holder
										 : tat <= now;

		if (!gone)
			next = Min(next, tat);
		else if (hash_search(bucket_hash, &bucket->key, HASH_REMOVE, NULL) != NULL)
		{
			pg_atomic_fetch_sub_u32(&buckets_shared->cells[of].count, 1);
			pg_atomic_fetch_sub_u32(&buckets_shared->cells[ALL_HOLDERS].count, 1);
			removed = true;
		}
	}
	if (which == FULL)
	{
		buckets_shared->cells[holder].next_sweep = removed ? 0 : next;
		buckets_shared->cells[holder].removals = buckets_shared->removals;
	}
	else
		buckets_shared->removals += removed;
	for (int i = BUCKET_PARTITIONS - 1; i >= 0; i--)
		LWLockRelease(&buckets_shared->locks[i].lock);
	return removed;
}

/* Counts one more bucket of a holder, if that leaves the count within its room. */
static bool
buckets_count_in(int32 holder, uint32 room)
{
	if (pg_atomic_fetch_add_u32(&buckets_shared->cells[holder].count, 1) < room)
		return true;
	pg_atomic_fetch_sub_u32(&buckets_shared->cells[holder].count, 1);
	return false;
}

typedef struct Address
{
	BucketKey key;
	uint32 hash;
	LWLock *lock; /* of its partition */
} Address;

/* Returns the address of the bucket of that name in this database. */
static Address
address_of(const BucketName *name)
{
	Address at = {.key = {.database = MyDatabaseId, .kind = (uint16) name->kind}};

	at.key.name[0] = hash_bytes_extended((const unsigned char *) name->name, name->length, 0);
	at.key.name[1] = hash_bytes_extended((const unsigned char *) name->name, name->length, 1);
	at.hash = get_hash_value(bucket_hash, &at.key);
	at.lock = &buckets_shared->locks[at.hash % BUCKET_PARTITIONS].lock;
	return at;
}

/* Locks a bucket's partition, shared; returns the bucket's number, NULL when it is not there. */
static pg_atomic_uint64 *
lock_number(const Address *at)
{
	Bucket *bucket;

	LWLockAcquire(at->lock, LW_SHARED);
	bucket = hash_search_with_hash_value(bucket_hash, &at->key, at->hash, HASH_FIND, NULL);
	return bucket == NULL ? NULL : &bucket->tat;
}

/*
 * Enters a bucket that was not there, with the number in a cell, which names without a bucket
 * share.  Without room it removes full buckets, if there may be some.  Returns whether to look
 * again; false when there is no room.
 */
static bool
buckets_enter(const Address *at, int32 holder, const Cell *cell, const GcraLimit *limit)
{
	int64 now = now_ns();
	Bucket *bucket = NULL;
	bool there = false;
	bool sweep;

	LWLockAcquire(at->lock, LW_EXCLUSIVE);
	sweep = buckets_shared->cells[holder].next_sweep <= now ||
			buckets_shared->cells[holder].removals != buckets_shared->removals;
	if (buckets_count_in(ALL_HOLDERS, idemq_max_buckets))
	{
		bool may = buckets_count_in(holder, idemq_max_buckets - idemq_max_buckets / 2);

		if (may)
			bucket = hash_search_with_hash_value(bucket_hash, &at->key, at->hash, HASH_ENTER_NULL,
												 &there);
		if (bucket != NULL && !there)
		{
			int64 tat = (int64) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &cell->tat));

			bucket->holder = holder;
			pg_atomic_init_u64(&bucket->tat, (uint64) Min(tat, now_ns() + limit->period));
		}
		else
		{
			pg_atomic_fetch_sub_u32(&buckets_shared->cells[ALL_HOLDERS].count, 1);
			if (may)
				pg_atomic_fetch_sub_u32(&buckets_shared->cells[holder].count, 1);
		}
	}
	LWLockRelease(at->lock);
	return bucket != NULL || (sweep && remove_buckets(FULL, InvalidOid, holder));
}

/* Calls a bucket that is there, or else a cell's, unless NULL; false when it called none. */
static bool
call_existing(const Address *at, const GcraLimit *limit, int64 cost, Cell *cell, GcraAnswer *answer)
{
	pg_atomic_uint64 *number = lock_number(at);

	if (number == NULL && cell != NULL)
		number = &cell->tat;
	if (number != NULL)
	{
		uint64 tat = pg_atomic_read_u64(number);

		do
		{
			*answer = idemq_gcra(limit, (int64) tat, now_ns(), cost);
		} while (answer->allowed && cost > 0 &&
				 !pg_atomic_compare_exchange_u64(number, &tat, (uint64) answer->tat));
	}
	LWLockRelease(at->lock);
	if (number != NULL && cost > 0)
		idemq_count(answer->allowed ? COUNT_ADMIT_ALLOWED : COUNT_ADMIT_REFUSED, 1);
	return number != NULL;
}

static void
count_no_room(void)
{
	if (idemq_count_full(COUNT_FULL_BUCKETS))
		idemq_worker_need_by(0);
}

/*
 * Calls the bucket of that name in this database; takes effect at once.  Counts when there was
 * no room for one of the name's own.
 */
void
idemq_bucket_call(const BucketName *name, const GcraLimit *limit, int64 cost, GcraAnswer *answer)
{
	int32 holder = HOLDER_OF_ADMIT + idemq_lease_share_mine() * PERIODS;
	/* Which of its PERIODS cells the names with this limit share. */
	int of_period = pg_leftmost_one_pos64((uint64) limit->period) / PERIOD_BITS;
	Cell *cell = &buckets_shared->cells[holder + of_period];
	Address at = address_of(name);

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (call_existing(&at, limit, cost, NULL, answer))
			return;
	} while (buckets_enter(&at, holder, cell, limit));
	(void) call_existing(&at, limit, cost, cell, answer);
	idemq_count(COUNT_ADMIT_SHARED, 1);
	count_no_room();
}

typedef enum BucketUse
{
	CHARGE_OWN, /* charges it if it is there */
	CHARGE_ANY, /* or else the one that names without a bucket share */
	ASK
} BucketUse;

/*
 * Charges a bucket, or asks it; false when the name has none of its own.  A bucket that is
 * emptier than empty, since the period was shortened, is made empty, and fills from now on.
 * Otherwise it would be found so at each call, until the former period is over.
 */
static bool
use_bucket(BucketCharge *charge, const Address *at, const GcraLimit *limit, BucketUse use)
{
	pg_atomic_uint64 *number = lock_number(at);
	bool own = number != NULL;
	/* Never fuller than one that was empty then. */
	int64 least = charge->empty_at == 0 ? 0 : charge->empty_at + limit->period;

	charge->cell = own ? -1 : charge->qstate_index;
	if (!own)
		number = &buckets_shared->cells[charge->cell].tat;
	charge->before = pg_atomic_read_u64(number);
	while (own || use != CHARGE_OWN)
	{
		int64 now = now_ns();
		int64 before = (int64) charge->before;
		int64 after;

		charge->answer = idemq_gcra(limit, Min(Max(before, least), now + limit->period), now, 1);
		if (charge->answer.allowed && use != ASK)
			after = charge->answer.tat;
		else
			after = Min(before, now + limit->period);
		if (after == before ||
			pg_atomic_compare_exchange_u64(number, &charge->before, (uint64) after))
			break;
	}
	LWLockRelease(at->lock);
	return own;
}

/*
 * Charges one to the bucket of that name in this database, if that is allowed; takes effect
 * at once.  Counts when there is no room for one of the name's own.  charge->empty_at and
 * charge->qstate_index are given.
 */
void
idemq_bucket_charge(const BucketName *name, const GcraLimit *limit, BucketCharge *charge)
{
	Address at = address_of(name);

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (use_bucket(charge, &at, limit, CHARGE_OWN))
			return;
	} while (buckets_enter(&at, charge->qstate_index, &buckets_shared->cells[charge->qstate_index],
						   limit));
	(void) use_bucket(charge, &at, limit, CHARGE_ANY);
	count_no_room();
}

/* Says in charge->answer whether a charge would be allowed. */
void
idemq_bucket_ask(const BucketName *name, const GcraLimit *limit, BucketCharge *charge)
{
	Address at = address_of(name);

	(void) use_bucket(charge, &at, limit, ASK);
}

/* Takes back a charge that came to nothing, unless there was another since. */
void
idemq_bucket_undo(const BucketName *name, const BucketCharge *charge)
{
	uint64 after = (uint64) charge->answer.tat;
	Address at = address_of(name);
	pg_atomic_uint64 *number = lock_number(&at);

	if (charge->cell >= 0)
		number = &buckets_shared->cells[charge->cell].tat;
	if (number != NULL)
		(void) pg_atomic_compare_exchange_u64(number, &after, charge->before);
	LWLockRelease(at.lock);
}

TableUsage
idemq_buckets_usage(void)
{
	uint32 used = pg_atomic_read_u32(&buckets_shared->cells[ALL_HOLDERS].count);

	return (TableUsage){.used = (int) Min(used, (uint32) idemq_max_buckets),
						.room = idemq_max_buckets,
						.refused = idemq_count_read(COUNT_FULL_BUCKETS)};
}

/*
 * Removes the buckets of a dropped database, and empties the cells of its share, unless others use
 * that share as well.  To be called before the share is freed.
 */
void
idemq_buckets_forget_database(Oid database)
{
	int share = idemq_lease_share_of(database);

	(void) remove_buckets(OF_DATABASE, database, 0);
	for (int i = 0; share >= 0 && i < PERIODS; i++)
		pg_atomic_write_u64(&buckets_shared->cells[HOLDER_OF_ADMIT + share * PERIODS + i].tat, 0);
}

/*
 * Removes the buckets of the queue that had the queue state of that index, so that the next queue
 * does not find them.
 */
void
idemq_buckets_forget_queue(int qstate_index)
{
	if (pg_atomic_read_u32(&buckets_shared->cells[qstate_index].count) > 0)
		(void) remove_buckets(OF_HOLDER, InvalidOid, qstate_index);
	pg_atomic_write_u64(&buckets_shared->cells[qstate_index].tat, 0);
}
