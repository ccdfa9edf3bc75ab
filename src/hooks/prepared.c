/*
 * hooks/prepared.c
 *		Which prepared transactions have changed idemq's tables: the end of any other is
 *		no reason to unset what shared memory knows of the whole database.
 *
 * The lock manager knows.  A transaction that has written rows holds RowExclusiveLock, or
 * more, on their table; it keeps its locks when it is prepared, and after a restart.
 * What only reads holds no such lock by the end of its call (table/jobs.c), so that a role
 * that may call idemq's functions, and write nothing by them, cannot have one prepared.
 *
 * Between the question and the command a role may end the prepared transaction and prepare
 * another under the same name.  Then the command ends one that was not asked about: its jobs
 * are those that the role wrote itself.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "hooks/hooks.h"

/* The tables that memory knows something of. */
static const struct
{
	const char *name;
	bool is_internal;
} tables[] = {{"jobs", false},		   {"queues", false},		   {"children", false},
			  {"dependencies", false}, {"queue_grants", true},	   {"handler_entries", true},
			  {"clusters", true},	   {"schedule_entries", true}, {"hold_entries", true},
			  {"paused_groups", false}};

static SqlStatement prepared_find =
	{.text = "SELECT transaction FROM pg_catalog.pg_prepared_xacts WHERE gid = $1",
	 .types = {TEXTOID},
	 .fields = (const SqlField[]){{0, sizeof(TransactionId), NULL}}};

/*
 * Returns whether the prepared transaction of that name has changed what memory knows
 * something of.  False when there is no such transaction, or no idemq in this database, or one
 * that is yet to be updated.
 */
bool
idemq_prepared_has_written(const char *gid)
{
	TransactionId xid;
	bool found = false;
	Datum name;

	if (idemq_presence() != IDEMQ_HERE)
		return false;
	name = CStringGetTextDatum(gid);
	/* COMMIT PREPARED has no snapshot of its own. */
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) idemq_spi_row(&prepared_find, &name, &xid, sizeof(xid));
	PopActiveSnapshot();
	for (int t = 0; t < (int) lengthof(tables) && TransactionIdIsValid(xid) && !found; t++)
	{
		VirtualTransactionId *holders;
		LOCKTAG tag;
		int count;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId,
							 get_relname_relid(tables[t].name, tables[t].is_internal
																   ? idemq_oids()->internal
																   : idemq_oids()->schema));
		/* ShareLock conflicts with RowExclusiveLock and what writers take above it. */
		holders = GetLockConflicts(&tag, ShareLock, &count);
		for (int i = 0; i < count && !found; i++)
		{
			bool more = false;

			/* A transaction that was prepared before the server started has its xid there. */
			found = VirtualTransactionIdIsRecoveredPreparedXact(holders[i])
						? holders[i].localTransactionId == xid
						: TwoPhaseGetXidByVirtualXID(holders[i], &more) == xid;
		}
		pfree(holders);
	}
	return found;
}
