/*
 * shared/leases/lease_table.c
 *		The hash of lease entries in shared memory: finding, entering, placing, removing
 *		and visiting them.  The life of an entry is in shared/leases/leases.c.
 *
 * A search for more than one entry does not go by the hash.  The order of each partition
 * (lease_order.c) has the entries of a queue, of a database, and what is due; the lists of a
 * session (lease_sessions.c) have its own.  No walk meets the entries of another queue,
 * database or session, nor holds more than one partition, except that idemq.check() holds
 * all when it compares a count.  An entry is in these places while it is placed.
 *
 * Invariant: each entry is counted as running in its queue's state (shared/leases/running.c)
 * for as long as it is there, unless it has a transferred permit.  Count and entry change together,
 * under the partition's lock, so a session that holds all of the locks sees them agree.
 *
 * Locks: see README.md, level 1.  The hash is partitioned; each partition's lock covers
 * its entries.  Under it only qstates_lock (level 2) and the shares' lock (level 4) are taken.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/leases/leases.h"

/* On cache lines of its own. */
typedef struct LeasePartition
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLock lock;
	Lease *order; /* the root of its entries' order; under the lock */
} LeasePartition;

typedef struct LeasesShared
{
	pg_atomic_uint64 last_token; /* the greatest issued since the start; no lock */
	LeasePartition partitions[LEASE_PARTITIONS];
} LeasesShared;

static LeasesShared *lease_table_shared = NULL;
static HTAB *lease_hash = NULL;

/* Makes the locks; their memory is zeros. */
static void
init_leases(int tranche)
{
	pg_atomic_init_u64(&lease_table_shared->last_token, 0);
	for (int i = 0; i < LEASE_PARTITIONS; i++)
		LWLockInitialize(&lease_table_shared->partitions[i].lock, tranche);
}

const ShmemPart idemq_leases_part = {.area = (void **) &lease_table_shared,
									 .size = sizeof(LeasesShared),
									 .tranche = "idemq leases",
									 .init = init_leases,
									 .hash = &lease_hash,
									 .hash_name = "idemq leases",
									 .hash_entries = &idemq_max_leases,
									 .key_size = sizeof(LeaseKey),
									 .entry_size = sizeof(Lease),
									 .partitions = LEASE_PARTITIONS};

/*
 * Returns a new token for a job whose row carries row_token, in a database whose tokens
 * begin at base; see base/token.c.
 */
int64
idemq_lease_issue_token(int64 row_token, int64 base)
{
	TimestampTz now = idemq_now();
	uint32 timeline = GetWALInsertionTimeLine();
	uint64 last = pg_atomic_read_u64(&lease_table_shared->last_token);
	int64 next;

	do
	{
		next = idemq_token_next(row_token, (int64) last, now, timeline, base);
	} while (!pg_atomic_compare_exchange_u64(&lease_table_shared->last_token, &last,
											 (uint64) (next - base)));
	return next;
}

/* Returns the greatest token issued since the start, less its database's base; 0 for none. */
int64
idemq_lease_last_token(void)
{
	return (int64) pg_atomic_read_u64(&lease_table_shared->last_token);
}

void
idemq_leases_lock(int partition, LWLockMode mode)
{
	IDEMQ_STOP("idemq_leases_lock");
	LWLockAcquire(&lease_table_shared->partitions[partition].lock, mode);
}

void
idemq_leases_unlock(int partition)
{
	LWLockRelease(&lease_table_shared->partitions[partition].lock);
}

/* Locks the whole table, to see all entries, or some and a count, at one moment. */
void
idemq_leases_lock_all(LWLockMode mode)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
		idemq_leases_lock(i, mode);
}

void
idemq_leases_unlock_all(void)
{
	for (int i = LEASE_PARTITIONS - 1; i >= 0; i--)
		idemq_leases_unlock(i);
}

static LeaseKey
key_of(int64 job_id)
{
	return (LeaseKey){MyDatabaseId, 0, job_id};
}

/*
 * Returns the entry of a job of this database, NULL when there is none, with its partition
 * locked in mode in either case; the caller releases *lock.
 */
Lease *
idemq_lease_lock(int64 job_id, LWLockMode mode, LWLock **lock)
{
	LeaseKey key = key_of(job_id);
	uint32 hash = get_hash_value(lease_hash, &key);

	*lock = &lease_table_shared->partitions[LEASE_PARTITION(hash)].lock;
	LWLockAcquire(*lock, mode);
	return hash_search_with_hash_value(lease_hash, &key, hash, HASH_FIND, NULL);
}

