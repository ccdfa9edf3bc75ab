/*
 * table/jobs_sql.c
 *		Writes to idemq.jobs the long way, by SQL: every write when a DBA has added
 *		to the table (user triggers, foreign keys that point here, generated columns,
 *		check constraints, further columns), and inserts with a key when a user's
 *		index needs the executor.  They fire all that any INSERT, UPDATE or DELETE of
 *		these columns fires.
 *
 * Updates and deletes are for a row that the caller has locked in this
 * transaction; then they cannot meet a concurrent change.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "table/table.h"

/* A statement for one set of columns; there are as many as kinds of transition. */
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

/* Raises 09000: a trigger kept a row from being written. */
void
idemq_jobs_refused(void)
{
	ereport(ERROR, errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
			errmsg("a trigger on idemq.jobs prevented the change"),
			errhint("Make sure that no BEFORE trigger on idemq.jobs returns NULL."));
}

/* Makes the statement that inserts, or, with the id as $1, updates a set of columns. */
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
		/* The status as text: a saved plan outlives the OID of a type. */
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

/* Writes the set columns to a new row, or to the row of an id; returns the number of rows. */
static uint64
write_columns(const JobsTable *table, int64 id, const JobChange *change, bool inserts)
{
	Datum values[JOB_COLUMNS + 1] = {Int64GetDatum(id)};
	char nulls[JOB_COLUMNS + 1] = {' '};
	uint32 set = change->set & COLUMNS_BELOW(job_columns());
	ColumnStatement *made = statements;
	int n = 1;

	if (set == 0)
		return 1; /* the table has none of its columns yet */
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
 * Inserts a row; returns false when its key is taken, or a trigger refused it.
 * Waits for a concurrent duplicate whose transaction is open.  Above READ COMMITTED it raises
 * 40001 when the concurrent duplicate is not in the transaction's snapshot.
 */
bool
idemq_jobs_insert_sql(const JobsTable *table, const JobChange *columns)
{
	return write_columns(table, 0, columns, true) > 0;
}

/* Updates the locked row of that id; raises 09000 when a trigger refuses. */
void
idemq_jobs_update_sql(const JobsTable *table, int64 id, const JobChange *change)
{
	if (write_columns(table, id, change, false) == 0)
		idemq_jobs_refused();
}

/* Deletes the locked row of that id; raises 09000 when a trigger refuses. */
void
idemq_jobs_delete_sql(int64 id)
{
	Datum value = Int64GetDatum(id);

	if (idemq_spi_do(&delete_job, &value, NULL) == 0)
		idemq_jobs_refused();
}

/*
 * Deletes the row of a job that finished at that time, which the caller has not
 * locked; returns false when it is held, came back to life, or a trigger keeps it.
 */
bool
idemq_jobs_delete_finished_sql(int64 id, TimestampTz finished_at)
{
	Datum values[] = {Int64GetDatum(id), TimestampTzGetDatum(finished_at)};

	return idemq_spi_do(&delete_finished, values, NULL) > 0;
}
