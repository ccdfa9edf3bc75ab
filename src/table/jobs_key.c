/*
 * table/jobs_key.c
 *		Jobs by their idempotency key, through the unique index jobs_key: lookups,
 *		and inserts that give way to the job that has the key.
 *
 * An insert is speculative, as INSERT ... ON CONFLICT DO NOTHING is: the row is
 * written first, then its key's index entry, and taken back when another row's
 * is there.  Of two that write one key at once, the one whose entry came first
 * stays.  A savepoint's rollback leaves a dead row, as of any INSERT; a table with
 * user triggers or an index that needs the executor takes the way by SQL.
 *
 * idemq_jobs_find_key sees what the table's snapshot sees: a key whose job is not
 * committed, or was freed meanwhile, is not there; the index itself decides when
 * a job is inserted.  idemq_jobs_key_in_doubt reads what is not committed; its
 * answer may be over by the time it is used.  Neither waits, writes or locks.
 *
 * A hot key: each job that had it leaves entries, which stay for as long as a snapshot is
 * held.  The entries of one key are in the order of the rows' TIDs, and rows are added
 * further and further back.  So a lookup goes from the last entry to the first, and meets
 * the job that has the key before the dead ones.
 *
 * A key successor: a new job whose key this transaction has just taken from a finished one, the
 * holder, by an update of its row (idemq_jobs_insert_successor).  Its entry needs no check, and
 * the check is what would read all dead entries:
 * - One transaction at a time can write the holder's last version, and an update of an
 *   older one is refused: so there is one key successor.
 * - Any other insert of the key checks the entries from left to right, under a lock on the
 *   first leaf page that may have it.  Where it comes to the holder's entry it finds the
 *   holder alive, or its update by an open transaction, for which it waits, or that
 *   transaction committed.  In the third case the key successor's entry was there before.  It is to
 *   the right of the holder's, since it goes without the check only if its row's TID is greater.
 *   So the other insert still comes to it, and what was said of the holder holds for the key
 *   successor, and for its successors.
 * - A key successor whose row has a smaller TID checks, as all others do; for that it locks the
 *   first page too, and so comes before or after.
 * - A rollback, even of a savepoint, undoes the update and the key successor together.
 * An index that is not valid yet may lack the holder's entry: there it checks.
 *
 * An insert waits for a transaction that inserts the key, not for one that changes a
 * committed job that has it: a fresh snapshot sees that job, however long its worker's
 * transaction stays open.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "table/table.h"

/* Positions in the index. */
#define KEY_QUEUE 1
#define KEY_KEY 2

static IndexScanDesc
begin_scan(JobsTable *table, Relation index, Snapshot snapshot, int32 queue_id, Datum key)
{
	ScanKeyData keys[2];
	IndexScanDesc scan;

	ScanKeyInit(&keys[0], KEY_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyEntryInitialize(&keys[1], 0, KEY_KEY, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID,
						   F_TEXTEQ, key);
	scan = compat_index_beginscan(table->rel, index, snapshot, 2);
	index_rescan(scan, keys, 2, NULL, 0);
	return scan;
}

/* Fetches the job that has a key of a queue, as the table's snapshot sees it; false for none. */
bool
idemq_jobs_find_key(JobsTable *table, int32 queue_id, Datum key, Job *job)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_index(table->rel, INDEX_KEY, false), RowExclusiveLock);
	IndexScanDesc scan = begin_scan(table, index, table->snapshot, queue_id, key);
	bool found = false;

	while (!found && index_getnext_tid(scan, BackwardScanDirection) != NULL)
		found = idemq_jobs_fetch_entry(table, scan, job);
	index_endscan(scan);
	idemq_jobs_index_close(table, index);
	MemoryContextSwitchTo(old);
	return found;
}

/*
 * Searches for another open transaction that is giving a key to a job, where no committed job
 * has it; with changes, also for one that writes a job that has it.  Sets *xid, and *token
 * when its insert may still be taken back.
 */
