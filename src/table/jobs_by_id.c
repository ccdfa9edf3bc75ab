/*
 * table/jobs_by_id.c
 *		Scans of the primary key: all jobs, in the order of their ids.
 *
 * A scan hands out index entries, and rows on demand (idemq_jobs_scan_row); it ends
 * with idemq_jobs_scan_end.  An id may come more than once: an update that is not HOT
 * leaves an entry for the old version until a vacuum, and a snapshot sees one of them.
 *
 * Isolation, concurrent updates and user's triggers: as for scans of the ready
 * index (table/jobs_ready.c).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "table/table.h"

/* Position in the index. */
#define PKEY_ID 1

/* Begins a scan of the jobs from an id on, to the last one below until. */
void
idemq_jobs_ids_begin(JobsTable *table, int64 from, int64 until)
{
	ScanKeyData keys[2];
	MemoryContext old = MemoryContextSwitchTo(table->context);

	ScanKeyInit(&keys[0], PKEY_ID, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
	ScanKeyInit(&keys[1], PKEY_ID, BTLessStrategyNumber, F_INT8LT, Int64GetDatum(until));
	table->index = index_open(idemq_jobs_primary_key(table->rel), AccessShareLock);
	table->scan = compat_index_beginscan(table->rel, table->index, table->snapshot, lengthof(keys));
	table->scan->xs_want_itup = true;
	index_rescan(table->scan, keys, lengthof(keys), NULL, 0);
	MemoryContextSwitchTo(old);
}

/* Moves to the next entry; false at the end. */
bool
idemq_jobs_ids_next(JobsTable *table, int64 *id)
{
	IndexScanDesc scan = table->scan;
	MemoryContext old = MemoryContextSwitchTo(table->context);
	bool found = index_getnext_tid(scan, ForwardScanDirection) != NULL;
	bool isnull;

	MemoryContextSwitchTo(old);
	if (found)
		*id = DatumGetInt64(index_getattr(scan->xs_itup, PKEY_ID, scan->xs_itupdesc, &isnull));
	return found;
}

/*
 * Returns whether a transaction that is open, or has just committed, has written the current
 * entry's row, which the snapshot does not see; *job: as it has written it.
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
