/*
 * worker/tasks.c
 *		The maintenance tasks of a background worker: what each does, and when it is due.
 *
 *		promote		promotes the heads of groups
 *		reap		takes back expired leases, and leases of sessions that ended
 *		recover		after a start, adds the missing lease entries of running jobs
 *		due			wakes waiters for jobs that came due by time alone; ends pauses (worker/waking.c)
 *		remind		signals again if no claim followed a signal, or if promised room was not used
 *					(worker/waking.c)
 *		expire		cancels jobs that were not claimed in time (worker/expire.c), in steps
 *		handle		starts processes for the queue's handler (worker/handle.c)
 *		tick		enqueues the ticks of schedules (schedule/tick.c)
 *		notify		sends NOTIFY for ready jobs and for events of single jobs (worker/notify.c)
 *		announce	sends NOTIFY for finished jobs (worker/announce.c)
 *		count		counts the jobs of each queue, if the numbers are unknown (queue/queue_counts.c)
 *		purge		deletes rows that are past their retention (worker/retention.c), in batches
 *		history		writes each queue's figures of the last 10 s (worker/history.c)
 *
 * A task of one queue runs in its own transaction (worker/task_runner.c), which ends after a slice
 * (base/base.h) but always processes at least one job.  Queues are served round-robin, in the order
 * in which they came due.  So a queue with much work delays another queue by at most two slices and
 * one job, no matter how many jobs it has or how large they are.
 *
 * The worker reads a queue's due times when the queue's state is marked
 * (shared/processes/worker_call.c) and after the queue's tasks have run.  Otherwise, it relies on
 * the time in the heap of scheduled queues.  So the cost of a wake-up, and of serving a queue, does
 * not depend on the number of queues.
 *
 * In the heap, a queue has the time at which it came due, but never a time before the worker last
 * read the due times, because it was not due then.  So no queue can overtake one that came due
 * earlier.  A queue that was served and has more work goes to the end of the line.  So if n queues
 * are due, each is served again after the n - 1 others.  The heap is local to this process, with one
 * node per queue state.  Only setting it up takes time proportional to the number of queues.
 *
 * After the test clock has moved (shared/processes/clock_call.c), a task that is due runs even if it
 * ran or failed a moment ago, and one pass of retention visits all jobs.  The call is answered when
 * nothing more is due.
 */
#include "postgres.h"

#include "lib/pairingheap.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "schedule/schedule.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "worker/worker.h"

/* Delay before another attempt to count, if a count was not completed. */
#define COUNT_PAUSE (10 * USECS_PER_SEC)
/* Maximum delay of this process's statistics; PostgreSQL's own maximum is 10 s. */
#define REPORT_DELAY USECS_PER_SEC

/* Time (us) for which queues are served before the tasks that run for all queues at once. */
#define QUEUES_SLICE INT64CONST(50000)
/* If the clock's offset has grown by this much (us), the clock was set; less is its usual drift. */
#define CLOCK_MOVED INT64CONST(10000)
/* Delay before another attempt if a pass of the tasks could not begin. */
#define LOOK_PAUSE USECS_PER_SEC

/* When (mono) the jobs may be counted again. */
static int64 next_count = 0;
/* When (mono) the marks of queue states were last taken. */
static int64 looked_at = 0;
/* When (mono) to read again whether this database follows another; PG_INT64_MAX: this is known. */
static int64 next_look = 0;

typedef struct ScheduledQueue
{
	pairingheap_node node;
	int64 due;	/* mono */
	bool waits; /* it is in the heap */
	int stage;	/* the task that runs first next time: the last slice ended before it */
} ScheduledQueue;

static ScheduledQueue *scheduled_queues = NULL;
static pairingheap *heap = NULL;

static int64
count_due_at(const QueueStateView *view)
{
	int64 due_at = idemq_counters_count_due_at();

	return Max(due_at, next_count);
}

/* Counts all jobs, unless another session is counting them.  Tries again later if this fails. */
static void
count_jobs(void)
{
	int64 jobs;

	(void) idemq_queue_counts_try(&jobs);
	if (idemq_counters_count_due_at() <= idemq_mono_now())
		next_count = idemq_mono_now() + COUNT_PAUSE;
}

