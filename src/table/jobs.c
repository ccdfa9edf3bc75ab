/*
 * table/jobs.c
 *		The jobs table: fetch, lock, update, delete and insert rows by direct
 *		access.  With table/jobs_ready.c (scans), table/jobs_index.c (index entries) and
 *		table/jobs_sql.c (the long way) it alone reads and writes idemq.jobs.
 *
 * A JobsTable is open for one call.  Its snapshot is the latest at that time,
 * whatever the isolation level, so a call sees what is committed and what its
 * own transaction did before it; one snapshot serves the whole call, so that a
 * batch never meets its own new versions.  Closing it ends the command, so
 * that claim and commit in one statement see each other.
 *
 * Writes go to the version that was fetched, and only while it is the latest:
 *   concurrent update	the write waits for the other transaction (unless the
 *						caller skips), then answers JOB_CHANGED if that one
 *						committed; the caller looks again.
 *   savepoint rollback	undoes the row version as for any other UPDATE.
 *   isolation level	above READ COMMITTED a row that the transaction's own
 *						snapshot does not see is JOB_CHANGED, as referential
 *						integrity checks do it: a transaction never sees two
 *						versions of a row.
 *   user's triggers,	generated columns, check constraints, columns, foreign
 *						keys that point here: the row is locked, then written by
 *						SQL (table/jobs_sql.c).
 *   user's indexes		table/jobs_index.c maintains all that the table has.
 *
 * Locks: RowExclusiveLock on the table, kept to the end of the transaction as
 * for any DML.  table_tuple_update is always called with wait = true: with
 * false it reports mere lockers as being modified, one's own included.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "table/jobs.h"
#include "table/jobs_hold.h"
#include "table/jobs_index.h"
#include "table/jobs_sql.h"
#include "txn/pending_counts.h"
#include "base/compat.h"
#include "base/oids.h"

/* Returns whether the table has just our own triggers, and no constraint but NOT NULL. */
static bool
is_simple(Relation rel)
{
	TriggerDesc *triggers = rel->trigdesc;
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (strcmp(triggers->triggers[i].tgname, "idemq_jobs_changed") != 0 &&
			strcmp(triggers->triggers[i].tgname, "idemq_jobs_truncated") != 0)
			return false;
	}
	if (constr != NULL && (constr->num_check > 0 || constr->has_generated_stored))
		return false;
	return RelationGetDescr(rel)->natts == JOB_COLUMNS;
}

static void
take_snapshot(JobsTable *table)
{
	table->crosscheck = InvalidSnapshot;
	if (IsolationUsesXactSnapshot())
		table->crosscheck = RegisterSnapshot(GetTransactionSnapshot());
	table->snapshot = RegisterSnapshot(GetLatestSnapshot());
}

static void
drop_snapshot(JobsTable *table)
{
	UnregisterSnapshot(table->snapshot);
	if (table->crosscheck != InvalidSnapshot)
		UnregisterSnapshot(table->crosscheck);
}

/*
 * Opens the table for one call that only reads: also in a read-only transaction
 * and on a standby.
 */
void
idemq_jobs_open_to_read(JobsTable *table)
{
	LOCKMODE mode = RecoveryInProgress() ? AccessShareLock : RowExclusiveLock;

	memset(table, 0, sizeof(*table));
	table->context = CurrentMemoryContext;
	table->rel = table_open(idemq_catalog()->jobs, mode);
	table->simple = is_simple(table->rel);
	table->row = table_slot_create(table->rel, NULL);
	table->new_row = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsVirtual);
	take_snapshot(table);
}

/* Raises 25006 where nothing can be written, 25000 in a parallel operation. */
void
idemq_jobs_check_writable(void)
{
	PreventCommandIfReadOnly("an idemq function that writes");
	PreventCommandIfParallelMode("an idemq function that writes");
	PreventCommandDuringRecovery("an idemq function that writes");
}

/*
 * Opens the table for one call that writes.  Raises 25006 in a read-only
 * transaction or on a standby, 42P01 without the extension.
 */
void
idemq_jobs_open(JobsTable *table)
{
	idemq_jobs_check_writable();
	idemq_jobs_open_to_read(table);
}

