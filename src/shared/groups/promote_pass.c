/*
 * shared/groups/promote_pass.c
 *		Passes of promotion by the background worker, in shared memory.
 *
 * While the worker has taken marks of groups (shared/groups/groups.c), and the heads that it
 * promotes are not visible yet, a claim that finds nothing would say that there is
 * nothing.  Such a claim therefore waits for the end of the pass and scans again.  So a session
 * that has committed a head, or enqueued the first job of a group, finds the next job by its next
 * claim.
 *
 * A pass is one short transaction that waits for no row.  A worker that dies in it
 * costs such claims PASS_PATIENCE each, until the next worker ends the pass.
 *
 * Locks: none, atomics and condition variables.
 */
#include "postgres.h"

#include "port/atomics.h"
#include "storage/condition_variable.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/groups/groups.h"
#include "shared/queue_states/queue_states.h"

/* The longest time that a claim waits for the end of the worker's pass, in microseconds. */
#define PASS_PATIENCE INT64CONST(50000)

static PromotePass *
pass_of(const QueueState *qstate)
{
	return &idemq_group_queue_at(idemq_qstate_index(qstate))->pass;
}

/* Begins a pass of the worker, or takes over one that a former worker has left open. */
void
idemq_promote_pass_begin(const QueueState *qstate)
{
	(void) pg_atomic_fetch_or_u32(&pass_of(qstate)->number, 1);
}

/* Ends a pass, if one is under way: its transaction is over. */
void
idemq_promote_pass_end(const QueueState *qstate)
{
	PromotePass *pass = pass_of(qstate);

	if ((pg_atomic_read_u32(&pass->number) & 1) == 0)
		return;
	(void) pg_atomic_fetch_add_u32(&pass->number, 1);
	ConditionVariableBroadcast(&pass->over);
}

/*
 * Returns a number that moves when a pass begins and when it ends: a claim that has read it,
 * scanned and found nothing, and then reads another number, scans again.
 */
uint32
idemq_promote_pass_number(const QueueState *qstate)
{
	return pg_atomic_fetch_add_u32(&pass_of(qstate)->number, 0);
}

/* Waits for the end of the pass that is under way, if there is one: PASS_PATIENCE at most. */
void
idemq_promote_pass_await(const QueueState *qstate)
{
	PromotePass *pass = pass_of(qstate);
	int64 until = idemq_stopwatch() + PASS_PATIENCE;

	if ((idemq_promote_pass_number(qstate) & 1) == 0)
		return;
	ConditionVariablePrepareToSleep(&pass->over);
	while (idemq_promote_pass_number(qstate) & 1)
	{
		int64 left = until - idemq_stopwatch();

		if (left <= 0 ||
			ConditionVariableTimedSleep(&pass->over, left / 1000 + 1, compat_wait_event_wait()))
			break;
	}
	ConditionVariableCancelSleep();
}
