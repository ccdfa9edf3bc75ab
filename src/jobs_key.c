/*
 * jobs_key.c
 *		Lookups of a job by its idempotency key, through the unique index jobs_key.
 *
 * idemq_jobs_find_key sees what the table's snapshot sees: a key whose job is not
 * committed, or was freed meanwhile, is not there; the index itself decides when
 * somebody inserts.  idemq_jobs_key_in_doubt looks at what is not committed; its
 * answer may be over by the time it is used.  Neither waits, writes or locks.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "jobs.h"

/* Positions in the index. */
#define KEY_QUEUE 1
#define KEY_KEY 2

/* Begins a scan for one key. */
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
	Relation index = index_open(idemq_jobs_key_index(table->rel), RowExclusiveLock);
	IndexScanDesc scan = begin_scan(table, index, table->snapshot, queue_id, key);
	bool found = index_getnext_slot(scan, ForwardScanDirection, table->row);

	index_endscan(scan);
	index_close(index, NoLock);
	MemoryContextSwitchTo(old);
	if (found)
		idemq_jobs_decode(table->row, job);
	return found;
}

/* Returns whether another open transaction is giving a key to a job, or taking it from one. */
bool
idemq_jobs_key_in_doubt(JobsTable *table, int32 queue_id, Datum key)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_key_index(table->rel), RowExclusiveLock);
	TupleTableSlot *row = table_slot_create(table->rel, NULL);
	SnapshotData dirty;
	IndexScanDesc scan;
	bool in_doubt = false;

	InitDirtySnapshot(dirty);
	scan = begin_scan(table, index, &dirty, queue_id, key);
	/* The snapshot's xmin and xmax are those of others only. */
	while (!in_doubt && index_getnext_slot(scan, ForwardScanDirection, row))
		in_doubt = TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	index_close(index, NoLock);
	MemoryContextSwitchTo(old);
	return in_doubt;
}