static void
begin_scan_by_id(JobsTable *table)
{
	Oid pkey = compat_primary_key_index(table->rel);
	MemoryContext old;

	if (!OidIsValid(pkey))
		elog(ERROR, "idemq.jobs has no primary key");
	old = MemoryContextSwitchTo(table->context);
	table->pkey = index_open(pkey, AccessShareLock);
	table->by_id = compat_index_beginscan(table->rel, table->pkey, table->snapshot, 1);
	MemoryContextSwitchTo(old);
}

static void
end_scan_by_id(JobsTable *table)
{
	if (table->by_id == NULL)
		return;
	index_endscan(table->by_id);
	index_close(table->pkey, NoLock);
	table->by_id = NULL;
	table->pkey = NULL;
}

/* Takes a fresh snapshot: what was fetched before is void. */
void
idemq_jobs_refresh(JobsTable *table)
{
	CHECK_FOR_INTERRUPTS();
	end_scan_by_id(table);
	ExecClearTuple(table->row);
	drop_snapshot(table);
	CommandCounterIncrement();
	take_snapshot(table);
}

/* Closes the table, keeping its lock, and ends the command. */
void
idemq_jobs_close(JobsTable *table)
{
	end_scan_by_id(table);
	ExecDropSingleTupleTableSlot(table->row);
	if (table->lock_row != NULL)
		ExecDropSingleTupleTableSlot(table->lock_row);
	ExecDropSingleTupleTableSlot(table->new_row);
	drop_snapshot(table);
	table_close(table->rel, NoLock);
	CommandCounterIncrement();
}

static TimestampTz
timestamp_or(TupleTableSlot *row, JobColumn column, TimestampTz otherwise)
{
	return row->tts_isnull[column] ? otherwise : DatumGetTimestampTz(row->tts_values[column]);
}

/* Reads the fixed-width columns of a row version. */
void
idemq_jobs_decode(TupleTableSlot *row, Job *job)
{
	Datum *values;

	slot_getallattrs(row);
	values = row->tts_values;
	job->id = DatumGetInt64(values[COL_ID]);
	job->queue_id = DatumGetInt32(values[COL_QUEUE_ID]);
	job->priority = DatumGetInt16(values[COL_PRIORITY]);
	job->max_attempts = DatumGetInt32(values[COL_MAX_ATTEMPTS]);
	job->status = idemq_status_from_oid(DatumGetObjectId(values[COL_STATUS]));
	job->attempt = DatumGetInt32(values[COL_ATTEMPT]);
	job->token = DatumGetInt64(values[COL_TOKEN]);
	job->is_ready = !row->tts_isnull[COL_READY_AT];
	job->ready_at = timestamp_or(row, COL_READY_AT, DT_NOEND);
	job->deadline = timestamp_or(row, COL_DEADLINE, 0);
	job->claimed_at = timestamp_or(row, COL_CLAIMED_AT, job->deadline);
	job->expires_at = timestamp_or(row, COL_EXPIRES_AT, DT_NOEND);
	job->row = row;
}

/* Fetches the visible version of a job; false when there is none. */
bool
idemq_jobs_fetch(JobsTable *table, int64 id, Job *job)
{
	MemoryContext old;
	ScanKeyData key;
	bool found;

	if (table->by_id == NULL)
		begin_scan_by_id(table);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	old = MemoryContextSwitchTo(table->context);
	index_rescan(table->by_id, &key, 1, NULL, 0);
	found = index_getnext_slot(table->by_id, ForwardScanDirection, table->row);
	MemoryContextSwitchTo(old);
	if (!found)
		return false;
	idemq_jobs_decode(table->row, job);
	return true;
}

/*
 * Returns whether nobody else locks or changes a fetched version, so that a
 * write will not wait.  Somebody may come between; then it waits, briefly.
 */
bool
idemq_jobs_is_free(const Job *job)
{
	HeapTupleHeader header = job_row_header(job);
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	if ((header->t_infomask & HEAP_XMAX_INVALID) || !TransactionIdIsValid(xmax))
		return true;
	/* It stays in the row when all of them are gone. */
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return idemq_jobs_hold(job, &xmax) != ROW_HELD;
	return TransactionIdIsCurrentTransactionId(xmax) || !TransactionIdIsInProgress(xmax);
}

/*
 * Returns whether a write to a fetched version would answer JOB_CHANGED: a newer
 * version is committed, or the transaction's own snapshot does not see this one.
 */