/* As idemq_lease_lock, exclusively, the entry of that token. */
Lease *
idemq_lease_lock_of(int64 job_id, int64 token, LWLock **lock)
{
	Lease *lease = idemq_lease_lock(job_id, LW_EXCLUSIVE, lock);

	return lease != NULL && lease->token == token ? lease : NULL;
}

/*
 * Enters a job that is not in the table; limited: its queue has max_running.  Returns NULL
 * when there is no room for it.  The caller has its partition locked, fills the entry, and
 * places it or removes it before it releases the lock.
 */
Lease *
idemq_lease_enter(int64 job_id, bool limited)
{
	LeaseKey key = key_of(job_id);
	uint32 hash = get_hash_value(lease_hash, &key);
	int share = idemq_lease_share_take(limited);
	Lease *lease;

	if (share < 0)
		return NULL;
	lease = hash_search_with_hash_value(lease_hash, &key, hash, HASH_ENTER_NULL, NULL);
	if (lease == NULL)
	{
		idemq_lease_share_give_back(share);
		return NULL;
	}
	lease->hash = hash;
	lease->share = (int16) share;
	lease->placed = false;
	lease->running.units = 0;
	lease->ended = PG_INT64_MIN;
	return lease;
}

/*
 * Returns whether a worker has given its job back because a transaction cancels it.  That transaction
 * comes first: a reaper that got the row before it would let another attempt begin, and then the
 * transaction would meet that one.
 */
bool
idemq_lease_waits_for_cancel(const Lease *lease)
{
	return lease->loss == LOSS_RETURNED && lease->cancels > 0;
}

/* Puts an entry where its queue, its deadline and its session look for it. */
void
idemq_lease_place(Lease *lease)
{
	int partition = LEASE_PARTITION(lease->hash);

	Assert(!lease->placed);
	idemq_lease_order_add(&lease_table_shared->partitions[partition].order, lease);
	if (lease->attached)
		idemq_lease_session_add(lease);
	lease->placed = true;
}

/* Takes an entry away from there, before any of these changes. */
void
idemq_lease_unplace(Lease *lease)
{
	if (!lease->placed)
		return;
	idemq_lease_order_remove(&lease_table_shared->partitions[LEASE_PARTITION(lease->hash)].order,
							 lease);
	if (lease->attached)
		dlist_delete(&lease->owned);
	lease->placed = false;
}

/* Sets when a lease ends, and when a reaper looks at it: its limit at the latest.  Returns that. */
int64
idemq_lease_set_deadline(Lease *lease, int64 deadline)
{
	idemq_lease_unplace(lease);
	lease->deadline = lease->due = Min(deadline, lease->limit);
	idemq_lease_place(lease);
	return lease->deadline;
}

/* Removes an entry, which is running no more. */
void
idemq_lease_remove(Lease *lease)
{
	int share = lease->share;

	idemq_lease_unplace(lease);
	(void) idemq_running_count_out(&lease->running, lease->queue_id, 0);
	if (hash_search_with_hash_value(lease_hash, &lease->key, lease->hash, HASH_REMOVE, NULL) !=
		NULL)
		idemq_lease_share_give_back(share);
}

/*
 * Visits the entries of a queue of this database, or with 0 of all of them, one partition
 * locked at a time.  An entry never changes its partition: one that is there all the while
 * is visited once; one that comes or goes meanwhile is visited or not.  Within a partition
 * they come by queue and when due; visit returns false to have no more of the partition.
 */
void
idemq_leases_visit(LWLockMode mode, int32 queue_id, LeaseVisit visit, void *arg)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		idemq_leases_lock(i, mode);
		(void) idemq_lease_order_walk(lease_table_shared->partitions[i].order, MyDatabaseId,
									  queue_id, visit, arg);
		idemq_leases_unlock(i);
	}
}

/* As idemq_leases_visit, within idemq_leases_lock_all. */
void
idemq_leases_visit_locked(int32 queue_id, LeaseVisit visit, void *arg)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
		(void) idemq_lease_order_walk(lease_table_shared->partitions[i].order, MyDatabaseId,
									  queue_id, visit, arg);
}

/* Removes the entries of a dropped database, or a truncated table; nobody adds any meanwhile. */
void
idemq_lease_forget_database(Oid database)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		Lease *lease;

		idemq_leases_lock(i, LW_EXCLUSIVE);
		while ((lease = idemq_lease_order_first(lease_table_shared->partitions[i].order,
												database)) != NULL)
			idemq_lease_remove(lease);
		idemq_leases_unlock(i);
	}
}
