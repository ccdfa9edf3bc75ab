/*
 * shared/lease_table.c
 *		The hash of lease entries in shared memory: finding, entering, removing them,
 *		and visiting all.  What becomes of an entry is shared/leases.c's.
 *
 * Invariant: each entry is counted as running in its queue's slot (shared/running.c) for
 * as long as it is there, unless it is borrowed.  Count and entry change together,
 * under the partition's lock, so a session that holds all of the locks sees them agree.
 *
 * Locks: see README.md, level 1.  The hash is partitioned; each partition's lock covers
 * its entries.  Under it only slots_lock (level 2) is taken.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "shared/lease_table.h"
#include "shared/running.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/token.h"

#define LEASE_PARTITIONS 32

typedef struct LeasesShared
{
	int tranche;				 /* set once */
	pg_atomic_uint64 last_token; /* the greatest issued since the start; no lock */
	pg_atomic_uint32 count;		 /* entries: bounds the table exactly; no lock */
	pg_atomic_uint64 refused;	 /* entries that found the table full; no lock */
	LWLockPadded locks[LEASE_PARTITIONS];
} LeasesShared;

static LeasesShared *shared = NULL;
static HTAB *lease_hash = NULL;

/* Returns the bytes of shared memory for the locks. */
Size
idemq_leases_shmem_size(void)
{
	return sizeof(LeasesShared);
}

/* Returns the bytes of shared memory for the hash table. */
Size
idemq_leases_hash_size(void)
{
	return hash_estimate_size(idemq_max_leases, sizeof(Lease));
}

/* Attaches to the table, and makes it when this is the first process. */
void
idemq_leases_shmem_init(void *area, bool found)
{
	HASHCTL info = {0};

	shared = area;
	if (!found)
	{
		shared->tranche = LWLockNewTrancheId();
		pg_atomic_init_u64(&shared->last_token, 0);
		pg_atomic_init_u32(&shared->count, 0);
		pg_atomic_init_u64(&shared->refused, 0);
		for (int i = 0; i < LEASE_PARTITIONS; i++)
			LWLockInitialize(&shared->locks[i].lock, shared->tranche);
	}
	LWLockRegisterTranche(shared->tranche, "idemq leases");
	info.keysize = sizeof(LeaseKey);
	info.entrysize = sizeof(Lease);
	info.num_partitions = LEASE_PARTITIONS;
	lease_hash = ShmemInitHash("idemq leases", idemq_max_leases, idemq_max_leases, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_PARTITION | HASH_FIXED_SIZE);
}

/*
 * Returns a new token for a job whose row carries row_token, in a database whose tokens
 * begin at base; see base/token.c.
 */
int64
idemq_lease_issue_token(int64 row_token, int64 base)
{
	TimestampTz now = idemq_now();
	uint32 timeline = compat_timeline();
	uint64 last = pg_atomic_read_u64(&shared->last_token);
	int64 next;

	do
	{
		next = idemq_token_next(row_token, (int64) last, now, timeline, base);
	} while (!pg_atomic_compare_exchange_u64(&shared->last_token, &last, (uint64) (next - base)));
	return next;
}

/* Returns the greatest token issued since the start, less its database's base; 0 for none. */
int64
idemq_lease_last_token(void)
{
	return (int64) pg_atomic_read_u64(&shared->last_token);
}

/*
 * Finds a job's entry with its partition locked in mode; the caller releases
 * *lock also when there is none.
 */
Lease *
idemq_lease_lock_entry(const LeaseKey *key, LWLockMode mode, LWLock **lock, uint32 *hash)
{
	*hash = get_hash_value(lease_hash, key);
	*lock = &shared->locks[*hash % LEASE_PARTITIONS].lock;
	LWLockAcquire(*lock, mode);
	return hash_search_with_hash_value(lease_hash, key, *hash, HASH_FIND, NULL);
}

/* Enters a key that is not in the table; NULL when it is full.  Partition locked. */
Lease *
idemq_lease_enter(const LeaseKey *key, uint32 hash)
{
	Lease *lease;

	if (pg_atomic_fetch_add_u32(&shared->count, 1) >= (uint32) idemq_max_leases)
		lease = NULL;
	else
		lease = hash_search_with_hash_value(lease_hash, key, hash, HASH_ENTER_NULL, NULL);
	if (lease == NULL)
	{
		pg_atomic_fetch_sub_u32(&shared->count, 1);
		pg_atomic_fetch_add_u64(&shared->refused, 1);
	}
	else
		lease->running.units = 0;
	return lease;
}

/* Removes an entry, which is running no more.  Partition locked. */
void
idemq_lease_remove(Lease *lease, uint32 hash)
{
	(void) idemq_running_count_out(&lease->running, lease->queue_id, 0);
	if (hash_search_with_hash_value(lease_hash, &lease->key, hash, HASH_REMOVE, NULL) != NULL)
		pg_atomic_fetch_sub_u32(&shared->count, 1);
}

/* Returns the number of entries, of all databases. */
int
idemq_lease_count(void)
{
	return (int) pg_atomic_read_u32(&shared->count);
}

/* Returns whether the table has no room: some lease may be on its row alone. */
bool
idemq_lease_table_is_full(void)
{
	return pg_atomic_read_u32(&shared->count) >= (uint32) idemq_max_leases;
}

/* Returns how many leases are in the table, and how often there was no room for one. */
void
idemq_leases_usage(int *used, int64 *refused)
{
	*used = (int) Min(pg_atomic_read_u32(&shared->count), (uint32) idemq_max_leases);
	*refused = (int64) pg_atomic_read_u64(&shared->refused);
}

/*
 * Visits every entry, of all databases, with the whole table locked in mode;
 * with LW_EXCLUSIVE the entries for which visit returns false are removed.  At the
 * end, still locked, last is called, unless it is NULL.
 */
void
idemq_leases_visit_all(LWLockMode mode, bool (*visit)(Lease *lease, void *arg),
					   void (*last)(void *arg), void *arg)
{
	HASH_SEQ_STATUS seq;
	Lease *lease;

	for (int i = 0; i < LEASE_PARTITIONS; i++)
		LWLockAcquire(&shared->locks[i].lock, mode);
	hash_seq_init(&seq, lease_hash);
	while ((lease = hash_seq_search(&seq)) != NULL)
	{
		if (!visit(lease, arg))
			idemq_lease_remove(lease, get_hash_value(lease_hash, &lease->key));
	}
	if (last != NULL)
		last(arg);
	for (int i = LEASE_PARTITIONS - 1; i >= 0; i--)
		LWLockRelease(&shared->locks[i].lock);
}

/* As idemq_leases_visit_all, with nothing to do at the end. */
void
idemq_leases_visit(LWLockMode mode, bool (*visit)(Lease *lease, void *arg), void *arg)
{
	idemq_leases_visit_all(mode, visit, NULL, arg);
}
