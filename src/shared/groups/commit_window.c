/*
 * shared/groups/commit_window.c
 *		Commit windows: transactions that are about to lower the low-water marks of FIFO groups.
 *
 * A transaction lowers low-water marks through its marks, which it sets group by group after it has
 * become visible.  In between, a low-water mark is too high for a session that sees the
 * transaction.  So a transaction enters the commit window of its queue before it is visible, with
 * the least id to which it may lower a low-water mark, and leaves when all its marks are set.  A
 * check begins no higher than the least id in the commit window (groups.c has the proof).
 *
 * There is one commit window per queue, not per group, because a group that has no entry when the
 * transaction enters may have one, with a low-water mark, when the transaction becomes visible.  A
 * commit window belongs to the index of a queue state, whichever queue has it; ids of a former
 * queue's writers are merely too low, and only for a moment.  For COMMIT PREPARED, which may
 * concern any queue, and for queues without a state, which may get one in the meantime, there is a
 * commit window for the database; several databases may share one.
 *
 * Under constant load, there is always a writer in the commit window.  If all writers shared one
 * least id, it would never rise, and each check would begin as far back as the earliest of them.
 * Therefore there are two generations, each with its writers and their least id.  A writer enters
 * the newer one.  When the older one has no writers, it first becomes the newer one, without an
 * id.  So an id counts only until the writers of its generation have left, and then those of the
 * next generation.
 *
 * Locks: the spinlock of each commit window, for a few instructions.  Leaving neither allocates nor
 * raises errors.
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "storage/spin.h"

#include "base/base.h"
#include "shared/groups/groups.h"
#include "shared/queue_states/queue_states.h"

/* The commit windows of queues, at the indexes of their states; then those of databases. */
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

/* Returns the number of the commit window of a queue state, or, if it is NULL, of a database. */
int
idemq_commit_window_of(const QueueState *qstate, Oid database)
{
	return qstate != NULL ? idemq_qstate_index(qstate)
						  : idemq_max_queues + (int) (database % DATABASE_COMMIT_WINDOWS);
}

/*
 * Enters a commit window, with the least id to which the caller may lower a low-water mark, or
 * GROUP_DROP_LOW_WATER.  Returns the generation, for idemq_commit_window_leave.
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

/* Lowers the least id of a commit window that the caller has entered. */
void
idemq_commit_window_lower(int number, int generation, int64 id)
{
	CommitWindow *window = &commit_windows[number];

	SpinLockAcquire(&window->lock);
	window->least[generation] = Min(window->least[generation], id);
	SpinLockRelease(&window->lock);
}

/* Leaves a commit window, when all marks are set, or when the transaction has aborted. */
void
idemq_commit_window_leave(int number, int generation)
{
	CommitWindow *window = &commit_windows[number];

	SpinLockAcquire(&window->lock);
	if (--window->writers[generation] == 0)
		window->least[generation] = GROUP_KEEP_LOW_WATER;
	SpinLockRelease(&window->lock);
}

/*
 * Returns the least id to which a transaction in the commit windows of a queue and its database may
 * lower a low-water mark, GROUP_DROP_LOW_WATER or GROUP_KEEP_LOW_WATER.  This includes every
 * transaction that the caller's snapshot shows and that has not set all its marks.
 */
int64
idemq_commit_window_least(const QueueState *qstate, Oid database)
{
	const int numbers[] = {idemq_commit_window_of(NULL, database),
						   idemq_commit_window_of(qstate, database)};
	int64 least = GROUP_KEEP_LOW_WATER;

	for (int i = 0; i < (int) lengthof(numbers); i++)
	{
		CommitWindow *window = &commit_windows[numbers[i]];

		SpinLockAcquire(&window->lock);
		least = Min(least, Min(window->least[0], window->least[1]));
		SpinLockRelease(&window->lock);
	}
	return least;
}