/* In the order in which they run. */
static const Task tasks[] = {
	{TASK_PROMOTE, DUE_GROUPS, .run = idemq_promote_batch, .is_promote_pass = true},
	{TASK_REAP, DUE_LEASE, .run = idemq_reap_expired},
	{TASK_RECOVER, DUE_RECOVERY, .run = idemq_recover_some},
	{TASK_DUE, DUE_READY, true, .run = idemq_due},
	{TASK_REMIND, DUE_SIGNAL, true, .run = idemq_remind},
	{TASK_REMIND, DUE_ROOM, true, .run = idemq_remind_of_room},
	{TASK_EXPIRE, .due_at = idemq_expire_due_at, .run = idemq_expire_some,
	 .ended = idemq_expire_ended},
	{TASK_HANDLE, DUE_HANDLER, true, .due_at = idemq_handle_due_at, .run = idemq_handle},
	{TASK_TICK, .due_at = idemq_tick_due_at, .run_for_all = idemq_tick_some,
	 .ended = idemq_tick_ended},
	{TASK_NOTIFY, .due_at = idemq_notify_due_at, .run_for_all = idemq_notify_send,
	 .ended = idemq_notify_ended},
	{TASK_ANNOUNCE, .drops = true, .due_at = idemq_announce_due_at,
	 .run_for_all = idemq_announce_send, .ended = idemq_announce_ended},
	{TASK_COUNT_JOBS, .due_at = count_due_at, .run_for_all = count_jobs},
	{TASK_PURGE, .due_at = idemq_retention_due_at, .run_for_all = idemq_retention_run,
	 .ended = idemq_retention_ended},
	{TASK_HISTORY, .due_at = idemq_history_due_at, .run_for_all = idemq_history_write,
	 .ended = idemq_history_ended},
};
#define TASKS ((int) lengthof(tasks))
#define HISTORY (&tasks[TASKS - 1])

/* Runs once, when the worker starts, and when the database ceases to follow another. */
static const Task discover_task = {TASK_DISCOVER, .run_for_all = idemq_queues_give_qstates};

/* Reads whether the database follows another one, if that may have changed. */
static const Task look_up_task = {TASK_FOLLOW, .run_for_all = idemq_follow_note_subscription};

/* A pairing heap returns its greatest element first, so an earlier time is greater. */
static int
compare_scheduled(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	int64 due_a = pairingheap_const_container(ScheduledQueue, node, a)->due;
	int64 due_b = pairingheap_const_container(ScheduledQueue, node, b)->due;

	return due_a < due_b ? 1 : due_a > due_b ? -1 : 0;
}

/*
 * Schedules a queue state for due (mono); PG_INT64_MAX: never.  since (mono): it cannot have come
 * due before this time, so it gets no earlier position.  A queue state that is due and waiting
 * already keeps its position.
 */
static void
schedule_queue(int qstate_index, int64 due, int64 since)
{
	ScheduledQueue *scheduled = &scheduled_queues[qstate_index];
	int64 now = idemq_mono_now();

	if (scheduled->waits && scheduled->due <= now && due <= now)
		return;
	if (scheduled->waits)
		pairingheap_remove(heap, &scheduled->node);
	scheduled->waits = due < PG_INT64_MAX;
	scheduled->due = Max(due, since);
	if (scheduled->waits)
		pairingheap_add(heap, &scheduled->node);
}

/* Returns when (mono) the next queue is due; PG_INT64_MAX: none is scheduled. */
static int64
next_scheduled(void)
{
	if (pairingheap_is_empty(heap))
		return PG_INT64_MAX;
	return pairingheap_container(ScheduledQueue, node, pairingheap_first(heap))->due;
}

/*
 * Schedules a queue for the time when its first task is due (since: as in schedule_queue), and lets
 * the tasks notify and announce note whether it has something to send.
 */
static void
plan(const QueueStateView *view, int64 since)
{
	int64 due = PG_INT64_MAX;

	idemq_notify_look(view->qstate);
	idemq_announce_look(view->qstate);
	for (int i = 0; i < TASKS; i++)
	{
		int64 when = idemq_task_due_at(&tasks[i], view);

		due = Min(due, when);
	}
	schedule_queue(idemq_qstate_index(view->qstate), due, since);
}

/* Schedules all queues of this database. */
static void
plan_all(void)
{
	QueueStateView view = {0};

	while (idemq_qstate_next(MyDatabaseId, &view))
		plan(&view, looked_at);
}

