/*
 * shared/groups/promote_round.c
 *		Rounds of promotion by the background worker, in shared memory.
 *
 * While the worker has taken marks of groups (shared/groups/groups.c), and the heads that it
 * promotes are not visible yet, a claim that finds nothing would say that there is
 * nothing.  It waits for the end of the round and scans again.  So a session that has
 * committed a head, or enqueued the first job of a group, finds the next job by its
 * next claim.
 *
 * A round is one short transaction that waits for no row.  A worker that dies in it
 * costs such claims ROUND_PATIENCE each, until the next worker ends the round.
 *
 * Locks: none, atomics and condition variables.
 */
#include "postgres.h"

#include "port/atomics.h"
#include "storage/condition_variable.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/groups/groups.h"
#include "shared/slots/slots.h"

/* For so many microseconds a claim waits for the worker's round, at most. */
#define ROUND_PATIENCE INT64CONST(50000)

static PromoteRound *
round_of(const QueueSlot *slot)
{
	return &idemq_group_queue_at(idemq_slot_index(slot))->round;
}

/* Begins a round of the worker; one that a worker before us has left open becomes ours. */
void
idemq_round_begin(const QueueSlot *slot)
{
	(void) pg_atomic_fetch_or_u32(&round_of(slot)->number, 1);
}

/* Ends a round, if one is under way: its transaction is over. */
void
idemq_round_end(const QueueSlot *slot)
{
	PromoteRound *round = round_of(slot);

	if ((pg_atomic_read_u32(&round->number) & 1) == 0)
		return;
	(void) pg_atomic_fetch_add_u32(&round->number, 1);
	ConditionVariableBroadcast(&round->over);
}

/*
 * Returns a number that moves with each round's begin and end: a claim that has read
 * it, scanned and found nothing, and then reads another number, scans again.
 */
uint32
idemq_round_number(const QueueSlot *slot)
{
	return pg_atomic_fetch_add_u32(&round_of(slot)->number, 0);
}

/* Waits for the end of the round that is under way, if there is one: ROUND_PATIENCE at most. */
void
idemq_round_await(const QueueSlot *slot)
{
	PromoteRound *round = round_of(slot);
	int64 until = idemq_stopwatch() + ROUND_PATIENCE;

	if ((idemq_round_number(slot) & 1) == 0)
		return;
	ConditionVariablePrepareToSleep(&round->over);
	while (idemq_round_number(slot) & 1)
	{
		int64 left = until - idemq_stopwatch();

		if (left <= 0 ||
			ConditionVariableTimedSleep(&round->over, left / 1000 + 1, compat_wait_event_wait()))
			break;
	}
	ConditionVariableCancelSleep();
}
