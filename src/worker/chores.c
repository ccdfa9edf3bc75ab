/*
 * worker/chores.c
 *		The chores of a background worker: what each does, and when it is due.
 *
 *		promote		gives FIFO groups their heads
 *		reap		takes back expired leases and those of sessions that ended
 *		recover		gives jobs in flight their entries back, after a start
 *		due			wakes the sleepers of what came due by time alone; ends pauses (worker/waking.c)
 *		remind		signals again where no claim followed a signal (worker/waking.c)
 *		expire		cancels jobs that were not claimed in time (worker/expire.c), in steps
 *		handle		starts processes for the queue's handler (worker/handle.c)
 *		tick		enqueues the ticks of schedules (schedule/worker_tick.c)
 *		notify		NOTIFY (worker/notify.c): what became ready, and events of single jobs
 *		count		counts the jobs of each queue, when that is not known (queue/queue_counts.c)
 *		purge		deletes what is past its retention (worker/retention.c), in batches
 *
 * A chore of one queue is a transaction of its own (worker/chore_runner.c), of a slice
 * at most (base/base.h), though never less than one job.  Queues have turns, in the order in
 * which they came due (worker/turns.c): a queue with much to do keeps another waiting for two
 * slices, and for one job of its own, however large its leases, their payloads or their number.
 *
 * What is due of a queue is looked at when its slot is marked (shared/sleepers/due_slots.c) and
 * after its turn; in between the heap of turns knows the time.  So neither a wake-up nor a
 * turn costs more where there are more queues, of this database or of others.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "schedule/schedule.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"
#include "worker/worker.h"

/* Index entries that one step of recovery scans. */
#define RECOVER_STEP 20000
/* Groups that one step of promotion gives a head. */
#define PROMOTE_STEP 256
/* A count that was not completed is tried again after that. */
#define COUNT_PAUSE (10 * USECS_PER_SEC)
/* News of a queue that is being created are tried again after that, with those of all others. */
#define UNSENT_PAUSE (USECS_PER_SEC / 10)
/* Statistics are reported that long after what they count: PostgreSQL would have 10 s. */
#define REPORT_DELAY USECS_PER_SEC

/* Turns are taken for that long before what is due for all queues, and the worker's own affairs. */
#define ROUND_TIME INT64CONST(50000)
/* The clock has moved when its offset has by so much; less is its usual drift. */
#define CLOCK_MOVED INT64CONST(10000)
/* What could not be read when a round began is read again after that. */
#define LOOK_PAUSE USECS_PER_SEC

/* When the last NOTIFY was sent, and when the next one and a count may be tried (mono). */
static int64 notified_at = 0;
static int64 next_notify = 0;
static int64 next_count = 0;
/* When (mono) marks of slots were taken last. */
static int64 looked_at = 0;
/* When (mono) to look again whether this database follows another; PG_INT64_MAX: it is known. */
static int64 next_look = 0;

static void
recover(const QueueInfo *queue)
{
	idemq_recover_some(queue, RECOVER_STEP);
}

static void
promote(const QueueInfo *queue)
{
	idemq_promote_batch(queue, PROMOTE_STEP);
}

static void
promote_begins(const SlotView *view)
{
	idemq_round_begin(view->slot);
}

static void
promote_ended(const SlotView *view, bool done)
{
	idemq_round_end(view->slot);
}

/*
 * Just after a NOTIFY the worker comes again by itself, so that a busy queue need not
 * wake it each time.
 */
static int64
notify_due_at(const SlotView *view)
{
	int64 next = notified_at + idemq_notify_delay * INT64CONST(1000);

	if (!idemq_notify_waiting())
		return idemq_mono_now() < next ? next : PG_INT64_MAX;
	return Max(next, next_notify);
}

static void
notify_begins(const SlotView *view)
{
	notified_at = idemq_mono_now();
}

static void
notify_ended(const SlotView *view, bool done)
{
	if (!idemq_notify_ended(done))
		next_notify = notified_at + UNSENT_PAUSE;
}

static int64
count_due_at(const SlotView *view)
{
	int64 due_at = idemq_counters_count_due_at();

	return Max(due_at, next_count);
}

static void
count_ended(const SlotView *view, bool done)
{
	if (idemq_counters_count_due_at() <= idemq_mono_now())
		next_count = idemq_mono_now() + COUNT_PAUSE;
}

static int64
purge_due_at(const SlotView *view)
{
	return idemq_retention_due_at();
}

static void
purge_ended(const SlotView *view, bool done)
{
	idemq_retention_ended(done);
}

/* In the order of a turn; whether a chore is of each queue or of all is said by what it runs. */
static const Chore chores[] = {
	{CHORE_PROMOTE, DUE_GROUPS, .run = promote, .begin = promote_begins, .ended = promote_ended},
	{CHORE_REAP, DUE_LEASE, .run = idemq_reap_expired},
	{CHORE_RECOVER, DUE_RECOVERY, .run = recover},
	{CHORE_DUE, DUE_READY, true, .run = idemq_due},
	{CHORE_REMIND, DUE_SIGNAL, true, .run = idemq_remind},
	{CHORE_EXPIRE, .due_at = idemq_expire_due_at, .run = idemq_expire_some,
	 .ended = idemq_expire_ended},
	{CHORE_HANDLE, DUE_HANDLER, true, .due_at = idemq_handle_due_at, .run = idemq_handle},
	{CHORE_TICK, .due_at = idemq_tick_due_at, .run_for_all = idemq_tick_some},
	{CHORE_NOTIFY, .due_at = notify_due_at, .run_for_all = idemq_notify_send,
	 .begin = notify_begins, .ended = notify_ended},
	{CHORE_COUNT_JOBS, .due_at = count_due_at, .run_for_all = idemq_queue_counts_run,
	 .ended = count_ended},
	{CHORE_PURGE, .due_at = purge_due_at, .run_for_all = idemq_retention_run, .ended = purge_ended},
};
#define CHORES ((int) lengthof(chores))

