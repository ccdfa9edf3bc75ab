/*
 * txn/pending_away.c
 *		Databases from which this transaction keeps the worker away, until it ends.
 *
 * A savepoint's rollback lets no worker back: the command that wanted the database
 * for itself may be tried again, and the transaction's end is near.
 *
 * All state is this backend's.
 */
#include "postgres.h"

#include "shared/processes/processes.h"
#include "txn/txn.h"

/* In TopTransactionContext; NULL between transactions. */
static Oid *kept = NULL;
static int nkept = 0;
static int max_kept = 0;

/*
 * Keeps a database's worker away until this transaction ends.  Returns the process
 * that has yet to go, for the caller to wait for; 0 when there is none, or when it was
 * returned before.
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

/* Lets the workers back; for the end of the transaction.  Neither allocates nor raises. */
void
idemq_pending_away_let_back(void)
{
	while (nkept > 0)
		idemq_worker_release(kept[--nkept]);
	kept = NULL;
	max_kept = 0;
}
