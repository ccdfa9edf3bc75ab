/*
 * shared/processes/worker_board.c
 *		Which databases have a background worker: the board in shared memory by
 *		which sessions, the launcher and the workers find each other.
 *
 * A place on the board belongs to one database.  Its life:
 *
 *		free -> WANTED: CREATE EXTENSION at its commit, the first use in a session, the
 *			launcher's visit to every database
 *		WANTED -> STARTING, with a new serial: the launcher asked the postmaster
 *		STARTING -> RUNNING: the worker attached, showing the serial
 *		STARTING -> WANTED: it ended, or did not come in time, or a session needs the
 *			database: a worker that comes all the same shows another's serial or finds no
 *			STARTING, and ends before it connects to what may be gone
 *		RUNNING -> free: the worker found no extension
 *		RUNNING -> WANTED, later after each short life: the worker ended
 *		free -> HELD -> free: a session needs a database that has no worker
 *
 * A session that needs a database for itself (hooks/exclusive_database.c) sends the
 * worker away: the place counts such sessions, and no worker starts while there is one.
 * How a worker sleeps and loses no wake-up stands in shared/sleepers/worker_call.c.
 *
 * Locks: see README.md, level 4.  board_lock covers every field without another rule at
 * its declaration (shared/processes/processes.h).  Who looks for a place without it may find
 * it another database's by the time that it is used.
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
/* A worker that ended is started again after that, doubled for each short life in a row, */
#define RESTART_DELAY (USECS_PER_SEC / 2)
/* up to so many times. */
#define MAX_DOUBLINGS 6

typedef struct Board
{
	LWLock board_lock;
	int32 launcher; /* its proc number, or -1 */
	Place places[FLEXIBLE_ARRAY_MEMBER];
} Board;

static Board *board = NULL;
/* The place that this process works for, when it is a worker. */
static Place *mine = NULL;

/* Begins the counts of what the worker of a database does that has got its place. */
static void
begin_counts(Place *place)
{
	place->doing = 0;
	for (int i = 0; i < CHORE_KINDS * CHORE_COUNTS; i++)
		pg_atomic_init_u64(&place->chores[i / CHORE_COUNTS][i % CHORE_COUNTS], 0);
}

/* Makes the places; their memory is zeros. */
static void
init_board(int tranche)
{
	LWLockInitialize(&board->board_lock, tranche);
	board->launcher = -1;
	for (int i = 0; i < idemq_place_count(); i++)
	{
		Place *place = &board->places[i];

		place->proc = -1;
		pg_atomic_init_u64(&place->asleep_until, PG_UINT64_MAX);
		pg_atomic_init_u32(&place->asked, PLACE_ASKED_RECHECK);
		pg_atomic_init_u64(&place->beat, 0);
		begin_counts(place);
	}
}

const ShmemPart idemq_board_part = {.area = (void **) &board,
									.size = offsetof(Board, places),
									.each = sizeof(Place),
									.count = idemq_place_count,
									.name = "idemq workers",
									.tranche = "idemq workers",
									.init = init_board};

/* Returns how many places there are: one for every worker that may exist. */
int
idemq_place_count(void)
{
	return Max(max_worker_processes, 1);
}

/* Returns the place that this process works for; NULL when it is no worker. */
Place *
idemq_place_mine(void)
{
	return mine;
}

/* Returns the index of a place. */
int
idemq_place_index(const Place *place)
{
	return (int) (place - board->places);
}

/* Finds a database's place; NULL when it has none. */
static Place *
place_of(Oid database)
{
	for (int i = 0; i < idemq_place_count(); i++)
	{
		if (board->places[i].state != PLACE_FREE && board->places[i].database == database)
			return &board->places[i];
	}
	return NULL;
}

/*
 * Returns this database's place, NULL when it has none, as far as is known without a lock.
 * It stands mostly where it stood: so this is not linear in databases.  A worker has the
 * place that it was given, whatever has become of it.
 */
Place *
idemq_place_own(void)
{
	static Place *last = NULL;

	if (mine != NULL)
		return mine;
	if (last == NULL || last->state == PLACE_FREE || last->database != MyDatabaseId)
		last = place_of(MyDatabaseId);
	return last;
}

/*
 * Returns since when (mono) a worker has not moved though it should: since it began what it is
 * at, was called, or should have woken by itself.  The future: it may sleep.
 */
int64
idemq_place_still_since(Place *place)
{
	uint64 until = pg_atomic_read_u64(&place->asleep_until);
	uint64 beat;

	pg_read_barrier(); /* it moves, and is awake then */
	beat = pg_atomic_read_u64(&place->beat);
	return (int64) (until == PG_UINT64_MAX ? beat : Max(until & ~PLACE_CALLED, beat));
}

