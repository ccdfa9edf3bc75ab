/*
 * chores.c
 *		What a background worker does: one function and one transaction for each
 *		chore and queue.
 *
 *		recover		gives jobs in flight their entries back, after a start
 *		reap		takes back expired leases and those of sessions that ended
 *		due			wakes those who wait for what came due by time alone
 *		remind		signals again where nobody claimed after a signal
 *		count		counts the jobs of each queue, when that is not known (gauges.c)
 *		tell		NOTIFY (tell.c): what became ready, and events of single jobs
 *
 * Each runs as the owner of idemq's tables until its transaction is over,
 * deferred triggers included, with SET ROLE and the like forbidden: what a user
 * puts on idemq.jobs gains nothing from the worker's superuser.
 *
 * An error is logged with the chore and the queue, and that chore of that queue
 * is left alone for a while, longer each time; all others go on.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "chores.h"
#include "clock.h"
#include "gauges.h"
#include "guc.h"
#include "queues.h"
#include "ready_scan.h"
#include "reap.h"
#include "tell.h"
#include "wake.h"

/* Index entries that one step of recovery looks through. */
#define RECOVER_STEP 20000
/* Two wake-ups by time alone of one queue are that far apart. */
#define DUE_INTERVAL INT64CONST(1000)
/* A queue is signalled again when nobody claimed for that long. */
#define REMIND_AFTER INT64CONST(100000)
/* A chore that failed is left alone for a second, twice as long each time, up to 2^6. */
#define FAILED_PAUSE USECS_PER_SEC
#define FAILED_DOUBLINGS 6
/* One of a queue that is not there, or not committed yet, for this, up to 2^3. */
#define MISSING_PAUSE INT64CONST(100000)
#define MISSING_DOUBLINGS 3
/* A count that failed is tried again after that. */
#define COUNT_PAUSE (10 * USECS_PER_SEC)
/* Failing chores of queues that are gone are forgotten, at the latest, after that. */
#define TROUBLE_LIFE (600 * USECS_PER_SEC)

typedef struct Chore
{
	const char *name;
	void (*run)(const QueueInfo *queue);
} Chore;

/* A chore of a queue that failed, or found no queue. */
typedef struct Trouble
{
	const Chore *chore;
	int32 queue_id;
	int failures;
	int64 not_before; /* mono */
} Trouble;

static Trouble *troubles = NULL;
static int ntroubles = 0;
static int max_troubles = 0;
static MemoryContext chore_context = NULL;
/* For the log. */
static const char *doing = NULL;
static char doing_queue[IDEMQ_MAX_QUEUE_NAME + 1];
/* When the last NOTIFY was sent (mono). */
static int64 told_at = 0;

static void
recover(const QueueInfo *queue)
{
	idemq_recover_some(queue, RECOVER_STEP);
}

/* Wakes those who wait for what has come due, and notes when the next does. */
static void
due(const QueueInfo *queue)
{
	TimestampTz next;

	/* First: what is enqueued from here on notes itself. */
	pg_atomic_write_u64(&queue->slot->next_due, PG_UINT64_MAX);
	if (idemq_ready_look(queue, &next) && !queue->paused)
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

	pg_atomic_write_u64(&queue->slot->unclaimed_at, 0);
	if (idemq_sleepers_any(idemq_sleepers_of_queue(queue->slot)) && !queue->paused &&
		idemq_ready_look(queue, &next))
		idemq_wake_again(queue->slot);
}

static const Chore recover_chore = {"recover", recover};
static const Chore reap_chore = {"reap", idemq_reap_expired};
static const Chore due_chore = {"due", due};
static const Chore remind_chore = {"remind", remind};

static void
error_context(void *arg)
{
	if (doing_queue[0] != '\0')
		errcontext("idemq worker, chore \"%s\" of queue \"%s\"", doing, doing_queue);
	else
		errcontext("idemq worker, chore \"%s\"", doing);
}

/*
 * Runs a function in a transaction as the owner of idemq's tables; false, with
 * the error logged, when it failed.
 */
static bool
in_transaction(const char *name, void (*function)(void *arg), void *arg)
{
	ErrorContextCallback callback = {error_context_stack, error_context, NULL};
	Oid user;
	int sec_context;
	volatile bool done = false;

	doing = name;
	doing_queue[0] = '\0';
	error_context_stack = &callback;
	pgstat_report_activity(STATE_RUNNING, doing);
	PG_TRY();
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		GetUserIdAndSecContext(&user, &sec_context);
		SetUserIdAndSecContext(idemq_catalog()->owner, sec_context | SECURITY_LOCAL_USERID_CHANGE);
		MemoryContextSwitchTo(chore_context);
		function(arg);
		PopActiveSnapshot();
		CommitTransactionCommand();
		SetUserIdAndSecContext(user, sec_context);
		done = true;
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		EmitErrorReport();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	error_context_stack = callback.previous;
	MemoryContextSwitchTo(chore_context);
	MemoryContextReset(chore_context);
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, "");
	return done;
}

/* One chore of one queue. */
typedef struct Task
{
	const Chore *chore;
	int32 queue_id;
	bool missing; /* its answer: there is no such queue */
} Task;

static void
run_task(void *arg)
{
	Task *task = arg;
	QueueInfo queue;

	task->missing = !idemq_queue_by_id(task->queue_id, &queue) || queue.slot == NULL;
	if (task->missing)
		return;
	strlcpy(doing_queue, queue.name, sizeof(doing_queue));
	task->chore->run(&queue);
}

static Trouble *
find_trouble(const Chore *chore, int32 queue_id)
{
	for (int i = 0; i < ntroubles; i++)
	{
		if (troubles[i].chore == chore && troubles[i].queue_id == queue_id)
			return &troubles[i];
	}
	return NULL;
}

