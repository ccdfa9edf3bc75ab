/*
 * table/jobs_steps.c
 *		Deletes all steps of a job, or marks them void.
 *
 * A commit in a queue that keeps nothing deletes its job.  Whether the job has steps is then looked
 * up by direct access to the index, or not at all while the table is empty.  The caller has deleted
 * or written the job's row before, and a session that writes a step holds that row (steps.c).  So
 * the result does not change, and no step is locked.
 *
 * Locks: AccessShareLock on the table and its index during the lookup.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "table/table.h"

static SqlStatement void_steps =
	{.few = true,
	 .text = "UPDATE idemq.steps SET state = 'void', round = round + CASE state "
			 "WHEN 'refused' THEN 0 ELSE 1 END, error = CASE state WHEN 'open' THEN "
			 "'was not answered when its job got another payload' ELSE error END "
			 "WHERE job_id = $1 AND state <> 'void'",
	 .types = {INT8OID}};
static SqlStatement forget_steps = {.few = true,
									.text = "DELETE FROM idemq.steps WHERE job_id = ANY ($1)",
									.types = {INT8ARRAYOID}};

/*
 * Returns whether there may be steps of a job, or, if job_id is 0, of any job.  The caller holds
 * the row of that job, or has deleted it, so no other session can begin a step of it in the
 * meantime.
 */
static bool
any_step(int64 job_id)
{
	Oid oid = idemq_oids()->steps;
	Oid index;
	Relation rel;
	TableScan scan;
	ScanKeyData key;
	bool found;

	if (!OidIsValid(oid)) /* CREATE EXTENSION is still running and has not created the table yet */
		return false;
	rel = table_open(oid, AccessShareLock);
	found = RelationGetNumberOfBlocks(rel) > 0;
	index = compat_primary_key_index(rel);
	if (!found || job_id == 0 || !OidIsValid(index))
	{
		table_close(rel, AccessShareLock);
		return found;
	}
	/* A step that is committed, or that this transaction has written. */
	idemq_table_scan_open(&scan, rel, index_open(index, AccessShareLock), SnapshotSelf, 1);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(job_id));
	index_rescan(scan.scan, &key, 1, NULL, 0);
	found = index_getnext_slot(scan.scan, ForwardScanDirection, scan.slot);
	idemq_table_scan_close(&scan);
	return found;
}

/* Marks the steps of a job as void, because they belong to an earlier payload. */
void
idemq_steps_void(int64 job_id)
{
	Datum value = Int64GetDatum(job_id);

	if (any_step(job_id))
		(void) idemq_spi_do(&void_steps, &value, NULL);
}

/* Deletes the steps of jobs whose rows are deleted. */
void
idemq_steps_forget(const int64 *job_ids, int count)
{
	if (count > 0 && any_step(count == 1 ? job_ids[0] : 0))
		idemq_spi_do_for_ids(&forget_steps, job_ids, count);
}