static bool
find_duplicate(JobsTable *table, int32 queue_id, Datum key, bool changes, TransactionId *xid,
			   uint32 *token)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_index(table->rel, INDEX_KEY, false), RowExclusiveLock);
	TupleTableSlot *row = table_slot_create(table->rel, NULL);
	SnapshotData dirty;
	IndexScanDesc scan;

	*xid = InvalidTransactionId;
	*token = 0;
	InitDirtySnapshot(dirty);
	scan = begin_scan(table, index, &dirty, queue_id, key);
	/* The snapshot's xmin and xmax are other transactions' only. */
	while (index_getnext_slot(scan, ForwardScanDirection, row))
	{
		bool committed = !TransactionIdIsValid(dirty.xmin);

		*xid = !committed ? dirty.xmin : changes ? dirty.xmax : InvalidTransactionId;
		*token = dirty.speculativeToken;
		/* A worker's new version of a committed job has an open xmin too: the old one is found. */
		if (changes ? TransactionIdIsValid(*xid) : committed)
			break;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	idemq_jobs_index_close(table, index);
	MemoryContextSwitchTo(old);
	return TransactionIdIsValid(*xid);
}

/* Returns whether another open transaction is giving a key to a job, or writes one that has it. */
bool
idemq_jobs_key_in_doubt(JobsTable *table, int32 queue_id, Datum key)
{
	TransactionId xid;
	uint32 token;

	return find_duplicate(table, queue_id, key, true, &xid, &token);
}

/*
 * Waits until no other open transaction is giving this key, which no committed job has, to a job;
 * returns whether there was such a transaction.
 */
bool
idemq_jobs_await_key(JobsTable *table, int32 queue_id, Datum key)
{
	TransactionId xid;
	uint32 token;
	bool waited = false;

	while (find_duplicate(table, queue_id, key, false, &xid, &token))
	{
		waited = true;
		if (token != 0)
			SpeculativeInsertionWait(xid, token);
		else
			XactLockTableWait(xid, table->rel, NULL, XLTW_None);
	}
	return waited;
}

/*
 * Inserts a row with a key; columns that are not set are NULL.  Returns false, and
 * nothing is left of it, when the key is taken: the caller looks it up again under a fresh
 * snapshot.  A concurrent duplicate whose transaction is open is waited for, unless the caller
 * skips (with a table that is not simple it is waited for all the same).
 */
bool
idemq_jobs_insert_keyed(JobsTable *table, JobChange *columns, JobWait wait)
{
	TransactionId xid;
	uint32 token;
	bool mine;

	table->written = true;
	if (!table->simple || !idemq_jobs_indexes_are_simple(table->rel))
		return idemq_jobs_insert_sql(table, columns);
	idemq_jobs_fill_row(table, columns);
	xid = GetCurrentTransactionId();
	token = SpeculativeInsertionLockAcquire(xid);
	table_tuple_insert_speculative(table->rel, table->new_row, GetCurrentCommandId(true), 0, NULL,
								   token);
	IDEMQ_STOP("idemq_jobs_index_insert_keyed");
	/* Returns false, without waiting, if another row has the key, or may have it. */
	mine =
		idemq_jobs_index_insert_simple(table->rel, &table->new_row, 1, NULL, UNIQUE_CHECK_PARTIAL);
	IDEMQ_STOP("before_confirm");
	table_tuple_complete_speculative(table->rel, table->new_row, token, mine);
	IDEMQ_STOP("after_confirm");
	SpeculativeInsertionLockRelease(xid);
	if (mine)
		idemq_jobs_count_new(table->new_row);
	else if (wait == JOB_WAITS)
		(void) idemq_jobs_await_key(table, DatumGetInt32(columns->values[COL_QUEUE_ID]),
									columns->values[COL_KEY]);
	return mine;
}

/*
 * Inserts a row with a key that this transaction has just taken from another row, as that was
 * fetched; see the file's header.  False: a user's trigger got in between.
 */
bool
idemq_jobs_insert_successor(JobsTable *table, JobChange *columns, const Job *taken_from)
{
	bool follows;

	table->written = true;
	if (!table->simple || !idemq_jobs_indexes_are_simple(table->rel))
		return idemq_jobs_insert_sql(table, columns);
	idemq_jobs_fill_row(table, columns);
	table_tuple_insert(table->rel, table->new_row, GetCurrentCommandId(true), 0, NULL);
	/* The entry needs no check if it comes after the entry of the other row. */
	follows = ItemPointerCompare(&table->new_row->tts_tid,
								 unconstify(ItemPointerData *, &taken_from->root_tid)) > 0;
	(void) idemq_jobs_index_insert_simple(table->rel, &table->new_row, 1, NULL,
										  follows ? UNIQUE_CHECK_NO : UNIQUE_CHECK_YES);
	idemq_jobs_count_new(table->new_row);
	return true;
}
