/*
 * shared/groups/promote_pass.c
 *		Promotion passes of the background worker.
 *
 * After the worker has taken the marks of groups (groups.c), and before the heads that it promotes
 * are visible, a claim would find nothing and return no job.  Therefore a claim that finds nothing
 * waits for the end of the current pass, and scans again.  So a session that has committed a head,
 * or has enqueued the first job of a group, finds the next job in its next claim.
 *
 * A pass is one short transaction that waits for no row.  If a worker dies during a pass, such
 * claims wait for PASS_PATIENCE each, until the next worker ends the pass.
 *
 * Locks: none, only atomics and condition variables.
 */
#include "postgres.h"

#include "port/atomics.h"
#include "storage/condition_variable.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/groups/groups.h"
#include "shared/queue_states/queue_states.h"

/* Maximum time for which a claim waits for the end of a pass, in microseconds. */
#define PASS_PATIENCE INT64CONST(50000)

static PromotePass *
pass_of(const QueueState *qstate)
{
	return &idemq_groups->queues[idemq_qstate_index(qstate)].pass;
}

/* Begins a pass, or takes over one that a former worker has left open. */
void
idemq_promote_pass_begin(const QueueState *qstate)
{
	(void) pg_atomic_fetch_or_u32(&pass_of(qstate)->number, 1);
}

/* Ends the current pass, if any; called after its transaction has ended. */
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
 * Returns a number that changes when a pass begins and when it ends.  A claim that reads it, finds
 * nothing, and then reads another number must scan again.
 */
uint32
idemq_promote_pass_number(const QueueState *qstate)
{
	return pg_atomic_fetch_add_u32(&pass_of(qstate)->number, 0);
}

/* Waits for the end of the current pass, if any, but for at most PASS_PATIENCE. */
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
