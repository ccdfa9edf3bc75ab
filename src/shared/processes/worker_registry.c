/*
 * shared/processes/worker_registry.c
 *		The worker registry: which databases have a background worker.  Sessions, the launcher and
 *		the workers find each other through it.
 *
 * A worker slot belongs to one database.  Its life:
 *
 *		free -> WANTED: CREATE EXTENSION at its commit, the first use in a session, or the
 *		launcher's
 *			visit to every database
 *		WANTED -> STARTING, with a new serial: the launcher has asked the postmaster for a worker
 *		STARTING -> RUNNING: the worker has attached, and has shown the serial
 *		STARTING -> WANTED: the worker has ended, or did not start in time, or a session needs the
 *			database for itself.  If the worker starts later, it shows an old serial or does not
 *			find STARTING, and ends before it connects to a database that may be gone
 *		WANTED, STARTING -> free: the launcher has found that the database is gone
 *		WANTED -> HELD: the session that holds the worker slot has dropped the database
 *		RUNNING -> free, or HELD while a session needs the database: the worker found no extension
 *		RUNNING -> WANTED, with a delay after a short life: the worker has ended
 *		free -> HELD -> free: a session needs a database that has no worker
 *		HELD -> WANTED: a worker was requested in the meantime
 *
 * A session that needs a database for itself (hooks/exclusive_database.c) sends the worker away.
 * The worker slot counts such sessions, and no worker starts while there is one.  worker_call.c
 * describes how a worker sleeps without missing a call.
 *
 * Locks: see src/shared/README.md, level 4.  workers_lock protects every field that has no other
 * rule at its declaration (processes.h).  A worker slot that was found without the lock may belong
 * to another database by the time it is used.
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

/* A worker that has lived longer than this did not fail at its start. */
#define LONG_LIFE (10 * USECS_PER_SEC)
/* Delay before a worker is started again; doubled for each consecutive short life, */
#define RESTART_DELAY (USECS_PER_SEC / 2)
/* at most this many times. */
#define MAX_DOUBLINGS 6

WorkerRegistry *idemq_worker_registry = NULL;
WorkerSlot *idemq_my_worker_slot = NULL;

/* Resets the counts of a worker slot that a database has just got. */
static void
begin_counts(WorkerSlot *worker)
{
	worker->doing = 0;
	for (int i = 0; i < TASK_KINDS * TASK_COUNTS; i++)
		pg_atomic_init_u64(&worker->tasks[i / TASK_COUNTS][i % TASK_COUNTS], 0);
}

static void
worker_registry_init(int tranche)
{
	LWLockInitialize(&idemq_worker_registry->workers_lock, tranche);
	idemq_worker_registry->launcher = -1;
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		WorkerSlot *worker = &idemq_worker_registry->workers[i];

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

const ShmemPart idemq_workers_part = {.area = (void **) &idemq_worker_registry,
									  .size = offsetof(WorkerRegistry, workers),
									  .each = sizeof(WorkerSlot),
									  .count = idemq_workers_max,
									  .lies_in = AREA_WORKERS,
									  .tranche = "idemq workers",
									  .init = worker_registry_init};

/* Returns the worker slot of a database, or NULL. */
static WorkerSlot *
worker_of(Oid database)
{
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		if (idemq_worker_registry->workers[i].state != WORKER_FREE &&
			idemq_worker_registry->workers[i].database == database)
			return &idemq_worker_registry->workers[i];
	}
	return NULL;
}

/*
 * Returns the worker slot of this database, or NULL, as far as can be seen without a lock.  A
 * worker always gets its own worker slot.  Other sessions usually find the same worker slot as the
 * last time, so they do not search the whole registry.
 */
WorkerSlot *
idemq_worker_here(void)
{
	static WorkerSlot *last = NULL;

	if (idemq_my_worker_slot != NULL)
		return idemq_my_worker_slot;
	if (last == NULL || last->state == WORKER_FREE || last->database != MyDatabaseId)
		last = worker_of(MyDatabaseId);
	return last;
}

/*
 * Returns since when (mono) a worker should have made progress: since it began its current piece of
 * work, was called, or should have woken up by itself.  If the time is in the future, the worker
 * may sleep.
 */
int64
idemq_worker_still_since(WorkerSlot *worker)
{
	uint64 until = pg_atomic_read_u64(&worker->asleep_until);
	uint64 beat;
	int64 still;

	pg_read_barrier(); /* the worker writes beat before asleep_until */
	beat = pg_atomic_read_u64(&worker->beat);
	still = (int64) (until == PG_UINT64_MAX ? beat : Max(until & ~WORKER_CALLED, beat));
	return Max(still, idemq_clock_advanced_at());
}

