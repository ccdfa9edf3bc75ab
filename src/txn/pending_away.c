/*
 * txn/pending_away.c
 *		Databases from which this transaction keeps the worker away, until it ends.
 *
 * The rollback of a savepoint lets no worker return: the command that needed the database for
 * itself may be repeated, and the transaction will soon end.
 *
 * All state belongs to this backend.
 */
#include "postgres.h"

#include "shared/processes/processes.h"
#include "txn/txn.h"

/* In TopTransactionContext; NULL between transactions. */
static Oid *kept = NULL;
static int nkept = 0;
static int max_kept = 0;

/*
 * Keeps a database's worker away until this transaction ends.  Returns the process that must still
 * leave, so that the caller can wait for it; 0 if there is none, or if an earlier call has returned
 * it.
 */
pid_t
idemq_pending_away_keep(Oid database)
{
	bool is_held;
	pid_t pid;

	for (int i = 0; i < nkept; i++)
	{
		if (kept[i] == database)
			return 0;
	}
	kept = idemq_grow(kept, &max_kept, nkept + 1, sizeof(Oid));
	pid = idemq_worker_hold(database, &is_held);
	if (is_held)
		kept[nkept++] = database;
	return pid;
}

/*
 * Lets the workers return, at the end of the transaction.  Neither allocates memory nor raises
 * errors.
 */
void
idemq_pending_away_let_back(void)
{
	while (nkept > 0)
		idemq_worker_release(kept[--nkept]);
	kept = NULL;
	max_kept = 0;
}