/* Makes room for a trouble, first by forgetting those that nobody asks for any more. */
static void
make_room(int64 now)
{
	if (ntroubles < max_troubles)
		return;
	for (int i = ntroubles - 1; i >= 0; i--)
	{
		if (troubles[i].not_before < now - TROUBLE_LIFE)
			troubles[i] = troubles[--ntroubles];
	}
	if (ntroubles < max_troubles)
		return;
	max_troubles = Max(16, 2 * max_troubles);
	if (troubles == NULL)
		troubles = MemoryContextAlloc(TopMemoryContext, max_troubles * sizeof(Trouble));
	else
		troubles = repalloc(troubles, max_troubles * sizeof(Trouble));
}

/* Forgets the trouble of a chore that went well. */
static void
note_success(const Chore *chore, int32 queue_id)
{
	Trouble *trouble = find_trouble(chore, queue_id);

	if (trouble != NULL)
		*trouble = troubles[--ntroubles];
}

/* Has a chore left alone for a while: pause, doubled each time, so many times at most. */
static void
note_trouble(const Chore *chore, int32 queue_id, int64 pause, int doublings)
{
	Trouble *trouble = find_trouble(chore, queue_id);
	int64 now = idemq_mono_now();

	if (trouble == NULL)
	{
		make_room(now);
		trouble = &troubles[ntroubles++];
		*trouble = (Trouble){chore, queue_id, 0, 0};
	}
	trouble->not_before = now + (pause << Min(trouble->failures, doublings));
	trouble->failures++;
}

/*
 * Runs a chore of a queue if its time (mono) has come and it has not just failed;
 * returns when it is to be looked at again.
 */
static int64
run_chore(const Chore *chore, int32 queue_id, int64 when)
{
	Trouble *trouble = find_trouble(chore, queue_id);
	Task task = {chore, queue_id, false};

	if (trouble != NULL)
		when = Max(when, trouble->not_before);
	if (when > idemq_mono_now())
		return when;
	if (!in_transaction(chore->name, run_task, &task))
		note_trouble(chore, queue_id, FAILED_PAUSE, FAILED_DOUBLINGS);
	else if (task.missing)
		note_trouble(chore, queue_id, MISSING_PAUSE, MISSING_DOUBLINGS);
	else
		note_success(chore, queue_id);
	return 0;
}

/* Returns the earlier of two times; a function, since what it is given may do work. */
static int64
earlier(int64 one, int64 other)
{
	return one < other ? one : other;
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

/* Does what is due in a queue; returns when (mono) to look at it again. */
static int64
do_queue(const SlotView *view)
{
	QueueSlot *slot = view->slot;
	int64 next = PG_INT64_MAX;
	int64 unclaimed = (int64) pg_atomic_read_u64(&slot->unclaimed_at);
	int64 deadline = mono_or_never(pg_atomic_read_u64(&slot->next_deadline));
	int64 next_due = mono_of_due(pg_atomic_read_u64(&slot->next_due));

	if (deadline < PG_INT64_MAX)
		next = earlier(next, run_chore(&reap_chore, view->queue_id, deadline));
	if (view->needs_recovery)
		next = earlier(next, run_chore(&recover_chore, view->queue_id, view->next_recovery));
	if (next_due < PG_INT64_MAX)
		next = earlier(next, run_chore(&due_chore, view->queue_id, next_due));
	if (unclaimed > 0)
		next = earlier(next, run_chore(&remind_chore, view->queue_id, unclaimed + REMIND_AFTER));
	return next;
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

	/* Just told: come again by ourselves, so that a busy queue need not wake us each time. */
	if (!idemq_tell_waiting())
		return now < told_at + delay ? told_at + delay : PG_INT64_MAX;
	if (now < Max(told_at + delay, next_try))
		return Max(told_at + delay, next_try);
	if (in_transaction("tell", idemq_tell, NULL))
		idemq_told();
	else
		next_try = now + FAILED_PAUSE;
	told_at = now;
	return now + delay;
}

static void
count(void *arg)
{
	idemq_gauges_count();
}

/* Counts the jobs for idemq.metrics, if that is due; returns when (mono) to come again. */
static int64
do_count(void)
{
	static int64 next_try = 0;
	int64 known_at = idemq_gauges_due_at();
	int64 due_at = Max(known_at, next_try);

	if (due_at > idemq_mono_now())
		return due_at;
	if (!in_transaction("count", count, NULL) || idemq_gauges_due())
		next_try = idemq_mono_now() + COUNT_PAUSE;
	return 0;
}

static void
discover(void *arg)
{
	QueueInfo queue;
	int count;
	int32 *ids = idemq_queue_ids(PRIVILEGE_ALL, &count);

	for (int i = 0; i < count; i++)
		(void) idemq_queue_by_id(ids[i], &queue); /* gives it a slot */
}

/*
 * Prepares this process, and has every queue looked at: each without a slot gets
 * one, which asks for recovery.  Returns false when that failed.
 */
bool
idemq_chores_begin(void)
{
	chore_context = AllocSetContextCreate(TopMemoryContext, "idemq chore", ALLOCSET_DEFAULT_SIZES);
	if (!in_transaction("discover", discover, NULL))
		return false;
	idemq_for_each_slot(MyDatabaseId, look_anew, NULL);
	return true;
}

/* Does what is due, of every queue once; returns when (mono) to come again. */
int64
idemq_chores_do(void)
{
	int64 next = PG_INT64_MAX;

	idemq_for_each_slot(MyDatabaseId, visit_queue, &next);
	next = earlier(next, do_tell());
	return earlier(next, do_count());
}
