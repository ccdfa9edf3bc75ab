/*
 * shared/lease_scan.c
 *		Scans of the whole lease table: what has expired, and what a session or a
 *		database leaves behind at its end.
 *
 * A search for expired leases is for one queue, when the least deadline that is known
 * of it (shared/next_deadline.c) has passed; job/reap.c spends a tenth of the time on
 * it at most.
 *
 * The end of a session, on_shmem_exit or DISCARD ALL, sets the deadline of its attached
 * leases to now.  Its transaction is gone by then, and its open claims with it.  An
 * attached job without an entry (full table) stays until its row's deadline.
 *
 * Locks: see README.md, level 1, all partitions in order: shared to read, exclusively
 * to change entries.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "shared/lease_scan.h"
#include "shared/lease_table.h"
#include "shared/next_deadline.h"
#include "shared/running.h"
#include "base/clock.h"
#include "base/compat.h"

static bool exit_registered = false;

/* A search for expired leases. */
typedef struct ExpiredSearch
{
	int32 queue_id;
	int64 now; /* mono */
	ExpiredLease *found;
	int count;
	int max;
	int64 next_deadline;
} ExpiredSearch;

static bool
visit_expired(Lease *lease, void *arg)
{
	ExpiredSearch *search = arg;
	int64 deadline = lease->deadline;

	if (lease->key.database != MyDatabaseId || lease->queue_id != search->queue_id ||
		lease->claiming)
		return true;
	if (lease->ending.ender != NO_SESSION)
		deadline = Max(deadline, search->now + LEASE_BUSY_RETRY);
	if (deadline > search->now || search->count == search->max)
		search->next_deadline = Min(search->next_deadline, deadline);
	else
		search->found[search->count++] =
			(ExpiredLease){lease->key.job_id, lease->token, lease->queue_id};
	return true;
}

/*
 * Collects up to max expired leases of a queue, and sets *next_deadline to the
 * earliest deadline (mono) of its others, PG_INT64_MAX for none.  A lease that
 * another session is ending is one of the others.  Returns how many were found.
 */
int
idemq_lease_collect_expired(int32 queue_id, ExpiredLease *found, int max, int64 *next_deadline)
{
	ExpiredSearch search = {queue_id, idemq_mono_now(), found, 0, max, PG_INT64_MAX};

	idemq_leases_visit(LW_SHARED, visit_expired, &search);
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

	if (lease->key.database != MyDatabaseId)
		return true;
	if (copy->count < copy->room)
		copy->copies[copy->count] = *lease;
	copy->count++;
	return true;
}

/*
 * Returns a palloc'ed copy of all entries of this database, as they were at one
 * moment, in no order; *count: their number.
 */
Lease *
idemq_lease_copy_all(int *count)
{
	LeaseCopy copy = {NULL, idemq_lease_count() + 64, 0};

	for (;;)
	{
		copy.copies = MemoryContextAllocHuge(CurrentMemoryContext, copy.room * sizeof(Lease));
		copy.count = 0;
		idemq_leases_visit(LW_SHARED, visit_copy, &copy);
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

typedef struct LeasesOfQueue
{
	int32 queue_id;
	int count;
} LeasesOfQueue;

static bool
visit_count(Lease *lease, void *arg)
{
	LeasesOfQueue *count = arg;

	count->count += lease->key.database == MyDatabaseId && lease->queue_id == count->queue_id;
	return true;
}

/* Returns the number of a queue's entries. */
int
idemq_lease_count_queue(int32 queue_id)
{
	LeasesOfQueue count = {queue_id, 0};

	idemq_leases_visit(LW_SHARED, visit_count, &count);
	return count.count;
}

static bool
visit_uncounted(Lease *lease, void *arg)
{
	if (lease->key.database == MyDatabaseId && lease->queue_id == *(int32 *) arg &&
		!lease->borrowed && !idemq_running_is_counted(&lease->running))
		(void) idemq_running_count_in(&lease->running, NULL, lease->queue_id, 0);
	return true;
}

/* Counts the entries of a queue that are from before it had its slot: see shared/running.c. */
void
idemq_lease_count_in_queue(int32 queue_id)
{
	if (idemq_lease_count() > 0)
		idemq_leases_visit(LW_EXCLUSIVE, visit_uncounted, &queue_id);
}

static bool
visit_orphan(Lease *lease, void *arg)
{
	if (lease->key.database == MyDatabaseId && lease->session == IDEMQ_MY_PROC_NUMBER &&
		lease->attached && !lease->claiming)
	{
		lease->attached = false;
		lease->lost = true;
		lease->deadline = idemq_mono_now();
		idemq_slot_note_deadline(NULL, lease->queue_id, lease->deadline);
	}
	return true;
}

/* Lets the attached leases of this session expire now. */
void
idemq_lease_orphan_session(void)
{
	if (exit_registered)
		idemq_leases_visit(LW_EXCLUSIVE, visit_orphan, NULL);
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

static bool
visit_forgotten(Lease *lease, void *arg)
{
	return lease->key.database != *(Oid *) arg;
}

/* Removes what a dropped database, or a truncated table, left. */
void
idemq_lease_forget_database(Oid database)
{
	idemq_leases_visit(LW_EXCLUSIVE, visit_forgotten, &database);
}
