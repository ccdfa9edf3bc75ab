/*
 * shared/counts/buckets.c
 *		Admission buckets: what a rate limit has counted (base/rates.c) for each name in each
 *		database.
 *
 * A bucket is found by 128 bits of a hash of its name.  A call changes the bucket under its
 * spinlock, while the partition is locked in shared mode, so calls to different buckets do not wait
 * for each other.  A bucket in which nothing counts any more behaves like a new one.  When there is
 * no room for another bucket, all such buckets are removed at once.
 *
 * The buckets of group_rate_limit (job/group_rate_limit.c) are among them.  If such a bucket does
 * not exist, for example after a restart, the caller says when the limit counts as used up.
 *
 * A holder is a queue, with the buckets of its groups, or admit in a database.  Each holder has at
 * most half of the table.  While there is no room, the names of a holder that have no bucket share
 * an overflow bucket, in the holder's cell.  There, each call counts as the fraction of its own
 * limit that it uses.  No limit is exceeded, because what the cell has counted is at least what
 * each name has used: each of its calls was charged either to the bucket that it had, in which
 * nothing counts any more, or to the cell.  So a new bucket begins with what the cell has counted,
 * which is read while the partition is locked exclusively; and a call is charged to the cell while
 * the partition is locked in shared mode, and contains no bucket of that name.  Names without a
 * bucket are limited more than they ask for, all together like one of them; the calls of other
 * names do not matter.  The names of admit have different limits, so admit has PERIODS cells per
 * database, by the order of magnitude of the period, and no name waits because of a name whose
 * period is more than PERIOD_RATIO times as long.
 *
 * A queue that loses its state loses its buckets with it, and its cell is emptied.  The same holds
 * for a dropped database, because another database may get its share, and so its cells.  A rollback
 * does not undo anything here, and nothing survives a restart.
 *
 * Locks: see src/shared/README.md, level 4.  The lock of a partition protects its entries.  The
 * spinlock of an entry or a cell protects its rate, and is held only for arithmetic.  To remove
 * many entries, all partitions are locked, in order.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"

#define BUCKET_PARTITIONS 16
/* Number of cells of admit; a period is below 2^62 ns. */
#define PERIOD_BITS 2
#define PERIOD_RATIO (1 << PERIOD_BITS)
#define PERIODS (62 / PERIOD_BITS)
/* Cells: one for each queue state; then PERIODS for admit in each share of the databases. */
#define HOLDER_OF_ADMIT idemq_max_queues
/* The last cell counts the buckets of all holders. */
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
	int32 holder;	/* index of the holder's first cell, which counts this bucket; set once */
	slock_t mutex;	/* for the next field */
	RateState rate; /* ns of the monotonic clock */
} Bucket;

/* A holder, with its overflow bucket.  Locks: see the top of this file. */
typedef struct Cell
{
	pg_atomic_uint32 count; /* number of its buckets */
	slock_t mutex;			/* for the next field */
	RateState rate;			/* as Bucket.rate, of RATE_SHARED */
	/*
	 * ns: an unsuccessful search found that each bucket counts something until then; 0: unknown.
	 * It does not hold for buckets that were added later, for which a removal made room: removals
	 * is the count of removals at the time of the search.  Both are written with all partitions
	 * locked exclusively, and read with one.
	 */
	int64 next_sweep;
	uint64 removals;
} Cell;

typedef struct BucketsShared
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLockPadded locks[BUCKET_PARTITIONS];
	uint64 removals; /* of buckets that may still count something; locks: as for those of a cell */
	Cell cells[FLEXIBLE_ARRAY_MEMBER]; /* to ALL_HOLDERS */
} BucketsShared;

static BucketsShared *buckets_shared = NULL;
static HTAB *bucket_hash = NULL;

static int
cell_count(void)
{
	return ALL_HOLDERS + 1;
}

