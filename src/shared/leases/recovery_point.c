/*
 * shared/leases/recovery_point.c
 *		How far the search for leases that memory lost has come, in each queue's
 *		state.  job/recover.c does the searching.
 *
 * A search is needed where a job may be in flight without a lease entry: in a new state
 * (so after each start), after a claim with a full lease table, COMMIT PREPARED, or a row
 * that was written by hand.  DUE_RECOVERY is when it may go on.  The search goes over the
 * ready index in steps, by claims and by the worker; each step notes where it ended.  A
 * search that is asked for while one is under way moves the epoch, which voids what the
 * older one notes; or it makes the older one incomplete, so that another follows.
 *
 * Locks: see README.md, level 3.  DUE_RECOVERY is written under the queue state's lock, and read
 * without it by every claim: one that reads too early does no step of a search that has just been
 * asked for.  A caller that must know whether a search is needed (job/limits.c) asks
 * idemq_qstate_summary.
 *
 * What txn/pending.c calls after commit or abort neither allocates nor raises.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/* A search that missed something begins again after so many microseconds. */
#define RECOVERY_INTERVAL USECS_PER_SEC

/* Returns whether there may be jobs in flight without a lease entry. */
static bool
is_needed(QueueState *qstate)
{
	return pg_atomic_read_u64(&qstate->due[DUE_RECOVERY]) != DUE_NEVER;
}

/* Returns whether a search is to go on now. */
static bool
is_due(QueueState *qstate)
{
	return is_needed(qstate) && idemq_due_at(qstate, DUE_RECOVERY) <= idemq_mono_now();
}

/* Asks for a search of the queue from its start.  The queue state's lock held. */
void
idemq_qstate_begin_recovery(QueueState *qstate, int64 not_before)
{
	pg_atomic_write_u64(&qstate->due[DUE_RECOVERY], (uint64) not_before);
	qstate->recovery = (RecoveryPoint){qstate->recovery.epoch + 1, 0, READY_KEY_MIN, false};
	idemq_worker_need_for_queue(qstate, not_before);
}

/* Notes that a job of the queue went in flight without a lease entry. */
void
idemq_qstate_need_recovery(QueueState *qstate, int32 queue_id)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	/* A search under way goes on, and another one follows. */
	if (is_needed(qstate))
		qstate->recovery.incomplete = true;
	else
		idemq_qstate_begin_recovery(qstate, 0);
	LWLockRelease(&qstate->lock);
}

/*
 * Returns whether a queue has to be searched, and from where: for a step, from where
 * the last one ended, and not too often; for the whole queue, from the start.
 */
bool
idemq_qstate_recovery_point(QueueState *qstate, int32 queue_id, bool whole, RecoveryPoint *point)
{
	bool needed;

	if (!whole && idemq_qstate_is_of(qstate, queue_id) && !is_due(qstate))
		return false;
	if (!idemq_qstate_lock(&qstate, queue_id, LW_SHARED))
		return false;
	*point = qstate->recovery;
	needed = whole ? is_needed(qstate) : is_due(qstate);
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
 * Notes how far a search has come.  At the end it is over, or begins again if it was
 * incomplete.  Does nothing if another search was asked for meanwhile.
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