/* Schedules a queue state whose due times have changed; it may have become free. */
static void
plan_marked(int qstate_index)
{
	QueueStateView view;

	if (idemq_qstate_view(qstate_index, MyDatabaseId, &view))
		plan(&view, looked_at);
	else
		schedule_queue(qstate_index, PG_INT64_MAX, 0);
}

/*
 * Schedules the queue states whose due times have changed.  If the clock was set, schedules all of
 * them, because the heap contains monotonic times that were computed from times of day.
 */
static void
plan_changed(void)
{
	static int64 offset = 0;
	int64 offset_now = idemq_timestamp_from_mono(0);
	int64 moved = offset_now - offset;
	int64 now = idemq_mono_now();
	bool all = idemq_worker_take_marks(plan_marked);

	if (all || moved >= CLOCK_MOVED)
	{
		offset = offset_now;
		plan_all();
	}
	looked_at = now;
}

/*
 * Serves a queue: runs each of its tasks that is due once.  If this takes longer than a slice, the
 * queue goes to the end of the line, and continues with the next task.
 */
static void
run_queue_tasks(int qstate_index)
{
	int first = scheduled_queues[qstate_index].stage;
	QueueStateView view;
	Slice slice;

	scheduled_queues[qstate_index].stage = 0;
	idemq_slice_begin(&slice, SLICE_OF_TASK);
	for (int i = 0; i < TASKS; i++)
	{
		if (!idemq_qstate_view(qstate_index, MyDatabaseId, &view))
			return;
		(void) idemq_task_run_if_due(&tasks[(first + i) % TASKS], &view);
		if (idemq_slice_is_over(&slice))
		{
			scheduled_queues[qstate_index].stage = (first + i + 1) % TASKS;
			break;
		}
	}
	if (idemq_qstate_view(qstate_index, MyDatabaseId, &view))
		plan(&view, idemq_mono_now());
}

/*
 * Serves the queues that are due, for QUEUES_SLICE plus the tasks of one queue; then runs the tasks
 * that run for all queues at once.  Returns when (mono) it must be called again.
 */
static int64
run_due_queues(void)
{
	int64 until = idemq_stopwatch() + QUEUES_SLICE;
	int64 next = PG_INT64_MAX;

	plan_changed();
	while (next_scheduled() <= idemq_mono_now())
	{
		ScheduledQueue *scheduled =
			pairingheap_container(ScheduledQueue, node, pairingheap_remove_first(heap));

		scheduled->waits = false;
		/* These tasks may make any queue due, so its due times must be read before a sleep. */
		next = 0;
		run_queue_tasks((int) (scheduled - scheduled_queues));
		plan_changed();
		if (idemq_stopwatch() >= until)
			break;
	}
	for (int i = 0; i < TASKS; i++)
	{
		int64 when = idemq_task_run_if_due(&tasks[i], NULL);

		next = Min(next, when);
	}
	until = next_scheduled();
	return Min(next, until);
}

/*
 * Starts from scratch: gives each queue without a state a new one, whose recovery is due, makes the
 * other queues due, and forgets all schedules.  Returns false if this failed.
 */
static bool
tasks_begin(void)
{
	QueueStateView view = {0};

	if (!idemq_task_run(&discover_task, 0))
		return false;
	idemq_log_recovery_begins();
	/* A former worker may have taken due times, or may have exited during a promotion pass. */
	while (idemq_qstate_next(MyDatabaseId, &view))
	{
		idemq_due_by(view.qstate, DUE_LEASE, 0);
		idemq_due_by(view.qstate, DUE_READY, 0);
		idemq_due_by(view.qstate, DUE_EXPIRY, 0);
		idemq_due_by(view.qstate, DUE_HANDLER, 0);
		idemq_promote_pass_end(view.qstate);
	}
	idemq_tick_begin();
	/* The counters may be younger than a step because the server has just started. */
	idemq_history_begin(idemq_now() - IDEMQ_HISTORY_STEP);
	if (scheduled_queues == NULL)
	{
		scheduled_queues = MemoryContextAllocHuge(TopMemoryContext,
												  sizeof(ScheduledQueue) * (Size) idemq_max_queues);
		heap = MemoryContextAllocZero(TopMemoryContext, sizeof(pairingheap));
		heap->ph_compare = compare_scheduled;
	}
	memset(scheduled_queues, 0, sizeof(ScheduledQueue) * (Size) idemq_max_queues);
	pairingheap_reset(heap);
	plan_all();
	return true;
}

