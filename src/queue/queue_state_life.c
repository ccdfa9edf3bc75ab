/*
 * queue/queue_state_life.c
 *		How a queue gets its state in shared memory, and loses it.
 *
 * Several files of src/shared keep a part of a queue's state.  The scan starts and the recovery
 * point are in the queue state itself; the rings of events and of finished jobs, the counters, the number
 * of unfinished jobs, the groups and the overflow bucket are in arrays, at the queue state's index.
 * All of them are reset here, and nowhere else, so that the next queue inherits nothing.   (The
 * promotion pass at the same index belongs to the worker: shared/groups/promote_pass.c.)
 *
 * Invariant: a queue that has a state has all of its parts.  qstates_lock is held exclusively from
 * before the queue state gets its key until the last part is reset, so no session can find the
 * queue state before that.
 *
 * Locks: those of src/shared/README.md, from level 2 on.  Nothing here allocates memory or raises
 * errors, because it is also called after commit and abort.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/*
 * Takes away a queue's state, and wakes its waiters: if the queue still exists, it gets another
 * state, and they must wait there.  qstates_lock must be held exclusively.
 */
static void
end_life(QueueState *qstate)
{
	int index = idemq_qstate_index(qstate);

	idemq_qstate_vacate(qstate);
	(void) idemq_waiters_wake(idemq_waiters_of_queue(qstate), InvalidOid, PG_INT32_MAX);
	idemq_counters_forget(index);
	idemq_groups_forget(index);
	idemq_buckets_forget_queue(index);
	idemq_unfinished_forget(index);
}

/*
 * Returns the state of a queue of this database, gives it one if necessary; NULL if none is free.
 */
QueueState *
idemq_qstate_for_queue(int32 queue_id)
{
	QueueState *qstate;
	bool full;

	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_SHARED);
	qstate = idemq_qstate_find_locked(MyDatabaseId, queue_id);
	full = idemq_queue_states->used == idemq_max_queues;
	LWLockRelease(&idemq_queue_states->qstates_lock);
	if (qstate == NULL && !full)
	{
		LWLockAcquire(&idemq_queue_states->qstates_lock, LW_EXCLUSIVE);
		qstate = idemq_qstate_find_locked(MyDatabaseId, queue_id);
		if (qstate == NULL && (qstate = idemq_qstate_occupy(MyDatabaseId, queue_id)) != NULL)
		{
			int index = idemq_qstate_index(qstate);

			/*
			 * This also bounds every advance by a session that has read the scan start in the last
			 * life.
			 */
			idemq_scan_start_unset_locked(qstate);
			idemq_qstate_begin_recovery(qstate, 0);
			/* Before the worker can see the queue state, and settle its handler. */
			idemq_handler_reset(qstate);
			LWLockRelease(&qstate->lock);
			idemq_rings_reset(index, qstate->key);
			idemq_counters_reset(index, qstate->key);
			idemq_groups_reset(index, MyDatabaseId, queue_id);
			idemq_unfinished_reset(index, qstate->key);
			/* A session may have charged a bucket after end_life. */
			idemq_buckets_forget_queue(index);
		}
		LWLockRelease(&idemq_queue_states->qstates_lock);
	}
	if (qstate == NULL && idemq_count_full(COUNT_FULL_QUEUES))
		idemq_worker_need_by(0);
	return qstate;
}

/* Returns how many queue states are in use, and how often there was none for a queue. */
TableUsage
idemq_qstates_usage(void)
{
	TableUsage usage = {.room = idemq_max_queues, .refused = idemq_count_read(COUNT_FULL_QUEUES)};

	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_SHARED);
	usage.used = idemq_queue_states->used;
	LWLockRelease(&idemq_queue_states->qstates_lock);
	return usage;
}

/* Takes away the state of a dropped queue of this database. */
void
idemq_qstate_forget_queue(int32 queue_id)
{
	QueueState *qstate;

	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_EXCLUSIVE);
	qstate = idemq_qstate_find_locked(MyDatabaseId, queue_id);
	if (qstate != NULL)
		end_life(qstate);
	LWLockRelease(&idemq_queue_states->qstates_lock);
}

/*
 * Takes away the states of all queues of a database, because the database or the extension was
 * dropped, or the queues or jobs were truncated.
 */
void
idemq_qstates_forget_database(Oid database)
{
	IDEMQ_STOP("idemq_qstates_forget_database");
	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_EXCLUSIVE);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueState *qstate = idemq_qstate_at(i);

		if (qstate->key.database == database && qstate->key.queue_id != 0)
			end_life(qstate);
	}
	idemq_counters_forget_database(database);
	LWLockRelease(&idemq_queue_states->qstates_lock);
}

/*
 * Unsets everything that shared memory knows about the jobs of a database (scan starts, gauges,
 * numbers of unfinished jobs, low-water marks), notes that jobs may have finished, and asks for
 * recovery, because unknown rows have changed; for example after COMMIT PREPARED.
 */
void
idemq_qstates_unset_database(Oid database)
{
	IDEMQ_STOP("idemq_qstates_unset_database");
	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_SHARED);
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
		idemq_ring_set_unknown(i);
	}
	LWLockRelease(&idemq_queue_states->qstates_lock);
	idemq_counters_unset_gauges(database);
	idemq_unfinished_unset_database(database);
	idemq_groups_unset_database(database);
	idemq_worker_need_all();
}