/* Returns a database's worker slot, or gives it a free one; NULL if none is free.  Lock held. */
static WorkerSlot *
find_or_take_worker(Oid database, WorkerSlotState state)
{
	WorkerSlot *worker = worker_of(database);

	if (worker != NULL)
		return worker;
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		worker = &idemq_worker_registry->workers[i];
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
 * Requests a worker for a database.  Returns false if the worker registry is full; then there are
 * already as many workers as max_worker_processes allows.
 */
bool
idemq_worker_want(Oid database)
{
	WorkerSlot *worker;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = find_or_take_worker(database, WORKER_WANTED);
	if (worker != NULL && worker->state == WORKER_HELD)
		worker->state = WORKER_WANTED;
	if (worker != NULL && worker->state == WORKER_WANTED)
		wake_proc(idemq_worker_registry->launcher);
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return worker != NULL;
}

/* Requests a worker for this database, because a session uses idemq in it. */
void
idemq_worker_announce_use(void)
{
	IDEMQ_STOP("idemq_worker_announce_use");
	if (!RecoveryInProgress())
		(void) idemq_worker_want(MyDatabaseId);
}

/* Makes a database's worker check whether the extension still exists. */
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
 * Requests a check for the extension, after a commit that may have created it.  A worker that has
 * found no extension, and is about to exit, checks again.
 */
void
idemq_worker_visit(Oid database)
{
	idemq_worker_recheck(database);
	(void) idemq_worker_want(database);
}

/*
 * Keeps workers away from a database until idemq_worker_release, which must be called as often.
 * Sets the latch of the database's worker, and returns its process id; 0: there is none.  Sets
 * *held to whether there is something to release, which is false if the worker registry is full.
 */
pid_t
idemq_worker_hold(Oid database, bool *held)
{
	WorkerSlot *worker;
	pid_t pid = 0;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	/* Even if there is no worker, because none may start now. */
	worker = find_or_take_worker(database, WORKER_HELD);
	if (worker != NULL)
	{
		worker->away++;
		/*
		 * A worker that the postmaster has not started yet could start after the database is gone.
		 */
		if (worker->state == WORKER_STARTING)
			worker->state = WORKER_WANTED;
		pid = worker->pid;
		wake_proc(worker->proc);
	}
	LWLockRelease(&idemq_worker_registry->workers_lock);
	*held = worker != NULL;
	return pid;
}

/* Undoes one idemq_worker_hold. */
void
idemq_worker_release(Oid database)
{
	WorkerSlot *worker;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = worker_of(database);
	if (worker != NULL && worker->away > 0)
		worker->away--;
	if (worker != NULL && worker->away == 0 && worker->state == WORKER_HELD)
		worker->state = WORKER_FREE;
	wake_proc(idemq_worker_registry->launcher);
	LWLockRelease(&idemq_worker_registry->workers_lock);
}

/*
 * Frees the worker slot of a dropped database as soon as no session holds it, so that a database
 * that gets the same OID does not inherit the counts.
 */
void
idemq_worker_forget_database(Oid database)
{
	WorkerSlot *worker;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = worker_of(database);
	if (worker != NULL && worker->pid == 0)
		worker->state = worker->away > 0 ? WORKER_HELD : WORKER_FREE;
	LWLockRelease(&idemq_worker_registry->workers_lock);
}

/*
 * Returns whether a database's worker is still the process pid, and sends it a signal in that case,
 * unless signal_number is 0.  The worker counts as this process from before it connects until after
 * it has disconnected, or until it has reported that it found no extension.
 */
bool
idemq_worker_signal(Oid database, pid_t pid, int signal_number)
{
	WorkerSlot *worker;
	bool there;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_SHARED);
	worker = worker_of(database);
	there = worker != NULL && worker->pid == pid;
	if (there && signal_number != 0)
		(void) kill(pid, signal_number);
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return there;
}

static void
detach_launcher(int code, Datum arg)
{
	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	idemq_worker_registry->launcher = -1;
	LWLockRelease(&idemq_worker_registry->workers_lock);
}

/* Registers this process as the launcher. */
void
idemq_workers_attach_launcher(void)
{
	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	idemq_worker_registry->launcher = IDEMQ_MY_PROC_NUMBER;
	LWLockRelease(&idemq_worker_registry->workers_lock);
	on_shmem_exit(detach_launcher, (Datum) 0);
}

/*
 * Copies up to max worker slots that are STARTING (starting) or WANTED, and from which no session
 * keeps workers away; returns their number.
 */
int
idemq_workers_list(bool starting, WorkerSlotCopy *copies, int max)
{
	WorkerSlotState state = starting ? WORKER_STARTING : WORKER_WANTED;
	int count = 0;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_SHARED);
	for (int i = 0; i < idemq_workers_max() && count < max; i++)
	{
		WorkerSlot *worker = &idemq_worker_registry->workers[i];

		if (worker->state == state && worker->away == 0)
			copies[count++] =
				(WorkerSlotCopy){i, worker->database, worker->serial, worker->not_before};
	}
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return count;
}

/*
 * Returns the worker slot of a copy, or NULL if it has been used for another start since.  Lock
 * held.
 */
static WorkerSlot *
same_worker(const WorkerSlotCopy *copy)
{
	WorkerSlot *worker = &idemq_worker_registry->workers[copy->index];

	if (worker->state == WORKER_FREE || worker->database != copy->database ||
		worker->serial != copy->serial)
		return NULL;
	return worker;
}

