/*
 * shared/counts/lease_shares.c
 *		Who may have how many entries of the lease table.
 *
 * A job that finds no room is claimed by its row alone: that is slower, and a queue with
 * max_running, which must be counted, hands out nothing.  So nobody gets the whole table:
 *
 *	 - A database has a share, idemq.max_leases_per_database.  The rest of the table is there
 *	   for the others.
 *	 - A reserve, idemq.reserved_leases, serves only queues with max_running.  The same
 *	   part of each share is reserved, so that within a database, too, the others leave
 *	   them room.
 *
 * The rows cannot be counted in place of the entries: others' open claims are in no
 * snapshot.
 *
 * Each entry is counted in the whole table and in one share, which it remembers, from
 * before it is there until after it is gone: never are more there than are counted.  At a
 * limit a claim may be refused because another one is just being refused.
 *
 * Each session finds its database's share once.  The share is free again when the database
 * is dropped, and has no entry and no session any more.  Databases beyond LEASE_SHARES have
 * one share together, the first.
 *
 * Locks: the shares' (level 4) to find one; the counts are atomics.  Taking room and giving
 * it back neither allocate nor raise.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/base.h"
#include "shared/counts/counts.h"

/* The share of all databases that found no other; and the count of the whole table. */
#define SHARE_OF_OTHERS 0
#define WHOLE_TABLE LEASE_SHARES

/* A count on a cache line of its own. */
typedef struct Share
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 used; /* entries; no lock */
	pg_atomic_uint64 refused;										/* no lock */
	Oid database; /* InvalidOid: free; under the lock */
} Share;

typedef struct SharesShared
{
	Share shares[LEASE_SHARES + 1];
	LWLock lock;
} SharesShared;

static SharesShared *lease_shares_shared = NULL;
static int my_share = -1;

/* Makes the shares; their memory is zeros. */
static void
init_shares(int tranche)
{
	for (int i = 0; i <= WHOLE_TABLE; i++)
	{
		pg_atomic_init_u32(&lease_shares_shared->shares[i].used, 0);
		pg_atomic_init_u64(&lease_shares_shared->shares[i].refused, 0);
	}
	LWLockInitialize(&lease_shares_shared->lock, tranche);
}

const ShmemPart idemq_lease_shares_part = {.area = (void **) &lease_shares_shared,
										   .size = sizeof(SharesShared),
										   .tranche = "idemq lease shares",
										   .init = init_shares};

/* Returns the share of this database, given one if need be. */
static Share *
find_share(void)
{
	int free = SHARE_OF_OTHERS;

	if (my_share >= 0)
		return &lease_shares_shared->shares[my_share];
	LWLockAcquire(&lease_shares_shared->lock, LW_EXCLUSIVE);
	for (int i = LEASE_SHARES - 1; i > SHARE_OF_OTHERS && my_share < 0; i--)
	{
		if (lease_shares_shared->shares[i].database == MyDatabaseId)
			my_share = i;
		else if (lease_shares_shared->shares[i].database == InvalidOid)
			free = i;
	}
	if (my_share < 0)
	{
		my_share = free;
		if (free != SHARE_OF_OTHERS)
			lease_shares_shared->shares[free].database = MyDatabaseId;
	}
	LWLockRelease(&lease_shares_shared->lock);
	return &lease_shares_shared->shares[my_share];
}

/* Returns which share this database has, below LEASE_SHARES; for buckets too (buckets.c). */
int
idemq_lease_share_mine(void)
{
	(void) find_share();
	return my_share;
}

/* Returns how many entries serve only queues with max_running. */
static int
lease_shares_reserve(void)
{
	return idemq_reserved_leases < 0 ? idemq_max_leases / 8
									 : Min(idemq_reserved_leases, idemq_max_leases);
}

/* Returns how many entries all databases may have, in queues with max_running or others. */
static uint32
room_of_table(bool limited)
{
	return idemq_max_leases - (limited ? 0 : lease_shares_reserve());
}

