/*
 * table/jobs_batch.c
 *		Inserts of many rows that have no key: pages are filled, and logged, whole.
 *
 * Rows are kept until there are MAX_ROWS of them, or MAX_BYTES, and then written: all of
 * them into the table, then all entries of one index after the other.  So a call needs no
 * more memory than that, however many rows it adds, and a longer row is written at once.
 * Nobody else sees the difference: the rows are of one command of one transaction, visible
 * from its commit on, and the caller ends the batch before it closes the table, which ends
 * the command.
 *
 *   concurrent update	there is none: nobody sees the rows.
 *   savepoint rollback	leaves dead rows, as of any INSERT; an error in the middle as well,
 *						and the rows that were not written yet are forgotten.
 *   isolation level	does not matter; SERIALIZABLE checks the table and each index.
 *   user's triggers, constraints, columns
 *						each row is written at once, by SQL (table/jobs_write.c).
 *   user's indexes		those that are simple have their entries written here (a unique one
 *						raises 23505, and waits, as for any INSERT); with others each
 *						row is written at once.  That is looked up for each batch.
 *
 * Locks: as table/jobs_write.c.
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
	MemoryContext context; /* of the rows that are kept */
	bool simple;		   /* rows may be kept */
	int count;
	Size bytes;
	TupleTableSlot *rows[MAX_ROWS]; /* made at their first use */
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

static void
flush(JobsBatch *batch)
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
 * Adds a row; columns that are not set are NULL.  It may be written by a later call.  What
 * the columns refer to need not stay.
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
	/* For the indexes, which read the slot's columns. */
	slot_getallattrs(*row);
	batch->bytes += tuple->t_len;
	if (++batch->count == MAX_ROWS || batch->bytes >= MAX_BYTES)
		flush(batch);
}

/* Inserts the rows that are left, and ends the batch. */
void
idemq_jobs_batch_end(JobsBatch *batch)
{
	flush(batch);
	for (int i = 0; i < MAX_ROWS && batch->rows[i] != NULL; i++)
		ExecDropSingleTupleTableSlot(batch->rows[i]);
	MemoryContextDelete(batch->context);
	pfree(batch);
}
