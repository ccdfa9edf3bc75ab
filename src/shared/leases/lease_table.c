/*
 * shared/leases/lease_table.c
 *		The lease table: a hash table of entries in shared memory.  Finds, adds, places and removes
 *		entries, and walks over them.  leases.c describes the life of an entry.
 *
 * A placed entry is also in the order of its partition (lease_order.c) and, if it is attached, in a
 * list of its session (lease_sessions.c).  A search for more than one entry uses the order or the
 * list, so it never reads entries of other queues, databases or sessions.
 *
 * Walks lock one partition at a time, except when idemq.check() compares a count.  That is enough,
 * because an entry never changes its partition:
 *	 - Expired leases: the queue's DUE_LEASE is taken, then the partitions are read, then DUE_LEASE
 *	   is lowered to the earliest deadline that was found (processes/due_times.c).  If a session
 *	   sets a deadline in a partition that has been read already, it lowers DUE_LEASE afterwards,
 *	   and so after the take.
 *	 - The end of a session: the session adds no entry any more.  An entry that another transaction
 *	   has taken over belongs to that transaction.
 *	 - The end of a database, or TRUNCATE: no other session works on its jobs.
 *	 - Copies, for views and idemq.check(): each entry is copied as it was at some moment.
 *
 * Invariant: an entry is counted as running in the state of its queue (running.c) as long as it
 * exists, unless its permit was transferred.  Count and entry change together, under the lock of
 * the partition, so they agree for a session that holds the locks of all partitions.
 *
 * Locks: see src/shared/README.md, level 1.  The hash table is partitioned, and the lock of a
 * partition protects its entries.  While it is held, only qstates_lock (level 2) and the
 * lease-shares lock (level 4) are taken.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/leases/leases.h"

/* Starts on a new cache line. */
typedef struct LeasePartition
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLock lock;
	Lease *order; /* root of the tree of its entries; under the lock */
} LeasePartition;

typedef struct LeasesShared
{
	pg_atomic_uint64
		last_token; /* greatest token since the start, less its database's base; no lock */
	LeasePartition partitions[LEASE_PARTITIONS];
} LeasesShared;

static LeasesShared *lease_table_shared = NULL;
static HTAB *lease_hash = NULL;

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
 * Returns a new token for a job whose row contains row_token, in a database whose tokens begin at
 * base; see base/token.c.
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

/* Returns the greatest token issued since the start, less the base of its database; 0: none. */
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

/*
 * Returns the entry of a job of this database, or NULL.  In both cases the partition of the job is
 * locked, and the caller must release *lock.
 */
Lease *
idemq_lease_lock(int64 job_id, LWLockMode mode, LWLock **lock)
{
	LeaseKey key = {MyDatabaseId, 0, job_id};
	uint32 hash = get_hash_value(lease_hash, &key);

	*lock = &lease_table_shared->partitions[LEASE_PARTITION(hash)].lock;
	LWLockAcquire(*lock, mode);
	return hash_search_with_hash_value(lease_hash, &key, hash, HASH_FIND, NULL);
}

/* Like idemq_lease_lock in exclusive mode, but returns NULL if the entry has another token. */
Lease *
idemq_lease_lock_of(int64 job_id, int64 token, LWLock **lock)
{
	Lease *lease = idemq_lease_lock(job_id, LW_EXCLUSIVE, lock);

	return lease != NULL && lease->token == token ? lease : NULL;
}

/*
 * Adds an entry for a job that has none; limited: its queue has max_running.  Returns NULL if there
 * is no room.  The partition must be locked exclusively.  Before the caller releases the lock, it
 * must fill the entry, and place or remove it.
 */
