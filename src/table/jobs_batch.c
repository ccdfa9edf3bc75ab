/*
 * table/jobs_batch.c
 *		Inserts many rows that have no key, and fills and logs pages as a whole.
 *
 * Rows are collected until there are MAX_ROWS of them, or MAX_BYTES, and then written: first all
 * rows, then all entries of one index after the other.  So a call never needs more memory than
 * that, however many rows it inserts, and a longer row is written at once.  No other session
 * notices the difference, because the rows belong to one command of one transaction, and become
 * visible when it commits.  The caller ends the batch before it closes the table, which ends the
 * command.
 *
 *	 concurrent update		impossible, because no other session sees the rows
 *	 rollback to savepoint	leaves dead rows, as after any INSERT.  So does an error during a batch; rows that have
 *							not been written yet are forgotten
 *	 isolation level		does not matter; SERIALIZABLE checks the table and each index
 *	 user's triggers, constraints, columns	each row is written at once, with SQL (jobs_write.c)
 *	 user's indexes			entries of simple indexes are written here; a unique one raises 23505, and waits, as
 *							for any INSERT.  With other indexes, each row is written at once.  Each
 *							batch checks this
 *
 * Locks: as in jobs_write.c.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "utils/memutils.h"

#include "table/table.h"

#define MAX_ROWS 128
#define MAX_BYTES (64 * 1024)

struct JobsBatch
{
	JobsTable *table;
	MemoryContext context; /* of the rows that have been collected */
	bool simple;		   /* rows may be collected */
	int count;
	Size bytes;
	TupleTableSlot *rows[MAX_ROWS]; /* created at their first use */
};

/* Begins a batch, in the current memory context. */
JobsBatch *
idemq_jobs_batch_begin(JobsTable *table)
{
	JobsBatch *batch = palloc0(sizeof(JobsBatch));

	batch->table = table;
	batch->context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq batch", ALLOCSET_DEFAULT_SIZES);
	batch->simple = table->simple && idemq_jobs_indexes_are_simple(table->rel);
	return batch;
}

/* Writes the rows that have been collected. */
static void
batch_flush(JobsBatch *batch)
{
	Relation rel = batch->table->rel;
	MemoryContext old;

	if (batch->count == 0)
		return;
	old = MemoryContextSwitchTo(batch->context);
	batch->table->written = true;
	table_multi_insert(rel, batch->rows, batch->count, GetCurrentCommandId(true), 0, NULL);
	(void) idemq_jobs_index_insert_simple(rel, batch->rows, batch->count, NULL, UNIQUE_CHECK_YES);
	for (int i = 0; i < batch->count; i++)
	{
		idemq_jobs_count_new(batch->rows[i]);
		ExecClearTuple(batch->rows[i]);
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(batch->context);
	batch->count = 0;
	batch->bytes = 0;
}

/*
 * Adds a row; columns that are not set are NULL.  It may be written later, so their values are
 * copied.
 */
void
idemq_jobs_batch_add(JobsBatch *batch, JobChange *columns)
{
	JobsTable *table = batch->table;
	TupleTableSlot **row = &batch->rows[batch->count];
	MemoryContext old;
	HeapTuple tuple;

	if (!batch->simple)
	{
		idemq_jobs_insert(table, columns);
		return;
	}
	if (*row == NULL)
	{
		old = MemoryContextSwitchTo(table->context);
		*row = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsHeapTuple);
		MemoryContextSwitchTo(old);
	}
	idemq_jobs_fill_row(table, columns);
	old = MemoryContextSwitchTo(batch->context);
	tuple = ExecCopySlotHeapTuple(table->new_row);
	MemoryContextSwitchTo(old);
	ExecStoreHeapTuple(tuple, *row, true);
	/* Index entries are formed from the columns of the slot. */
	slot_getallattrs(*row);
	batch->bytes += tuple->t_len;
	if (++batch->count == MAX_ROWS || batch->bytes >= MAX_BYTES)
		batch_flush(batch);
}

/* Writes the remaining rows, and ends the batch. */
void
idemq_jobs_batch_end(JobsBatch *batch)
{
	batch_flush(batch);
	for (int i = 0; i < MAX_ROWS && batch->rows[i] != NULL; i++)
		ExecDropSingleTupleTableSlot(batch->rows[i]);
	MemoryContextDelete(batch->context);
	pfree(batch);
}
