/*
 * table/jobs_paused.c
 *		Which groups are paused: rows of idemq.paused_groups, by their primary key.
 *
 * Pauses exist only in these rows and are not cached: there may be ten thousand paused groups, and
 * a session that cached their names would have to reread all of them after each pause.  A lookup
 * reads two or three pages.  For queues without a paused group, no lookup takes place
 * (idemq_queue_may_have_pauses).
 *
 * The snapshot is that of the open table: the latest one when the call began or was refreshed, at
 * any isolation level.  job/group_pause.c says why that is new enough.  The scan stays open as long
 * as this snapshot is used, so a claim of many jobs opens the table once.  Nothing is written here,
 * so triggers and further indexes do not matter.
 *
 * Locks: AccessShareLock on the table and its index, until the snapshot is dropped.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_collation.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "table/table.h"

/* Columns of idemq.paused_groups; the first two are its primary key. */
enum
{
	PAUSE_QUEUE_ID = 1,
	PAUSE_GROUP_KEY,
	PAUSE_PAUSED_AT,
	PAUSE_PAUSED_UNTIL
};
#define PAUSE_KEYS 2

/* Ends the scan of idemq.paused_groups, if any, because the snapshot is about to be dropped. */
void
idemq_jobs_paused_end(JobsTable *table)
{
	if (likely(table->pauses == NULL))
		return;
	idemq_table_scan_close(table->pauses);
	pfree(table->pauses);
	table->pauses = NULL;
}

/* Opens the scan of idemq.paused_groups.  The memory context of the table must be current. */
static void
paused_open(JobsTable *table)
{
	Relation rel = table_open(idemq_oids()->paused_groups, AccessShareLock);
	Oid index = compat_primary_key_index(rel);

	if (!OidIsValid(index))
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("table \"%s.paused_groups\" has no primary key", IDEMQ_SCHEMA),
				errhint("Create it with the definition from the install script."));
	table->pauses = palloc(sizeof(TableScan));
	idemq_table_scan_open(table->pauses, rel, index_open(index, AccessShareLock), table->snapshot,
						  PAUSE_KEYS);
}

/*
 * Returns whether a row of idemq.paused_groups pauses a group now, by the table's snapshot.  name
 * may belong to table->row.  *until, unless until is NULL: when the pause ends, DT_NOEND if only
 * idemq.resume ends it.
 */
bool
idemq_jobs_group_pause_find(JobsTable *table, int32 queue_id, Datum name, TimestampTz *until)
{
	MemoryContext old = MemoryContextSwitchTo(table->context);
	TimestampTz ends = DT_NOEND;
	ScanKeyData keys[PAUSE_KEYS];
	bool found;

	if (table->pauses == NULL)
		paused_open(table);
	ScanKeyInit(&keys[0], PAUSE_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyEntryInitialize(&keys[1], 0, PAUSE_GROUP_KEY, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, name);
	index_rescan(table->pauses->scan, keys, PAUSE_KEYS, NULL, 0);
	found = index_getnext_slot(table->pauses->scan, ForwardScanDirection, table->pauses->slot);
	if (found)
	{
		bool isnull;
		Datum value = slot_getattr(table->pauses->slot, PAUSE_PAUSED_UNTIL, &isnull);

		if (!isnull)
			ends = DatumGetTimestampTz(value);
		/* The scan itself keeps the page pinned until the next lookup, or until it ends. */
		ExecClearTuple(table->pauses->slot);
	}
	MemoryContextSwitchTo(old);
	if (until != NULL)
		*until = ends;
	return found && (ends == DT_NOEND || idemq_now() < ends);
}

/*
 * Like idemq_jobs_group_pause_find, but skips the lookup if the queue has no paused groups.
 */
bool
idemq_jobs_group_is_paused(JobsTable *table, const QueueInfo *queue, Datum name, TimestampTz *until)
{
	return unlikely(idemq_queue_may_have_pauses(queue)) &&
		   idemq_jobs_group_pause_find(table, queue->id, name, until);
}
