/*
 * shared/leases/lease_sessions.c
 *		Which attached leases a session has, and how they end with the session.
 *
 * There is a list for each session and each partition of the lease table.  An entry is in the list
 * of its session exactly while it is attached.  At its end (on_shmem_exit, or DISCARD ALL), a
 * session walks through its own lists, and sets the deadlines of these leases to now.  By then, its
 * transaction and its open claims are gone, and it adds no further entry.  An attached job without
 * an entry (because the table was full) stays leased until the deadline in its row.
 *
 * A session has lives.  DISCARD ALL ends one life, the exit ends the last one, and a new session
 * with the same proc number begins another.  If another transaction claims a job whose attempt it
 * ends, it takes over the entry, which is in no list of the former session in the meantime.  If
 * that claim is undone, the number of the life that was copied with the entry shows whether the
 * former session has ended that life since (idemq_lease_restore).  Both sides hold the lock of the
 * entry's partition, so one of the two sees the other.
 *
 * Locks: the lock of a partition protects the lists of that partition, and their counts of lives.
 * Nothing here allocates or raises errors, except idemq_lease_attach_session.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"

/* The attached leases of a session in a partition. */
typedef struct OwnedLeases
{
	dlist_head leases; /* by Lease.owned */
	uint32 life;	   /* number of lives that have ended */
} OwnedLeases;

static OwnedLeases *owned_leases = NULL;
static bool exit_registered = false;

static int
list_count(void)
{
	return MaxBackends * LEASE_PARTITIONS;
}

static void
init_lists(int tranche)
{
	for (int i = 0; i < list_count(); i++)
		dlist_init(&owned_leases[i].leases);
}

const ShmemPart idemq_lease_sessions_part = {.area = (void **) &owned_leases,
											 .each = sizeof(OwnedLeases),
											 .count = list_count,
											 .lies_in = AREA_SESSIONS,
											 .init = init_lists};

/* Returns the list of a session in a partition. */
static OwnedLeases *
owned_by(int partition, int32 session)
{
	return &owned_leases[session * LEASE_PARTITIONS + partition];
}

/* Returns the current life of an entry's session.  The partition must be locked. */
uint32
idemq_lease_session_life(const Lease *lease)
{
	return owned_by(LEASE_PARTITION(lease->hash), lease->session)->life;
}

/* Adds an attached entry to the list of its session.  The partition must be locked exclusively. */
void
idemq_lease_session_add(Lease *lease)
{
	dlist_push_head(&owned_by(LEASE_PARTITION(lease->hash), lease->session)->leases, &lease->owned);
}

/*
 * Ends a lease that its session no longer has: its deadline becomes now (mono).  The entry must be
 * unplaced, with its partition locked exclusively.
 */
void
idemq_lease_orphan(Lease *lease, LeaseLoss loss, int64 now)
{
	IDEMQ_STOP("idemq_lease_orphan");
	lease->attached = false;
	lease->loss = loss;
	lease->deadline = lease->due = now;
}

/* Ends this session's attached leases, except those of open claims; ends the session's life. */
void
idemq_lease_orphan_session(void)
{
	int64 now = idemq_mono_now();

	for (int i = 0; i < LEASE_PARTITIONS && exit_registered; i++)
	{
		OwnedLeases *own = owned_by(i, IDEMQ_MY_PROC_NUMBER);
		dlist_mutable_iter iter;

		idemq_leases_lock(i, LW_EXCLUSIVE);
		dlist_foreach_modify(iter, &own->leases)
		{
			Lease *lease = dlist_container(Lease, owned, iter.cur);

			if (lease->claiming)
				continue;
			idemq_lease_unplace(lease);
			idemq_lease_orphan(lease, LOSS_SESSION, now);
			idemq_lease_place(lease);
			idemq_due_by(idemq_qstate_find(MyDatabaseId, lease->queue_id), DUE_LEASE, now);
		}
		own->life++;
		idemq_leases_unlock(i);
	}
}

static void
orphan_at_exit(int code, Datum arg)
{
	idemq_lease_orphan_session();
}

/* Makes sure that this session's attached leases end when it exits, even after a crash. */
void
idemq_lease_attach_session(void)
{
	if (!exit_registered)
		on_shmem_exit(orphan_at_exit, (Datum) 0);
	exit_registered = true;
}

/*
 * Returns the process id of a session; 0 if it has ended.  Another session may have its number now.
 */
int
idemq_session_pid(int32 session)
{
	return session == NO_SESSION ? 0 : GetPGProcByNumber(session)->pid;
}

/* Returns the process id of the session that claimed; 0 if it has ended. */
int
idemq_lease_pid(const Lease *lease)
{
	return idemq_session_pid(lease->session) == lease->pid ? lease->pid : 0;
}
