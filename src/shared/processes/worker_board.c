/*
 * shared/processes/worker_board.c
 *		Which databases have a background worker: the board in shared memory by
 *		which sessions, the launcher and the workers find each other.
 *
 * A post on the board belongs to one database.  Its life:
 *
 *		free -> WANTED: CREATE EXTENSION at its commit, the first use in a session, the
 *			launcher's visit to every database
 *		WANTED -> STARTING, with a new serial: the launcher asked the postmaster
 *		STARTING -> RUNNING: the worker attached, showing the serial
 *		STARTING -> WANTED: it ended, or did not come in time, or a session needs the
 *			database: a worker that comes all the same shows another serial or finds no
 *			STARTING, and ends before it connects to what may be gone
 *		WANTED, STARTING -> free: the launcher found that the database is gone
 *		RUNNING -> free, or HELD while a session needs the database: the worker found no
 *			extension
 *		RUNNING -> WANTED, later after each short life: the worker ended
 *		free -> HELD -> free: a session needs a database that has no worker
 *		HELD -> WANTED: a worker was asked for meanwhile
 *
 * A session that needs a database for itself (hooks/exclusive_database.c) sends the
 * worker away: the post counts such sessions, and no worker starts while there is one.
 * How a worker sleeps and loses no wake-up stands in shared/waiters/worker_call.c.
 *
 * Locks: see README.md, level 4.  board_lock covers every field without another rule at
 * its declaration (shared/processes/processes.h).  A post that is looked for without it may
 * be another database's by the time that it is used.
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

typedef struct Board
{
	LWLock board_lock;
	int32 launcher; /* its proc number, or -1 */
	Post posts[FLEXIBLE_ARRAY_MEMBER];
} Board;

static Board *board = NULL;
/* The post that this process works for, when it is a worker. */
static Post *mine = NULL;

/* Begins the counts of a worker whose database has got the post. */
static void
begin_counts(Post *post)
{
	post->doing = 0;
	for (int i = 0; i < TASK_KINDS * TASK_COUNTS; i++)
		pg_atomic_init_u64(&post->tasks[i / TASK_COUNTS][i % TASK_COUNTS], 0);
}

/* Makes the posts; their memory is zeros. */
static void
init_board(int tranche)
{
	LWLockInitialize(&board->board_lock, tranche);
	board->launcher = -1;
	for (int i = 0; i < idemq_post_count(); i++)
	{
		Post *post = &board->posts[i];

		post->proc = -1;
		pg_atomic_init_u64(&post->asleep_until, PG_UINT64_MAX);
		pg_atomic_init_u32(&post->asked, POST_ASKED_RECHECK);
		pg_atomic_init_u64(&post->beat, 0);
		pg_atomic_init_u64(&post->clock_asked, 0);
		pg_atomic_init_u64(&post->clock_done, 0);
		pg_atomic_init_u32(&post->clock_left, 0);
		ConditionVariableInit(&post->clock_answered);
		pg_atomic_init_u64(&post->counted_at, 0);
		begin_counts(post);
	}
}

const ShmemPart idemq_board_part = {.area = (void **) &board,
									.size = offsetof(Board, posts),
									.each = sizeof(Post),
									.count = idemq_post_count,
									.lies_in = AREA_WORKERS,
									.tranche = "idemq workers",
									.init = init_board};

/* Returns how many posts there are: one for every worker that may exist. */
int
idemq_post_count(void)
{
	return Max(max_worker_processes, 1);
}

/* Returns the post that this process works for; NULL when it is no worker. */
Post *
idemq_post_mine(void)
{
	return mine;
}

/* Returns the post of an index. */
Post *
idemq_post_at(int index)
{
	return &board->posts[index];
}

int
idemq_post_index(const Post *post)
{
	return (int) (post - board->posts);
}

/* Finds a database's post; NULL when it has none. */
static Post *
post_of(Oid database)
{
	for (int i = 0; i < idemq_post_count(); i++)
	{
		if (board->posts[i].state != POST_FREE && board->posts[i].database == database)
			return &board->posts[i];
	}
	return NULL;
}

