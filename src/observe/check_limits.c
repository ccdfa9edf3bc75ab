/*
 * observe/check_limits.c
 *		Audits the counts for max_running, and the room taken in groups of queues with
 *		group_max_unfinished.  Also finds queues without a state, and queues whose jobs cannot be
 *		counted.
 *
 * max_running: a queue's count is the sum of the units of its lease entries.  An entry and the
 * count change together, under the lock of the entry's partition, so while all of these locks are
 * held, they agree.  No second check is needed.  First, we read one partition at a time.  All
 * locks are held only if that shows a difference.
 *
 * Room in groups: a transaction holds a lock on idemq.jobs from before it takes room until after
 * it has given the room back.  Suppose that an entry was read, that no transaction held such a
 * lock at a later time, and that the entry still exists after that.  Then no transaction will ever
 * give its room back.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"

/*
 * Compares each queue's count with its lease entries.  excess: by how much each count is too
 * large, in the order of call->queue_ids.  sums: working space for one number per queue state.
 * locked: the caller holds all partition locks.  Returns whether all queues agree.
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

/* Checks that all room in groups is held by transactions; see the top of the file. */
static void
check_group_room(CheckCall *call)
{
	uint64 *before = palloc(idemq_max_buckets * sizeof(uint64));
	uint64 *after = palloc(idemq_max_buckets * sizeof(uint64));
	int nbefore = idemq_group_room_copy(before, idemq_max_buckets);
	int left = 0;

	if (nbefore > 0 && !idemq_check_has_writers(idemq_oids()->jobs))
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

/* Checks the counts; see the top of the file. */
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
