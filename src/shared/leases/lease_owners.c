/*
 * shared/leases/lease_owners.c
 *		Which attached leases a session has: a list for each session and partition of the
 *		lease table.
 *
 * An entry is in the list of its session, by proc number, exactly while it is attached.
 * At its end a session walks its own lists, and meets nobody else's leases.
 *
 * A session has lives: DISCARD ALL ends one, its exit the last, and a new session with
 * its proc number begins another.  An entry that another transaction takes over, as it
 * claims what it has ended, is in no list of the former owner's meanwhile; should that be
 * undone, the life that was copied with it tells whether the owner's has ended since
 * (idemq_lease_restore).  Both are decided under the entry's partition lock, so one of
 * the two sees the other.
 *
 * Locks: each list, and its count of lives, is under the lock of its partition.  Nothing
 * here allocates or raises.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/compat.h"
#include "shared/leases/leases.h"

typedef struct Owned
{
	dlist_head leases; /* by Lease.owned */
	uint32 life;	   /* lives that have ended */
} Owned;

static Owned *owned_by = NULL;

static int
list_count(void)
{
	return compat_max_backends() * LEASE_PARTITIONS;
}

/* Makes the lists; their memory is zeros. */
static void
init_lists(int tranche)
{
	for (int i = 0; i < list_count(); i++)
		dlist_init(&owned_by[i].leases);
}

const ShmemPart idemq_lease_owners_part = {.area = (void **) &owned_by,
										   .each = sizeof(Owned),
										   .count = list_count,
										   .name = "idemq lease owners",
										   .init = init_lists};

static Owned *
owned(int partition, int32 session)
{
	return &owned_by[session * LEASE_PARTITIONS + partition];
}

/* Returns which life of its session this is: not that of the claim, if the two differ. */
uint32
idemq_lease_owner_life(const Lease *lease)
{
	return owned(LEASE_PARTITION(lease->hash), lease->session)->life;
}

/* Puts an attached entry into its session's list. */
void
idemq_lease_owner_add(Lease *lease)
{
	dlist_push_head(&owned(LEASE_PARTITION(lease->hash), lease->session)->leases, &lease->owned);
}

/* Takes an attached entry out of its session's list. */
void
idemq_lease_owner_remove(Lease *lease)
{
	dlist_delete(&lease->owned);
}

/* Returns a lease of this session in a partition; NULL when it has none. */
Lease *
idemq_lease_owner_first(int partition)
{
	dlist_head *leases = &owned(partition, IDEMQ_MY_PROC_NUMBER)->leases;

	return dlist_is_empty(leases) ? NULL : dlist_head_element(Lease, owned, leases);
}

/* Returns the lease of this session that comes after another; NULL for the last. */
Lease *
idemq_lease_owner_next(const Lease *lease)
{
	dlist_head *leases = &owned(LEASE_PARTITION(lease->hash), IDEMQ_MY_PROC_NUMBER)->leases;

	if (!dlist_has_next(leases, (dlist_node *) &lease->owned))
		return NULL;
	return dlist_container(Lease, owned, lease->owned.next);
}

/* Ends a lease that its session has let go: its deadline is now (mono).  It is not placed. */
void
idemq_lease_orphan(Lease *lease, LeaseLoss loss, int64 now)
{
	lease->attached = false;
	lease->loss = loss;
	lease->deadline = lease->due = now;
}

/* Ends this session's life. */
void
idemq_lease_owner_end_life(int partition)
{
	owned(partition, IDEMQ_MY_PROC_NUMBER)->life++;
}