static void
init_buckets(int tranche)
{
	for (int i = 0; i <= ALL_HOLDERS; i++)
	{
		pg_atomic_init_u32(&buckets_shared->cells[i].count, 0);
		SpinLockInit(&buckets_shared->cells[i].mutex);
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
	UNUSED /* of all holders, for one that needs room */
} Removal;

/* Removes buckets; returns whether any were removed. */
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
		int64 unused_at = idemq_rate_unused_at(&bucket->rate);
		int32 of = bucket->holder;
		bool gone = which == OF_DATABASE ? bucket->key.database == database
					: which == OF_HOLDER ? of == holder
										 : unused_at <= now;

		if (!gone)
			next = Min(next, unused_at);
		else if (hash_search(bucket_hash, &bucket->key, HASH_REMOVE, NULL) != NULL)
		{
			pg_atomic_fetch_sub_u32(&buckets_shared->cells[of].count, 1);
			pg_atomic_fetch_sub_u32(&buckets_shared->cells[ALL_HOLDERS].count, 1);
			removed = true;
		}
	}
	if (which == UNUSED)
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

typedef struct Address
{
	BucketKey key;
	uint32 hash;
	LWLock *lock; /* of its partition */
} Address;

/* Returns the key, the hash and the partition of the bucket of a name in this database. */
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

/* Locks the partition of a bucket in shared mode; returns the bucket, or NULL. */
static Bucket *
lock_bucket(const Address *at)
{
	LWLockAcquire(at->lock, LW_SHARED);
	return hash_search_with_hash_value(bucket_hash, &at->key, at->hash, HASH_FIND, NULL);
}

static RateState
copy_rate(slock_t *mutex, const RateState *rate)
{
	RateState copy;

	SpinLockAcquire(mutex);
	copy = *rate;
	SpinLockRelease(mutex);
	return copy;
}

/* Empties the overflow bucket of a cell. */
static void
empty_cell(Cell *cell)
{
	SpinLockAcquire(&cell->mutex);
	memset(&cell->rate, 0, sizeof(cell->rate));
	SpinLockRelease(&cell->mutex);
}

/*
 * Adds a bucket that did not exist, with what the cell has counted.  If there is no room, removes
 * unused buckets, if there may be any.  Returns whether the caller must look again; false: there is
 * no room.
 */
static bool
buckets_enter(const Address *at, int32 holder, Cell *cell, const RateLimit *limit)
{
	int64 now = now_ns();
	Bucket *bucket = NULL;
	bool there = false;
	bool sweep;

	LWLockAcquire(at->lock, LW_EXCLUSIVE);
	sweep = buckets_shared->cells[holder].next_sweep <= now ||
			buckets_shared->cells[holder].removals != buckets_shared->removals;
	if (count_one_within(&buckets_shared->cells[ALL_HOLDERS].count, idemq_max_buckets))
	{
		bool may = count_one_within(&buckets_shared->cells[holder].count,
									idemq_max_buckets - idemq_max_buckets / 2);

		if (may)
			bucket = hash_search_with_hash_value(bucket_hash, &at->key, at->hash, HASH_ENTER_NULL,
												 &there);
		if (bucket != NULL && !there)
		{
			RateState shared = copy_rate(&cell->mutex, &cell->rate);

			bucket->holder = holder;
			SpinLockInit(&bucket->mutex);
			idemq_rate_from_shared(limit, &bucket->rate, &shared, now_ns());
		}
		else
		{
			pg_atomic_fetch_sub_u32(&buckets_shared->cells[ALL_HOLDERS].count, 1);
			if (may)
				pg_atomic_fetch_sub_u32(&buckets_shared->cells[holder].count, 1);
		}
	}
	LWLockRelease(at->lock);
	return bucket != NULL || (sweep && remove_buckets(UNUSED, InvalidOid, holder));
}

/*
 * Returns the longest window (ns) of the names that share a cell of admit with a name of that
 * window.
 */
static int64
longest_window(int64 window)
{
	return INT64CONST(1) << ((pg_leftmost_one_pos64((uint64) window) / PERIOD_BITS + 1) *
							 PERIOD_BITS);
}

/*
 * Calls a bucket if it exists, or else a cell unless it is NULL; returns false if it called
 * neither.
 */
