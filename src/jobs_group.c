/*
 * jobs_group.c
 *		Jobs of a FIFO group, through the index jobs_group.
 *
 * The index is (queue_id, group_key, ready_at, id) of unfinished jobs: a group's head
 * has a ready_at and stands first; those that are blocked have none and follow, in
 * the order of their ids.  So the first row that a snapshot sees tells whether the
 * group has a head, and else who is next, however many are blocked.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "catalog/pg_collation.h"
#include "executor/tuptable.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "jobs.h"

/* Positions in the index. */
#define GROUP_QUEUE 1
#define GROUP_KEY 2
#define GROUP_READY_AT 3

/*
 * Fetches the first row, under the table's snapshot, of the group of that name, or,
 * with next, of the first group behind it, NULL for the first of all; false when there
 * is none.  The name must not be the fetched row's own.
 */
static bool
fetch(JobsTable *table, int32 queue_id, const Datum *name, bool next, Job *job)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_group_index(table->rel), RowExclusiveLock);
	ScanKeyData keys[2];
	int nkeys = 1;
	IndexScanDesc scan;
	bool found;

	ScanKeyInit(&keys[0], GROUP_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	if (name != NULL)
		ScanKeyEntryInitialize(&keys[nkeys++], 0, GROUP_KEY,
							   next ? BTGreaterStrategyNumber : BTEqualStrategyNumber, InvalidOid,
							   C_COLLATION_OID, next ? F_TEXT_GT : F_TEXTEQ, *name);
	scan = compat_index_beginscan(table->rel, index, table->snapshot, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, table->row);
	index_endscan(scan);
	index_close(index, NoLock);
	MemoryContextSwitchTo(old);
	if (found)
		idemq_jobs_decode(table->row, job);
	return found;
}

/* Fetches a group's head, or, when it has none, the job that is to be it; false for no jobs. */
bool
idemq_jobs_group_first(JobsTable *table, int32 queue_id, Datum name, Job *job)
{
	return fetch(table, queue_id, &name, false, job);
}

/*
 * As idemq_jobs_group_first, of the first group of a queue behind that name, in the
 * order of their names' bytes; NULL: the first of all.
 */
bool
idemq_jobs_group_next(JobsTable *table, int32 queue_id, const Datum *name, Job *job)
{
	return fetch(table, queue_id, name, true, job);
}

/*
 * Returns whether a group has a head that the table's snapshot does not show: one that
 * another open transaction has made, a prepared one most likely, or has just committed.
 */
bool
idemq_jobs_group_head_in_doubt(JobsTable *table, int32 queue_id, Datum name)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_group_index(table->rel), RowExclusiveLock);
	TupleTableSlot *row = table_slot_create(table->rel, NULL);
	SnapshotData dirty;
	ScanKeyData keys[3];
	IndexScanDesc scan;
	bool found = false;
	Job job;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&keys[0], GROUP_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyEntryInitialize(&keys[1], 0, GROUP_KEY, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, name);
	ScanKeyEntryInitialize(&keys[2], SK_ISNULL | SK_SEARCHNOTNULL, GROUP_READY_AT, InvalidStrategy,
						   InvalidOid, InvalidOid, InvalidOid, (Datum) 0);
	scan = compat_index_beginscan(table->rel, index, &dirty, lengthof(keys));
	index_rescan(scan, keys, lengthof(keys), NULL, 0);
	while (!found && index_getnext_slot(scan, ForwardScanDirection, row))
	{
		idemq_jobs_decode(row, &job);
		/* One that is blocked all the same was written by hand. */
		found = TransactionIdIsValid(dirty.xmin) || job.status != JOB_BLOCKED;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	index_close(index, NoLock);
	MemoryContextSwitchTo(old);
	return found;
}