/* Finds a database's place, or gives it one in a state; NULL when all are taken.  Lock held. */
static Place *
find_or_take_place(Oid database, PlaceState state)
{
	Place *place = place_of(database);

	for (int i = 0; i < idemq_place_count() && place == NULL; i++)
	{
		if (board->places[i].state != PLACE_FREE)
			continue;
		place = &board->places[i];
		place->database = database;
		place->state = state;
		place->away = 0;
		place->failures = 0;
		place->not_before = 0;
		begin_counts(place);
	}
	return place;
}

static void
wake_proc(int32 proc)
{
	if (proc >= 0)
		SetLatch(&GetPGProcByNumber(proc)->procLatch);
}

/*
 * Asks for a worker in a database.  Returns false when the board is full: then
 * there are as many workers as max_worker_processes allows, or more.
 */
bool
idemq_worker_want(Oid database)
{
	Place *place;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	place = find_or_take_place(database, PLACE_WANTED);
	if (place != NULL && place->state == PLACE_HELD)
		place->state = PLACE_WANTED;
	if (place != NULL && place->state == PLACE_WANTED)
		wake_proc(board->launcher);
	LWLockRelease(&board->board_lock);
	return place != NULL;
}

/* Asks for a worker in this database, where idemq is in use. */
void
idemq_worker_announce_use(void)
{
	if (!RecoveryInProgress())
		(void) idemq_worker_want(MyDatabaseId);
}

/* Has a database's worker check whether the extension is still there. */
void
idemq_worker_recheck(Oid database)
{
	Place *place = place_of(database);

	if (place == NULL)
		return;
	(void) pg_atomic_fetch_or_u32(&place->asked, PLACE_ASKED_RECHECK);
	wake_proc(place->proc);
}

/*
 * Has a database checked for the extension, after a commit that may have brought it,
 * even by a worker that has checked before and is about to leave.
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
 * *held: whether there is something to release; not when the board is full.
 */
pid_t
idemq_worker_hold(Oid database, bool *held)
{
	Place *place;
	pid_t pid = 0;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	/* Its place, also when there is no worker: none may start now. */
	place = find_or_take_place(database, PLACE_HELD);
	if (place != NULL)
	{
		place->away++;
		/* One that the postmaster has yet to start could come when the database is gone. */
		if (place->state == PLACE_STARTING)
			place->state = PLACE_WANTED;
		pid = place->pid;
		wake_proc(place->proc);
	}
	LWLockRelease(&board->board_lock);
	*held = place != NULL;
	return pid;
}

/* Takes one idemq_worker_hold back. */
void
idemq_worker_release(Oid database)
{
	Place *place;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	place = place_of(database);
	if (place != NULL && place->away > 0)
		place->away--;
	if (place != NULL && place->away == 0 && place->state == PLACE_HELD)
		place->state = PLACE_FREE;
	wake_proc(board->launcher);
	LWLockRelease(&board->board_lock);
}

/*
 * Returns whether a process is a database's worker still: from before it is a session
 * until it is none any more, or has said that it found nothing to do.
 */
bool
idemq_worker_is_there(Oid database, pid_t pid)
{
	Place *place;
	bool there;

	LWLockAcquire(&board->board_lock, LW_SHARED);
	place = place_of(database);
	there = place != NULL && place->pid == pid;
	LWLockRelease(&board->board_lock);
	return there;
}

/* Sends a signal to a database's worker, if it still is that process. */
void
idemq_worker_signal(Oid database, pid_t pid, int signal_number)
{
	Place *place;

	LWLockAcquire(&board->board_lock, LW_SHARED);
	place = place_of(database);
	if (place != NULL && place->pid == pid)
		(void) kill(pid, signal_number);
	LWLockRelease(&board->board_lock);
}

static void
detach_launcher(int code, Datum arg)
{
	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	board->launcher = -1;
	LWLockRelease(&board->board_lock);
}

/* Makes this process the launcher, which the others wake. */
void
idemq_workers_attach_launcher(void)
{
	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	board->launcher = IDEMQ_MY_PROC_NUMBER;
	LWLockRelease(&board->board_lock);
	on_shmem_exit(detach_launcher, (Datum) 0);
}

/*
 * Copies the places whose worker has not attached yet, or those that want one;
 * none from which workers are kept away.  Returns how many.
 */
int
idemq_workers_list(bool starting, WorkerPlace *places, int max)
{
	PlaceState state = starting ? PLACE_STARTING : PLACE_WANTED;
	int count = 0;

	LWLockAcquire(&board->board_lock, LW_SHARED);
	for (int i = 0; i < idemq_place_count() && count < max; i++)
	{
		Place *place = &board->places[i];

		if (place->state == state && place->away == 0)
			places[count++] = (WorkerPlace){i, place->database, place->serial, place->not_before};
	}
	LWLockRelease(&board->board_lock);
	return count;
}

