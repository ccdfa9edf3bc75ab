/*
 * table/jobs_group.c
 *		The jobs of a FIFO group, through the index jobs_group.
 *
 * The index is on (queue_id, group_key, ready_at, id) of unfinished jobs.  The head of a group has
 * a ready_at, and comes first.  The jobs that are blocked have none; they follow in the order of
 * their ids.  So the first row that a snapshot sees is the head of the group, or, if there is no
 * head, the next job, however many jobs are blocked.  If a group may have several running jobs
 * (job/permits.c), its jobs with a ready_at are scanned.
 *
 * For group_max_unfinished, the jobs of a group are counted.  Like an index-only scan, the count
 * does not read rows on pages that are all-visible.
 *
 * Locks: RowExclusiveLock on the index.
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

/* Positions of columns in the index. */
#define GROUP_QUEUE 1
#define GROUP_KEY 2
#define GROUP_READY_AT 3
#define GROUP_ID 4

/*
 * Fetches the first row that matches the scan keys and that the table's snapshot sees; returns
 * false if there is none.  The keys must not point into table->row.
 */
static bool
group_fetch(JobsTable *table, ScanKeyData *keys, int nkeys, Job *job)
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

/* Sets two scan keys to those of a group. */
static void
name_keys(ScanKeyData *keys, int32 queue_id, Datum name)
{
	ScanKeyInit(&keys[0], GROUP_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyEntryInitialize(&keys[1], 0, GROUP_KEY, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, name);
}

/*
 * Fetches the head of a group, or, if it has none, the next job; returns false if it has no jobs.
 */
bool
idemq_jobs_group_first(JobsTable *table, int32 queue_id, Datum name, Job *job)
{
	ScanKeyData keys[2];

	name_keys(keys, queue_id, name);
	return group_fetch(table, keys, 2, job);
}

/* Sets three scan keys to those of a group's jobs with a ready_at not before from. */
static void
head_keys(ScanKeyData *keys, int32 queue_id, Datum name, TimestampTz from)
{
	name_keys(keys, queue_id, name);
	ScanKeyInit(&keys[2], GROUP_READY_AT, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
}

/*
 * Fetches the first job of a group with a ready_at of at least from; returns false if there is none.
 * from must be a low-water mark (GroupLowWater.heads), so this job is the head.  name must not point
 * into table->row.
 */
bool
idemq_jobs_group_head(JobsTable *table, int32 queue_id, Datum name, TimestampTz from, Job *job)
{
	ScanKeyData keys[3];

	IDEMQ_STOP("idemq_jobs_group_head");
	head_keys(keys, queue_id, name, from);
	return group_fetch(table, keys, 3, job);
}

/*
 * Fetches the first blocked job of a group with an id not below from; returns false if there is
 * none.
 */
bool
idemq_jobs_group_blocked(JobsTable *table, int32 queue_id, Datum name, int64 from, Job *job)
{
	ScanKeyData keys[4];

	name_keys(keys, queue_id, name);
	ScanKeyEntryInitialize(&keys[2], SK_ISNULL | SK_SEARCHNULL, GROUP_READY_AT, InvalidStrategy,
						   InvalidOid, InvalidOid, InvalidOid, (Datum) 0);
	ScanKeyInit(&keys[3], GROUP_ID, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
	return group_fetch(table, keys, 4, job);
}

/*
 * Like idemq_jobs_group_first, for the first group of a queue after a name, in the order of the
 * names' bytes; name NULL: the first group.
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
	return group_fetch(table, keys, name == NULL ? 1 : 2, job);
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

/*
 * Fetches the next job of the scan, by ready_at; returns false at its end.  Then call
 * idemq_jobs_scan_end.
 */
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
	/*
	 * Keeps the index page pinned, so that VACUUM, which sets pages all-visible, removes no
	 * entries.
	 */
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
