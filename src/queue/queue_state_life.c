/*
 * queue/queue_state_life.c
 *		How a queue gets its state in shared memory, and loses it.
 *
 * A queue state has parts in several files: the scan starts and the recovery point in the queue
 * state itself; the rings of events and of finished jobs, the counters, the unfinished jobs, the groups and the cell of
 * buckets at its index.  The next queue must inherit nothing, so all of them are reset or forgotten
 * here, and nowhere else.  (A pass of promotion, at its index too, is the worker's:
 * shared/groups/promote_pass.c.)
 *
 * Invariant: a queue that has a state has all of its parts.  qstates_lock is held
 * exclusively from before the queue state gets its key until the last part is reset, so
 * no session finds the queue state in between.
 *
 * Locks: shared/README.md, from level 2 on.  Nothing here allocates or raises: it is
 * called after commit and abort, too.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/*
 * Takes a queue's state away, and wakes its waiters: if the queue still exists, it gets another
 * state, and the waiters have to sleep there.  qstates_lock held exclusively.
 */
static void
end_life(QueueState *qstate)
{
	idemq_qstate_vacate(qstate);
	(void) idemq_waiters_wake(idemq_waiters_of_queue(qstate), PG_INT32_MAX);
	idemq_counters_forget(idemq_qstate_index(qstate));
	idemq_groups_forget(idemq_qstate_index(qstate));
	idemq_buckets_forget_queue(idemq_qstate_index(qstate));
	idemq_unfinished_forget(idemq_qstate_index(qstate));
}

/* Returns the state of a queue of this database, given one if need be; NULL when all are used. */
QueueState *
idemq_qstate_for_queue(int32 queue_id)
{
	QueueState *qstate;
	bool full;

	idemq_qstates_lock(LW_SHARED);
	qstate = idemq_qstate_find_locked(MyDatabaseId, queue_id);
	full = idemq_qstates_are_full();
	idemq_qstates_unlock();
	if (qstate == NULL && !full)
	{
		idemq_qstates_lock(LW_EXCLUSIVE);
		qstate = idemq_qstate_find_locked(MyDatabaseId, queue_id);
		if (qstate == NULL && (qstate = idemq_qstate_occupy(MyDatabaseId, queue_id)) != NULL)
		{
			int index = idemq_qstate_index(qstate);

			/* This also bounds every view of the queue state's former life. */
			idemq_scan_start_unset_locked(qstate);
			idemq_qstate_begin_recovery(qstate, 0);
			LWLockRelease(&qstate->lock);
			idemq_notify_ring_reset(index);
			idemq_finished_ring_reset(index, MyDatabaseId, queue_id);
			idemq_counters_reset(index, MyDatabaseId, queue_id);
			idemq_groups_reset(index, MyDatabaseId, queue_id);
			idemq_unfinished_reset(index, MyDatabaseId, queue_id);
			idemq_buckets_forget_queue(index); /* a session may have charged them after end_life */
		}
		idemq_qstates_unlock();
	}
	if (qstate == NULL && idemq_count_full(COUNT_FULL_QUEUES))
		idemq_worker_need_by(0);
	return qstate;
}

/* Takes the state of a dropped queue of this database away. */
void
idemq_qstate_forget_queue(int32 queue_id)
{
	QueueState *qstate;

	idemq_qstates_lock(LW_EXCLUSIVE);
	qstate = idemq_qstate_find_locked(MyDatabaseId, queue_id);
	if (qstate != NULL)
		end_life(qstate);
	idemq_qstates_unlock();
}

/*
 * Takes the states of all queues of a database away: the database, its queues, its jobs or its
 * extension were dropped.
 */
void
idemq_qstates_forget_database(Oid database)
{
	IDEMQ_STOP("idemq_qstates_forget_database");
	idemq_qstates_lock(LW_EXCLUSIVE);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueState *qstate = idemq_qstate_at(i);

		if (qstate->key.database == database && qstate->key.queue_id != 0)
			end_life(qstate);
	}
	idemq_counters_forget_database(database);
	idemq_qstates_unlock();
}

/*
 * Unsets every scan start, gauge, count of unfinished jobs and low-water mark of a database, notes
 * that jobs may have finished, and asks for recovery: rows changed, and it is not known which (after
 * COMMIT PREPARED, for example).
 */
void
idemq_qstates_unset_database(Oid database)
{
	IDEMQ_STOP("idemq_qstates_unset_database");
	idemq_qstates_lock(LW_SHARED);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueState *qstate = idemq_qstate_at(i);

		if (qstate->key.database != database || qstate->key.queue_id == 0)
			continue;
		LWLockAcquire(&qstate->lock, LW_EXCLUSIVE);
		idemq_scan_start_unset_locked(qstate);
		idemq_due_by(qstate, DUE_EXPIRY, 0);
		idemq_due_by(qstate, DUE_HANDLER, 0);
		qstate_unset_dependencies(qstate, DEPENDENCIES_KNOWN);
		idemq_qstate_begin_recovery(qstate, 0);
		LWLockRelease(&qstate->lock);
		idemq_finished_ring_set_unknown(i);
	}
	idemq_qstates_unlock();
	idemq_counters_unset_gauges(database);
	idemq_unfinished_unset_database(database);
	idemq_groups_unset_database(database);
	idemq_worker_need_all();
}