/* Finds a place as the launcher copied it; NULL when it is another use by now.  Lock held. */
static Place *
same_place(const WorkerPlace *copy)
{
	Place *place = &board->places[copy->index];

	if (place->state == PLACE_FREE || place->database != copy->database ||
		place->serial != copy->serial)
		return NULL;
	return place;
}

/*
 * Notes that a worker is asked for, and sets in the copy the serial that it will show;
 * false when none is wanted any more.
 */
bool
idemq_worker_start_noted(WorkerPlace *copy)
{
	Place *place;
	bool wanted;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	place = same_place(copy);
	wanted = place != NULL && place->state == PLACE_WANTED && place->away == 0;
	if (wanted)
	{
		place->state = PLACE_STARTING;
		place->started_at = idemq_mono_now();
		copy->serial = ++place->serial;
	}
	LWLockRelease(&board->board_lock);
	return wanted;
}

/* Notes that no worker came of it; to be tried again in so many microseconds. */
void
idemq_worker_start_failed(int index, int64 again_in)
{
	Place *place = &board->places[index];

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	if (place->state == PLACE_STARTING)
	{
		place->state = PLACE_WANTED;
		place->failures++;
		place->not_before = idemq_mono_now() + again_in;
	}
	LWLockRelease(&board->board_lock);
}

/* Frees the place of a database that is gone. */
void
idemq_worker_forget(const WorkerPlace *copy)
{
	Place *place;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	place = same_place(copy);
	if (place != NULL && place->pid == 0 && place->away == 0)
		place->state = PLACE_FREE;
	LWLockRelease(&board->board_lock);
}

/* Gives the place back at this worker's end. */
static void
detach_worker(int code, Datum arg)
{
	int64 now = idemq_mono_now();

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	if (mine->pid == MyProcPid) /* else idemq_worker_found_nothing gave it back */
	{
		mine->pid = 0;
		mine->proc = -1;
		pg_atomic_write_u64(&mine->asleep_until, PG_UINT64_MAX);
		mine->state = PLACE_WANTED;
		if (now - mine->started_at > LONG_LIFE || mine->away > 0)
			mine->failures = 0;
		mine->not_before =
			mine->away > 0 ? 0 : now + (RESTART_DELAY << Min(mine->failures, MAX_DOUBLINGS));
		if (mine->away == 0)
			mine->failures++;
	}
	wake_proc(board->launcher);
	LWLockRelease(&board->board_lock);
}

/*
 * Makes this process the worker of a place, if it is the one that the launcher
 * asked for; sets *database.
 */
bool
idemq_worker_attach(int index, uint64 serial, Oid *database)
{
	Place *place = &board->places[index];
	bool wanted;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	wanted = place->state == PLACE_STARTING && place->serial == serial;
	if (wanted)
	{
		place->state = PLACE_RUNNING;
		place->pid = MyProcPid;
		place->proc = IDEMQ_MY_PROC_NUMBER;
		*database = place->database;
		pg_atomic_write_u64(&place->beat, (uint64) idemq_mono_now());
		(void) pg_atomic_fetch_or_u32(&place->asked, PLACE_ASKED_RECHECK);
	}
	LWLockRelease(&board->board_lock);
	if (wanted)
	{
		mine = place;
		on_shmem_exit(detach_worker, (Datum) 0);
	}
	return wanted;
}

/*
 * Notes that this worker's database has no extension, and frees the place; false
 * when a session has asked for another check meanwhile.
 */
bool
idemq_worker_found_nothing(void)
{
	bool nothing;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	nothing = (pg_atomic_read_u32(&mine->asked) & PLACE_ASKED_RECHECK) == 0;
	if (nothing)
	{
		mine->state = mine->away > 0 ? PLACE_HELD : PLACE_FREE;
		mine->pid = 0;
		mine->proc = -1;
	}
	LWLockRelease(&board->board_lock);
	return nothing;
}

/* Returns whether this worker may stay. */
bool
idemq_worker_is_wanted(void)
{
	bool wanted;

	LWLockAcquire(&board->board_lock, LW_SHARED);
	wanted = mine->away == 0;
	LWLockRelease(&board->board_lock);
	return wanted;
}

/*
 * Returns whether a worker runs in this database, or comes by itself: idemq.worker is on, and no
 * command needs the database for itself.
 */
bool
idemq_worker_comes(void)
{
	Place *place;
	bool comes = idemq_worker;

	if (!comes)
		return false;
	LWLockAcquire(&board->board_lock, LW_SHARED);
	place = place_of(MyDatabaseId);
	comes = place == NULL || place->away == 0;
	LWLockRelease(&board->board_lock);
	return comes;
}
