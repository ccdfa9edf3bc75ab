/*
 * table/jobs_scan.c
 *		Scans of idemq.jobs by an index: the ready jobs of one queue and priority, in the order in
 *		which they are claimed; and all jobs, in the order of their ids.  Also opens and closes
 *		scans of other tables.
 *
 * A scan of jobs returns index entries first, and rows on demand (idemq_jobs_scan_row), so a job
 * that is known to be busy from the lease table costs no access to its row.  It ends with
 * idemq_jobs_scan_end.
 *
 *	 concurrent updates		the scan runs under the snapshot of its JobsTable.  Rows that change during the
 *							scan, even because of it, are seen as they were.  An id may be returned
 *							more than once: an update that is not HOT leaves an entry for the old
 *							version until the next vacuum, and the snapshot sees one of these
 *							versions
 *	 isolation level		does not matter: the snapshot is the latest one (jobs.c)
 *	 user's triggers, indexes	do not matter, because nothing is written
 *
 * Locks: RowExclusiveLock on an index, or AccessShareLock on the primary key and on other tables.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* Positions of columns in the ready index, and in the primary key. */
#define READY_QUEUE 1
#define READY_PRIORITY 2
#define READY_AT 3
#define READY_ID 4
#define PKEY_ID 1

/*
 * Begins the scan of a table by an index.  entries: idemq_jobs_scan_next and so on read index
 * entries.
 */
void
idemq_jobs_scan_open(JobsTable *table, Oid index, LOCKMODE mode, ScanKeyData *keys, int nkeys,
					 bool entries)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);

	table->index = index_open(index, mode);
	table->scan = compat_index_beginscan(table->rel, table->index, table->snapshot, nkeys);
	table->scan->xs_want_itup = entries;
	index_rescan(table->scan, keys, nkeys, NULL, 0);
	MemoryContextSwitchTo(old);
}

/* Moves to the next index entry; returns false at the end. */
static bool
scan_advance(JobsTable *table)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	bool found = index_getnext_tid(table->scan, ForwardScanDirection) != NULL;

	MemoryContextSwitchTo(old);
	return found;
}

/*
 * Fetches the version of the current entry's row that the snapshot sees; returns false if it sees
 * none.
 */
bool
idemq_jobs_scan_row(JobsTable *table, Job *job)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	bool found = idemq_jobs_fetch_entry(table, table->scan, job);

	MemoryContextSwitchTo(old);
	return found;
}

/* Ends a scan; the row that was fetched last remains. */
void
idemq_jobs_scan_end(JobsTable *table)
{
	index_endscan(table->scan);
	idemq_jobs_index_close(table, table->index);
	table->scan = NULL;
	table->index = NULL;
}

/*
 * Returns a key at which a scan that begins at from may stop; it is not below bound.  A b-tree scan
 * stops at the first entry that fails a scan key only if the scan key is on the first column
 * without equality, and of a row comparison only because of its first column.
 */
ReadyKey
idemq_jobs_scan_limit(ReadyKey from, ReadyKey bound)
{
	if (!ready_key_less(from, bound))
		return READY_KEY_MAX;
	if (from.ready_at == bound.ready_at)
		return bound;
	return (ReadyKey){bound.ready_at + 1, PG_INT64_MIN};
}

/*
 * Begins a scan of the ready jobs of one queue and priority, from the first entry that is not below
 * from to the last one below until, which is either from idemq_jobs_scan_limit or READY_KEY_MAX.  A
 * b-tree scan reads as much of a leaf page as its scan keys allow, so a claim of one job is cheap
 * only if until is near.
 */
