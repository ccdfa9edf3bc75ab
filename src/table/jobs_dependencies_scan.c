/*
 * table/jobs_dependencies_scan.c
 *		Scans of idemq.dependencies and idemq.children by an index.
 *
 * Each scan reads the rows of one child, one parent or one queue, from an id on, in the order of
 * the other id.  The index is chosen here, and not by the planner.  If the statistics are from a
 * time when the tables were empty, all indexes of a table seem to cost the same, and with the wrong
 * one, each scan would read the rows of all children.
 *
 * The snapshot is the caller's.  If another transaction has changed a row, the scan reads the
 * version that the snapshot shows.  User's triggers and further indexes do not matter, because
 * nothing is written here.
 *
 * Locks: AccessShareLock on the table and the index, until the end of the scan.  A scan begins and
 * ends in one call.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/base.h"
#include "base/compat.h"
#include "table/table.h"

/* An index without a name is the primary key.  Scans require equality of the first column. */
static const struct
{
	const char *name;
	const char *definition;
	bool of_children;
	RegProcedure equal;
	int nkeys; /* with two, the second one is a bigint */
} indexes[] = {
	[CHILDREN_BY_ID] = {NULL, "(job_id)", true, F_INT8EQ, 1},
	[CHILDREN_BY_WATCHED] = {"children_waits_for", "(waits_for, (job_id + 0))", true, F_INT8EQ, 2},
	[CHILDREN_BY_QUEUE] = {"children_queue", "(queue_id, (job_id + 0))", true, F_INT4EQ, 2},
	[EDGES_BY_CHILD] = {NULL, "(child, parent)", false, F_INT8EQ, 2},
	[EDGES_BY_PARENT] = {"dependencies_parent", "(parent, (child + 0))", false, F_INT8EQ, 2},
};

/*
 * Opens a scan, which idemq_dependency_scan_from can begin any number of times.  Raises 55000 if
 * its index is missing.
 */
void
idemq_dependency_scan_open(DependencyScan *scan, DependencyIndex which, Snapshot snapshot)
{
	const ObjectOids *oids = idemq_oids();
	Relation rel = table_open(indexes[which].of_children ? oids->children : oids->dependencies,
							  AccessShareLock);
	const char *name = indexes[which].name;
	Oid oid = name == NULL ? compat_primary_key_index(rel)
						   : get_relname_relid(name, RelationGetNamespace(rel));
	Relation index = OidIsValid(oid) ? index_open(oid, AccessShareLock) : NULL;

	if (index == NULL || !index->rd_index->indisvalid ||
		index->rd_index->indrelid != RelationGetRelid(rel))
		ereport(
			ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg("table \"%s.%s\" has no valid index %s on %s", IDEMQ_SCHEMA,
				   RelationGetRelationName(rel), name == NULL ? "for its primary key" : name,
				   indexes[which].definition),
			errhint(
				"Run REINDEX INDEX, or create the index with its definition from the installation "
				"script."));
	scan->which = which;
	idemq_table_scan_open(&scan->table, rel, index, snapshot, indexes[which].nkeys);
	scan->slot = scan->table.slot;
}

/*
 * Begins with the rows of a child, a parent or a queue (depending on the index) whose other id is
 * at least from.
 */
void
idemq_dependency_scan_from(DependencyScan *scan, int64 of, int64 from)
{
	bool is_queue = indexes[scan->which].equal == F_INT4EQ;
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, indexes[scan->which].equal,
				is_queue ? Int32GetDatum((int32) of) : Int64GetDatum(of));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
	index_rescan(scan->table.scan, keys, indexes[scan->which].nkeys, NULL, 0);
}

/* Reads the next row, which is valid until the next call; returns false if there is none. */
bool
idemq_dependency_scan_next(DependencyScan *scan)
{
	if (!index_getnext_slot(scan->table.scan, ForwardScanDirection, scan->slot))
		return false;
	slot_getallattrs(scan->slot);
	return true;
}

/* Returns a bigint column of the current row, which must not be NULL in this row. */
int64
idemq_dependency_scan_int64(const DependencyScan *scan, int column)
{
	return DatumGetInt64(scan->slot->tts_values[column - 1]);
}

/* Ends a scan. */
void
idemq_dependency_scan_close(DependencyScan *scan)
{
	idemq_table_scan_close(&scan->table);
}
