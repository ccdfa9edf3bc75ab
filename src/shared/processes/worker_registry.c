/*
 * shared/processes/worker_registry.c
 *		Which databases have a background worker: the registry in shared memory by
 *		which sessions, the launcher and the workers find each other.
 *
 * A worker slot belongs to one database.  Its life:
 *
 *		free -> WANTED: CREATE EXTENSION at its commit, the first use in a session, the
 *			launcher's visit to every database
 *		WANTED -> STARTING, with a new serial: the launcher asked the postmaster
 *		STARTING -> RUNNING: the worker attached, showing the serial
 *		STARTING -> WANTED: it ended, or did not come in time, or a session needs the
 *			database: a worker that comes all the same shows another serial or finds no
 *			STARTING, and ends before it connects to what may be gone
 *		WANTED, STARTING -> free: the launcher found that the database is gone
 *		WANTED -> HELD: the session that holds it has dropped the database
 *		RUNNING -> free, or HELD while a session needs the database: the worker found no
 *			extension
 *		RUNNING -> WANTED, later after each short life: the worker ended
 *		free -> HELD -> free: a session needs a database that has no worker
 *		HELD -> WANTED: a worker was asked for meanwhile
 *
 * A session that needs a database for itself (hooks/exclusive_database.c) sends the
 * worker away: the worker slot counts such sessions, and no worker starts while there is one.
 * How a worker sleeps without losing a wake-up is described in shared/processes/worker_call.c.
 *
 * Locks: see README.md, level 4.  workers_lock covers every field without another rule at
 * its declaration (shared/processes/processes.h).  A worker slot that was found without the lock
 * may be another database's by the time it is used.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/processes/processes.h"

/* A worker that lived so long did not fail at its start. */
#define LONG_LIFE (10 * USECS_PER_SEC)
/* A worker that ended is started again after that, doubled for each short life in a row. */
#define RESTART_DELAY (USECS_PER_SEC / 2)
/* It is doubled so many times at most. */
#define MAX_DOUBLINGS 6

typedef struct WorkerRegistry
{
	LWLock workers_lock;
	int32 launcher; /* its proc number, or -1 */
	WorkerSlot workers[FLEXIBLE_ARRAY_MEMBER];
} WorkerRegistry;

static WorkerRegistry *worker_registry = NULL;
/* The worker slot that this process works for, when it is a worker. */
static WorkerSlot *my_worker_slot = NULL;

/* Begins the counts of a worker whose database has just got its worker slot. */
static void
begin_counts(WorkerSlot *worker)
{
	worker->doing = 0;
	for (int i = 0; i < TASK_KINDS * TASK_COUNTS; i++)
		pg_atomic_init_u64(&worker->tasks[i / TASK_COUNTS][i % TASK_COUNTS], 0);
}

/* Makes the worker slots; their memory is zeros. */
static void
worker_registry_init(int tranche)
{
	LWLockInitialize(&worker_registry->workers_lock, tranche);
	worker_registry->launcher = -1;
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		WorkerSlot *worker = &worker_registry->workers[i];

		worker->proc = -1;
		pg_atomic_init_u64(&worker->asleep_until, PG_UINT64_MAX);
		pg_atomic_init_u32(&worker->asked, WORKER_ASKED_RECHECK);
		pg_atomic_init_u64(&worker->beat, 0);
		pg_atomic_init_u64(&worker->clock_asked, 0);
		pg_atomic_init_u64(&worker->clock_done, 0);
		pg_atomic_init_u32(&worker->clock_left, 0);
		ConditionVariableInit(&worker->clock_answered);
		pg_atomic_init_u64(&worker->counted_at, 0);
		begin_counts(worker);
	}
}

const ShmemPart idemq_workers_part = {.area = (void **) &worker_registry,
									  .size = offsetof(WorkerRegistry, workers),
									  .each = sizeof(WorkerSlot),
									  .count = idemq_workers_max,
									  .lies_in = AREA_WORKERS,
									  .tranche = "idemq workers",
									  .init = worker_registry_init};

/* Returns how many worker slots there are: one for every worker that may exist. */
int
idemq_workers_max(void)
{
	return Max(max_worker_processes, 1);
}

/* Returns the worker slot that this process works for; NULL when it is no worker. */
WorkerSlot *
idemq_worker_self(void)
{
	return my_worker_slot;
}

/* Returns the worker slot of an index. */
WorkerSlot *
idemq_worker_at(int index)
{
	return &worker_registry->workers[index];
}