/* Runs once, when the worker starts, and when the database ceases to follow another. */
static const Chore discover_chore = {CHORE_DISCOVER, .run_for_all = idemq_queues_give_slots};

/* Reads whether the database follows another, and has that last; runs when it may have changed. */
static const Chore look_up_chore = {CHORE_FOLLOW, .run_for_all = idemq_follow_note_subscription};

/* Does what is due for all queues at once; lowers *next to when (mono) to come again. */
static void
do_for_all(int64 *next)
{
	for (int i = 0; i < CHORES; i++)
	{
		int64 when = idemq_chore_run_if_due(&chores[i], NULL);

		*next = Min(*next, when);
	}
}

/* Gives a queue its turn, when the first of its chores is due; notes what there is to notify. */
static void
plan(const SlotView *view, int64 since)
{
	int64 due = PG_INT64_MAX;

	idemq_notify_look(view->slot);
	for (int i = 0; i < CHORES; i++)
	{
		int64 when = idemq_chore_due_at(&chores[i], view);

		due = Min(due, when);
	}
	idemq_turns_put(idemq_slot_index(view->slot), due, since);
}

static void
plan_each(const SlotView *view, void *arg)
{
	plan(view, looked_at);
}

/* Visits a slot whose times have changed. */
static void
plan_marked(int slot, void *arg)
{
	SlotView view;

	if (idemq_slot_view(slot, MyDatabaseId, &view))
		plan(&view, looked_at);
	else
		idemq_turns_put(slot, PG_INT64_MAX, 0);
}

/*
 * Visits the slots whose times have changed, or all.  Times of day stand in the heap as
 * they were at the visit: once the clock has been moved all are visited.
 */
static void
plan_changed(void)
{
	static int64 offset = 0;
	int64 offset_now = idemq_timestamp_from_mono(0);
	int64 moved = offset_now - offset;
	int64 now = idemq_mono_now();
	bool all = idemq_due_slots_take(idemq_worker_place_index(), plan_marked, NULL);

	if (all || moved >= CLOCK_MOVED)
	{
		offset = offset_now;
		idemq_for_each_slot(MyDatabaseId, plan_each, NULL);
	}
	looked_at = now;
}

/*
 * The turn of a queue: each of its chores that is due runs once, unless what came before
 * has taken a slice; then the queue goes on with that chore when its turn comes again.
 */
static void
take_turn(int slot, int first)
{
	SlotView view;
	Slice slice;

	idemq_slice_begin(&slice, SLICE_OF_CHORE);
	for (int i = 0; i < CHORES; i++)
	{
		if (!idemq_slot_view(slot, MyDatabaseId, &view))
			return;
		(void) idemq_chore_run_if_due(&chores[(first + i) % CHORES], &view);
		if (idemq_slice_is_over(&slice))
		{
			idemq_turns_cut(slot, (first + i + 1) % CHORES);
			break;
		}
	}
	if (idemq_slot_view(slot, MyDatabaseId, &view))
		plan(&view, idemq_mono_now());
}

/*
 * Has the queues that are due take turns, and then does what is due for all at once; for
 * ROUND_TIME and a turn at most.  Returns when (mono) to come again.
 */
static int64
do_turns(void)
{
	int64 until = idemq_mono_now() + ROUND_TIME;
	int64 next = PG_INT64_MAX;
	int slot;
	int stage;

	plan_changed();
	while (idemq_turns_take(idemq_mono_now(), &slot, &stage))
	{
		/* What it makes due of its own queue, or of others, is planned before the sleep. */
		next = 0;
		take_turn(slot, stage);
		plan_changed();
		if (idemq_mono_now() >= until)
			break;
	}
	do_for_all(&next);
	return Min(next, idemq_turns_next());
}

/* Makes all chores of a queue due, whatever a former worker knew of it. */
static void
make_due(const SlotView *view, void *arg)
{
	static const DueKind kinds[] = {DUE_LEASE, DUE_READY, DUE_EXPIRY, DUE_HANDLER};

	for (int i = 0; i < (int) lengthof(kinds); i++)
		idemq_due_by(view->slot, kinds[i], 0);
	idemq_round_end(view->slot);
}

/*
 * Makes every queue due: each without a slot gets one, which asks for recovery.  Returns
 * false when that failed.
 */
static bool
begin(void)
{
	if (!idemq_chore_run(&discover_chore, 0))
		return false;
	idemq_log_recovery_begins();
	idemq_for_each_slot(MyDatabaseId, make_due, NULL);
	idemq_tick_begin();
	idemq_turns_begin();
	idemq_for_each_slot(MyDatabaseId, plan_each, NULL);
	return true;
}

/* Returns whether this database follows another; true as well when that cannot be read. */
static bool
follows(void)
{
	bool does;

	/* What changes between the two calls is read in the next round. */
	if (!idemq_following_is_known(&does) &&
		(!idemq_chore_run(&look_up_chore, 0) || !idemq_following_is_known(&does)))
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
	long left = compat_report_stat(forced_at > 0 && now >= forced_at);

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
idemq_chores_do(void)
{
	static bool begun = false;
	int64 next = PG_INT64_MAX;
	int64 report;

	if (follows())
	{
		begun = false;
		next = next_look;
	}
	else if (begun || (begun = begin()))
		next = do_turns();
	else
		next = idemq_mono_now() + LOOK_PAUSE;
	idemq_log_news();
	report = report_statistics();
	return Min(next, report);
}
