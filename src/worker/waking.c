/*
 * worker/waking.c
 *		Waking the waiters of a queue when no commit wakes them: because a job has come due by time
 *		alone (task "due"), or because no claim or enqueue followed a signal (task "remind").
 *
 * The due time of a task is removed before the task reads the queue (worker/task_runner.c), so an
 * enqueue or a pause that commits later sets a new one.
 *
 * Locks: none of its own.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "worker/worker.h"

/* Minimum time (us) between two runs of task "due" for a queue. */
#define DUE_INTERVAL INT64CONST(1000)
/* Delay before another attempt to end a pause whose row is locked. */
#define PAUSE_RETRY USECS_PER_SEC

/*
 * Wakes a waiter if a job has become due, and notes when the next one becomes due.  Ends pauses of
 * the queue and of its groups whose time has passed, or notes when they will end; also notes when a
 * hold of the queue ends.
 */
void
idemq_due(const QueueInfo *given)
{
	QueueInfo latest;
	const QueueInfo *queue = &latest;
	TimestampTz next;

	IDEMQ_STOP("idemq_due");
	if (!idemq_queue_by_id(given->id, &latest) || latest.qstate == NULL)
		return;
	if (idemq_ready_check(queue, &next, NULL) && !idemq_queue_is_closed(queue))
		idemq_wake_ready(queue->qstate, queue->id, 1, DT_NOEND);
	idemq_worker_note_counts();
	if (idemq_queue_is_held(queue))
		idemq_due_by(queue->qstate, DUE_READY, queue->held_until);
	if (idemq_queue_is_paused(queue))
		idemq_due_by(queue->qstate, DUE_READY, queue->paused_until);
	else if (queue->paused && !idemq_pause_end_if_over(queue))
		idemq_due_by(queue->qstate, DUE_READY, idemq_now() + PAUSE_RETRY);
	if (idemq_group_pause_is_over(queue))
	{
		/* If it ended some of them, their commit makes this task due again, for the others. */
		if (idemq_group_pauses_end(queue) == 0)
			idemq_due_by(queue->qstate, DUE_READY, idemq_now() + PAUSE_RETRY);
	}
	else if (queue->group_pauses_end < DT_NOEND)
		idemq_due_by(queue->qstate, DUE_READY, queue->group_pauses_end);
	/* A scan that finds a ready job stops there, so it does not find the next due time. */
	if (next == DT_NOEND)
		next = idemq_ready_next_due(queue);
	idemq_due_by(queue->qstate, DUE_READY, Max(next, idemq_now() + DUE_INTERVAL));
}

/* Task "remind": signals a waiter again if there is work, because the signaled session may have ended. */
void
idemq_remind(const QueueInfo *queue)
{
	TimestampTz next;

	if (idemq_waiters_any(idemq_waiters_of_queue(queue->qstate)) && !idemq_queue_is_closed(queue) &&
		idemq_ready_check(queue, &next, NULL))
		idemq_wake_again(queue->qstate, 1);
}

/* Task "remind": signals waiters for room again if the signaled sessions have not used the room. */
void
idemq_remind_of_room(const QueueInfo *queue)
{
	idemq_room_signal_again(queue->qstate, queue->id);
}
