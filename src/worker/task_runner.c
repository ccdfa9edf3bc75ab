/*
 * worker/task_runner.c
 *		Runs a background worker's maintenance tasks, each in its own transaction.
 *
 * The transaction, with its deferred triggers, runs as the owner of idemq's tables, and cannot
 * change its role.  So a user's trigger on idemq.jobs never has the rights of the worker's own role,
 * which is a superuser.  Settings that such a trigger changes with SET are reset after the task.
 *
 * If a task fails, the error is logged with the names of the task and the queue
 * (worker/worker_log.c), and the task is postponed for that queue: by 1 s, and by twice as long
 * after each further failure, up to 64 s, or up to 8 s if it did not get a lock.  Other tasks and
 * queues are not affected.  A task waits for a lock for at most 200 ms, and all tasks together spend
 * at most a tenth of the time waiting.
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

/* A task that failed is postponed by FAILED_PAUSE, which is doubled at most this often ... */
#define FAILED_PAUSE USECS_PER_SEC
#define FAILED_DOUBLINGS 6
/* ... or at most this often if it did not get a lock. */
#define REFUSED_DOUBLINGS 3
/* Tasks may spend one PATIENCE_SHARE-th of the time waiting for locks. */
#define PATIENCE_SHARE 10
/* Postponement of a queue that is still being created; it ends when the queue's settings change. */
#define UNSEEN_PAUSE (10 * USECS_PER_SEC)

/* One task of one queue, or, if queue_id is 0, of all queues at once. */
typedef struct QueueTask
{
	const Task *task;
	intptr_t queue_id; /* as wide as the pointer: a hash key without padding */
} QueueTask;

/* A task that is postponed. */
typedef struct Trouble
{
	QueueTask queue_task; /* hash key */
	int failures;		  /* in a row */
	bool unseen;		  /* its queue was not found, because it is being created or was dropped */
	uint64 settings;  /* idemq_version_of_queue() before the run; if unseen, a change ends this */
	int64 not_before; /* mono */
} Trouble;

static HTAB *troubles = NULL;
/* Whether the last task failed because it did not get a lock. */
static bool lock_refused = false;
/* Time (us) that tasks have spent waiting for locks and not regained yet, as of waited_at. */
static int64 waited = 0;
static int64 waited_at = 0; /* stopwatch time */
/* Whether the last task found its queue. */
static bool queue_seen = false;
static MemoryContext task_context = NULL;
/* Names of the current task and queue, for messages; "": the task has no queue. */
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

/* Runs a task in the current transaction; sets queue_seen. */
static void
run_queue_task(const QueueTask *queue_task)
{
	const Task *task = queue_task->task;
	QueueInfo queue;

	/* The database may have begun to follow another one since the task came due. */
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
 * Runs a task in a transaction, as the owner of idemq's tables.  If the task fails, logs the error
 * and returns false.  Sets lock_refused and queue_seen.
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
	 * All tasks share the time for which they may wait for locks.  So if the tasks of many queues
	 * need a lock that they do not get, they delay the other queues only once by the whole
	 * lock_timeout, and from then on for a tenth of the time.
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
	/* A user's trigger may have changed settings. */
	ResetAllOptions();
	error_context_stack = callback.previous;
	MemoryContextSwitchTo(task_context);
	MemoryContextReset(task_context);
	pgstat_report_activity(STATE_IDLE, "");
	return done;
}

/*
 * Runs a task for a queue, or, if queue_id is 0, for all queues.  If the task fails, or cannot see
 * its queue yet, postpones it and returns false.
 */
bool
idemq_task_run(const Task *task, int32 queue_id)
{
	QueueTask queue_task = {task, queue_id};
	/* Before the task runs: if it does not see its queue, a change from then on is worth a retry. */
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
 * Returns when (mono) a task must run: when it is due, or later if it failed recently.  view: as in
 * wanted_at.
 */
int64
idemq_task_due_at(const Task *task, const QueueStateView *view)
{
	int64 when = wanted_at(task, view);
	const Trouble *trouble = when == PG_INT64_MAX ? NULL : trouble_of(task, view);

	return trouble == NULL ? when : Max(when, trouble->not_before);
}

/*
 * Runs a task if it is due and not postponed.  view: as in wanted_at.  Returns when (mono) it must be
 * called again.
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
	/* Before the transaction, so that a time that a session sets during the task is not lost. */
	if (task->takes)
		(void) idemq_due_take(view->qstate, task->due);
	done = idemq_task_run(task, queue_id);
	if (task->takes && !done)
		idemq_due_by(view->qstate, task->due, 0);
	if (task->is_promote_pass)
		idemq_promote_pass_end(view->qstate);
	if (task->ended != NULL)
		task->ended(view, done);
	/* The task may have made tasks due, which does not wake the worker that runs it. */
	return 0;
}

/* Creates what this file keeps in memory; called once in the life of a worker. */
void
idemq_tasks_prepare(void)
{
	HASHCTL info = {0};

	task_context = AllocSetContextCreate(TopMemoryContext, "idemq task", ALLOCSET_DEFAULT_SIZES);
	info.keysize = sizeof(QueueTask);
	info.entrysize = sizeof(Trouble);
	troubles = hash_create("idemq tasks that failed", 16, &info, HASH_ELEM | HASH_BLOBS);
}
