/*
 * txn/pending_commit_window.c
 *		The commit windows (shared/groups/commit_window.c) that this transaction is in: from before
 *		it is visible until all its marks are set, or until it has aborted.
 *
 * It enters them at PRE_COMMIT, and before COMMIT PREPARED.  However the transaction
 * ends, txn/at_end.c has it leave them all; so does the end of a session, which aborts.
 * PREPARE enters none: what it wrote is not visible.
 *
 * All state is this backend's.  Entering may raise an error, leaving does not.
 */
#include "postgres.h"

#include "shared/groups/groups.h"
#include "txn/txn.h"

/* This transaction in a commit window, in which it may be more than once. */
typedef struct Stay
{
	int number;
	int generation;
	int64 least; /* the least id that it has told this generation */
} Stay;

/* In TopTransactionContext; NULL between transactions. */
static Stay *stays = NULL;
static int nstays = 0;
static int max_stays = 0;

/*
 * Enters the commit window of a queue, of the database when qstate is NULL; id: as
 * idemq_group_mark takes it, but not GROUP_KEEP_LOW_WATER.
 */
void
idemq_pending_commit_window_enter(const QueueState *qstate, Oid database, int64 id)
{
	int number = idemq_commit_window_of(qstate, database);
	Stay *last = nstays == 0 ? NULL : &stays[nstays - 1];

	/*
	 * Most transactions lower the low-water marks of one queue only; one more stay does the others
	 * no harm.
	 */
	if (last == NULL || last->number != number)
	{
		stays = idemq_grow(stays, &max_stays, (int64) nstays + 1, sizeof(Stay));
		stays[nstays] = (Stay){number, idemq_commit_window_enter(number, id), id};
		nstays++;
	}
	else if (id < last->least)
	{
		idemq_commit_window_lower(number, last->generation, id);
		last->least = id;
	}
}

void
idemq_pending_commit_window_leave(void)
{
	while (nstays > 0)
	{
		const Stay *last = &stays[--nstays];

		idemq_commit_window_leave(last->number, last->generation);
	}
	stays = NULL;
	max_stays = 0;
}
