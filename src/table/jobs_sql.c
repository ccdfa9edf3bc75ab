/*
 * table/jobs_sql.c
 *		Writes to idemq.jobs through SQL.  If a DBA has added user triggers, foreign keys that refer
 *		to the table, generated or further columns, or check constraints, every write is done here,
 *		and so are inserts with a key if an index needs the executor.  Whatever an INSERT, UPDATE or
 *		DELETE of these columns fires is fired.
 *
 * The caller of an update or a delete has locked the row in this transaction, so there can be no
 * concurrent change.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

/* A statement for one set of columns; there are about as many as kinds of transition. */
typedef struct ColumnStatement
{
	uint32 columns; /* COLUMN_BITs */
	bool inserts;
	SqlStatement statement;
	struct ColumnStatement *next;
} ColumnStatement;

static ColumnStatement *statements = NULL;
static SqlStatement delete_job = {.on_jobs = true,
								  .text = "DELETE FROM idemq.jobs WHERE id = $1",
								  .types = {INT8OID}};

static SqlStatement delete_finished =
	{.on_jobs = true,
	 .text = "WITH old AS MATERIALIZED (SELECT id FROM idemq.jobs WHERE id = $1 "
			 "AND finished_at = $2 FOR UPDATE SKIP LOCKED) "
			 "DELETE FROM idemq.jobs j USING old WHERE j.id = old.id",
	 .types = {INT8OID, TIMESTAMPTZOID}};

/* Raises 09000 because a trigger has prevented a write. */
void
idemq_jobs_refused(void)
{
	ereport(ERROR, errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
			errmsg("a trigger on idemq.jobs prevented the change"),
			errhint("Make sure that no BEFORE trigger on idemq.jobs returns NULL."));
}

/* Prepares the statement that inserts a set of columns, or updates them in the row with id $1. */
static ColumnStatement *
make_statement(const JobsTable *table, uint32 columns, bool inserts)
{
	ColumnStatement *made = MemoryContextAllocZero(TopMemoryContext, sizeof(ColumnStatement));
	SqlStatement *statement = &made->statement;
	StringInfoData names;
	StringInfoData values;

	made->columns = columns;
	made->inserts = inserts;
	initStringInfo(&names);
	initStringInfo(&values);
	statement->on_jobs = true;
	statement->types[statement->nargs++] = INT8OID;
	for (int i = 0; i < job_columns(); i++)
	{
		Form_pg_attribute column = TupleDescAttr(RelationGetDescr(table->rel), i);
		const char *comma = statement->nargs > 1 ? ", " : "";

		if ((columns & COLUMN_BIT(i)) == 0)
			continue;
		if (statement->nargs == SQL_MAX_ARGS)
			elog(ERROR, "too many columns of idemq.jobs in one statement");
		/* The status is passed as text, because a saved plan may outlive the OID of the type. */
		statement->types[statement->nargs++] = i == COL_STATUS ? TEXTOID : column->atttypid;
		appendStringInfo(&names, "%s%s", comma, NameStr(column->attname));
		appendStringInfo(&values, i == COL_STATUS ? "%s$%d::idemq.status" : "%s$%d", comma,
						 statement->nargs);
	}
	statement->text = MemoryContextStrdup(
		TopMemoryContext,
		psprintf(inserts ? "INSERT INTO idemq.jobs (%s) VALUES (%s) ON CONFLICT (queue_id, key) "
						   "WHERE key IS NOT NULL DO NOTHING"
						 : "UPDATE idemq.jobs SET (%s) = ROW(%s) WHERE id = $1",
				 names.data, values.data));
	made->next = statements;
	statements = made;
	return made;
}

/* Inserts a row with the set columns, or updates the row with an id; returns the number of rows. */
static uint64
write_columns(const JobsTable *table, int64 id, const JobChange *change, bool inserts)
{
	Datum values[JOB_COLUMNS + 1] = {Int64GetDatum(id)};
	char nulls[JOB_COLUMNS + 1] = {' '};
	uint32 set = change->set & COLUMNS_BELOW(job_columns());
	ColumnStatement *made = statements;
	int n = 1;

	if (set == 0)
		return 1; /* the table does not have these columns yet */
	while (made != NULL && (made->columns != set || made->inserts != inserts))
		made = made->next;
	if (made == NULL)
		made = make_statement(table, set, inserts);
	for (int i = 0; i < job_columns(); i++)
	{
		if ((set & COLUMN_BIT(i)) == 0)
			continue;
		values[n] = change->values[i];
		nulls[n] = change->isnull[i] ? 'n' : ' ';
		if (i == COL_STATUS)
			values[n] = CStringGetTextDatum(
				idemq_status_name(idemq_status_from_oid(DatumGetObjectId(change->values[i]))));
		n++;
	}
	return idemq_spi_do(&made->statement, values, nulls);
}

/*
 * Inserts a row; returns false if its key is taken, or if a trigger has prevented the insert.
 * Waits for an open transaction that is inserting the same key.  Above READ COMMITTED raises 40001
 * if the transaction's snapshot does not show the job that has the key.
 */
bool
idemq_jobs_insert_sql(const JobsTable *table, const JobChange *columns)
{
	return write_columns(table, 0, columns, true) > 0;
}

/* Updates the locked row with an id; raises 09000 if a trigger prevents it. */
void
idemq_jobs_update_sql(const JobsTable *table, int64 id, const JobChange *change)
{
	if (write_columns(table, id, change, false) == 0)
		idemq_jobs_refused();
}

/* Deletes the locked row with an id; raises 09000 if a trigger prevents it. */
void
idemq_jobs_delete_sql(int64 id)
{
	Datum value = Int64GetDatum(id);

	if (idemq_spi_do(&delete_job, &value, NULL) == 0)
		idemq_jobs_refused();
}

/*
 * Deletes a job that finished at finished_at.  The caller has not locked its row.  Returns false
 * if another transaction holds the row, if the job is no longer finished, or if a trigger prevents
 * the deletion.
 */
bool
idemq_jobs_delete_finished_sql(int64 id, TimestampTz finished_at)
{
	Datum values[] = {Int64GetDatum(id), TimestampTzGetDatum(finished_at)};

	return idemq_spi_do(&delete_finished, values, NULL) > 0;
}
