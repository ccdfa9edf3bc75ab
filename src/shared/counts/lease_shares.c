/*
 * shared/counts/lease_shares.c
 *		How many entries of the lease table each database may have.
 *
 * A job for which there is no room in the table is claimed only through its row.  That is slower,
 * and a queue with max_running, whose running jobs must be counted, hands out no job at all.  So no
 * user may fill the whole table:
 *
 *	 - Each database has a share, idemq.max_leases_per_database.  The rest of the table is left for
 *	   the others.
 *	 - A reserve, idemq.reserved_leases, serves only queues with max_running.  The same fraction of
 *	   each share is reserved, so that the other queues of a database leave room for them as well.
 *
 * Counting the rows would not do, because no snapshot shows the open claims of other sessions.
 *
 * Each entry is counted in the whole table and in one share, whose number it contains, from before
 * it is added until after it has been removed.  So there are never more entries than are counted.
 * When a limit has been reached, a claim may be refused because another one is just being refused.
 *
 * Each session looks up the share of its database once.  A share becomes free when its database is
 * dropped, which by then has no sessions and no entries.  When there is no free share, further
 * databases use the first share together.
 *
 * Locks: the lease-shares lock (level 4) protects the assignment of shares; the counts are
 * atomics.  Taking room and giving it back neither allocate nor raise errors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/base.h"
#include "shared/counts/counts.h"

/* The share of all databases without a share of their own, and the count of the whole table. */
#define SHARE_OF_OTHERS 0
#define WHOLE_TABLE LEASE_SHARES

/* Starts on a new cache line. */
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

/* Returns the share of this database; gives it one if necessary. */
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

/* Returns the number of this database's share, below LEASE_SHARES; also used for buckets. */
int
idemq_lease_share_mine(void)
{
	(void) find_share();
	return my_share;
}

/* Returns the number of entries that are reserved for queues with max_running. */
static int
lease_shares_reserve(void)
{
	return idemq_reserved_leases < 0 ? idemq_max_leases / 8
									 : Min(idemq_reserved_leases, idemq_max_leases);
}

/* Returns the maximum number of entries of all databases; limited: for queues with max_running. */
static uint32
room_of_table(bool limited)
{
	return idemq_max_leases - (limited ? 0 : lease_shares_reserve());
}

/* Returns the maximum number of entries of a database; limited: for queues with max_running. */
static uint32
room_of_share(bool limited)
{
	int64 room = idemq_max_leases_per_database < 0
					 ? idemq_max_leases - idemq_max_leases / 4
					 : Min(idemq_max_leases_per_database, idemq_max_leases);

	return room - (limited ? 0 : room * lease_shares_reserve() / idemq_max_leases);
}

/*
 * Takes room for an entry of this database; limited: its queue has max_running.  Returns the number
 * of the share in which it is counted, or -1 if there is no room.
 */
int
idemq_lease_share_take(bool limited)
{
	Share *share = find_share();

	if (count_one_within(&share->used, room_of_share(limited)))
	{
		if (count_one_within(&lease_shares_shared->shares[WHOLE_TABLE].used,
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

/*
 * Returns whether there is no room for an entry of this database, so a lease may exist only in its
 * row.
 */
bool
idemq_lease_share_is_full(bool limited)
{
	return pg_atomic_read_u32(&lease_shares_shared->shares[WHOLE_TABLE].used) >=
			   room_of_table(limited) ||
		   pg_atomic_read_u32(&find_share()->used) >= room_of_share(limited);
}

/* Returns the number of the share that belongs only to a database; -1: it has none. */
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

/* Frees the share of a dropped database, which no longer has any entries. */
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

/* Returns how much of the lease table is in use. */
TableUsage
idemq_leases_usage(void)
{
	uint32 used = pg_atomic_read_u32(&lease_shares_shared->shares[WHOLE_TABLE].used);
	uint32 room = room_of_table(true);

	return (TableUsage){.used = (int) Min(used, room),
						.room = (int) room,
						.refused = idemq_count_read(COUNT_FULL_LEASES)};
}

/* Returns how much of this database's share is in use. */
TableUsage
idemq_leases_usage_mine(void)
{
	Share *share = find_share();

	return (TableUsage){.used = (int) pg_atomic_read_u32(&share->used),
						.room = (int) room_of_share(true),
						.refused = (int64) pg_atomic_read_u64(&share->refused)};
}
