/*
 * worker/waking.c
 *		Waking the sleepers of a queue for what no commit has told them: what came due by
 *		time alone (chore "due"), and signals that no claim followed (chore "remind").
 *
 * Each sets the time that made it due to never before it looks: what comes later notes
 * itself.  Should it fail on the way, for a lock say, nobody else knows that time any more: so
 * it is due at once again, and worker/chore_runner.c puts it off.
 *
 * Locks: none of its own.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"
#include "worker/worker.h"

/* Two wake-ups by time alone of one queue are that far apart. */
#define DUE_INTERVAL INT64CONST(1000)
/* The row of a queue whose pause is over, and that is locked, is tried again after that. */
#define PAUSE_RETRY USECS_PER_SEC
/* Sleepers are signalled again when there was no claim for that long. */
#define REMIND_AFTER INT64CONST(100000)

/* Returns when (mono) something comes due; next_due is a time of day. */
int64
idemq_due_due_at(const SlotView *view)
{
	uint64 next_due = pg_atomic_read_u64(&view->slot->next_due);

	return next_due > (uint64) DT_NOEND - 1 ? PG_INT64_MAX
											: idemq_mono_from_timestamp((TimestampTz) next_due);
}

/*
 * Wakes a sleeper if something has come due, and notes when the next does; ends a pause whose
 * time has come, or notes when it comes.
 */
void
idemq_due(const QueueInfo *given)
{
	QueueInfo latest;
	const QueueInfo *queue = &latest;
	TimestampTz next;
	bool held; /* not used: sleepers check for themselves */

	/* Before the scan: what is enqueued from here on notes itself, and what is paused. */
	pg_atomic_write_u64(&given->slot->next_due, PG_UINT64_MAX);
	pg_memory_barrier();
	if (!idemq_queue_by_id(given->id, &latest) || latest.slot == NULL)
		return;
	if (idemq_ready_check(queue, &next, &held) && !idemq_queue_is_paused(queue))
		idemq_wake_ready(queue->slot, queue->id, 1, DT_NOEND);
	if (idemq_queue_is_paused(queue))
		idemq_wake_due_at(queue->slot, queue->paused_until);
	else if (queue->paused && !idemq_pause_end_if_over(queue))
		idemq_wake_due_at(queue->slot, idemq_now() + PAUSE_RETRY);
	/* A scan that found something did not go on to what is not due yet. */
	if (next == DT_NOEND)
		next = idemq_ready_next_due(queue);
	if (next < DT_NOEND)
		idemq_wake_due_at(queue->slot, Max(next, idemq_now() + DUE_INTERVAL));
}

/* Has it run again when it has come to nothing. */
void
idemq_due_ended(const SlotView *view, bool done)
{
	if (!done)
		idemq_wake_due_at(view->slot, 1);
}

/* Returns when (mono) sleepers are to be signalled again. */
int64
idemq_remind_due_at(const SlotView *view)
{
	int64 unclaimed = (int64) pg_atomic_read_u64(&view->slot->unclaimed_at);

	return unclaimed > 0 ? unclaimed + REMIND_AFTER : PG_INT64_MAX;
}

/* Signals again if there is work: a signal was lost with the session that got it. */
void
idemq_remind(const QueueInfo *queue)
{
	TimestampTz next;
	bool held;

	pg_atomic_write_u64(&queue->slot->unclaimed_at, 0);
	if (idemq_sleepers_any(idemq_sleepers_of_queue(queue->slot)) && !idemq_queue_is_paused(queue) &&
		idemq_ready_check(queue, &next, &held))
		idemq_wake_again(queue->slot);
}

/* Has it run again when it has come to nothing, unless there was another signal. */
void
idemq_remind_ended(const SlotView *view, bool done)
{
	uint64 none = 0;

	if (!done &&
		pg_atomic_compare_exchange_u64(&view->slot->unclaimed_at, &none, (uint64) idemq_mono_now()))
		idemq_worker_mark_slot(idemq_slot_index(view->slot));
}
