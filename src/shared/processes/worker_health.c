/*
 * shared/processes/worker_health.c
 *		How a background worker does: what it is at, how often it has done what, and how late
 *		it is.
 *
 * The worker notes a task when it begins and when it ends.  An observer reads that, and
 * what is due of the database's queues, without a lock.  So an answer is not of one moment: a
 * task may end between two of its fields.
 *
 * The lag is the age of the oldest time that has passed while its work is not done: a
 * lease's end, a job's time, a group's check, the worker's own waking up.  A task that is
 * deferred because it failed counts, and so does a row that is held: that is what the lag is
 * to show.  A time of 0 says "look at once", and not since when.
 *
 * Locks: none, atomics only.  Nothing here allocates or raises.
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "miscadmin.h"

#include "base/base.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

const char *const idemq_task_names[] = {
	"discover", "follow", "promote", "reap",	 "recover", "due",	 "remind",	"expire",
	"handle",	"tick",	  "notify",	 "announce", "count",	"purge", "history",
};

StaticAssertDecl(lengthof(idemq_task_names) == TASK_KINDS, "each task has a name");

void
idemq_worker_begins_task(TaskKind kind)
{
	idemq_worker_self()->doing = (int) kind + 1;
}

/* Notes that the task has ended after so long; done: without an error. */
void
idemq_worker_ends_task(TaskKind kind, bool done, int64 usecs)
{
	WorkerSlot *worker = idemq_worker_self();

	worker->doing = 0;
	pg_atomic_write_u64(&worker->tasks[kind][TASK_ENDED], (uint64) idemq_mono_now());
	pg_atomic_fetch_add_u64(&worker->tasks[kind][TASK_RUNS], 1);
	pg_atomic_fetch_add_u64(&worker->tasks[kind][TASK_FAILURES], !done);
	pg_atomic_fetch_add_u64(&worker->tasks[kind][TASK_BUSY], (uint64) Max(usecs, 0));
}

static void
earlier(int64 *first, int64 when)
{
	if (when > 0)
		*first = Min(*first, when);
}

/* Notes the earliest time at which something of a queue comes due. */
static void
first_due(const QueueStateView *view, void *arg)
{
	earlier(arg, idemq_due_at(view->qstate, DUE_LEASE));
	earlier(arg, idemq_due_at(view->qstate, DUE_READY));
	earlier(arg, idemq_due_at(view->qstate, DUE_GROUPS));
}

/* Reads the health of this database's worker; false when none runs. */
bool
idemq_worker_health(WorkerHealth *health)
{
	WorkerSlot *worker = idemq_worker_here();
	int64 now = idemq_mono_now();
	int64 first;

	if (worker == NULL || worker->state != WORKER_RUNNING || (health->pid = worker->pid) == 0)
		return false;
	first = idemq_worker_still_since(worker);
	health->stuck_for = now - first < IDEMQ_STUCK_AFTER ? 0 : now - first;
	health->awake = pg_atomic_read_u64(&worker->asleep_until) == PG_UINT64_MAX;
	health->doing = worker->doing - 1;
	health->last_run = 0;
	for (int i = 0; i < TASK_KINDS; i++)
		health->last_run =
			Max(health->last_run, (int64) pg_atomic_read_u64(&worker->tasks[i][TASK_ENDED]));
	idemq_for_each_qstate(MyDatabaseId, first_due, &first);
	first = Max(first, idemq_clock_advanced_at());
	health->lag = Max(now - first, 0);
	return true;
}

/* Copies the counts of this database's tasks; false when it has no worker slot. */
bool
idemq_worker_task_counts(uint64 counts[TASK_KINDS][TASK_COUNTS])
{
	WorkerSlot *worker = idemq_worker_here();

	for (int i = 0; worker != NULL && i < TASK_KINDS * TASK_COUNTS; i++)
		counts[i / TASK_COUNTS][i % TASK_COUNTS] =
			pg_atomic_read_u64(&worker->tasks[i / TASK_COUNTS][i % TASK_COUNTS]);
	return worker != NULL;
}
