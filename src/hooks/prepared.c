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
 * A role that ends one prepared transaction and prepares another under the same name
 * between the question and the command ends one that was not asked about: of jobs that
 * it wrote itself.
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
static const char *const tables[] = {"jobs",	 "queues",	 "queue_grants", "handler_entries",
									 "children", "clusters", "dependencies", "schedule_entries"};

static SqlStatement find_prepared =
	{.text = "SELECT transaction FROM pg_catalog.pg_prepared_xacts WHERE gid = $1",
	 .types = {TEXTOID}};

/* Returns the id of the prepared transaction of a name, InvalidTransactionId when there is none. */
static TransactionId
transaction_of(const char *gid)
{
	TransactionId xid = InvalidTransactionId;
	Datum name = CStringGetTextDatum(gid);
	SqlScope scope;

	/* COMMIT PREPARED has no snapshot of its own. */
	PushActiveSnapshot(GetTransactionSnapshot());
	idemq_spi_begin(&scope);
	if (idemq_spi_query_latest(&find_prepared, &name, NULL) > 0)
		xid = DatumGetTransactionId(idemq_spi_value(0, 1, NULL));
	idemq_spi_end(&scope);
	PopActiveSnapshot();
	return xid;
}

/* Returns whether a holder of a lock is the prepared transaction. */
static bool
is_transaction(VirtualTransactionId holder, TransactionId xid)
{
	bool more = false;

	/* As one is named that was prepared before the server started. */
	if (VirtualTransactionIdIsRecoveredPreparedXact(holder))
		return holder.localTransactionId == xid;
	return TwoPhaseGetXidByVirtualXID(holder, &more) == xid;
}

/* Returns whether a prepared transaction holds a lock for writing on a table. */
static bool
holds_for_writing(TransactionId xid, Oid table)
{
	VirtualTransactionId *holders;
	bool found = false;
	LOCKTAG tag;
	int count;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
	/* ShareLock conflicts with RowExclusiveLock and what writers take above it. */
	holders = GetLockConflicts(&tag, ShareLock, &count);
	for (int i = 0; i < count && !found; i++)
		found = is_transaction(holders[i], xid);
	pfree(holders);
	return found;
}

/*
 * Returns whether the prepared transaction of that name has changed what memory knows
 * something of.  False when there is no such transaction, or no idemq in this database, or one
 * that is yet to be updated.
 */
bool
idemq_prepared_has_written(const char *gid)
{
	TransactionId xid;

	if (idemq_presence() != IDEMQ_HERE)
		return false;
	xid = transaction_of(gid);
	if (!TransactionIdIsValid(xid))
		return false;
	for (int i = 0; i < (int) lengthof(tables); i++)
	{
		if (holds_for_writing(xid, get_relname_relid(tables[i], idemq_oids()->schema)))
			return true;
	}
	return false;
}
