/*
 * shared/leases/lease_sessions.c
 *		Which attached leases a session has: a list for each session and partition of the
 *		lease table; and their end with the session.
 *
 * An entry is in the list of its session, by proc number, exactly while it is attached.
 * At its end, on_shmem_exit or DISCARD ALL, a session walks its own lists, meets no other's
 * leases, and sets their deadlines to now.  Its transaction is gone by then, and its open
 * claims with it; it puts no other entry.  An attached job without an entry (full table)
 * stays until its row's deadline.
 *
 * A session has lives: DISCARD ALL ends one, its exit the last, and a new session with
 * its proc number begins another.  When another transaction claims what it has ended, it
 * takes the entry over, and the entry is in no list of the former session meanwhile.  If
 * that is undone, the life that was copied with the entry tells whether the former session
 * has ended it since (idemq_lease_restore).  Both are decided under the entry's partition
 * lock, so one of the two sees the other.
 *
 * Locks: each list, and its count of lives, is under the lock of its partition.  Nothing here
 * allocates or raises.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "shared/leases/leases.h"

static OwnedLeases *owned_by = NULL;

static int
list_count(void)
{
	return MaxBackends * LEASE_PARTITIONS;
}

/* Makes the lists; their memory is zeros. */
static void
init_lists(int tranche)
{
	for (int i = 0; i < list_count(); i++)
		dlist_init(&owned_by[i].leases);
}

const ShmemPart idemq_lease_sessions_part = {.area = (void **) &owned_by,
											 .each = sizeof(OwnedLeases),
											 .count = list_count,
											 .lies_in = AREA_SESSIONS,
											 .init = init_lists};

/* Returns the list of a session in a partition. */
OwnedLeases *
idemq_lease_session_owned(int partition, int32 session)
{
	return &owned_by[session * LEASE_PARTITIONS + partition];
}

/* Returns which life an entry's session is in now; lease->session_life is that of the claim. */
uint32
idemq_lease_session_life(const Lease *lease)
{
	return idemq_lease_session_owned(LEASE_PARTITION(lease->hash), lease->session)->life;
}

/* Puts an attached entry into its session's list. */
void
idemq_lease_session_add(Lease *lease)
{
	dlist_push_head(&idemq_lease_session_owned(LEASE_PARTITION(lease->hash), lease->session)
						 ->leases,
					&lease->owned);
}

/* Ends a lease that its session has let go: its deadline is now (mono).  It is not placed. */
void
idemq_lease_orphan(Lease *lease, LeaseLoss loss, int64 now)
{
	IDEMQ_STOP("idemq_lease_orphan");
	lease->attached = false;
	lease->loss = loss;
	lease->deadline = lease->due = now;
}
