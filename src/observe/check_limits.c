/*
 * observe/check_limits.c
 *		The audit of what max_running counts, and of room that no transaction holds in groups of
 *		queues with group_max_unfinished; and which queues have no state to count in.
 *
 * A queue's count is the sum over its lease entries.  Both change together, under
 * the entry's partition lock: so with all of these locks held, the two agree at any moment,
 * and no second check is needed.  The locks are held only if the two differ by a walk that
 * locks one partition at a time, and then while this database's entries are walked over.
 *
 * A transaction that takes room in a group holds a lock on idemq.jobs from before it takes the room
 * until after it has given the room back.  Suppose that an entry was read, that at a later instant no
 * transaction held such a lock, and that the entry still exists after that.  Then no transaction will
 * ever give its room back.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"

/*
 * Sets excess to the number of entries that each queue counts too many, in the order of
 * call->queue_ids; sums has room for one sum per queue state.  locked: the caller holds the locks of all
 * partitions.  Returns whether all counts agree with the entries.
 */
static bool
check_limits_compare(CheckCall *call, int64 *sums, int64 *excess, bool locked)
{
	bool agree = true;

	memset(sums, 0, idemq_max_queues * sizeof(int64));
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		if (!locked)
			idemq_leases_lock(i, LW_SHARED);
		for (const Lease *lease = idemq_lease_first(i, 0); lease != NULL;
			 lease = idemq_lease_next(lease, 0))
		{
			if (idemq_running_is_counted(&lease->running))
				sums[lease->running.qstate_index] += lease->running.units;
		}
		if (!locked)
			idemq_leases_unlock(i);
	}
	for (int i = 0; i < call->nqueues; i++)
	{
		const QueueState *qstate = idemq_qstate_find(MyDatabaseId, call->queue_ids[i]);

		excess[i] = qstate == NULL ? 0
								   : idemq_running_count(qstate) - sums[idemq_qstate_index(qstate)];
		agree = agree && excess[i] == 0;
	}
	return agree;
}

/* Checks that all room in groups is held by transactions; see the file's header. */
static void
check_group_room(CheckCall *call)
{
	uint64 *before = palloc(idemq_max_buckets * sizeof(uint64));
	uint64 *after = palloc(idemq_max_buckets * sizeof(uint64));
	int nbefore = idemq_group_room_copy(before, idemq_max_buckets);
	int writers = 0;
	int left = 0;
	LOCKTAG tag;

	if (nbefore > 0)
	{
		SET_LOCKTAG_RELATION(tag, MyDatabaseId, idemq_oids()->jobs);
		/* ShareLock conflicts with RowExclusiveLock, and with stronger locks that writers take. */
		pfree(GetLockConflicts(&tag, ShareLock, &writers));
	}
	if (nbefore > 0 && writers == 0)
	{
		int nafter = idemq_group_room_copy(after, idemq_max_buckets);

		qsort(before, nbefore, sizeof(uint64), idemq_compare_int64);
		for (int i = 0; i < nafter; i++)
			left += bsearch(&after[i], before, nbefore, sizeof(uint64), idemq_compare_int64) !=
					NULL;
	}
	if (left > 0)
		idemq_check_report(
			call, CHECK_ERROR, "limits.group_room",
			"%d groups of queues with group_max_unfinished count room that no transaction holds, "
			"so enqueues into them are refused even though there is room: restart the server",
			left);
	pfree(after);
	pfree(before);
}

/*
 * Checks what is counted for limits (see the file's header); warns of a queue that got no state
 * when it was looked up, or whose limits cannot be counted.
 */
void
idemq_check_limits(CheckCall *call)
{
	int64 *sums = palloc(idemq_max_queues * sizeof(int64));
	int64 *excess = palloc((call->nqueues + 1) * sizeof(int64));

	if (!check_limits_compare(call, sums, excess, false))
	{
		for (int i = 0; i < LEASE_PARTITIONS; i++)
			idemq_leases_lock(i, LW_SHARED);
		(void) check_limits_compare(call, sums, excess, true);
		for (int i = LEASE_PARTITIONS - 1; i >= 0; i--)
			idemq_leases_unlock(i);
	}
	for (int i = 0; i < call->nqueues; i++)
	{
		QueueInfo queue;

		if (!idemq_queue_by_id(call->queue_ids[i], &queue))
			continue;
		if (queue.qstate == NULL)
			idemq_check_report(
				call, CHECK_WARNING, "queue_states.full",
				"queue \"%s\" has no state in shared memory, because all %d states belong to other "
				"queues, so calls for this queue raise error 53400: raise idemq.max_queues and "
				"restart",
				queue.name, idemq_max_queues);
		else if (queue.max_running > 0 && idemq_lease_share_is_full(true))
			idemq_check_report(
				call, CHECK_WARNING, "limits.full",
				"queue \"%s\" has max_running and hands out no jobs, because the lease table or "
				"this database's share of it is full: raise idemq.max_leases and restart, or raise "
				"idemq.max_leases_per_database",
				queue.name);
		if (excess[i] != 0)
			idemq_check_report(
				call, CHECK_ERROR, "limits.running",
				"queue \"%s\" counts %lld more running jobs than it has lease entries: restart the "
				"server",
				queue.name, (long long) excess[i]);
	}
	check_group_room(call);
	pfree(excess);
	pfree(sums);
}