bool
idemq_jobs_is_outdated(JobsTable *table, const Job *job)
{
	HeapTupleHeader header = job_row_header(job);
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	if (table->crosscheck != InvalidSnapshot &&
		!table_tuple_satisfies_snapshot(table->rel, job->row, table->crosscheck))
		return true;
	if ((header->t_infomask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)) ||
		HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) || !TransactionIdIsNormal(xmax))
		return false;
	return !TransactionIdIsCurrentTransactionId(xmax) && !TransactionIdIsInProgress(xmax) &&
		   TransactionIdDidCommit(xmax);
}

/* Returns whether this transaction itself has written a fetched version. */
bool
idemq_jobs_is_own(const Job *job)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(job_row_header(job)));
}

/* Returns whether this transaction is among the lockers of a row. */
static bool
is_member(MultiXactId multi, bool only_lockers)
{
	MultiXactMember *members;
	int count = GetMultiXactIdMembers(multi, &members, false, only_lockers);
	bool found = false;

	for (int i = 0; i < count; i++)
		found |= TransactionIdIsCurrentTransactionId(members[i].xid);
	return found;
}

/* Returns whether this transaction itself holds a lock on a fetched version. */
bool
idemq_jobs_is_mine(const Job *job)
{
	HeapTupleHeader header = job_row_header(job);

	if ((header->t_infomask & HEAP_XMAX_INVALID) || !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask))
		return false;
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return is_member(HeapTupleHeaderGetRawXmax(header), true);
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(header));
}

/* Translates a table access method's answer; raises 27000 where a trigger of ours got in. */
static JobWrite
write_result(TM_Result result)
{
	switch (result)
	{
		case TM_Ok:
			return JOB_WRITTEN;
		case TM_Updated:
		case TM_Deleted:
			return JOB_CHANGED;
		case TM_WouldBlock:
			return JOB_LOCKED;
		case TM_SelfModified:
			ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
							errmsg("job was already changed by the command that called idemq"),
							errhint("Do not call idemq from a trigger on idemq.jobs.")));
		default:
			elog(ERROR, "unexpected answer %u of the jobs table", result);
	}
}

/* Locks a fetched version to the end of the transaction; see the file's header. */
JobWrite
idemq_jobs_lock(JobsTable *table, const Job *job, LockTupleMode mode, JobWait wait)
{
	ItemPointerData tid = job->row->tts_tid;
	TM_FailureData failure;
	TM_Result result;

	if (table->lock_row == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(table->context);

		table->lock_row = table_slot_create(table->rel, NULL);
		MemoryContextSwitchTo(old);
	}
	result = table_tuple_lock(table->rel, &tid, table->snapshot, table->lock_row,
							  GetCurrentCommandId(true), mode,
							  wait == JOB_WAITS ? LockWaitBlock : LockWaitSkip, 0, &failure);
	if (result == TM_Ok && table->crosscheck != InvalidSnapshot &&
		!table_tuple_satisfies_snapshot(table->rel, table->lock_row, table->crosscheck))
		result = TM_Updated;
	return write_result(result);
}

/* Raises 55000 when a publication wants what the table's replica identity does not give. */
static void
check_replica_identity(JobsTable *table, CmdType command)
{
	if (table->checked != command)
		CheckCmdReplicaIdentity(table->rel, command);
	table->checked = command;
}

/* Makes the new version of a row: the old one's columns, and what changes. */
static void
fill_new_row(JobsTable *table, const Job *job, const JobChange *change)
{
	int natts = RelationGetDescr(table->rel)->natts;
	TupleTableSlot *new_row = table->new_row;

	ExecClearTuple(new_row);
	memcpy(new_row->tts_values, job->row->tts_values, natts * sizeof(Datum));
	memcpy(new_row->tts_isnull, job->row->tts_isnull, natts * sizeof(bool));
	for (int i = 0; i < JOB_COLUMNS; i++)
	{
		if (change->set & COLUMN_BIT(i))
		{
			new_row->tts_values[i] = change->values[i];
			new_row->tts_isnull[i] = change->isnull[i];
		}
	}
	ExecStoreVirtualTuple(new_row);
}

/* Returns the status that a change gives, or, when it gives none, the one there was. */
static JobStatus
status_after(const JobChange *change, JobStatus before)
{
	if ((change->set & COLUMN_BIT(COL_STATUS)) == 0)
		return before;
	return idemq_status_from_oid(DatumGetObjectId(change->values[COL_STATUS]));
}

