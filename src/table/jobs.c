/*
 * table/jobs.c
 *		The table idemq.jobs: opens it for a call, and fetches rows.
 *
 * Only the files table/jobs*.c read and write idemq.jobs through the access methods; jobs_write.c
 * contains the writes.  src/table/README.md lists what the executor would do, and what is done here
 * instead.
 *
 * A JobsTable is open for one call.  Its snapshot is the latest one when the table is opened or
 * refreshed, at any isolation level, so a call sees what has been committed, and what its own
 * transaction has done before.  One snapshot serves the whole call, so a batch never meets the row
 * versions that it has written itself.  Closing the table ends the command, so a claim and a commit
 * in one statement see each other's changes.
 *
 * Above READ COMMITTED, a call must not write to a row that the transaction's own snapshot does not
 * see.  That snapshot is crosscheck, which is used only for this purpose.
 *
 * Locks: a call that only reads takes AccessShareLock on the table; a call that may write takes
 * RowExclusiveLock, and keeps it until the end of the transaction, as for any DML.  A call that has
 * written nothing releases its lock, because hooks/utility.c and observe/check.c treat a session
 * that holds it as a writer.  The lock on an index is released before the lock on the table, or
 * kept with it.  If it were kept alone, this transaction's next write and a REINDEX that has locked
 * the table could wait for each other.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "queue/queue.h"
#include "table/table.h"

/* The columns from JOB_COLUMNS_OLDEST on, in order, and an end. */
static const struct
{
	const char *name;
	Oid type;
} later_columns[] = {{NULL}};
StaticAssertDecl(lengthof(later_columns) == JOB_COLUMNS - JOB_COLUMNS_OLDEST + 1,
				 "a column has no name");
StaticAssertDecl(JOB_COLUMNS <= 32, "a column has no bit: see COLUMN_BIT");

int idemq_jobs_columns = JOB_COLUMNS_OLDEST;

/*
 * Returns how many of our columns the table has.  A later column is recognized by its name and
 * type, because a DBA may have added a column in its position.
 */
static int
count_columns(Relation rel)
{
	TupleDesc desc = RelationGetDescr(rel);
	int count = JOB_COLUMNS_OLDEST;

	for (int i = 0; later_columns[i].name != NULL && count < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, count);

		if (strcmp(NameStr(column->attname), later_columns[i].name) != 0 ||
			column->atttypid != later_columns[i].type)
			break;
		count++;
	}
	return count;
}

/* Returns whether the table has only our triggers and columns, and no check constraint. */
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
	return RelationGetDescr(rel)->natts == job_columns();
}

/* Registers the latest snapshot and, above READ COMMITTED, the transaction's own as crosscheck. */
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
	idemq_jobs_paused_end(table);
	UnregisterSnapshot(table->snapshot);
	if (table->crosscheck != InvalidSnapshot)
		UnregisterSnapshot(table->crosscheck);
}

/*
 * Opens the table.  Raises 42P01 if it was dropped (by DROP EXTENSION) while this session waited
 * for its lock.  It does not look for a new table of that name, because what the caller knows about
 * its queue belongs to the old one.
 */
static void
open_table(JobsTable *table, LOCKMODE mode)
{
	memset(table, 0, sizeof(*table));
	table->context = CurrentMemoryContext;
	table->mode = mode;
	table->rel = try_relation_open(idemq_oids()->jobs, mode);
	if (table->rel == NULL)
		ereport(
			ERROR, errcode(ERRCODE_UNDEFINED_TABLE),
			errmsg("table \"%s.jobs\" was dropped by another session", IDEMQ_SCHEMA),
			errhint(
				"If the extension has been created again, run the statement again. Otherwise, run "
				"CREATE EXTENSION idemq in this database."));
	idemq_jobs_columns = count_columns(table->rel);
	table->simple = is_simple(table->rel);
	table->row = table_slot_create(table->rel, NULL);
	table->new_row = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsVirtual);
	take_snapshot(table);
}

/* Opens the table for a call that only reads, even in a read-only transaction or on a standby. */
void
idemq_jobs_open_to_read(JobsTable *table)
{
	open_table(table, AccessShareLock);
}

