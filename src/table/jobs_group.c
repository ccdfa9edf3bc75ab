/*
 * table/jobs_group.c
 *		Jobs of a FIFO group, through the index jobs_group.
 *
 * The index is (queue_id, group_key, ready_at, id) of unfinished jobs: a group's head
 * has a ready_at and stands first; those that are blocked have none and follow, in
 * the order of their ids.  So the first row that a snapshot sees says whether the
 * group has a head, or else which job is next, however many are blocked.  Of a group
 * that may have several running jobs (job/permits.c) those with a ready_at are scanned.
 *
 * For group_max_unfinished, the jobs of a group are counted.  Like an index-only scan, the count does
 * not read rows on all-visible pages.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "access/visibilitymap.h"
#include "catalog/pg_collation.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"

#include "base/compat.h"
#include "table/table.h"

/* Positions in the index. */
#define GROUP_QUEUE 1
#define GROUP_KEY 2
#define GROUP_READY_AT 3
#define GROUP_ID 4

/*
 * Fetches the first row that the table's snapshot sees of those that the keys name;
 * false when there is none.  What the keys point to must not belong to table->row.
 */
static bool
fetch(JobsTable *table, ScanKeyData *keys, int nkeys, Job *job)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_index(table->rel, INDEX_GROUP, false), RowExclusiveLock);
	IndexScanDesc scan;
	bool found;

	scan = compat_index_beginscan(table->rel, index, table->snapshot, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, table->row);
	index_endscan(scan);
	idemq_jobs_index_close(table, index);
	MemoryContextSwitchTo(old);
	if (found)
		idemq_jobs_decode(table->row, job);
	return found;
}

/* Makes the keys of a group: two of them. */
static void
name_keys(ScanKeyData *keys, int32 queue_id, Datum name)
{
	ScanKeyInit(&keys[0], GROUP_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyEntryInitialize(&keys[1], 0, GROUP_KEY, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, name);
}

/* Fetches a group's head, or, without one, the job that is to become it; false for no jobs. */
bool
idemq_jobs_group_first(JobsTable *table, int32 queue_id, Datum name, Job *job)
{
	ScanKeyData keys[2];

	name_keys(keys, queue_id, name);
	return fetch(table, keys, 2, job);
}

/* Makes the keys of a group's heads, with that ready_at or a later one: three of them. */
static void
head_keys(ScanKeyData *keys, int32 queue_id, Datum name, TimestampTz from)
{
	name_keys(keys, queue_id, name);
	ScanKeyInit(&keys[2], GROUP_READY_AT, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
}

/* Fetches a group's head; false when it has none with that ready_at, or a later one. */
bool
idemq_jobs_group_head(JobsTable *table, int32 queue_id, Datum name, TimestampTz from, Job *job)
{
	ScanKeyData keys[3];

	IDEMQ_STOP("idemq_jobs_group_head");
	head_keys(keys, queue_id, name, from);
	return fetch(table, keys, 3, job);
}

/* Fetches the first blocked job of a group with that id, or a greater one; false for none. */
bool
idemq_jobs_group_blocked(JobsTable *table, int32 queue_id, Datum name, int64 from, Job *job)
{
	ScanKeyData keys[4];

	name_keys(keys, queue_id, name);
	ScanKeyEntryInitialize(&keys[2], SK_ISNULL | SK_SEARCHNULL, GROUP_READY_AT, InvalidStrategy,
						   InvalidOid, InvalidOid, InvalidOid, (Datum) 0);
	ScanKeyInit(&keys[3], GROUP_ID, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
	return fetch(table, keys, 4, job);
}

/*
 * Like idemq_jobs_group_first, for the first group of a queue behind that name, in
 * the order of the names' bytes; NULL: the first of all.
 */
bool
idemq_jobs_group_next(JobsTable *table, int32 queue_id, const Datum *name, Job *job)
{
	ScanKeyData keys[2];

	IDEMQ_STOP("idemq_jobs_group_next");
	ScanKeyInit(&keys[0], GROUP_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	if (name != NULL)
		ScanKeyEntryInitialize(&keys[1], 0, GROUP_KEY, BTGreaterStrategyNumber, InvalidOid,
							   C_COLLATION_OID, F_TEXT_GT, *name);
	return fetch(table, keys, name == NULL ? 1 : 2, job);
}

/* Begins a scan of the jobs of a group whose ready_at is in a range, both ends included. */
void
idemq_jobs_group_scan_begin(JobsTable *table, int32 queue_id, Datum name, TimestampTz from,
							TimestampTz until)
{
	ScanKeyData keys[4];

	head_keys(keys, queue_id, name, from);
	ScanKeyInit(&keys[3], GROUP_READY_AT, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(until));
	idemq_jobs_scan_open(table, idemq_jobs_index(table->rel, INDEX_GROUP, false), RowExclusiveLock,
						 keys, lengthof(keys), false);
}

/* Fetches the next job of the scan, by ready_at; false at its end: call idemq_jobs_scan_end. */
bool
idemq_jobs_group_scan_next(JobsTable *table, Job *job)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	bool found = index_getnext_slot(table->scan, ForwardScanDirection, table->row);

	MemoryContextSwitchTo(old);
	if (found)
		idemq_jobs_decode(table->row, job);
	return found;
}

/* Counts up to most unfinished jobs of a group that a snapshot shows. */
int64
idemq_jobs_group_count(JobsTable *table, int32 queue_id, Datum name, Snapshot snapshot, int64 most)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_index(table->rel, INDEX_GROUP, false), RowExclusiveLock);
	TupleTableSlot *row = table_slot_create(table->rel, NULL);
	Buffer visible = InvalidBuffer;
	ScanKeyData keys[2];
	IndexScanDesc scan;
	ItemPointer tid;
	int64 count = 0;

	name_keys(keys, queue_id, name);
	scan = compat_index_beginscan(table->rel, index, snapshot, lengthof(keys));
	/* Pins the index page: VACUUM, which sets pages all-visible, cannot remove entries from it. */
	scan->xs_want_itup = true;
	index_rescan(scan, keys, lengthof(keys), NULL, 0);
	while (count < most && (tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (VM_ALL_VISIBLE(table->rel, ItemPointerGetBlockNumber(tid), &visible) ||
			index_fetch_heap(scan, row))
			count++;
	}
	if (BufferIsValid(visible))
		ReleaseBuffer(visible);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	idemq_jobs_index_close(table, index);
	MemoryContextSwitchTo(old);
	return count;
}