void
idemq_jobs_scan_begin(JobsTable *table, int32 queue_id, int priority, ReadyKey from, ReadyKey until)
{
	ScanKeyData keys[5];
	/* The scan points to them. */
	ScanKey parts = MemoryContextAlloc(table->context, 2 * sizeof(ScanKeyData));
	int nkeys = 2;

	ScanKeyInit(&keys[0], READY_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], READY_PRIORITY, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(priority));
	if (from.ready_at == until.ready_at)
	{
		ScanKeyInit(&keys[nkeys++], READY_AT, BTEqualStrategyNumber, F_TIMESTAMPTZ_EQ,
					TimestampTzGetDatum(from.ready_at));
		ScanKeyInit(&keys[nkeys++], READY_ID, BTGreaterEqualStrategyNumber, F_INT8GE,
					Int64GetDatum(from.id));
		ScanKeyInit(&keys[nkeys++], READY_ID, BTLessStrategyNumber, F_INT8LT,
					Int64GetDatum(until.id));
	}
	else
	{
		/* (ready_at, id) >= from, as a row comparison */
		ScanKeyEntryInitialize(&parts[0], SK_ROW_MEMBER, READY_AT, BTGreaterEqualStrategyNumber,
							   InvalidOid, InvalidOid, F_TIMESTAMPTZ_CMP,
							   TimestampTzGetDatum(from.ready_at));
		ScanKeyEntryInitialize(&parts[1], SK_ROW_MEMBER | SK_ROW_END, READY_ID,
							   BTGreaterEqualStrategyNumber, InvalidOid, InvalidOid, F_BTINT8CMP,
							   Int64GetDatum(from.id));
		keys[nkeys++] = (ScanKeyData){.sk_flags = SK_ROW_HEADER,
									  .sk_attno = READY_AT,
									  .sk_strategy = BTGreaterEqualStrategyNumber,
									  .sk_argument = PointerGetDatum(parts)};
		if (ready_key_less(until, READY_KEY_MAX))
			ScanKeyInit(&keys[nkeys++], READY_AT, BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
						TimestampTzGetDatum(until.ready_at));
	}
	idemq_jobs_scan_open(table, idemq_jobs_index(table->rel, INDEX_READY, false), RowExclusiveLock,
						 keys, nkeys, true);
}

/* Moves to the next entry of the ready index; returns false at the end. */
bool
idemq_jobs_scan_next(JobsTable *table, ReadyKey *key)
{
	IndexScanDesc scan = table->scan;
	bool isnull;

	if (!scan_advance(table))
		return false;
	key->ready_at =
		DatumGetTimestampTz(index_getattr(scan->xs_itup, READY_AT, scan->xs_itupdesc, &isnull));
	key->id = DatumGetInt64(index_getattr(scan->xs_itup, READY_ID, scan->xs_itupdesc, &isnull));
	return true;
}

/* Returns the HOT root TID of the current entry. */
ItemPointerData
idemq_jobs_scan_tid(const JobsTable *table)
{
	return table->scan->xs_heaptid;
}

/* Begins a scan of all jobs with ids from an id on, and below until. */
void
idemq_jobs_ids_begin(JobsTable *table, int64 from, int64 until)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], PKEY_ID, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
	ScanKeyInit(&keys[1], PKEY_ID, BTLessStrategyNumber, F_INT8LT, Int64GetDatum(until));
	idemq_jobs_scan_open(table, idemq_jobs_primary_key(table->rel), AccessShareLock, keys,
						 lengthof(keys), true);
}

/* Moves to the next entry of the primary key; returns false at the end. */
bool
idemq_jobs_ids_next(JobsTable *table, int64 *id)
{
	IndexScanDesc scan = table->scan;
	bool isnull;

	if (!scan_advance(table))
		return false;
	*id = DatumGetInt64(index_getattr(scan->xs_itup, PKEY_ID, scan->xs_itupdesc, &isnull));
	return true;
}

/*
 * Returns whether a transaction that is open, or has just committed, has written the row of the
 * current entry, and the snapshot does not see that; sets *job to the row as that transaction has
 * written it.
 */
bool
idemq_jobs_ids_in_doubt(JobsTable *table, Job *job)
{
	ItemPointerData root_tid = table->scan->xs_heaptid;
	SnapshotData dirty;
	bool all_dead;

	InitDirtySnapshot(dirty);
	if (!idemq_version_fetch(table->rel, &dirty, &root_tid, table->row, &all_dead, &job->header))
		return false;
	idemq_jobs_decode(table->row, job);
	return true;
}

/* Opens a scan of a table by an index, both open with AccessShareLock.  index_rescan begins it. */
void
idemq_table_scan_open(TableScan *scan, Relation rel, Relation index, Snapshot snapshot, int nkeys)
{
	scan->rel = rel;
	scan->index = index;
	scan->slot = table_slot_create(rel, NULL);
	scan->scan = compat_index_beginscan(rel, index, snapshot, nkeys);
}

/* Closes a scan, its index and its table. */
void
idemq_table_scan_close(TableScan *scan)
{
	index_endscan(scan->scan);
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, AccessShareLock);
	table_close(scan->rel, AccessShareLock);
}
