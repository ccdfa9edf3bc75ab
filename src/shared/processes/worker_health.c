/*
 * shared/processes/worker_health.c
 *		What a background worker is doing, how often it has run each task, and how late it is.
 *
 * The worker records the beginning and the end of each task.  A session that asks reads these
 * records, and the due times of the database's queues, without a lock.  So the values may come from
 * slightly different moments; for example, a task may end in between.
 *
 * The lag is the age of the oldest due time whose work has not been done: the end of a lease, a job
 * that has become ready, a check of groups, or the time at which the worker should have woken up.
 * Tasks that are deferred because they failed, and rows that are locked, count as well, because the
 * lag should show them.
 *
 * Locks: none, only atomics.  Nothing here allocates or raises errors.
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "miscadmin.h"

#include "base/base.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

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

/* Records that a task has ended after usecs microseconds; done: without an error. */
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

/* Reads the health of this database's worker; returns false if none is running. */
bool
idemq_worker_health(WorkerHealth *health)
{
	WorkerSlot *worker = idemq_worker_here();
	static const DueKind kinds[] = {DUE_LEASE, DUE_READY, DUE_GROUPS};
	QueueStateView view = {0};
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
	while (idemq_qstate_next(MyDatabaseId, &view))
	{
		for (int i = 0; i < (int) lengthof(kinds); i++)
		{
			int64 due = idemq_due_at(view.qstate, kinds[i]);

			if (due > 0) /* 0: it is not known since when */
				first = Min(first, due);
		}
	}
	first = Max(first, idemq_clock_advanced_at());
	health->lag = Max(now - first, 0);
	return true;
}

/* Copies the counts of this database's tasks; returns false if it has no worker slot. */
bool
idemq_worker_task_counts(uint64 counts[TASK_KINDS][TASK_COUNTS])
{
	WorkerSlot *worker = idemq_worker_here();

	for (int i = 0; worker != NULL && i < TASK_KINDS * TASK_COUNTS; i++)
		counts[i / TASK_COUNTS][i % TASK_COUNTS] =
			pg_atomic_read_u64(&worker->tasks[i / TASK_COUNTS][i % TASK_COUNTS]);
	return worker != NULL;
}