int
idemq_worker_index(const WorkerSlot *worker)
{
	return (int) (worker - worker_registry->workers);
}

/* Finds a database's worker slot; NULL when it has none. */
static WorkerSlot *
worker_of(Oid database)
{
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		if (worker_registry->workers[i].state != WORKER_FREE &&
			worker_registry->workers[i].database == database)
			return &worker_registry->workers[i];
	}
	return NULL;
}

/*
 * Returns this database's worker slot, NULL when it has none, as far as is known without a lock.
 * It is mostly where it was the last time, so this is not linear in databases.  For a worker it is
 * the slot that the worker was given, whatever has become of that.
 */
WorkerSlot *
idemq_worker_here(void)
{
	static WorkerSlot *last = NULL;

	if (my_worker_slot != NULL)
		return my_worker_slot;
	if (last == NULL || last->state == WORKER_FREE || last->database != MyDatabaseId)
		last = worker_of(MyDatabaseId);
	return last;
}

/*
 * Returns since when (mono) a worker has not moved though it should: since it began its present
 * piece of work, was called, or should have woken by itself.  A time in the future: it may sleep.
 */
int64
idemq_worker_still_since(WorkerSlot *worker)
{
	uint64 until = pg_atomic_read_u64(&worker->asleep_until);
	uint64 beat;
	int64 still;

	pg_read_barrier(); /* it notes its beat before it says that it is awake */
	beat = pg_atomic_read_u64(&worker->beat);
	still = (int64) (until == PG_UINT64_MAX ? beat : Max(until & ~WORKER_CALLED, beat));
	return Max(still, idemq_clock_advanced_at());
}

/* Finds a database's worker slot, or gives it a new one; NULL when all are taken.  Lock held. */
static WorkerSlot *
find_or_take_worker(Oid database, WorkerSlotState state)
{
	WorkerSlot *worker = worker_of(database);

	if (worker != NULL)
		return worker;
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		worker = &worker_registry->workers[i];
		if (worker->state != WORKER_FREE)
			continue;
		worker->database = database;
		worker->state = state;
		worker->away = 0;
		worker->failures = 0;
		worker->told = false;
		worker->not_before = 0;
		begin_counts(worker);
		return worker;
	}
	return NULL;
}

static void
wake_proc(int32 proc)
{
	if (proc >= 0)
		SetLatch(&GetPGProcByNumber(proc)->procLatch);
}

/*
 * Asks for a worker in a database.  Returns false when the worker registry is full: then
 * there are as many workers as max_worker_processes allows, or more.
 */
bool
idemq_worker_want(Oid database)
{
	WorkerSlot *worker;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = find_or_take_worker(database, WORKER_WANTED);
	if (worker != NULL && worker->state == WORKER_HELD)
		worker->state = WORKER_WANTED;
	if (worker != NULL && worker->state == WORKER_WANTED)
		wake_proc(worker_registry->launcher);
	LWLockRelease(&worker_registry->workers_lock);
	return worker != NULL;
}

/* Asks for a worker in this database, where idemq is in use. */
void
idemq_worker_announce_use(void)
{
	IDEMQ_STOP("idemq_worker_announce_use");
	if (!RecoveryInProgress())
		(void) idemq_worker_want(MyDatabaseId);
}

/* Has a database's worker check whether the extension is still there. */
void
idemq_worker_recheck(Oid database)
{
	WorkerSlot *worker = worker_of(database);

	if (worker == NULL)
		return;
	(void) pg_atomic_fetch_or_u32(&worker->asked, WORKER_ASKED_RECHECK);
	wake_proc(worker->proc);
}

/*
 * Has a database checked for the extension, after a commit that may have brought it.  A
 * worker that has checked before, and is about to leave, checks again.
 */
void
idemq_worker_visit(Oid database)
{
	idemq_worker_recheck(database);
	(void) idemq_worker_want(database);
}

/*
 * Keeps workers away from a database until idemq_worker_release, once for each
 * call.  Returns the process of the worker that is there, whose latch is set; 0: none.
 * *held: whether there is something to release; not when the worker registry is full.
 */
pid_t
idemq_worker_hold(Oid database, bool *held)
{
	WorkerSlot *worker;
	pid_t pid = 0;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	/* Also when there is no worker: none may start now. */
	worker = find_or_take_worker(database, WORKER_HELD);
	if (worker != NULL)
	{
		worker->away++;
		/* One that the postmaster has yet to start could come when the database is gone. */
		if (worker->state == WORKER_STARTING)
			worker->state = WORKER_WANTED;
		pid = worker->pid;
		wake_proc(worker->proc);
	}
	LWLockRelease(&worker_registry->workers_lock);
	*held = worker != NULL;
	return pid;
}