/* Tasks that come due by time, and tasks for which these create work. */
#define IS_BY_TIME(kind)                                                                           \
	((kind) == TASK_PROMOTE || (kind) == TASK_REAP || (kind) == TASK_RECOVER ||                    \
	 (kind) == TASK_DUE || (kind) == TASK_EXPIRE || (kind) == TASK_TICK || (kind) == TASK_PURGE || \
	 (kind) == TASK_HISTORY)

/* The tasks that a call of idemq_clock_call must still wait for. */
typedef struct Left
{
	int64 target; /* mono: a task due by then, because the call was made no later than this */
	uint32 kinds; /* bits of TaskKind */
} Left;

/* For a call of idemq_clock_call, makes all postponed tasks due. */
static void
tasks_make_all_due(uint64 call)
{
	static uint64 last = 0;

	/* In every pass, because a scan that began before the clock moved is postponed at its end. */
	idemq_expire_make_due();
	if (call != last)
	{
		idemq_tasks_forget_failures();
		idemq_retention_make_due();
		/* The step in which the clock moved must not include what follows. */
		(void) idemq_task_run_if_due(HISTORY, NULL);
	}
	last = call;
	plan_all();
}

/*
 * Adds the kinds of tasks that are due by the target: tasks of one queue, or, if view is NULL, tasks
 * that run for all queues at once.
 */
static void
add_left(const QueueStateView *view, Left *left)
{
	for (int i = 0; i < TASKS; i++)
	{
		if (IS_BY_TIME(tasks[i].kind) && idemq_task_is_left(&tasks[i], view, left->target))
			left->kinds |= 1U << tasks[i].kind;
	}
}

/*
 * Returns whether this database follows another one; also true if that could not be read, and then
 * sets next_look.
 */
static bool
tasks_database_follows(void)
{
	bool does;

	/* If this changes after look_up_task has read it, it is read again in the next pass. */
	if (!idemq_following_is_known(&does) &&
		(!idemq_task_run(&look_up_task, 0) || !idemq_following_is_known(&does)))
		next_look = idemq_mono_now() + LOOK_PAUSE;
	else
		next_look = PG_INT64_MAX;
	return next_look < PG_INT64_MAX || does;
}

/*
 * Reports this process's statistics, on which autovacuum depends.  Returns when (mono) it must be
 * called again.
 */
static int64
report_statistics(void)
{
	static int64 forced_at = 0; /* 0: nothing is left to report */
	int64 now = idemq_mono_now();
	long left = pgstat_report_stat(forced_at > 0 && now >= forced_at);

	if (left == 0)
		forced_at = 0;
	else if (forced_at == 0)
		forced_at = now + Min(left * INT64CONST(1000), REPORT_DELAY);
	return forced_at == 0 ? PG_INT64_MAX : forced_at;
}

/*
 * Runs the tasks that are due, for a limited time; runs none in a database that follows another one.
 * Returns when (mono) it must be called again.
 */
int64
idemq_tasks_do(void)
{
	static bool begun = false;
	uint64 call = idemq_clock_called();
	Left left = {.target = idemq_mono_now()};
	int64 next = PG_INT64_MAX;
	int64 report;

	if (tasks_database_follows())
	{
		begun = false;
		next = next_look;
		left.kinds = next_look < PG_INT64_MAX ? 1U << TASK_FOLLOW : 0;
	}
	else if (begun || (begun = tasks_begin()))
	{
		if (unlikely(call != 0))
			tasks_make_all_due(call);
		next = run_due_queues();
		if (unlikely(call != 0))
		{
			QueueStateView view = {0};

			add_left(NULL, &left);
			while (idemq_qstate_next(MyDatabaseId, &view))
				add_left(&view, &left);
		}
	}
	else
	{
		next = idemq_mono_now() + LOOK_PAUSE;
		left.kinds = 1U << TASK_DISCOVER;
	}
	if (unlikely(call != 0))
		idemq_clock_answer(call, left.kinds);
	idemq_log_news();
	report = report_statistics();
	return Min(next, report);
}
