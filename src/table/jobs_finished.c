/*
 * table/jobs_finished.c
 *		Scans of the index of finished jobs, all queues in the order of finished_at.
 *
 * A scan hands out index entries, and rows on demand (idemq_jobs_scan_row); it ends
 * with idemq_jobs_scan_end.  Entries of one time are in the order of their rows'
 * addresses, so that a scan can go on behind the last one of the scan before, even
 * among a million jobs that one commit_many finished.
 *
 * Isolation, concurrent updates and user's triggers: as for scans of the ready
 * index (table/jobs_ready.c).
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "table/jobs.h"
#include "table/jobs_finished.h"
#include "table/jobs_index.h"
#include "base/compat.h"

/* Position in the index. */
#define FINISHED_AT 1

/* Returns the position before all jobs that finished at a time or later. */
FinishedKey
idemq_jobs_finished_from(TimestampTz finished_at)
{
	FinishedKey key = {.finished_at = finished_at};

	ItemPointerSet(&key.tid, 0, InvalidOffsetNumber);
	return key;
}

/* Begins a scan behind a position, of the jobs that finished before until. */
void
idemq_jobs_finished_begin(JobsTable *table, const FinishedKey *after, TimestampTz until)
{
	ScanKeyData keys[2];
	MemoryContext old = MemoryContextSwitchTo(table->context);

	ScanKeyInit(&keys[0], FINISHED_AT, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(after->finished_at));
	ScanKeyInit(&keys[1], FINISHED_AT, BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
				TimestampTzGetDatum(until));
	table->index = index_open(idemq_jobs_index(table->rel, INDEX_FINISHED), RowExclusiveLock);
	table->scan = compat_index_beginscan(table->rel, table->index, table->snapshot, lengthof(keys));
	table->scan->xs_want_itup = true;
	index_rescan(table->scan, keys, lengthof(keys), NULL, 0);
	MemoryContextSwitchTo(old);
}

/* Moves to the next entry; *key: the last one's, or where the scan began.  False at the end. */
bool
idemq_jobs_finished_next(JobsTable *table, FinishedKey *key)
{
	IndexScanDesc scan = table->scan;
	MemoryContext old = MemoryContextSwitchTo(table->context);
	TimestampTz finished_at;
	ItemPointer tid;
	bool isnull;

	while ((tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		finished_at = DatumGetTimestampTz(
			index_getattr(scan->xs_itup, FINISHED_AT, scan->xs_itupdesc, &isnull));
		if (finished_at > key->finished_at || ItemPointerCompare(tid, &key->tid) > 0)
			break;
	}
	MemoryContextSwitchTo(old);
	if (tid == NULL)
		return false;
	key->finished_at = finished_at;
	key->tid = *tid;
	return true;
}
