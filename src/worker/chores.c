/*
 * worker/chores.c
 *		What a background worker does: one function and one transaction for each
 *		chore and queue.
 *
 *		recover		gives jobs in flight their entries back, after a start
 *		reap		takes back expired leases and those of sessions that ended
 *		promote		gives FIFO groups their heads
 *		due			wakes those who wait for what came due by time alone
 *		remind		signals again where nobody claimed after a signal
 *		count		counts the jobs of each queue, when that is not known (queue/queue_counts.c)
 *		tell		NOTIFY (worker/notify.c): what became ready, and events of single jobs
 *		expire		cancels jobs that nobody claimed in time (worker/expire.c), in steps
 *		purge		deletes what is past its retention (worker/retention.c), in batches
 *
 * worker/chore_runner.c runs them.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "worker/chore_runner.h"
#include "worker/chores.h"
#include "worker/expire.h"
#include "worker/notify.h"
#include "worker/retention.h"
#include "job/promote.h"
#include "job/ready_scan.h"
#include "job/reap.h"
#include "job/recover.h"
#include "queue/queue_counts.h"
#include "queue/queues.h"
#include "shared/counters.h"
#include "shared/group_table.h"
#include "shared/promote_round.h"
#include "shared/slots.h"
#include "shared/wake.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/settings.h"

/* Index entries that one step of recovery looks through. */
#define RECOVER_STEP 20000
/* Groups that one step of promotion gives a head. */
#define PROMOTE_STEP 256
/* Two wake-ups by time alone of one queue are that far apart. */
#define DUE_INTERVAL INT64CONST(1000)
/* A queue is signalled again when nobody claimed for that long. */
#define REMIND_AFTER INT64CONST(100000)
/* A count that did not come to its end is tried again after that. */
#define COUNT_PAUSE (10 * USECS_PER_SEC)
/* Events of a queue that is being created are tried again after that, with those of all others. */
#define UNTOLD_PAUSE (USECS_PER_SEC / 10)

/* When the last NOTIFY was sent (mono). */
static int64 told_at = 0;

static void
recover(const QueueInfo *queue)
{
	idemq_recover_some(queue, RECOVER_STEP);
}

static void
promote(const QueueInfo *queue)
{
	(void) idemq_promote_some(queue, PROMOTE_STEP);
}

/* Wakes those who wait for what has come due, and notes when the next does. */
static void
due(const QueueInfo *queue)
{
	TimestampTz next;
	bool held; /* sleepers look for themselves */

	/* First: what is enqueued from here on notes itself. */
	pg_atomic_write_u64(&queue->slot->next_due, PG_UINT64_MAX);
	if (idemq_ready_look(queue, &next, &held) && !queue->paused)
		idemq_wake_ready(queue->slot, queue->id, 1, DT_NOEND);
	/* A look that found something did not go on to what is not due yet. */
	if (next == DT_NOEND)
		next = idemq_ready_next_due(queue);
	if (next < DT_NOEND)
		idemq_wake_due_at(queue->slot, Max(next, idemq_now() + DUE_INTERVAL));
}

/* Signals again if there is work: a signal was lost with the session that got it. */
static void
remind(const QueueInfo *queue)
{
	TimestampTz next;
	bool held;

	pg_atomic_write_u64(&queue->slot->unclaimed_at, 0);
	if (idemq_sleepers_any(idemq_sleepers_of_queue(queue->slot)) && !queue->paused &&
		idemq_ready_look(queue, &next, &held))
		idemq_wake_again(queue->slot);
}

static void
discover(void)
{
	QueueInfo queue;
	int count;
	int32 *ids = idemq_queue_ids(PRIVILEGE_ALL, &count);

	for (int i = 0; i < count; i++)
		(void) idemq_queue_by_id(ids[i], &queue); /* gives it a slot */
}

static const Chore discover_chore = {"discover", NULL, discover};
static const Chore recover_chore = {"recover", recover, NULL};
static const Chore reap_chore = {"reap", idemq_reap_expired, NULL};
static const Chore promote_chore = {"promote", promote, NULL};
static const Chore due_chore = {"due", due, NULL};
static const Chore remind_chore = {"remind", remind, NULL};
static const Chore count_chore = {"count", NULL, idemq_gauges_count};
static const Chore tell_chore = {"tell", NULL, idemq_tell};
static const Chore expire_chore = {"expire", idemq_expire_some, NULL};
static const Chore purge_chore = {"purge", NULL, idemq_purge_some};

/* Returns the earlier of two times; a function, since what it is given may do work. */
static int64
earlier(int64 one, int64 other)
{
	return one < other ? one : other;
}

/* Returns the later of two times, likewise. */
static int64
later(int64 one, int64 other)
{
	return one > other ? one : other;
}

/*
 * Runs a chore of a queue if its time (mono) has come and it has not just failed;
 * returns when it is to be looked at again.
 */
static int64
run_chore(const Chore *chore, int32 queue_id, int64 when)
{
	when = later(when, idemq_task_not_before(chore, queue_id));
	if (when > idemq_mono_now())
		return when;
	(void) idemq_task_run(chore, queue_id);
	return 0;
}

/* Promotes heads of groups if there are groups without; returns when (mono) to come again. */
static int64
do_promote(const SlotView *view)
{
	int64 when = idemq_groups_due_at(view->slot);

	if (when == PG_INT64_MAX)
		return when;
	when = later(when, idemq_task_not_before(&promote_chore, view->queue_id));
	if (when > idemq_mono_now())
		return when;
	idemq_round_begin(view->slot);
	idemq_task_run(&promote_chore, view->queue_id);
	idemq_round_end(view->slot);
	return 0;
}