/*
 * Notes that the launcher asks the postmaster for a worker, and sets copy->serial to the serial
 * that the worker will show.  Returns false if no worker is wanted any more.
 */
bool
idemq_worker_start_noted(WorkerSlotCopy *copy)
{
	WorkerSlot *worker;
	bool wanted;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = same_worker(copy);
	wanted = worker != NULL && worker->state == WORKER_WANTED && worker->away == 0;
	if (wanted)
	{
		worker->state = WORKER_STARTING;
		worker->started_at = idemq_mono_now();
		copy->serial = ++worker->serial;
	}
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return wanted;
}

/*
 * Returns whether this worker is the first one of its database to report that an update is pending.
 */
bool
idemq_worker_tells_of_update(void)
{
	bool tells;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	tells = !idemq_my_worker_slot->told;
	idemq_my_worker_slot->told = true;
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return tells;
}

/* Notes that a start failed, and must be tried again after again_in microseconds. */
void
idemq_worker_start_failed(int index, int64 again_in)
{
	WorkerSlot *worker = &idemq_worker_registry->workers[index];

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	if (worker->state == WORKER_STARTING)
	{
		worker->state = WORKER_WANTED;
		worker->failures++;
		worker->not_before = idemq_mono_now() + again_in;
	}
	LWLockRelease(&idemq_worker_registry->workers_lock);
}

/* Frees the worker slot of a database that no longer exists. */
void
idemq_worker_forget(const WorkerSlotCopy *copy)
{
	WorkerSlot *worker;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	worker = same_worker(copy);
	if (worker != NULL && worker->pid == 0 && worker->away == 0)
		worker->state = WORKER_FREE;
	LWLockRelease(&idemq_worker_registry->workers_lock);
}

/* Gives back the worker slot when this worker exits. */
static void
detach_worker(int code, Datum arg)
{
	int64 now = idemq_mono_now();

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	if (idemq_my_worker_slot->pid ==
		MyProcPid) /* otherwise idemq_worker_found_nothing has given it back */
	{
		idemq_my_worker_slot->pid = 0;
		idemq_my_worker_slot->proc = -1;
		pg_atomic_write_u64(&idemq_my_worker_slot->asleep_until, PG_UINT64_MAX);
		idemq_my_worker_slot->state = WORKER_WANTED;
		if (now - idemq_my_worker_slot->started_at > LONG_LIFE || idemq_my_worker_slot->away > 0)
			idemq_my_worker_slot->failures = 0;
		idemq_my_worker_slot->not_before =
			idemq_my_worker_slot->away > 0
				? 0
				: now + (RESTART_DELAY << Min(idemq_my_worker_slot->failures, MAX_DOUBLINGS));
		if (idemq_my_worker_slot->away == 0)
			idemq_my_worker_slot->failures++;
	}
	wake_proc(idemq_worker_registry->launcher);
	LWLockRelease(&idemq_worker_registry->workers_lock);
}

/*
 * Gives this process its worker slot, and sets *database, if this is the worker that the launcher
 * asked for; otherwise returns false.
 */
bool
idemq_worker_attach(int index, uint64 serial, Oid *database)
{
	WorkerSlot *worker = &idemq_worker_registry->workers[index];
	bool wanted;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
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
	LWLockRelease(&idemq_worker_registry->workers_lock);
	if (wanted)
	{
		idemq_my_worker_slot = worker;
		on_shmem_exit(detach_worker, (Datum) 0);
	}
	return wanted;
}

/*
 * Notes that this worker's database does not have the extension, and frees the worker slot.
 * Returns false if a session has requested another check in the meantime.
 */
bool
idemq_worker_found_nothing(void)
{
	bool nothing;

	IDEMQ_STOP("idemq_worker_found_nothing");
	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_EXCLUSIVE);
	nothing = (pg_atomic_read_u32(&idemq_my_worker_slot->asked) & WORKER_ASKED_RECHECK) == 0;
	if (nothing)
	{
		idemq_my_worker_slot->state = idemq_my_worker_slot->away > 0 ? WORKER_HELD : WORKER_FREE;
		idemq_my_worker_slot->pid = 0;
		idemq_my_worker_slot->proc = -1;
	}
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return nothing;
}

/* Returns whether this worker may stay, because no session needs its database for itself. */
bool
idemq_worker_is_wanted(void)
{
	bool wanted;

	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_SHARED);
	wanted = idemq_my_worker_slot->away == 0;
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return wanted;
}

/*
 * Returns whether a worker is running in this database, or will start without further request:
 * idemq.worker is on, and no command needs the database for itself.
 */
bool
idemq_worker_comes(void)
{
	WorkerSlot *worker;
	bool comes;

	if (!idemq_worker)
		return false;
	LWLockAcquire(&idemq_worker_registry->workers_lock, LW_SHARED);
	worker = worker_of(MyDatabaseId);
	comes = worker == NULL || worker->away == 0;
	LWLockRelease(&idemq_worker_registry->workers_lock);
	return comes;
}