/*
 * Returns this database's post, NULL when it has none, as far as is known without a lock.
 * It mostly stands where it stood the last time: so this is not linear in databases.  A
 * worker has the post that it was given, whatever has become of it.
 */
Post *
idemq_post_own(void)
{
	static Post *last = NULL;

	if (mine != NULL)
		return mine;
	if (last == NULL || last->state == POST_FREE || last->database != MyDatabaseId)
		last = post_of(MyDatabaseId);
	return last;
}

/*
 * Returns since when (mono) a worker has not moved though it should: since it began its present
 * piece of work, was called, or should have woken by itself.  A time in the future: it may sleep.
 */
int64
idemq_post_still_since(Post *post)
{
	uint64 until = pg_atomic_read_u64(&post->asleep_until);
	uint64 beat;
	int64 still;

	pg_read_barrier(); /* it notes its beat before it says that it is awake */
	beat = pg_atomic_read_u64(&post->beat);
	still = (int64) (until == PG_UINT64_MAX ? beat : Max(until & ~POST_CALLED, beat));
	return Max(still, idemq_clock_advanced_at());
}

/* Finds a database's post, or gives it one in a state; NULL when all are taken.  Lock held. */
static Post *
find_or_take_post(Oid database, PostState state)
{
	Post *post = post_of(database);

	if (post != NULL)
		return post;
	for (int i = 0; i < idemq_post_count(); i++)
	{
		post = &board->posts[i];
		if (post->state != POST_FREE)
			continue;
		post->database = database;
		post->state = state;
		post->away = 0;
		post->failures = 0;
		post->told = false;
		post->not_before = 0;
		begin_counts(post);
		return post;
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
 * Asks for a worker in a database.  Returns false when the board is full: then
 * there are as many workers as max_worker_processes allows, or more.
 */
bool
idemq_worker_want(Oid database)
{
	Post *post;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	post = find_or_take_post(database, POST_WANTED);
	if (post != NULL && post->state == POST_HELD)
		post->state = POST_WANTED;
	if (post != NULL && post->state == POST_WANTED)
		wake_proc(board->launcher);
	LWLockRelease(&board->board_lock);
	return post != NULL;
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
	Post *post = post_of(database);

	if (post == NULL)
		return;
	(void) pg_atomic_fetch_or_u32(&post->asked, POST_ASKED_RECHECK);
	wake_proc(post->proc);
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
 * *held: whether there is something to release; not when the board is full.
 */
pid_t
idemq_worker_hold(Oid database, bool *held)
{
	Post *post;
	pid_t pid = 0;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	/* Also when there is no worker: none may start now. */
	post = find_or_take_post(database, POST_HELD);
	if (post != NULL)
	{
		post->away++;
		/* One that the postmaster has yet to start could come when the database is gone. */
		if (post->state == POST_STARTING)
			post->state = POST_WANTED;
		pid = post->pid;
		wake_proc(post->proc);
	}
	LWLockRelease(&board->board_lock);
	*held = post != NULL;
	return pid;
}

/* Takes one idemq_worker_hold back. */
void
idemq_worker_release(Oid database)
{
	Post *post;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	post = post_of(database);
	if (post != NULL && post->away > 0)
		post->away--;
	if (post != NULL && post->away == 0 && post->state == POST_HELD)
		post->state = POST_FREE;
	wake_proc(board->launcher);
	LWLockRelease(&board->board_lock);
}

/*
 * Sends a signal, unless that is 0, to a database's worker, if it still is that process.  Returns
 * whether it is.  It is from before it is a session until it is none any more, or until it has
 * said that it found no extension.
 */
bool
idemq_worker_signal(Oid database, pid_t pid, int signal_number)
{
	Post *post;
	bool there;

	LWLockAcquire(&board->board_lock, LW_SHARED);
	post = post_of(database);
	there = post != NULL && post->pid == pid;
	if (there && signal_number != 0)
		(void) kill(pid, signal_number);
	LWLockRelease(&board->board_lock);
	return there;
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
 * Copies the posts whose worker has not attached yet (starting), or those that want one;
 * none from which workers are kept away.  Returns how many.
 */
int
idemq_workers_list(bool starting, WorkerPost *posts, int max)
{
	PostState state = starting ? POST_STARTING : POST_WANTED;
	int count = 0;

	LWLockAcquire(&board->board_lock, LW_SHARED);
	for (int i = 0; i < idemq_post_count() && count < max; i++)
	{
		Post *post = &board->posts[i];

		if (post->state == state && post->away == 0)
			posts[count++] = (WorkerPost){i, post->database, post->serial, post->not_before};
	}
	LWLockRelease(&board->board_lock);
	return count;
}

/* Finds a post that the launcher copied; NULL when it serves another start now.  Lock held. */
static Post *
same_post(const WorkerPost *copy)
{
	Post *post = &board->posts[copy->index];

	if (post->state == POST_FREE || post->database != copy->database ||
		post->serial != copy->serial)
		return NULL;
	return post;
}

/*
 * Notes that a worker is asked for, and sets in the copy the serial that it will show;
 * false when none is wanted any more.
 */
bool
idemq_worker_start_noted(WorkerPost *copy)
{
	Post *post;
	bool wanted;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	post = same_post(copy);
	wanted = post != NULL && post->state == POST_WANTED && post->away == 0;
	if (wanted)
	{
		post->state = POST_STARTING;
		post->started_at = idemq_mono_now();
		copy->serial = ++post->serial;
	}
	LWLockRelease(&board->board_lock);
	return wanted;
}

/* Returns whether this worker is the first of its database to say that an update waits. */
bool
idemq_worker_tells_of_update(void)
{
	bool tells;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	tells = !mine->told;
	mine->told = true;
	LWLockRelease(&board->board_lock);
	return tells;
}

/* Notes that a start brought no worker; to be tried again in so many microseconds. */
void
idemq_worker_start_failed(int index, int64 again_in)
{
	Post *post = &board->posts[index];

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	if (post->state == POST_STARTING)
	{
		post->state = POST_WANTED;
		post->failures++;
		post->not_before = idemq_mono_now() + again_in;
	}
	LWLockRelease(&board->board_lock);
}

/* Frees the post of a database that is gone. */
void
idemq_worker_forget(const WorkerPost *copy)
{
	Post *post;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	post = same_post(copy);
	if (post != NULL && post->pid == 0 && post->away == 0)
		post->state = POST_FREE;
	LWLockRelease(&board->board_lock);
}

/* Gives the post back at this worker's end. */
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
		mine->state = POST_WANTED;
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
 * Makes this process the worker of a post, if it is the one that the launcher
 * asked for; sets *database.
 */
bool
idemq_worker_attach(int index, uint64 serial, Oid *database)
{
	Post *post = &board->posts[index];
	bool wanted;

	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	wanted = post->state == POST_STARTING && post->serial == serial;
	if (wanted)
	{
		post->state = POST_RUNNING;
		post->pid = MyProcPid;
		post->proc = IDEMQ_MY_PROC_NUMBER;
		*database = post->database;
		pg_atomic_write_u64(&post->beat, (uint64) idemq_mono_now());
		(void) pg_atomic_fetch_or_u32(&post->asked, POST_ASKED_RECHECK);
	}
	LWLockRelease(&board->board_lock);
	if (wanted)
	{
		mine = post;
		on_shmem_exit(detach_worker, (Datum) 0);
	}
	return wanted;
}

/*
 * Notes that this worker's database has no extension, and frees the post; false
 * when a session has asked for another check meanwhile.
 */
bool
idemq_worker_found_nothing(void)
{
	bool nothing;

	IDEMQ_STOP("idemq_worker_found_nothing");
	LWLockAcquire(&board->board_lock, LW_EXCLUSIVE);
	nothing = (pg_atomic_read_u32(&mine->asked) & POST_ASKED_RECHECK) == 0;
	if (nothing)
	{
		mine->state = mine->away > 0 ? POST_HELD : POST_FREE;
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
	Post *post;
	bool comes = idemq_worker;

	if (!comes)
		return false;
	LWLockAcquire(&board->board_lock, LW_SHARED);
	post = post_of(MyDatabaseId);
	comes = post == NULL || post->away == 0;
	LWLockRelease(&board->board_lock);
	return comes;
}
