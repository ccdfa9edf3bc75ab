/*
 * worker/task_runner.c
 *		Runs a background worker's maintenance tasks: each in a transaction of its own.
 *
 * Each runs as the owner of idemq's tables until its transaction is over,
 * deferred triggers included, with SET ROLE and the like forbidden: a user's trigger on
 * idemq.jobs gains nothing from the worker's superuser.  What such a trigger has SET is
 * reset after the task.
 *
 * An error is logged with the task and the queue (worker/worker_log.c), and that task of
 * that queue is deferred for a second, twice as long each time, up to 64 s, or up to 8 s if it
 * was refused a lock; all others go on.  A task waits for a lock for 200 ms at most, all
 * tasks together for a tenth of the time.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "worker/worker.h"

/* A task that failed is deferred for a second, twice as long each time, up to 2^6. */
#define FAILED_PAUSE USECS_PER_SEC
#define FAILED_DOUBLINGS 6
/* One that was refused a lock, up to 2^3: locks are released in time. */
#define REFUSED_DOUBLINGS 3
/* Time that tasks have spent waiting for locks is forgotten over this many times as long. */
#define PATIENCE_SHARE 10
/* A queue that is still being created is tried again after that, or when its settings change. */
#define UNSEEN_PAUSE (10 * USECS_PER_SEC)

/* One task of one queue; of all queues at once, when queue_id is 0. */
typedef struct QueueTask
{
	const Task *task;
	intptr_t queue_id; /* as wide as the pointer: a hash key without padding */
} QueueTask;

/* A task that is deferred for a while. */
typedef struct Trouble
{
	QueueTask queue_task; /* hash key */
	int failures;
	/* Its queue is being created, or is gone: until not_before, or until its settings change. */
	bool unseen;
	uint64 settings;  /* as they were: idemq_version_of_queue() */
	int64 not_before; /* mono */
} Trouble;

static HTAB *troubles = NULL;
/* Whether the last task was refused a lock; what such tasks have waited lately, as of when. */
static bool lock_refused = false;
static int64 waited = 0;
static int64 waited_at = 0;
/* Whether the last task found its queue. */
static bool queue_seen = false;
static MemoryContext task_context = NULL;
/* For the log. */
static const char *doing = NULL;
static char doing_queue[IDEMQ_MAX_QUEUE_NAME + 1];

static void
error_context(void *arg)
{
	if (doing_queue[0] != '\0')
		errcontext("idemq worker, maintenance task \"%s\" for queue \"%s\"", doing, doing_queue);
	else
		errcontext("idemq worker, maintenance task \"%s\"", doing);
}

/* Runs a task in its transaction. */
static void
run_queue_task(const QueueTask *queue_task)
{
	const Task *task = queue_task->task;
	QueueInfo queue;

	/* A task that comes due does not run in a database that has begun to follow another. */
	AcceptInvalidationMessages();
	if (task->kind > TASK_FOLLOW && idemq_follows())
		return;
	if (task->run_for_all != NULL)
		task->run_for_all();
	else if ((queue_seen = idemq_queue_by_id((int32) queue_task->queue_id, &queue) &&
						   queue.qstate != NULL))
	{
		strlcpy(doing_queue, queue.name, sizeof(doing_queue));
		pgstat_report_activity(STATE_RUNNING, psprintf("%s on queue %s", doing, doing_queue));
		task->run(&queue);
	}
}

/*
 * Runs a task in a transaction as the owner of idemq's tables; false, with the error logged, when
 * it failed.
 */
