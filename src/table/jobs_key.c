/*
 * table/jobs_key.c
 *		Idempotency keys of jobs, through the unique index jobs_key: lookups, and inserts that give
 *		way to the job that has the key.
 *
 * An insert is speculative, like INSERT ... ON CONFLICT DO NOTHING: the row is written first, then
 * the index entry of its key, and the row is taken back if another row has the key.  If two
 * transactions insert the same key at the same time, the one whose entry came first succeeds.  A
 * rollback to a savepoint leaves a dead row, as after any INSERT.  If the table has user triggers,
 * or an index that needs the executor, rows are inserted with SQL.
 *
 * idemq_jobs_find_key sees what the table's snapshot sees, so it does not find a key whose job is
 * not committed, or has been released since.  The index decides when a job is inserted.
 * idemq_jobs_key_in_doubt also sees what is not committed, and its result may be out of date at
 * once.  Neither of them waits, writes or locks.
 *
 * Hot keys: each job that has had a key leaves index entries, which stay as long as a snapshot is
 * held.  The entries of a key are in the order of the rows' TIDs, and new rows tend to be at the
 * end of the table.  So a lookup scans from the last entry to the first, and finds the job that has
 * the key before the dead ones.
 *
 * A key successor is a new job whose key this transaction has just taken from a finished job, the
 * holder, by an update of the holder's row (idemq_jobs_insert_successor).  Its entry needs no
 * uniqueness check, which would read all dead entries:
 *	 - Only one transaction at a time can write the holder's latest version, and an update of an
 *	   older version is refused.  So there is only one key successor.
 *	 - Any other insert of the key checks the entries from left to right, while it holds a lock on
 *	   the first leaf page that may contain the key.  When it comes to the holder's entry, the
 *	   holder is alive; or an open transaction has updated it, for which the insert waits; or that
 *	   transaction has committed.  In the third case, the key successor's entry was there before.
 *	   It is to the right of the holder's entry, because the check is skipped only if the TID of its
 *	   row is greater.  So the insert still comes to that entry, and the same holds for the key
 *	   successor, and for its successors.
 *	 - A key successor whose row has a smaller TID is checked like any other row.  The check locks
 *	   the first page, too, and so comes before or after other checks.
 *	 - A rollback, even to a savepoint, undoes the update and the key successor together.
 * An index that is not valid yet may lack the holder's entry, so there the key successor is
 * checked.
 *
 * An insert waits for a transaction that is inserting the key, but not for one that is changing a
 * committed job with this key, because a new snapshot sees that job however long its worker's
 * transaction remains open.
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

/* Positions of columns in the index. */
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

/*
 * Fetches the job of a queue with a key that the table's snapshot sees; returns false if there is
 * none.
 */
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
 * Looks for another open transaction that is inserting a job with a key that no committed job has;
 * with changes, also for one that is writing a job with this key.  Returns whether there is one,
 * and sets *xid; sets *token if its insert is speculative and may still be taken back, otherwise to
 * 0.
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
	/* A dirty snapshot's xmin and xmax are only those of other open transactions. */
	while (index_getnext_slot(scan, ForwardScanDirection, row))
	{
		bool committed = !TransactionIdIsValid(dirty.xmin);

		*xid = !committed ? dirty.xmin : changes ? dirty.xmax : InvalidTransactionId;
		*token = dirty.speculativeToken;
		/* If a worker is changing a committed job, both its old and its new version are found. */
		if (changes ? TransactionIdIsValid(*xid) : committed)
			break;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	idemq_jobs_index_close(table, index);
	MemoryContextSwitchTo(old);
	return TransactionIdIsValid(*xid);
}

/*
 * Returns whether another open transaction is inserting a job with a key, or writing the one that
 * has it.
 */
bool
idemq_jobs_key_in_doubt(JobsTable *table, int32 queue_id, Datum key)
{
	TransactionId xid;
	uint32 token;

	return find_duplicate(table, queue_id, key, true, &xid, &token);
}

/*
 * Waits until no other open transaction is inserting a job with a key that no committed job has;
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
 * Inserts a row with a key; columns that are not set are NULL.  Returns false, and leaves nothing
 * behind, if the key is taken; then the caller looks it up again under a new snapshot.  Waits for
 * an open transaction that is inserting the same key, unless the caller must not wait (but always
 * if the table is not simple).
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
 * Inserts a row with a key that this transaction has just taken from another row, as fetched before
 * that; see the top of this file.  Returns false if a user's trigger has inserted another job with
 * the key.
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
