/*
 * shared/leases/lease_scan.c
 *		Walks over lease entries: a queue's expired leases, and copies; and a session's end.
 *
 * Each walk (these, and a database's end in lease_table.c) looks at the entries of its own
 * queue, session or database alone, one partition locked at a time.  That is enough, for an
 * entry stays in its partition:
 *
 *	 - Expired leases.  The queue's DUE_LEASE is taken, then the partitions are read, then the
 *	   least deadline that was found is noted (shared/processes/due_times.c), which only lowers
 *	   DUE_LEASE.  If a deadline is set in a partition that was read already, the session that
 *	   sets it notes it after that, and so after DUE_LEASE was taken.
 *	 - A session's end: the session puts no other entry.  An entry that another transaction
 *	   has taken over belongs to that transaction.
 *	 - The end of a database, or a TRUNCATE: no other session is at its jobs.
 *	 - Copies, for views and idemq.check(): each entry as it was at some moment.
 *
 * job/reap.c spends a tenth of the time on searches for expired leases at most.
 *
 * Locks: see README.md, level 1: a partition, shared to read, exclusively to change entries.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/counts/counts.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"

static bool exit_registered = false;

/* A search for expired leases. */
typedef struct ExpiredSearch
{
	int64 now; /* mono */
	ExpiredLease *found;
	int count;
	int max;
	int64 next_deadline;
} ExpiredSearch;

/* Visits the leases of the queue in a partition, in the order in which they are due. */
static bool
visit_expired(Lease *lease, void *arg)
{
	ExpiredSearch *search = arg;
	int64 due = lease->due;

	IDEMQ_STOP("visit_expired");
	if (due <= search->now &&
		(lease->ending.finisher != NO_SESSION || idemq_lease_waits_for_cancel(lease)))
		due = search->now + LEASE_BUSY_RETRY;
	else if (due <= search->now && search->count < search->max)
	{
		search->found[search->count++] =
			(ExpiredLease){lease->key.job_id, lease->token, lease->queue_id};
		return true;
	}
	search->next_deadline = Min(search->next_deadline, due);
	/* What comes behind is due later. */
	return lease->due <= search->now && search->count < search->max;
}

/*
 * Collects up to max expired leases of a queue, and sets *next_deadline to the
 * earliest deadline (mono) of its others, PG_INT64_MAX for none.  A lease that
 * another session is ending is one of the others.  Returns how many were found.
 */
int
idemq_lease_collect_expired(int32 queue_id, ExpiredLease *found, int max, int64 *next_deadline)
{
	ExpiredSearch search = {idemq_mono_now(), found, 0, max, PG_INT64_MAX};

	IDEMQ_STOP("idemq_lease_collect_expired");
	idemq_leases_visit(LW_SHARED, queue_id, visit_expired, &search);
	*next_deadline = search.next_deadline;
	return search.count;
}

/* A copy of this database's entries. */
typedef struct LeaseCopy
{
	Lease *copies;
	int room;
	int count; /* also of those that found no room */
} LeaseCopy;

static bool
visit_copy(Lease *lease, void *arg)
{
	LeaseCopy *copy = arg;

	if (copy->count < copy->room)
		copy->copies[copy->count] = *lease;
	copy->count++;
	return true;
}

/*
 * Returns a palloc'ed copy of all entries of this database, each as it was at some
 * moment, in no order; *count: their number.
 */
Lease *
idemq_lease_copy_all(int *count)
{
	LeaseCopy copy = {.room = idemq_leases_usage_mine().used + 64};

	for (;;)
	{
		copy.copies = MemoryContextAllocHuge(CurrentMemoryContext, copy.room * sizeof(Lease));
		copy.count = 0;
		idemq_leases_visit(LW_SHARED, 0, visit_copy, &copy);
		if (copy.count <= copy.room)
			break;
		pfree(copy.copies);
		copy.room = copy.count + 64;
	}
	*count = copy.count;
	return copy.copies;
}

/* Returns the process of a session, 0 when it has ended; a new one may have its number. */
int
idemq_session_pid(int32 session)
{
	return session == NO_SESSION ? 0 : GetPGProcByNumber(session)->pid;
}

/* Returns the process that claimed, 0 when it has ended. */
int
idemq_lease_pid(const Lease *lease)
{
	return idemq_session_pid(lease->session) == lease->pid ? lease->pid : 0;
}

/* Lets the attached leases of this session, but for open claims', expire now; ends its life. */
void
idemq_lease_orphan_session(void)
{
	int64 now = idemq_mono_now();

	for (int i = 0; i < LEASE_PARTITIONS && exit_registered; i++)
	{
		OwnedLeases *own = idemq_lease_session_owned(i, IDEMQ_MY_PROC_NUMBER);
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

/* Makes this session's end, clean or not, end its attached leases. */
void
idemq_lease_attach_session(void)
{
	if (!exit_registered)
		on_shmem_exit(orphan_at_exit, (Datum) 0);
	exit_registered = true;
}
