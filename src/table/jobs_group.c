/*
 * table/jobs_group.c
 *		Jobs of a FIFO group, through the index jobs_group.
 *
 * The index is (queue_id, group_key, ready_at, id) of unfinished jobs: a group's head
 * has a ready_at and stands first; those that are blocked have none and follow, in
 * the order of their ids.  So the first row that a snapshot sees says whether the
 * group has a head, or else which job is next, however many are blocked.  Of a group
 * that may have several jobs in processing (job/places.c) those with a ready_at are scanned.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "catalog/pg_collation.h"
#include "executor/tuptable.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "table/table.h"

/* Positions in the index. */
#define GROUP_QUEUE 1
#define GROUP_KEY 2
#define GROUP_READY_AT 3
#define GROUP_ID 4

/*
 * Fetches the first row that the table's snapshot sees of those that the keys name;
 * false when there is none.  What keys point to must not be the fetched row's own.
 */
static bool
fetch(JobsTable *table, ScanKeyData *keys, int nkeys, Job *job)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	Relation index = index_open(idemq_jobs_index(table->rel, INDEX_GROUP), RowExclusiveLock);
	IndexScanDesc scan;
	bool found;

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

/* Makes the keys of a group: two of them. */
static void
name_keys(ScanKeyData *keys, int32 queue_id, Datum name)
{
	ScanKeyInit(&keys[0], GROUP_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyEntryInitialize(&keys[1], 0, GROUP_KEY, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, name);
}

/* Fetches a group's head, or, when it has none, the job that is to be it; false for no jobs. */
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

	head_keys(keys, queue_id, name, from);
	return fetch(table, keys, 3, job);
}

/* Fetches the first job of a group that is blocked; false for none with that id, or a greater one. */
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
 * As idemq_jobs_group_first, of the first group of a queue behind that name, in the
 * order of their names' bytes; NULL: the first of all.
 */
bool
idemq_jobs_group_next(JobsTable *table, int32 queue_id, const Datum *name, Job *job)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], GROUP_QUEUE, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	if (name != NULL)
		ScanKeyEntryInitialize(&keys[1], 0, GROUP_KEY, BTGreaterStrategyNumber, InvalidOid,
							   C_COLLATION_OID, F_TEXT_GT, *name);
	return fetch(table, keys, name == NULL ? 1 : 2, job);
}

/* Begins a scan of the jobs of a group that have a ready_at, from one to another. */
void
idemq_jobs_group_scan_begin(JobsTable *table, int32 queue_id, Datum name, TimestampTz from,
							TimestampTz until)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	ScanKeyData keys[4];

	head_keys(keys, queue_id, name, from);
	ScanKeyInit(&keys[3], GROUP_READY_AT, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(until));
	table->index = index_open(idemq_jobs_index(table->rel, INDEX_GROUP), RowExclusiveLock);
	table->scan = compat_index_beginscan(table->rel, table->index, table->snapshot, lengthof(keys));
	index_rescan(table->scan, keys, lengthof(keys), NULL, 0);
	MemoryContextSwitchTo(old);
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

/* A scan of a group's jobs that have a ready_at, with what others have not committed. */
typedef struct DirtyScan
{
	MemoryContext caller;
	Relation index;
	TupleTableSlot *row;
	SnapshotData snapshot;
	IndexScanDesc scan;
} DirtyScan;

static void
begin_dirty(DirtyScan *dirty, JobsTable *table, int32 queue_id, Datum name, TimestampTz from)
{
	ScanKeyData keys[3];

	dirty->caller = MemoryContextSwitchTo(table->context);
	dirty->index = index_open(idemq_jobs_index(table->rel, INDEX_GROUP), RowExclusiveLock);
	dirty->row = table_slot_create(table->rel, NULL);
	InitDirtySnapshot(dirty->snapshot);
	head_keys(keys, queue_id, name, from);
	dirty->scan =
		compat_index_beginscan(table->rel, dirty->index, &dirty->snapshot, lengthof(keys));
	index_rescan(dirty->scan, keys, lengthof(keys), NULL, 0);
}

/* Fetches the next version; false for none.  *committed: its insertion is, or it is our own. */
static bool
next_dirty(DirtyScan *dirty, Job *job, bool *committed)
{
	if (!index_getnext_slot(dirty->scan, ForwardScanDirection, dirty->row))
		return false;
	idemq_jobs_decode(dirty->row, job);
	*committed = !TransactionIdIsValid(dirty->snapshot.xmin);
	return true;
}

static void
end_dirty(DirtyScan *dirty)
{
	index_endscan(dirty->scan);
	ExecDropSingleTupleTableSlot(dirty->row);
	index_close(dirty->index, NoLock);
	MemoryContextSwitchTo(dirty->caller);
}

/*
 * Finds a version that is not committed, of a job of a group that has a ready_at by it;
 * true for the one with the least id above *id, which it sets.  That ready_at is from
 * from on.
 */
bool
idemq_jobs_group_uncommitted(JobsTable *table, int32 queue_id, Datum name, TimestampTz from,
							 int64 *id)
{
	int64 least = PG_INT64_MAX;
	bool committed;
	DirtyScan dirty;
	Job job;

	begin_dirty(&dirty, table, queue_id, name, from);
	while (next_dirty(&dirty, &job, &committed))
	{
		if (!committed && job.id > *id)
			least = Min(least, job.id);
	}
	end_dirty(&dirty);
	if (least == PG_INT64_MAX)
		return false;
	*id = least;
	return true;
}

/*
 * Returns whether a group has a head that the table's snapshot does not show: one that
 * another open transaction has made, a prepared one most likely, or has just committed;
 * with that ready_at, or a later one.
 */
bool
idemq_jobs_group_head_in_doubt(JobsTable *table, int32 queue_id, Datum name, TimestampTz from)
{
	bool found = false;
	bool committed;
	DirtyScan dirty;
	Job job;

	begin_dirty(&dirty, table, queue_id, name, from);
	/* One that is blocked all the same was written by hand. */
	while (!found && next_dirty(&dirty, &job, &committed))
		found = !committed || job.status != JOB_BLOCKED;
	end_dirty(&dirty);
	return found;
}
