/*
 * table/jobs_write.c
 *		Writes to the jobs table: lock, update, delete and insert a row.
 *
 * A write goes to the version that was fetched, and only while it is the latest:
 *   concurrent update	the write waits for the other transaction (unless the
 *						caller skips), then answers JOB_CHANGED if that one
 *						committed; the caller fetches the job again.
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
 * Each row that is written here is noted in the queue's gauges, and in its group if the queue has
 * group_max_unfinished; the row trigger notes those that SQL writes.
 *
 * Each write has the table keep its lock, whatever becomes of it.
 *
 * table_tuple_update is always called with wait = true: with false it reports
 * mere lockers as modifiers, including this transaction's own lock.  For a delete that is
 * what is wanted: when anybody holds the row, the lock that follows tells whether it is
 * another transaction, and then the row stays.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"

#include "base/base.h"
#include "base/compat.h"
#include "table/table.h"
#include "txn/txn.h"

/* Translates a table access method's answer; raises 27000 where a trigger called idemq. */
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
			ereport(ERROR, errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
					errmsg("the job was already changed by the command that called idemq"),
					errhint("Do not call idemq from a trigger on idemq.jobs."));
		default:
			elog(ERROR, "unexpected result %u from table idemq.jobs", result);
	}
}

/* Locks a fetched version, and, FOR KEY SHARE, the one that an open transaction is making. */
static TM_Result
lock_version(JobsTable *table, const Job *job, LockTupleMode mode, JobWait wait)
{
	ItemPointerData tid = job->row->tts_tid;
	TM_FailureData failure;

	table->written = true;
	if (table->lock_row == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(table->context);

		table->lock_row = table_slot_create(table->rel, NULL);
		MemoryContextSwitchTo(old);
	}
	return table_tuple_lock(table->rel, &tid, table->snapshot, table->lock_row,
							GetCurrentCommandId(true), mode,
							wait == JOB_WAITS ? LockWaitBlock : LockWaitSkip,
							TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS, &failure);
}

/* Locks a fetched version to the end of the transaction; see the file's header. */
JobWrite
idemq_jobs_lock(JobsTable *table, const Job *job, LockTupleMode mode, JobWait wait)
{
	TM_Result result;

	IDEMQ_STOP("idemq_jobs_lock");
	result = lock_version(table, job, mode, wait);
	if (result == TM_Ok && table->crosscheck != InvalidSnapshot &&
		!table_tuple_satisfies_snapshot(table->rel, table->lock_row, table->crosscheck))
		result = TM_Updated;
	return write_result(result);
}

/*
 * Keeps a fetched row from being deleted to the end of the transaction, as a foreign key's check
 * does, whichever version the transaction's own snapshot sees.  JOB_WAITS waits for a transaction
 * that deletes it.
 */
JobWrite
idemq_jobs_keep(JobsTable *table, const Job *job, JobWait wait)
{
	return write_result(lock_version(table, job, LockTupleKeyShare, wait));
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
	for (int i = 0; i < job_columns(); i++)
	{
		if (change->set & COLUMN_BIT(i))
		{
			new_row->tts_values[i] = change->values[i];
			new_row->tts_isnull[i] = change->isnull[i];
		}
	}
	ExecStoreVirtualTuple(new_row);
}

/* Returns whether group_max_unfinished counts a job with this status. */
static bool
counts_in_group(JobStatus status, bool has_group)
{
	return has_group && !job_status_is_finished(status);
}

