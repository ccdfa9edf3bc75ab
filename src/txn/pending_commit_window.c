/*
 * txn/pending_commit_window.c
 *		The commit windows (shared/groups/commit_window.c) that this transaction has entered: from
 *		before it is visible until all its marks are set, or until it has aborted.
 *
 * It enters them at PRE_COMMIT, and before COMMIT PREPARED.  However the transaction ends,
 * txn/at_end.c makes it leave them all; the end of a session is an abort.  PREPARE enters none,
 * because the transaction is not visible afterwards.
 *
 * All state belongs to this backend.  Entering may raise an error, leaving does not.
 */
#include "postgres.h"

#include "shared/groups/groups.h"
#include "txn/txn.h"

/* One entry into a commit window, which a transaction may enter several times. */
typedef struct Stay
{
	int number;
	int generation;
	int64 least; /* the least id that this generation has been told */
} Stay;

/* In TopTransactionContext; NULL between transactions. */
static Stay *stays = NULL;
static int nstays = 0;
static int max_stays = 0;

/*
 * Enters the commit window of a queue, or of the database if qstate is NULL. id: as for
 * idemq_group_mark, but not GROUP_KEEP_LOW_WATER.
 */
void
idemq_pending_commit_window_enter(const QueueState *qstate, Oid database, int64 id)
{
	int number = idemq_commit_window_of(qstate, database);
	Stay *last = nstays == 0 ? NULL : &stays[nstays - 1];

	/*
	 * Most transactions lower low-water marks in only one queue; for others, further stays do no
	 * harm.
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