/* Returns how many entries a database may have, in queues with max_running or others. */
static uint32
room_of_share(bool limited)
{
	int64 room = idemq_max_leases_per_database < 0
					 ? idemq_max_leases - idemq_max_leases / 4
					 : Min(idemq_max_leases_per_database, idemq_max_leases);

	return room - (limited ? 0 : room * lease_shares_reserve() / idemq_max_leases);
}

/* Counts one more entry, if that leaves the count within its room. */
static bool
lease_shares_count_in(pg_atomic_uint32 *used, uint32 room)
{
	if (pg_atomic_read_u32(used) >= room)
		return false;
	if (pg_atomic_fetch_add_u32(used, 1) < room)
		return true;
	pg_atomic_fetch_sub_u32(used, 1);
	return false;
}

/*
 * Takes room for an entry of this database; limited: its queue has max_running.  Returns the
 * share in which it is counted, -1 when there is no room.
 */
int
idemq_lease_share_take(bool limited)
{
	Share *share = find_share();

	if (lease_shares_count_in(&share->used, room_of_share(limited)))
	{
		if (lease_shares_count_in(&lease_shares_shared->shares[WHOLE_TABLE].used,
								  room_of_table(limited)))
			return my_share;
		pg_atomic_fetch_sub_u32(&share->used, 1);
	}
	pg_atomic_fetch_add_u64(&share->refused, 1);
	(void) idemq_count_full(COUNT_FULL_LEASES);
	return -1;
}

void
idemq_lease_share_give_back(int share)
{
	pg_atomic_fetch_sub_u32(&lease_shares_shared->shares[WHOLE_TABLE].used, 1);
	pg_atomic_fetch_sub_u32(&lease_shares_shared->shares[share].used, 1);
}

/* Returns whether this database has no room for an entry: a lease may stand in its row alone. */
bool
idemq_lease_share_is_full(bool limited)
{
	return pg_atomic_read_u32(&lease_shares_shared->shares[WHOLE_TABLE].used) >=
			   room_of_table(limited) ||
		   pg_atomic_read_u32(&find_share()->used) >= room_of_share(limited);
}

/* Returns the share that a database has for itself; -1 when it has none. */
int
idemq_lease_share_of(Oid database)
{
	int share = -1;

	LWLockAcquire(&lease_shares_shared->lock, LW_SHARED);
	for (int i = SHARE_OF_OTHERS + 1; i < LEASE_SHARES; i++)
	{
		if (lease_shares_shared->shares[i].database == database)
			share = i;
	}
	LWLockRelease(&lease_shares_shared->lock);
	return share;
}

/* Frees the share of a dropped database, which has no entries any more. */
void
idemq_lease_share_forget(Oid database)
{
	LWLockAcquire(&lease_shares_shared->lock, LW_EXCLUSIVE);
	for (int i = SHARE_OF_OTHERS + 1; i < LEASE_SHARES; i++)
	{
		Share *share = &lease_shares_shared->shares[i];

		if (share->database != database)
			continue;
		pg_atomic_write_u64(&share->refused, 0);
		share->database = InvalidOid;
	}
	LWLockRelease(&lease_shares_shared->lock);
}

TableUsage
idemq_leases_usage(void)
{
	uint32 used = pg_atomic_read_u32(&lease_shares_shared->shares[WHOLE_TABLE].used);
	uint32 room = room_of_table(true);

	return (TableUsage){.used = (int) Min(used, room),
						.room = (int) room,
						.refused = idemq_count_read(COUNT_FULL_LEASES)};
}

/* Returns what is used of this database's share of the lease table. */
TableUsage
idemq_leases_usage_mine(void)
{
	Share *share = find_share();

	return (TableUsage){.used = (int) pg_atomic_read_u32(&share->used),
						.room = (int) room_of_share(true),
						.refused = (int64) pg_atomic_read_u64(&share->refused)};
}
