/*
 * shared/groups/commit_window.c
 *		Transactions that are about to lower the low-water marks of FIFO groups, in shared memory.
 *
 * A transaction lowers low-water marks by its marks, which it sets group by group after it has
 * become visible.  In between a low-water mark is too high for a session that sees the transaction.
 * So it enters its queue's commit window before it is visible, with the least id to which it may
 * lower a low-water mark, and leaves when all its marks are set.  A check begins no higher than the
 * commit window's least id (the proof is in shared/groups/groups.c).
 *
 * There is a commit window per queue, not per group: a group that has no entry when the
 * transaction enters may have one, and a low-water mark, when it becomes visible.  A commit window
 * belongs to the index of a queue state, whichever queue has that state; what the writers of a
 * former queue left there is only too low, and only for a moment.  For queues without a state,
 * which may get one in the meantime, and for COMMIT PREPARED, which may concern any queue, the
 * database has a commit window; databases may share one.
 *
 * Under constant traffic there is always a writer in the commit window.  If one least id stood for
 * all of them it would never rise again, and each check would begin as far back as the earliest of
 * them.  So there are two generations, each with its writers and their least id.  A writer enters
 * the newer one; when the older one is empty it becomes the newer one first, without an id.  So an
 * id counts until the writers of one generation have left, and then those of the next one.
 *
 * Locks: the spinlock of each commit window, under which nothing else is done.  Leaving
 * neither allocates nor raises.
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "storage/spin.h"

#include "base/base.h"
#include "shared/groups/groups.h"
#include "shared/queue_states/queue_states.h"

/* Those of queues, at the indexes of their states; after them those of databases. */
static CommitWindow *commit_windows = NULL;

static int
commit_window_count(void)
{
	return idemq_max_queues + DATABASE_COMMIT_WINDOWS;
}

static void
commit_window_init(int tranche)
{
	for (int i = 0; i < commit_window_count(); i++)
	{
		SpinLockInit(&commit_windows[i].lock);
		commit_windows[i].least[0] = commit_windows[i].least[1] = GROUP_KEEP_LOW_WATER;
	}
}

const ShmemPart idemq_commit_windows_part = {.area = (void **) &commit_windows,
											 .each = sizeof(CommitWindow),
											 .count = commit_window_count,
											 .lies_in = AREA_QUEUES,
											 .init = commit_window_init};

/* Returns the number of the commit window of a queue state or, when it is NULL, of the database. */
int
idemq_commit_window_of(const QueueState *qstate, Oid database)
{
	return qstate != NULL ? idemq_qstate_index(qstate)
						  : idemq_max_queues + (int) (database % DATABASE_COMMIT_WINDOWS);
}

/*
 * Enters a commit window, with the least id to which the caller may lower a low-water mark, or
 * GROUP_DROP_LOW_WATER; returns the generation to leave.
 */
int
idemq_commit_window_enter(int number, int64 id)
{
	CommitWindow *window = &commit_windows[number];
	int newer;

	SpinLockAcquire(&window->lock);
	if (window->writers[1 - window->newer] == 0)
		window->newer = 1 - window->newer;
	newer = window->newer;
	window->writers[newer]++;
	window->least[newer] = Min(window->least[newer], id);
	SpinLockRelease(&window->lock);
	return newer;
}

/* Lowers a commit window that the caller is in to one more id. */
void
idemq_commit_window_lower(int number, int generation, int64 id)
{
	CommitWindow *window = &commit_windows[number];

	SpinLockAcquire(&window->lock);
	window->least[generation] = Min(window->least[generation], id);
	SpinLockRelease(&window->lock);
}

/* Leaves a commit window: all marks are set, or the transaction has aborted. */
void
idemq_commit_window_leave(int number, int generation)
{
	CommitWindow *window = &commit_windows[number];

	SpinLockAcquire(&window->lock);
	if (--window->writers[generation] == 0)
		window->least[generation] = GROUP_KEEP_LOW_WATER;
	SpinLockRelease(&window->lock);
}

static int64
least_in(int number)
{
	CommitWindow *window = &commit_windows[number];
	int64 least;

	SpinLockAcquire(&window->lock);
	least = Min(window->least[0], window->least[1]);
	SpinLockRelease(&window->lock);
	return least;
}

/*
 * Returns the least id to which a transaction in the commit windows of a queue and its database may
 * lower a low-water mark, GROUP_DROP_LOW_WATER or GROUP_KEEP_LOW_WATER.  Among these are all
 * transactions that the caller's snapshot shows and that have not set all their marks.
 */
int64
idemq_commit_window_least(const QueueState *qstate, Oid database)
{
	int64 of_database = least_in(idemq_commit_window_of(NULL, database));
	int64 of_queue = least_in(idemq_commit_window_of(qstate, database));

	return Min(of_database, of_queue);
}