/* Returns whether a write has to lock its row first. */
static bool
needs_lock(const JobsTable *table, const Job *job, JobWait wait)
{
	return !table->simple || wait == JOB_SKIPS ||
		   (wait == JOB_SKIPS_STRANGERS && !idemq_jobs_is_free(job));
}

/*
 * Writes a new version of a fetched row.  An update of no indexed column is a
 * HOT update, without any lock record unless the row had to be locked first.
 */
JobWrite
idemq_jobs_update(JobsTable *table, const Job *job, const JobChange *change, JobWait wait)
{
	ItemPointerData tid = job->row->tts_tid;
	TM_FailureData failure;
	LockTupleMode mode;
	UpdateIndexes indexes;
	TM_Result result;

	check_replica_identity(table, CMD_UPDATE);
	if (needs_lock(table, job, wait))
	{
		JobWrite locked = idemq_jobs_lock(table, job, LockTupleNoKeyExclusive, wait);

		if (locked != JOB_WRITTEN)
			return locked;
	}
	if (!table->simple)
	{
		idemq_jobs_update_sql(job->id, change);
		return JOB_WRITTEN;
	}
	fill_new_row(table, job, change);
	result = table_tuple_update(table->rel, &tid, table->new_row, GetCurrentCommandId(true),
								table->snapshot, table->crosscheck, true, &failure, &mode,
								&indexes);
	if (result == TM_Ok && !UPDATE_INDEXES_NONE(indexes))
		idemq_jobs_index_insert(table->rel, table->new_row, &change->set,
								UPDATE_INDEXES_SUMMARIZING(indexes));
	if (result == TM_Ok)
		idemq_tally_row(job->queue_id, job->status, status_after(change, job->status));
	return write_result(result);
}

/* Deletes a fetched row. */
JobWrite
idemq_jobs_delete(JobsTable *table, const Job *job, JobWait wait)
{
	ItemPointerData tid = job->row->tts_tid;
	TM_FailureData failure;
	TM_Result result;

	check_replica_identity(table, CMD_DELETE);
	if (needs_lock(table, job, wait))
	{
		JobWrite locked = idemq_jobs_lock(table, job, LockTupleExclusive, wait);

		if (locked != JOB_WRITTEN)
			return locked;
	}
	if (!table->simple)
	{
		idemq_jobs_delete_sql(job->id);
		return JOB_WRITTEN;
	}
	result = table_tuple_delete(table->rel, &tid, GetCurrentCommandId(true), table->snapshot,
								table->crosscheck, true, &failure, false);
	if (result == TM_Ok)
		idemq_tally_row(job->queue_id, job->status, NO_ROW);
	return write_result(result);
}

/* Returns a new job id. */
int64
idemq_jobs_next_id(void)
{
	return nextval_internal(idemq_catalog()->jobs_seq, false);
}

/* Makes table->new_row of the columns; those that are not set are NULL. */
void
idemq_jobs_fill_row(JobsTable *table, JobChange *columns)
{
	TupleTableSlot *new_row = table->new_row;

	for (int i = 0; i < JOB_COLUMNS; i++)
	{
		if ((columns->set & COLUMN_BIT(i)) == 0)
			columns->isnull[i] = true;
	}
	ExecClearTuple(new_row);
	memcpy(new_row->tts_values, columns->values, sizeof(columns->values));
	memcpy(new_row->tts_isnull, columns->isnull, sizeof(columns->isnull));
	ExecStoreVirtualTuple(new_row);
}

/* Inserts a row; columns that are not set are NULL. */
void
idemq_jobs_insert(JobsTable *table, JobChange *columns)
{
	idemq_jobs_fill_row(table, columns);
	if (!table->simple)
	{
		if (!idemq_jobs_insert_sql(columns))
			idemq_jobs_refused();
		return;
	}
	table_tuple_insert(table->rel, table->new_row, GetCurrentCommandId(true), 0, NULL);
	idemq_jobs_index_insert(table->rel, table->new_row, NULL, false);
	idemq_tally_row(DatumGetInt32(columns->values[COL_QUEUE_ID]), NO_ROW,
					status_after(columns, JOB_PENDING));
}