/* Raises 25006 on a standby or in a read-only transaction, and 25000 in a parallel operation. */
void
idemq_jobs_prevent_writes(const char *function)
{
	if (RecoveryInProgress())
		ereport(ERROR, errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				errmsg("cannot execute %s on a standby", function),
				errhint(
					"Connect to the primary, for example with target_session_attrs=read-write."));
	if (XactReadOnly)
		ereport(ERROR, errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				errmsg("cannot execute %s in a read-only transaction", function),
				errhint("Begin the transaction with READ WRITE. A driver, a pooler or "
						"default_transaction_read_only may have made the transaction READ ONLY."));
	PreventCommandIfParallelMode(function);
}

/* Like idemq_jobs_prevent_writes, but also raises 55000 in a database that follows another one. */
void
idemq_jobs_check_writable(void)
{
	idemq_jobs_prevent_writes("an idemq function that writes");
	idemq_following_refuse();
}

/*
 * Opens the table for a call that writes.  Raises what idemq_jobs_check_writable raises, and 42P01.
 */
void
idemq_jobs_open(JobsTable *table)
{
	idemq_jobs_prevent_writes("an idemq function that writes");
	open_table(table, RowExclusiveLock);
	/* The database may have begun to follow while this session waited for the lock. */
	idemq_following_refuse();
}

/* Returns the OID of the primary key. */
Oid
idemq_jobs_primary_key(Relation rel)
{
	Oid pkey = compat_primary_key_index(rel);

	if (!OidIsValid(pkey))
		elog(ERROR, "idemq.jobs has no primary key");
	return pkey;
}

/*
 * Closes an index of the table after a scan.  The primary key is recognized by its number of
 * columns, one.  indisprimary is not reliable here: REINDEX CONCURRENTLY may set it in a new index
 * while this one is open.
 */
void
idemq_jobs_index_close(JobsTable *table, Relation index)
{
	LOCKMODE mode = index->rd_index->indnkeyatts == 1 ? AccessShareLock : RowExclusiveLock;

	index_close(index, table->written ? NoLock : mode);
}

static void
end_scan_by_id(JobsTable *table)
{
	if (table->by_id == NULL)
		return;
	index_endscan(table->by_id);
	idemq_jobs_index_close(table, table->pkey);
	table->by_id = NULL;
	table->pkey = NULL;
}

/* Takes a new snapshot.  What was fetched before is no longer valid. */
void
idemq_jobs_refresh(JobsTable *table)
{
	IDEMQ_STOP("idemq_jobs_refresh");
	CHECK_FOR_INTERRUPTS();
	end_scan_by_id(table);
	ExecClearTuple(table->row);
	drop_snapshot(table);
	CommandCounterIncrement();
	take_snapshot(table);
}

/*
 * Takes a new snapshot after a write that returned JOB_CHANGED, so that the caller can fetch the
 * job again.  Above READ COMMITTED raises 40001 instead, because the transaction may not see the
 * latest version.
 */
void
idemq_jobs_refresh_or_raise(JobsTable *table)
{
	IDEMQ_STOP("idemq_jobs_refresh_or_raise");
	if (IsolationUsesXactSnapshot())
		ereport(ERROR, errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				errmsg("could not serialize access due to concurrent update of a job"),
				errhint("Run the transaction again."));
	idemq_jobs_refresh(table);
}

/*
 * Closes the table and ends the command; releases the lock of a call that might have written and
 * has not.
 */