/* Takes one idemq_worker_hold back. */
void
idemq_worker_release(Oid database)
{
	WorkerSlot *worker;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = worker_of(database);
	if (worker != NULL && worker->away > 0)
		worker->away--;
	if (worker != NULL && worker->away == 0 && worker->state == WORKER_HELD)
		worker->state = WORKER_FREE;
	wake_proc(worker_registry->launcher);
	LWLockRelease(&worker_registry->workers_lock);
}

/*
 * Frees the worker slot of a dropped database, once no session holds it, so that a database that
 * gets the same OID does not find its counts.
 */
void
idemq_worker_forget_database(Oid database)
{
	WorkerSlot *worker;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = worker_of(database);
	if (worker != NULL && worker->pid == 0)
		worker->state = worker->away > 0 ? WORKER_HELD : WORKER_FREE;
	LWLockRelease(&worker_registry->workers_lock);
}

/*
 * Sends a signal, unless that is 0, to a database's worker, if it still is that process.  Returns
 * whether it is.  It is from before it is a session until it is none any more, or until it has
 * said that it found no extension.
 */
bool
idemq_worker_signal(Oid database, pid_t pid, int signal_number)
{
	WorkerSlot *worker;
	bool there;

	LWLockAcquire(&worker_registry->workers_lock, LW_SHARED);
	worker = worker_of(database);
	there = worker != NULL && worker->pid == pid;
	if (there && signal_number != 0)
		(void) kill(pid, signal_number);
	LWLockRelease(&worker_registry->workers_lock);
	return there;
}

static void
detach_launcher(int code, Datum arg)
{
	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	worker_registry->launcher = -1;
	LWLockRelease(&worker_registry->workers_lock);
}

/* Makes this process the launcher, which the others wake. */
void
idemq_workers_attach_launcher(void)
{
	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	worker_registry->launcher = IDEMQ_MY_PROC_NUMBER;
	LWLockRelease(&worker_registry->workers_lock);
	on_shmem_exit(detach_launcher, (Datum) 0);
}

/*
 * Copies the worker slots whose worker has not attached yet (starting), or those that want one;
 * none from which workers are kept away.  Returns how many.
 */
int
idemq_workers_list(bool starting, WorkerSlotCopy *copies, int max)
{
	WorkerSlotState state = starting ? WORKER_STARTING : WORKER_WANTED;
	int count = 0;

	LWLockAcquire(&worker_registry->workers_lock, LW_SHARED);
	for (int i = 0; i < idemq_workers_max() && count < max; i++)
	{
		WorkerSlot *worker = &worker_registry->workers[i];

		if (worker->state == state && worker->away == 0)
			copies[count++] =
				(WorkerSlotCopy){i, worker->database, worker->serial, worker->not_before};
	}
	LWLockRelease(&worker_registry->workers_lock);
	return count;
}

/*
 * Finds a worker slot that the launcher copied; NULL when it serves another start now.  Lock held.
 */
static WorkerSlot *
same_worker(const WorkerSlotCopy *copy)
{
	WorkerSlot *worker = &worker_registry->workers[copy->index];

	if (worker->state == WORKER_FREE || worker->database != copy->database ||
		worker->serial != copy->serial)
		return NULL;
	return worker;
}

/*
 * Notes that a worker is asked for, and sets in the copy the serial that it will show;
 * false when none is wanted any more.
 */
bool
idemq_worker_start_noted(WorkerSlotCopy *copy)
{
	WorkerSlot *worker;
	bool wanted;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = same_worker(copy);
	wanted = worker != NULL && worker->state == WORKER_WANTED && worker->away == 0;
	if (wanted)
	{
		worker->state = WORKER_STARTING;
		worker->started_at = idemq_mono_now();
		copy->serial = ++worker->serial;
	}
	LWLockRelease(&worker_registry->workers_lock);
	return wanted;
}

/* Returns whether this worker is the first of its database to say that an update waits. */
bool
idemq_worker_tells_of_update(void)
{
	bool tells;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	tells = !my_worker_slot->told;
	my_worker_slot->told = true;
	LWLockRelease(&worker_registry->workers_lock);
	return tells;
}