/* Reads a time that may be "never". */
static int64
mono_or_never(uint64 value)
{
	return value > (uint64) PG_INT64_MAX ? PG_INT64_MAX : (int64) value;
}

/* Returns when (mono) a time of day is, for ever staying for ever. */
static int64
mono_of_due(uint64 due_at)
{
	return due_at > (uint64) DT_NOEND - 1 ? PG_INT64_MAX
										  : idemq_mono_from_timestamp((TimestampTz) due_at);
}

/* Does a step of the look for jobs that have expired; returns when (mono) to come again. */
static int64
do_expire(QueueSlot *slot, int32 queue_id)
{
	int64 when = idemq_expire_due_at(slot, queue_id);

	if (when == PG_INT64_MAX)
		return when;
	when = later(when, idemq_task_not_before(&expire_chore, queue_id));
	if (when > idemq_mono_now())
		return when;
	idemq_expire_ended(slot, queue_id, idemq_task_run(&expire_chore, queue_id));
	return 0;
}

/* Does what is due in a queue; returns when (mono) to look at it again. */
static int64
do_queue(const SlotView *view)
{
	QueueSlot *slot = view->slot;
	int64 next = PG_INT64_MAX;
	int64 unclaimed = (int64) pg_atomic_read_u64(&slot->unclaimed_at);
	int64 deadline = mono_or_never(pg_atomic_read_u64(&slot->next_deadline));
	int64 next_due = mono_of_due(pg_atomic_read_u64(&slot->next_due));

	next = earlier(next, do_promote(view));
	if (deadline < PG_INT64_MAX)
		next = earlier(next, run_chore(&reap_chore, view->queue_id, deadline));
	if (view->needs_recovery)
		next = earlier(next, run_chore(&recover_chore, view->queue_id, view->next_recovery));
	if (next_due < PG_INT64_MAX)
		next = earlier(next, run_chore(&due_chore, view->queue_id, next_due));
	if (unclaimed > 0)
		next = earlier(next, run_chore(&remind_chore, view->queue_id, unclaimed + REMIND_AFTER));
	return earlier(next, do_expire(slot, view->queue_id));
}

static void
visit_queue(const SlotView *view, void *arg)
{
	int64 *next = arg;

	*next = earlier(*next, do_queue(view));
}

/* Has a queue looked at, whatever a worker before us knew of it. */
static void
look_anew(const SlotView *view, void *arg)
{
	pg_atomic_write_u64(&view->slot->next_due, 0);
	pg_atomic_write_u64(&view->slot->next_deadline, 0);
	idemq_round_end(view->slot);
	pg_atomic_write_u64(&view->slot->next_expiry, 0);
}

/*
 * Sends what there is to tell, if the last NOTIFY is long enough ago; returns when
 * (mono) to come again.
 */
static int64
do_tell(void)
{
	static int64 next_try = 0;
	int64 delay = idemq_notify_delay * INT64CONST(1000);
	int64 now = idemq_mono_now();
	int64 when = later(later(told_at + delay, next_try), idemq_task_not_before(&tell_chore, 0));
	bool done;

	/* Just told: come again by ourselves, so that a busy queue need not wake us each time. */
	if (!idemq_tell_waiting())
		return now < told_at + delay ? told_at + delay : PG_INT64_MAX;
	if (now < when)
		return when;
	done = idemq_task_run_for_all(&tell_chore);
	if (done && !idemq_told())
		next_try = now + UNTOLD_PAUSE;
	told_at = now;
	return now + delay;
}

/* Counts the jobs for idemq.metrics, if that is due; returns when (mono) to come again. */
static int64
do_count(void)
{
	static int64 next_try = 0;
	int64 due_at = later(later(idemq_counters_count_due_at(), next_try),
						 idemq_task_not_before(&count_chore, 0));

	if (due_at > idemq_mono_now())
		return due_at;
	(void) idemq_task_run_for_all(&count_chore);
	if (idemq_counters_count_due())
		next_try = idemq_mono_now() + COUNT_PAUSE;
	return 0;
}

/* Does a batch of what is past its retention, if there is one; returns when (mono) to come again. */
static int64
do_purge(void)
{
	int64 when = idemq_purge_due_at();

	if (when == PG_INT64_MAX)
		return when;
	when = later(when, idemq_task_not_before(&purge_chore, 0));
	if (when > idemq_mono_now())
		return when;
	idemq_purge_ended(idemq_task_run_for_all(&purge_chore));
	return 0;
}

/*
 * Prepares this process, and has every queue looked at: each without a slot gets
 * one, which asks for recovery.  Returns false when that failed.
 */
bool
idemq_chores_begin(void)
{
	idemq_tasks_begin();
	if (!idemq_task_run_for_all(&discover_chore))
		return false;
	idemq_for_each_slot(MyDatabaseId, look_anew, NULL);
	return true;
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
		forced_at = now + left * INT64CONST(1000);
	return forced_at == 0 ? PG_INT64_MAX : forced_at;
}

/* Does what is due, of every queue once; returns when (mono) to come again. */
int64
idemq_chores_do(void)
{
	int64 next = PG_INT64_MAX;

	idemq_for_each_slot(MyDatabaseId, visit_queue, &next);
	next = earlier(next, do_tell());
	next = earlier(next, do_count());
	next = earlier(next, do_purge());
	return earlier(next, report_statistics());
}
