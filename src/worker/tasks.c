/*
 * worker/tasks.c
 *		The maintenance tasks of a background worker: what each does, and when it is due.
 *
 *		promote		gives FIFO groups their heads
 *		reap		takes back expired leases and those of sessions that ended
 *		recover		gives jobs in flight their entries back, after a start
 *		due			wakes the waiters of what came due by time alone; ends pauses (worker/waking.c)
 *		remind		signals again if no claim followed a signal, or if promised room was not used
 *					(worker/waking.c)
 *		expire		cancels jobs that were not claimed in time (worker/expire.c), in steps
 *		handle		starts processes for the queue's handler (worker/handle.c)
 *		tick		enqueues the ticks of schedules (schedule/worker_tick.c)
 *		notify		NOTIFY (worker/notify.c): what became ready, and events of single jobs
 *		announce	NOTIFY (worker/announce.c): which jobs have finished
 *		count		counts the jobs of each queue, when that is not known (queue/queue_counts.c)
 *		purge		deletes what is past its retention (worker/retention.c), in batches
 *		history		writes what queues did in the last 10 s (worker/history.c)
 *
 * A task of one queue is a transaction of its own (worker/task_runner.c), of a slice
 * at most (base/base.h), though never less than one job.  Queues are served round-robin, in the
 * order in which they came due: a queue with much to do keeps another waiting for two slices, and
 * for one job of its own, however large its leases, their payloads or their number.
 *
 * The worker looks at what is due for a queue when its state is marked
 * (shared/waiters/due_queues.c) and after its tasks have run; in between, the heap of scheduled
 * queues knows the time.  So neither a wake-up nor serving a queue costs more where there are more
 * queues, of this database or of others.
 *
 * A queue that is due is in that heap at its time, but no earlier than the worker's last look, when
 * it was not due yet: no tenant's work goes before what was due earlier.  A queue that was served
 * and has more to do goes to the end of the line, so each of n queues that are due is served again
 * after n - 1 others, and the time that serving one takes is bounded.  The heap is memory of this
 * process, a node for each queue state; only setting it up is linear in queues.
 *
 * Once the test clock has moved (shared/waiters/clock_call.c), a task that would be postponed
 * because it was done or failed a moment ago runs at once, everything past its retention is deleted
 * in one pass, and the call is answered when nothing more is due.
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
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "worker/worker.h"

/* A count that was not completed is tried again after that. */
#define COUNT_PAUSE (10 * USECS_PER_SEC)
/* Statistics are reported that long after what they count: PostgreSQL would have 10 s. */
#define REPORT_DELAY USECS_PER_SEC

/*
 * Queues are served for that long; then the worker does what is due for all queues, and its own
 * housekeeping.
 */
#define QUEUES_SLICE INT64CONST(50000)
/* The clock was moved when its offset has grown by so much; less is its usual drift. */
#define CLOCK_MOVED INT64CONST(10000)
/* What could not be read when a pass of the tasks began is read again after this long. */
#define LOOK_PAUSE USECS_PER_SEC

/* When (mono) a count may be tried. */
static int64 next_count = 0;
/* When (mono) marks of queue states were taken last. */
static int64 looked_at = 0;
/* When (mono) to look again whether this database follows another; PG_INT64_MAX: it is known. */
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

/* Counts all jobs, unless another session does; is to come again if that came to nothing. */
static void
count_jobs(void)
{
	int64 jobs;

	(void) idemq_queue_counts_try(&jobs);
	if (idemq_counters_count_due_at() <= idemq_mono_now())
		next_count = idemq_mono_now() + COUNT_PAUSE;
}

/* In the order in which they run; .run is for each queue, .run_for_all for all at once. */
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

/* Reads whether the database follows another, and notes it; runs when that may have changed. */
static const Task look_up_task = {TASK_FOLLOW, .run_for_all = idemq_follow_note_subscription};

/* The earliest is the greatest: a pairing heap has its greatest first. */
static int
compare_scheduled(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	int64 due_a = pairingheap_const_container(ScheduledQueue, node, a)->due;
	int64 due_b = pairingheap_const_container(ScheduledQueue, node, b)->due;

	return due_a < due_b ? 1 : due_a > due_b ? -1 : 0;
}

/*
 * Schedules a queue state for due (mono); PG_INT64_MAX: for no time.  since: it was not due before
 * then, whatever its times say.  A queue state that has been waiting since it came due keeps its
 * position.
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
 * Schedules a queue for the time when the first of its tasks is due, but no earlier than
 * *since (mono), when none was; notes what there is to notify.
 */
static void
plan(const QueueStateView *view, void *since)
{
	int64 due = PG_INT64_MAX;

	idemq_notify_look(view->qstate);
	idemq_announce_look(view->qstate);
	for (int i = 0; i < TASKS; i++)
	{
		int64 when = idemq_task_due_at(&tasks[i], view);

		due = Min(due, when);
	}
	schedule_queue(idemq_qstate_index(view->qstate), due, *(int64 *) since);
}