static bool
call_existing(const Address *at, const RateLimit *limit, int64 cost, Cell *cell, RateAnswer *answer)
{
	Bucket *bucket = lock_bucket(at);
	int64 now = now_ns();
	int64 window = longest_window(idemq_rate_window(limit));
	bool called = bucket != NULL || cell != NULL;

	if (bucket != NULL)
	{
		SpinLockAcquire(&bucket->mutex);
		*answer = idemq_rate_call(limit, &bucket->rate, now, cost);
		SpinLockRelease(&bucket->mutex);
	}
	else if (cell != NULL)
	{
		SpinLockAcquire(&cell->mutex);
		*answer = idemq_rate_call_shared(limit, &cell->rate, window, now, cost);
		SpinLockRelease(&cell->mutex);
	}
	LWLockRelease(at->lock);
	if (called && cost > 0)
		idemq_count(answer->allowed ? COUNT_ADMIT_ALLOWED : COUNT_ADMIT_REFUSED, 1);
	return called;
}

static void
count_no_room(void)
{
	if (idemq_count_full(COUNT_FULL_BUCKETS))
		idemq_worker_need_by(0);
}

/*
 * Calls the bucket of a name in this database, or the overflow bucket if there is no room; takes
 * effect at once.
 */
void
idemq_bucket_call(const BucketName *name, const RateLimit *limit, int64 cost, RateAnswer *answer)
{
	int32 holder = HOLDER_OF_ADMIT + idemq_lease_share_mine() * PERIODS;
	/* Which of its PERIODS cells the names with this limit share. */
	int of_period = pg_leftmost_one_pos64((uint64) idemq_rate_window(limit)) / PERIOD_BITS;
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

/* Charges or asks a bucket; returns false if the name has none of its own. */
static bool
use_bucket(BucketCharge *charge, const Address *at, const RateLimit *limit, BucketUse use)
{
	Bucket *bucket = lock_bucket(at);
	Cell *cell = &buckets_shared->cells[charge->qstate_index];
	slock_t *mutex = bucket != NULL ? &bucket->mutex : &cell->mutex;
	RateState *rate = bucket != NULL ? &bucket->rate : &cell->rate;
	int64 window = idemq_rate_window(limit);
	int64 now = now_ns();

	if (bucket != NULL || use != CHARGE_OWN)
	{
		RateState asked;

		SpinLockAcquire(mutex);
		if (bucket != NULL)
			idemq_rate_use_up(limit, rate, now, charge->used_up_at);
		else
			idemq_rate_use_up_shared(rate, window, now, charge->used_up_at);
		if (use == ASK)
		{
			/* Of cost 0: the state follows a change of the limit once, not at each question anew. */
			(void) (bucket != NULL ? idemq_rate_call(limit, rate, now, 0)
								   : idemq_rate_call_shared(limit, rate, window, now, 0));
			asked = *rate;
			rate = &asked;
		}
		charge->answer = bucket != NULL ? idemq_rate_call(limit, rate, now, 1)
										: idemq_rate_call_shared(limit, rate, window, now, 1);
		SpinLockRelease(mutex);
	}
	LWLockRelease(at->lock);
	return bucket != NULL;
}

/*
 * Charges one to the bucket of a name in this database, or to the overflow bucket if there is no
 * room, if that is allowed; takes effect at once.  The caller has set charge->used_up_at and
 * charge->qstate_index.
 */
void
idemq_bucket_charge(const BucketName *name, const RateLimit *limit, BucketCharge *charge)
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

/* Sets charge->answer to whether a charge would be allowed. */
void
idemq_bucket_ask(const BucketName *name, const RateLimit *limit, BucketCharge *charge)
{
	Address at = address_of(name);

	(void) use_bucket(charge, &at, limit, ASK);
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
 * Removes the buckets of a dropped database, and empties the cells of its share, unless other
 * databases use that share as well.  Must be called before the share is freed.
 */
void
idemq_buckets_forget_database(Oid database)
{
	int share = idemq_lease_share_of(database);

	(void) remove_buckets(OF_DATABASE, database, 0);
	for (int i = 0; share >= 0 && i < PERIODS; i++)
		empty_cell(&buckets_shared->cells[HOLDER_OF_ADMIT + share * PERIODS + i]);
}

/*
 * Removes the buckets of the queue that had the state with that index, so that the next queue does
 * not find them.
 */
void
idemq_buckets_forget_queue(int qstate_index)
{
	if (pg_atomic_read_u32(&buckets_shared->cells[qstate_index].count) > 0)
		(void) remove_buckets(OF_HOLDER, InvalidOid, qstate_index);
	empty_cell(&buckets_shared->cells[qstate_index]);
}