static bool
in_transaction(const QueueTask *queue_task)
{
	TaskKind kind = queue_task->task->kind;
	ErrorContextCallback callback = {error_context_stack, error_context, NULL};
	Oid user;
	int sec_context;
	int64 started = idemq_stopwatch();
	int patience;
	volatile bool done = false;

	lock_refused = false;
	queue_seen = true;
	idemq_worker_beats();
	/*
	 * It may wait for a lock for what is left of the patience of all.  So many queues that wait
	 * for the same lock keep the others waiting no longer than one of them would, and from then
	 * on for a tenth of the time.
	 */
	waited = Max(waited - (started - waited_at) / PATIENCE_SHARE, 0);
	waited_at = started;
	patience = Max(IDEMQ_LOCK_PATIENCE - (int) (waited / 1000), 1);
	if (patience != LockTimeout)
		SetConfigOption("lock_timeout", psprintf("%d", patience), PGC_SUSET, PGC_S_OVERRIDE);
	idemq_worker_begins_task(kind);
	doing = idemq_task_names[kind];
	doing_queue[0] = '\0';
	error_context_stack = &callback;
	pgstat_report_activity(STATE_RUNNING, doing);
	PG_TRY();
	{
		idemq_begin_transaction();
		PushActiveSnapshot(GetTransactionSnapshot());
		GetUserIdAndSecContext(&user, &sec_context);
		SetUserIdAndSecContext(idemq_oids()->owner, sec_context | SECURITY_LOCAL_USERID_CHANGE);
		MemoryContextSwitchTo(task_context);
		run_queue_task(queue_task);
		PopActiveSnapshot();
		CommitTransactionCommand();
		SetUserIdAndSecContext(user, sec_context);
		done = true;
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		lock_refused = geterrcode() == ERRCODE_LOCK_NOT_AVAILABLE;
		if (queue_task->task->drops)
			idemq_log_refusal();
		else
			idemq_log_task_error();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	idemq_worker_ends_task(kind, done, idemq_stopwatch() - started);
	if (lock_refused)
		waited += idemq_stopwatch() - started;
	waited = Min(waited, IDEMQ_LOCK_PATIENCE * INT64CONST(1000));
	/* What a user's trigger has SET is not for the next task. */
	ResetAllOptions();
	error_context_stack = callback.previous;
	MemoryContextSwitchTo(task_context);
	MemoryContextReset(task_context);
	pgstat_report_activity(STATE_IDLE, "");
	return done;
}

/*
 * Runs a task of a queue, or, with queue_id 0, of all.  If the task fails, or its queue is not to
 * be seen yet, puts it off for a while, and returns false.
 */
bool
idemq_task_run(const Task *task, int32 queue_id)
{
	QueueTask queue_task = {task, queue_id};
	/* Before it runs: a change meanwhile may be the one that it waits for. */
	uint64 settings = idemq_version_of_queue(queue_id);
	bool done = in_transaction(&queue_task);
	Trouble *trouble;
	bool found;

	if (done && queue_seen)
	{
		(void) hash_search(troubles, &queue_task, HASH_REMOVE, NULL);
		return true;
	}
	if (!done && task->drops)
		return false;
	trouble = hash_search(troubles, &queue_task, HASH_ENTER, &found);
	if (!found)
		trouble->failures = 0;
	trouble->unseen = done;
	trouble->settings = settings;
	trouble->not_before = idemq_mono_now();
	if (done)
		trouble->not_before += UNSEEN_PAUSE;
	else
		trouble->not_before += FAILED_PAUSE
							   << Min(trouble->failures,
									  lock_refused ? REFUSED_DOUBLINGS : FAILED_DOUBLINGS);
	trouble->failures += !done;
	return false;
}

/*
 * Returns when (mono) a task is due.  view: the queue, for a task that runs per queue, or NULL, for a
 * task that runs for all; a task of the other kind is never due.
 */
static int64
wanted_at(const Task *task, const QueueStateView *view)
{
	if ((task->run != NULL) != (view != NULL))
		return PG_INT64_MAX;
	return task->due_at != NULL ? task->due_at(view) : idemq_due_at(view->qstate, task->due);
}

/* Returns what is known about a task that failed; NULL if nothing, or if it may succeed now. */
static const Trouble *
trouble_of(const Task *task, const QueueStateView *view)
{
	QueueTask queue_task = {task, view == NULL ? 0 : view->queue_id};
	const Trouble *trouble = hash_search(troubles, &queue_task, HASH_FIND, NULL);

	if (trouble != NULL && trouble->unseen &&
		trouble->settings != idemq_version_of_queue((int32) queue_task.queue_id))
		return NULL;
	return trouble;
}

/*
 * Returns whether a task that was due by target (mono) has not been done, even if it was tried and
 * failed.  view: as in idemq_task_due_at.  A queue that is being created or is gone has no tasks.
 */
bool
idemq_task_is_left(const Task *task, const QueueStateView *view, int64 target)
{
	const Trouble *trouble;

	if (wanted_at(task, view) > target)
		return false;
	trouble = trouble_of(task, view);
	return trouble == NULL || !trouble->unseen;
}

/* Makes the tasks that failed due again at once. */
void
idemq_tasks_forget_failures(void)
{
	HASH_SEQ_STATUS all;
	Trouble *trouble;

	hash_seq_init(&all, troubles);
	while ((trouble = hash_seq_search(&all)) != NULL)
		trouble->not_before = 0;
}

/*
 * Returns when (mono) a task is to run: later than it is due, if it has just failed.  view: of
 * a queue, NULL for all at once; a task of the other sort is never due.
 */
int64
idemq_task_due_at(const Task *task, const QueueStateView *view)
{
	int64 when = wanted_at(task, view);
	const Trouble *trouble = when == PG_INT64_MAX ? NULL : trouble_of(task, view);

	return trouble == NULL ? when : Max(when, trouble->not_before);
}

/*
 * Runs a task if its time has come and it has not just failed; view: of its queue,
 * NULL for all.  Returns when (mono) to come again.
 */
int64
idemq_task_run_if_due(const Task *task, const QueueStateView *view)
{
	int32 queue_id = view == NULL ? 0 : view->queue_id;
	int64 when = idemq_task_due_at(task, view);
	bool done;

	if (when > idemq_mono_now())
		return when;
	if (task->is_promote_pass)
		idemq_promote_pass_begin(view->qstate);
	/* Before the transaction: a session that makes something due later notes it. */
	if (task->takes)
		(void) idemq_due_take(view->qstate, task->due);
	done = idemq_task_run(task, queue_id);
	/* Nobody else knows that time any more. */
	if (task->takes && !done)
		idemq_due_by(view->qstate, task->due, 0);
	if (task->is_promote_pass)
		idemq_promote_pass_end(view->qstate);
	if (task->ended != NULL)
		task->ended(view, done);
	/*
	 * All is checked once more: what this task has made due did not wake its own worker,
	 * and views of queues are older than the run.
	 */
	return 0;
}

void
idemq_tasks_prepare(void)
{
	HASHCTL info = {0};

	task_context = AllocSetContextCreate(TopMemoryContext, "idemq task", ALLOCSET_DEFAULT_SIZES);
	info.keysize = sizeof(QueueTask);
	info.entrysize = sizeof(Trouble);
	troubles = hash_create("idemq tasks that failed", 16, &info, HASH_ELEM | HASH_BLOBS);
}