/* Notes that a start brought no worker; to be tried again in so many microseconds. */
void
idemq_worker_start_failed(int index, int64 again_in)
{
	WorkerSlot *worker = &worker_registry->workers[index];

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	if (worker->state == WORKER_STARTING)
	{
		worker->state = WORKER_WANTED;
		worker->failures++;
		worker->not_before = idemq_mono_now() + again_in;
	}
	LWLockRelease(&worker_registry->workers_lock);
}

/* Frees the worker slot of a database that is gone. */
void
idemq_worker_forget(const WorkerSlotCopy *copy)
{
	WorkerSlot *worker;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = same_worker(copy);
	if (worker != NULL && worker->pid == 0 && worker->away == 0)
		worker->state = WORKER_FREE;
	LWLockRelease(&worker_registry->workers_lock);
}

/* Gives the worker slot back at this worker's end. */
static void
detach_worker(int code, Datum arg)
{
	int64 now = idemq_mono_now();

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	if (my_worker_slot->pid == MyProcPid) /* else idemq_worker_found_nothing gave it back */
	{
		my_worker_slot->pid = 0;
		my_worker_slot->proc = -1;
		pg_atomic_write_u64(&my_worker_slot->asleep_until, PG_UINT64_MAX);
		my_worker_slot->state = WORKER_WANTED;
		if (now - my_worker_slot->started_at > LONG_LIFE || my_worker_slot->away > 0)
			my_worker_slot->failures = 0;
		my_worker_slot->not_before =
			my_worker_slot->away > 0
				? 0
				: now + (RESTART_DELAY << Min(my_worker_slot->failures, MAX_DOUBLINGS));
		if (my_worker_slot->away == 0)
			my_worker_slot->failures++;
	}
	wake_proc(worker_registry->launcher);
	LWLockRelease(&worker_registry->workers_lock);
}

/*
 * Gives this process its worker slot, if it is the worker that the launcher asked for; sets
 * *database.
 */
bool
idemq_worker_attach(int index, uint64 serial, Oid *database)
{
	WorkerSlot *worker = &worker_registry->workers[index];
	bool wanted;

	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	wanted = worker->state == WORKER_STARTING && worker->serial == serial;
	if (wanted)
	{
		worker->state = WORKER_RUNNING;
		worker->pid = MyProcPid;
		worker->proc = IDEMQ_MY_PROC_NUMBER;
		*database = worker->database;
		pg_atomic_write_u64(&worker->beat, (uint64) idemq_mono_now());
		(void) pg_atomic_fetch_or_u32(&worker->asked, WORKER_ASKED_RECHECK);
	}
	LWLockRelease(&worker_registry->workers_lock);
	if (wanted)
	{
		my_worker_slot = worker;
		on_shmem_exit(detach_worker, (Datum) 0);
	}
	return wanted;
}

/*
 * Notes that this worker's database has no extension, and frees the worker slot; false
 * when a session has asked for another check meanwhile.
 */
bool
idemq_worker_found_nothing(void)
{
	bool nothing;

	IDEMQ_STOP("idemq_worker_found_nothing");
	LWLockAcquire(&worker_registry->workers_lock, LW_EXCLUSIVE);
	nothing = (pg_atomic_read_u32(&my_worker_slot->asked) & WORKER_ASKED_RECHECK) == 0;
	if (nothing)
	{
		my_worker_slot->state = my_worker_slot->away > 0 ? WORKER_HELD : WORKER_FREE;
		my_worker_slot->pid = 0;
		my_worker_slot->proc = -1;
	}
	LWLockRelease(&worker_registry->workers_lock);
	return nothing;
}

/* Returns whether this worker may stay. */
bool
idemq_worker_is_wanted(void)
{
	bool wanted;

	LWLockAcquire(&worker_registry->workers_lock, LW_SHARED);
	wanted = my_worker_slot->away == 0;
	LWLockRelease(&worker_registry->workers_lock);
	return wanted;
}

/*
 * Returns whether a worker runs in this database, or comes by itself: idemq.worker is on, and no
 * command needs the database for itself.
 */
bool
idemq_worker_comes(void)
{
	WorkerSlot *worker;
	bool comes = idemq_worker;

	if (!comes)
		return false;
	LWLockAcquire(&worker_registry->workers_lock, LW_SHARED);
	worker = worker_of(MyDatabaseId);
	comes = worker == NULL || worker->away == 0;
	LWLockRelease(&worker_registry->workers_lock);
	return comes;
}