Lease *
idemq_lease_enter(int64 job_id, bool limited)
{
	LeaseKey key = {MyDatabaseId, 0, job_id};
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
 * Returns whether a worker has given its job back because a transaction is cancelling it.  That
 * transaction must come first: if a reaper got the row before it, another attempt could begin, and
 * the transaction would find that attempt.
 */
bool
idemq_lease_waits_for_cancel(const Lease *lease)
{
	return lease->loss == LOSS_RETURNED && lease->cancels > 0;
}

/*
 * Adds an entry to the order of its partition and, if it is attached, to the list of its session.
 */
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

/* Undoes idemq_lease_place, before queue_id, session, attached or due changes. */
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

/*
 * Sets when a lease ends and a reaper looks at it, but not beyond its limit.  Returns the deadline.
 */
int64
idemq_lease_set_deadline(Lease *lease, int64 deadline)
{
	idemq_lease_unplace(lease);
	lease->deadline = lease->due = Min(deadline, lease->limit);
	idemq_lease_place(lease);
	return lease->deadline;
}

/* Removes an entry; returns where it was counted as running, for idemq_running_freed. */
RunningFreed
idemq_lease_remove(Lease *lease)
{
	RunningFreed freed = idemq_running_count_out(&lease->running, lease->queue_id, 0);
	int share = lease->share;

	idemq_lease_unplace(lease);
	if (hash_search_with_hash_value(lease_hash, &lease->key, lease->hash, HASH_REMOVE, NULL) !=
		NULL)
		idemq_lease_share_give_back(share);
	return freed;
}

/*
 * Returns the first entry in a partition of a queue of this database, or with queue_id 0 of all its
 * queues; NULL if there is none.  Entries are ordered by queue and due time.  The partition must be
 * locked.
 */
Lease *
idemq_lease_first(int partition, int32 queue_id)
{
	return idemq_lease_order_first(lease_table_shared->partitions[partition].order, MyDatabaseId,
								   queue_id);
}

/* Returns the entry after one that idemq_lease_first or this function has returned; NULL: none. */
Lease *
idemq_lease_next(const Lease *lease, int32 queue_id)
{
	return idemq_lease_order_next(
		lease_table_shared->partitions[LEASE_PARTITION(lease->hash)].order, lease, queue_id);
}

/*
 * Collects up to max expired leases of a queue; returns their number.  Sets *next_deadline to the
 * earliest deadline (mono) of the queue's other leases; PG_INT64_MAX: none.  A lease that another
 * transaction is ending counts as one of the others, with a deadline in a moment.
 */
int
idemq_lease_collect_expired(int32 queue_id, ExpiredLease *found, int max, int64 *next_deadline)
{
	int64 now = idemq_mono_now();
	int count = 0;

	IDEMQ_STOP("idemq_lease_collect_expired");
	*next_deadline = PG_INT64_MAX;
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		const Lease *lease;

		idemq_leases_lock(i, LW_SHARED);
		for (lease = idemq_lease_first(i, queue_id); lease != NULL;
			 lease = idemq_lease_next(lease, queue_id))
		{
			bool busy = lease->ending.finisher != NO_SESSION || idemq_lease_waits_for_cancel(lease);
			bool expired = lease->due <= now;

			IDEMQ_STOP("visit_expired");
			if (expired && !busy && count < max)
			{
				found[count++] = (ExpiredLease){lease->key.job_id, lease->token, lease->queue_id};
				continue;
			}
			*next_deadline =
				Min(*next_deadline, expired && busy ? now + LEASE_BUSY_RETRY : lease->due);
			/* The entries that follow are due later. */
			if (!expired || count >= max)
				break;
		}
		idemq_leases_unlock(i);
	}
	return count;
}

/*
 * Returns a palloc'ed copy of all entries of this database, each as it was at some moment, in no
 * order; *count is their number.
 */
Lease *
idemq_lease_copy_all(int *count)
{
	int room = idemq_leases_usage_mine().used + 64;

	for (;;)
	{
		Lease *copies = MemoryContextAllocHuge(CurrentMemoryContext, room * sizeof(Lease));

		*count = 0; /* includes entries that do not fit */
		for (int i = 0; i < LEASE_PARTITIONS; i++)
		{
			const Lease *lease;

			idemq_leases_lock(i, LW_SHARED);
			for (lease = idemq_lease_first(i, 0); lease != NULL; lease = idemq_lease_next(lease, 0))
			{
				if (*count < room)
					copies[*count] = *lease;
				(*count)++;
			}
			idemq_leases_unlock(i);
		}
		if (*count <= room)
			return copies;
		pfree(copies);
		room = *count + 64;
	}
}

/* Removes the entries of a dropped database, or of truncated jobs, when no session adds any. */
void
idemq_lease_forget_database(Oid database)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		Lease *lease;

		idemq_leases_lock(i, LW_EXCLUSIVE);
		while ((lease = idemq_lease_order_first(lease_table_shared->partitions[i].order, database,
												0)) != NULL)
			(void) idemq_lease_remove(lease);
		idemq_leases_unlock(i);
	}
}
