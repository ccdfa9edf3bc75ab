/*
 * shared/leases/recovery_point.c
 *		The recovery point of a queue: how far the search for running jobs without a lease entry has
 *		come. job/recover.c does the search.
 *
 * A search is needed when a job may be running without an entry: in a new queue state (so after
 * each start of the server), after a claim with a full lease table, after COMMIT PREPARED, and
 * after a row was written by hand.  DUE_RECOVERY is the time at which the search may continue.
 * Claims and the worker scan the ready index in steps, and each step records where it ended.  If
 * another search is requested during a search, either the epoch changes, so what the older search
 * records is ignored; or the current search is marked as incomplete, so that another one follows
 * it.
 *
 * Locks: see src/shared/README.md, level 3.  DUE_RECOVERY is written under the queue state's lock,
 * and every claim reads it without the lock.  A claim that reads it too early does no step of a
 * search that has just been requested.  A caller that must know whether a search is needed
 * (job/limits.c) uses idemq_qstate_summary.  Functions that are called after commit or abort
 * neither allocate nor raise errors.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/* Microseconds after which an incomplete search is repeated. */
#define RECOVERY_INTERVAL USECS_PER_SEC

/* Returns whether jobs may be running without a lease entry. */
static bool
recovery_is_needed(QueueState *qstate)
{
	return pg_atomic_read_u64(&qstate->due[DUE_RECOVERY]) != DUE_NEVER;
}

/* Returns whether the search must continue now. */
static bool
recovery_is_due(QueueState *qstate)
{
	return recovery_is_needed(qstate) && idemq_due_at(qstate, DUE_RECOVERY) <= idemq_mono_now();
}

/* Requests a search from the start, at a time (mono).  The queue state's lock must be held. */
void
idemq_qstate_begin_recovery(QueueState *qstate, int64 not_before)
{
	pg_atomic_write_u64(&qstate->due[DUE_RECOVERY], (uint64) not_before);
	qstate->recovery = (RecoveryPoint){qstate->recovery.epoch + 1, 0, READY_KEY_MIN, false};
	idemq_worker_need_for_queue(qstate, not_before);
}

/* Notes that a job of the queue has begun to run without a lease entry. */
void
idemq_qstate_need_recovery(QueueState *qstate, int32 queue_id)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	/* The current search continues; a second one is scheduled. */
	if (recovery_is_needed(qstate))
		qstate->recovery.incomplete = true;
	else
		idemq_qstate_begin_recovery(qstate, 0);
	LWLockRelease(&qstate->lock);
}

/*
 * Returns whether a queue must be searched, and sets *point to where: with whole, from the start;
 * otherwise one step, from where the last step ended, if DUE_RECOVERY has passed.
 */
bool
idemq_qstate_recovery_point(QueueState *qstate, int32 queue_id, bool whole, RecoveryPoint *point)
{
	bool needed;

	if (!whole && idemq_qstate_is_of(qstate, queue_id) && !recovery_is_due(qstate))
		return false;
	if (!idemq_qstate_lock(&qstate, queue_id, LW_SHARED))
		return false;
	*point = qstate->recovery;
	needed = whole ? recovery_is_needed(qstate) : recovery_is_due(qstate);
	LWLockRelease(&qstate->lock);
	if (whole)
	{
		point->priority = 0;
		point->from = READY_KEY_MIN;
		point->incomplete = false;
	}
	return needed;
}

/*
 * Records how far a search has come.  At the end of the index, the search is over, or it is
 * repeated if it was incomplete.  Does nothing if the epoch has changed since the search began.
 */
void
idemq_qstate_recovered_to(QueueState *qstate, int32 queue_id, const RecoveryPoint *point)
{
	RecoveryPoint *known;

	IDEMQ_STOP("idemq_qstate_recovered_to");
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	known = &qstate->recovery;
	if (known->epoch == point->epoch)
	{
		bool incomplete = known->incomplete || point->incomplete;

		if (point->priority > known->priority ||
			(point->priority == known->priority && ready_key_less(known->from, point->from)))
			*known = *point;
		known->incomplete = incomplete;
		if (known->priority == IDEMQ_PRIORITIES && incomplete)
			idemq_qstate_begin_recovery(qstate, idemq_mono_now() + RECOVERY_INTERVAL);
		else if (known->priority == IDEMQ_PRIORITIES)
			pg_atomic_write_u64(&qstate->due[DUE_RECOVERY], DUE_NEVER);
	}
	LWLockRelease(&qstate->lock);
}