/* Notes a change of a job in a queue with group_max_unfinished. */
static void
count_update_in_group(const Job *job, const JobChange *change)
{
	bool new_group = (change->set & COLUMN_BIT(COL_GROUP_KEY)) != 0;
	JobStatus status = (change->set & COLUMN_BIT(COL_STATUS)) == 0
						   ? job->status
						   : idemq_status_from_oid(DatumGetObjectId(change->values[COL_STATUS]));
	bool before = counts_in_group(job->status, job_has(job, COL_GROUP_KEY));
	bool after = counts_in_group(status, new_group ? !change->isnull[COL_GROUP_KEY]
												   : job_has(job, COL_GROUP_KEY));

	if (before == after && !new_group)
		return;
	if (before)
		idemq_pending_group_room_row(job->queue_id, job_value(job, COL_GROUP_KEY), -1, false);
	if (after)
		idemq_pending_group_room_row(job->queue_id,
									 new_group ? change->values[COL_GROUP_KEY]
											   : job_value(job, COL_GROUP_KEY),
									 1, false);
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

	table->written = true;
	check_replica_identity(table, CMD_UPDATE);
	if (!table->simple || wait == JOB_SKIPS ||
		(wait == JOB_SKIPS_STRANGERS && !idemq_jobs_is_free(job)))
	{
		JobWrite locked = idemq_jobs_lock(table, job, LockTupleNoKeyExclusive, wait);

		if (locked != JOB_WRITTEN)
			return locked;
	}
	if (!table->simple)
	{
		idemq_jobs_update_sql(table, job->id, change);
		return JOB_WRITTEN;
	}
	fill_new_row(table, job, change);
	result = compat_tuple_update(table->rel, &tid, table->new_row, table->snapshot,
								 table->crosscheck, &failure, &mode, &indexes);
	if (result == TM_Ok && !UPDATE_INDEXES_NONE(indexes))
		idemq_jobs_index_insert(table->rel, table->new_row, &change->set,
								UPDATE_INDEXES_SUMMARIZING(indexes));
	if (result == TM_Ok && (change->set & COLUMN_BIT(COL_STATUS)) != 0)
		idemq_pending_counts_row(job->queue_id, job->status,
								 idemq_status_from_oid(
									 DatumGetObjectId(change->values[COL_STATUS])));
	if (result == TM_Ok && idemq_queue_limits_groups(job->queue_id))
		count_update_in_group(job, change);
	else if (result == TM_Ok && (change->set & COLUMN_BIT(COL_GROUP_KEY)) != 0)
		idemq_pending_group_room_miss(job->queue_id);
	return write_result(result);
}

static TM_Result
delete_row(JobsTable *table, const Job *job, bool wait)
{
	ItemPointerData tid = job->row->tts_tid;
	TM_FailureData failure;

	return compat_tuple_delete(table->rel, &tid, table->snapshot, table->crosscheck, wait,
							   &failure);
}

/* Deletes a fetched row, unless another transaction holds it, even FOR KEY SHARE; never waits. */
JobWrite
idemq_jobs_delete(JobsTable *table, const Job *job)
{
	TM_Result result = TM_BeingModified;

	IDEMQ_STOP("idemq_jobs_delete");
	table->written = true;
	check_replica_identity(table, CMD_DELETE);
	if (table->simple)
		result = delete_row(table, job, false);
	if (result == TM_BeingModified)
	{
		JobWrite locked = idemq_jobs_lock(table, job, LockTupleExclusive, JOB_SKIPS);

		if (locked != JOB_WRITTEN)
			return locked;
		if (!table->simple)
		{
			idemq_jobs_delete_sql(job->id);
			return JOB_WRITTEN;
		}
		result = delete_row(table, job, true); /* our lock is a modifier, too */
	}
	if (result == TM_Ok)
		idemq_pending_counts_row(job->queue_id, job->status, NO_ROW);
	if (result == TM_Ok && idemq_queue_limits_groups(job->queue_id) &&
		counts_in_group(job->status, job_has(job, COL_GROUP_KEY)))
		idemq_pending_group_room_row(job->queue_id, job_value(job, COL_GROUP_KEY), -1, false);
	return write_result(result);
}

/* Fills table->new_row with the columns; those that are not set are NULL. */
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
	memcpy(new_row->tts_values, columns->values, job_columns() * sizeof(Datum));
	memcpy(new_row->tts_isnull, columns->isnull, job_columns() * sizeof(bool));
	ExecStoreVirtualTuple(new_row);
}

/* Notes a row that was inserted. */
void
idemq_jobs_count_new(const TupleTableSlot *row)
{
	int32 queue_id = DatumGetInt32(row->tts_values[COL_QUEUE_ID]);
	JobStatus status = idemq_status_from_oid(DatumGetObjectId(row->tts_values[COL_STATUS]));

	idemq_pending_counts_row(queue_id, NO_ROW, status);
	if (idemq_queue_limits_groups(queue_id) &&
		counts_in_group(status, !row->tts_isnull[COL_GROUP_KEY]))
		idemq_pending_group_room_row(queue_id, row->tts_values[COL_GROUP_KEY], 1, true);
}

/* Inserts a row; columns that are not set are NULL. */
void
idemq_jobs_insert(JobsTable *table, JobChange *columns)
{
	table->written = true;
	idemq_jobs_fill_row(table, columns);
	if (!table->simple)
	{
		if (!idemq_jobs_insert_sql(table, columns))
			idemq_jobs_refused();
		return;
	}
	table_tuple_insert(table->rel, table->new_row, GetCurrentCommandId(true), 0, NULL);
	idemq_jobs_index_insert(table->rel, table->new_row, NULL, false);
	idemq_jobs_count_new(table->new_row);
}