void
idemq_jobs_close(JobsTable *table)
{
	end_scan_by_id(table);
	ExecDropSingleTupleTableSlot(table->row);
	if (table->lock_row != NULL)
		ExecDropSingleTupleTableSlot(table->lock_row);
	ExecDropSingleTupleTableSlot(table->new_row);
	drop_snapshot(table);
	table_close(table->rel,
				table->mode == RowExclusiveLock && !table->written ? RowExclusiveLock : NoLock);
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
	job->flags = DatumGetInt16(values[COL_FLAGS]);
	job->status = idemq_status_from_oid(DatumGetObjectId(values[COL_STATUS]));
	job->attempt = DatumGetInt32(values[COL_ATTEMPT]);
	job->token = DatumGetInt64(values[COL_TOKEN]);
	job->is_ready = !row->tts_isnull[COL_READY_AT];
	job->ready_at = timestamp_or(row, COL_READY_AT, DT_NOEND);
	job->deadline = timestamp_or(row, COL_DEADLINE, 0);
	job->claimed_at = timestamp_or(row, COL_CLAIMED_AT, job->deadline);
	job->expires_at = timestamp_or(row, COL_EXPIRES_AT, DT_NOEND);
	ItemPointerSetInvalid(&job->root_tid);
	job->row = row;
}

/*
 * Fetches the version of the row of a scan's current entry that the snapshot sees; returns false if
 * it sees none.  The memory context of the table must be current.
 */
bool
idemq_jobs_fetch_entry(JobsTable *table, IndexScanDesc scan, Job *job)
{
	ItemPointerData root_tid = scan->xs_heaptid;
	bool all_dead = false;
	bool found = idemq_version_fetch(table->rel, table->snapshot, &root_tid, table->row, &all_dead,
									 &job->header);

	if (found)
	{
		idemq_jobs_decode(table->row, job);
		job->root_tid = root_tid;
	}
	pgstat_count_heap_fetch(scan->indexRelation);
	/* The index marks the entry as dead when the scan moves on. */
	scan->kill_prior_tuple = !found && all_dead && !scan->xactStartedInRecovery;
	return found;
}

/* Fetches the version of a job that the snapshot sees; returns false if it sees none. */
bool
idemq_jobs_fetch(JobsTable *table, int64 id, Job *job)
{
	MemoryContext old;
	ScanKeyData key;
	bool found = false;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	old = MemoryContextSwitchTo(table->context);
	if (table->by_id == NULL)
	{
		table->pkey = index_open(idemq_jobs_primary_key(table->rel), AccessShareLock);
		table->by_id = compat_index_beginscan(table->rel, table->pkey, table->snapshot, 1);
	}
	index_rescan(table->by_id, &key, 1, NULL, 0);
	while (!found && index_getnext_tid(table->by_id, ForwardScanDirection) != NULL)
		found = idemq_jobs_fetch_entry(table, table->by_id, job);
	MemoryContextSwitchTo(old);
	return found;
}

/*
 * Returns where a fetched row is, for a later call; invalid if it was not fetched by an index
 * entry.
 */
TidHint
idemq_jobs_tid_hint(const JobsTable *table, const Job *job)
{
	return (TidHint){job->root_tid, compat_file_number(table->rel)};
}

/*
 * Returns whether the table has a block.  Our lock prevents truncation.  The cached length may be
 * too small, but not too great: another process extends a file without a message, but one that
 * truncates it makes all processes forget the length (smgrtruncate) before it releases the lock
 * that it needs for that, and we have received that message with our lock.
 */
static bool
has_block(const JobsTable *table, BlockNumber block)
{
	SMgrRelation file = table->rel->rd_smgr;
	BlockNumber known = file != NULL ? file->smgr_cached_nblocks[MAIN_FORKNUM] : InvalidBlockNumber;

	if (known == InvalidBlockNumber || block >= known)
		known = RelationGetNumberOfBlocks(table->rel);
	return block < known;
}

/*
 * Like idemq_jobs_fetch, but with a TID hint; if this returns false, the caller must use the
 * primary key.
 */
bool
idemq_jobs_fetch_at(JobsTable *table, const TidHint *tid_hint, int64 id, Job *job)
{
	bool all_dead;

	if (!ItemPointerIsValid(&tid_hint->root_tid) ||
		tid_hint->file != compat_file_number(table->rel) ||
		!has_block(table, ItemPointerGetBlockNumber(&tid_hint->root_tid)) ||
		!idemq_version_fetch(table->rel, table->snapshot, &tid_hint->root_tid, table->row,
							 &all_dead, &job->header))
		return false;
	idemq_jobs_decode(table->row, job);
	job->root_tid = tid_hint->root_tid;
	return job->id == id;
}
