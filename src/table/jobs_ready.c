/*
 * table/jobs_ready.c
 *		Scans of the ready index: the jobs of one queue and priority in the order
 *		in which they are claimed.
 *
 * The scan hands out index entries first and rows on demand, so that a job that
 * the lease table knows to be busy costs no heap access.  It runs under the
 * snapshot of its JobsTable: rows changed during the scan, the scan's own
 * included, are seen as they were.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* Positions in the ready index. */
#define READY_QUEUE 1
#define READY_PRIORITY 2
#define READY_AT 3
#define READY_ID 4

/*
 * Returns an end, not before bound, for a scan that begins at from.  A b-tree
 * scan stops at the first entry that fails a key only if the key is on the first
 * column without equality, and for a row comparison only at its first member.
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
 * Begins a scan of one queue and priority at the first entry not below from, to
 * the last one below until, which is from idemq_jobs_scan_limit or READY_KEY_MAX.
 * A b-tree scan reads as much of a leaf page as its keys allow: a near until is
 * what keeps a claim of one job cheap.
 */
void
idemq_jobs_scan_begin(JobsTable *table, int32 queue_id, int priority, ReadyKey from, ReadyKey until)
{
	ScanKeyData keys[5];
	MemoryContext old = MemoryContextSwitchTo(table->context);
	ScanKey parts = palloc(2 * sizeof(ScanKeyData)); /* the scan points to them */
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
		/* (ready_at, id) >= from, as a row */
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
	table->index = index_open(idemq_jobs_index(table->rel, INDEX_READY), RowExclusiveLock);
	table->scan = compat_index_beginscan(table->rel, table->index, table->snapshot, nkeys);
	table->scan->xs_want_itup = true;
	index_rescan(table->scan, keys, nkeys, NULL, 0);
	MemoryContextSwitchTo(old);
}

/* Moves to the next index entry; false at the end. */
bool
idemq_jobs_scan_next(JobsTable *table, ReadyKey *key)
{
	IndexScanDesc scan = table->scan;
	MemoryContext old = MemoryContextSwitchTo(table->context);
	bool found = index_getnext_tid(scan, ForwardScanDirection) != NULL;
	bool isnull;

	MemoryContextSwitchTo(old);
	if (!found)
		return false;
	key->ready_at =
		DatumGetTimestampTz(index_getattr(scan->xs_itup, READY_AT, scan->xs_itupdesc, &isnull));
	key->id = DatumGetInt64(index_getattr(scan->xs_itup, READY_ID, scan->xs_itupdesc, &isnull));
	return true;
}

/* Returns the HOT root TID that the scan's current entry names. */
ItemPointerData
idemq_jobs_scan_tid(const JobsTable *table)
{
	return table->scan->xs_heaptid;
}