/* Visits a queue state whose times have changed. */
static void
plan_marked(int qstate_index, void *arg)
{
	QueueStateView view;

	if (idemq_qstate_view(qstate_index, MyDatabaseId, &view))
		plan(&view, &looked_at);
	else
		schedule_queue(qstate_index, PG_INT64_MAX, 0);
}

/*
 * Visits the queue states whose times have changed, or all.  The heap keeps times of day as they
 * were at the visit, so all are visited once the clock has been moved.
 */
static void
plan_changed(void)
{
	static int64 offset = 0;
	int64 offset_now = idemq_timestamp_from_mono(0);
	int64 moved = offset_now - offset;
	int64 now = idemq_mono_now();
	bool all = idemq_due_queues_take(idemq_worker_index(idemq_worker_self()), plan_marked, NULL);

	if (all || moved >= CLOCK_MOVED)
	{
		offset = offset_now;
		idemq_for_each_qstate(MyDatabaseId, plan, &looked_at);
	}
	looked_at = now;
}

/*
 * Serves a queue: each of its tasks that is due runs once.  When they have taken a slice, the queue
 * goes to the end of the line, and continues with the next task.
 */
static void
run_queue_tasks(int qstate_index)
{
	int first = scheduled_queues[qstate_index].stage;
	int64 now;
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
	now = idemq_mono_now();
	if (idemq_qstate_view(qstate_index, MyDatabaseId, &view))
		plan(&view, &now);
}

/*
 * Serves the queues that are due, then does what is due for all queues at once; takes at most
 * QUEUES_SLICE and the tasks of one queue.  Returns when (mono) to come again.
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
		/*
		 * Comes again without a sleep: what these tasks make due, of any queue, is planned first.
		 */
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

/* Makes due what a former worker may have known of a queue; ends a promotion it left open. */
static void
make_due(const QueueStateView *view, void *arg)
{
	static const DueKind kinds[] = {DUE_LEASE, DUE_READY, DUE_EXPIRY, DUE_HANDLER};

	for (int i = 0; i < (int) lengthof(kinds); i++)
		idemq_due_by(view->qstate, kinds[i], 0);
	idemq_promote_pass_end(view->qstate);
}

/*
 * Makes every queue due: a queue without a state gets one, which asks for recovery.  Returns false
 * when that failed.
 */
static bool
tasks_begin(void)
{
	if (!idemq_task_run(&discover_task, 0))
		return false;
	idemq_log_recovery_begins();
	idemq_for_each_qstate(MyDatabaseId, make_due, NULL);
	idemq_tick_begin();
	idemq_history_begin();
	if (scheduled_queues == NULL)
	{
		scheduled_queues = MemoryContextAllocHuge(TopMemoryContext,
												  sizeof(ScheduledQueue) * (Size) idemq_max_queues);
		heap = MemoryContextAllocZero(TopMemoryContext, sizeof(pairingheap));
		heap->ph_compare = compare_scheduled;
	}
	/* No queue state is scheduled. */
	memset(scheduled_queues, 0, sizeof(ScheduledQueue) * (Size) idemq_max_queues);
	pairingheap_reset(heap);
	idemq_for_each_qstate(MyDatabaseId, plan, &looked_at);
	return true;
}

/* Tasks that come due by time, and tasks that follow from these at once. */
#define IS_BY_TIME(kind)                                                                           \
	((kind) == TASK_PROMOTE || (kind) == TASK_REAP || (kind) == TASK_RECOVER ||                    \
	 (kind) == TASK_DUE || (kind) == TASK_EXPIRE || (kind) == TASK_TICK || (kind) == TASK_PURGE || \
	 (kind) == TASK_HISTORY)

/* What a call to do everything due still has to wait for. */
typedef struct Left
{
	int64 target; /* mono: the call was made no later than this */
	uint32 kinds; /* bits of TaskKind */
} Left;

/* For a call of idemq_clock_call, makes sure that nothing is postponed beyond its due time. */
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
	idemq_for_each_qstate(MyDatabaseId, plan, &looked_at);
}

/* Adds the kinds of tasks due by the target: of one queue, or of all if view is NULL. */
static void
add_left(const QueueStateView *view, void *arg)
{
	Left *left = arg;

	for (int i = 0; i < TASKS; i++)
	{
		if (IS_BY_TIME(tasks[i].kind) && idemq_task_is_left(&tasks[i], view, left->target))
			left->kinds |= 1U << tasks[i].kind;
	}
}

/* Returns whether this database follows another; true as well when that cannot be read. */
static bool
tasks_database_follows(void)
{
	bool does;

	/* What changes between the two calls is read in the next pass. */
	if (!idemq_following_is_known(&does) &&
		(!idemq_task_run(&look_up_task, 0) || !idemq_following_is_known(&does)))
		next_look = idemq_mono_now() + LOOK_PAUSE;
	else
		next_look = PG_INT64_MAX;
	return next_look < PG_INT64_MAX || does;
}

/*
 * Reports this process' statistics, for autovacuum's sake; returns when (mono) to
 * come again, should there be nothing else to do.
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
 * Does what is due, for a while; nothing in a database that follows another.  Returns when
 * (mono) to come again.
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
			add_left(NULL, &left);
			idemq_for_each_qstate(MyDatabaseId, add_left, &left);
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
