/*
 * table/jobs_sql.c
 *		Writes to idemq.jobs the long way, by SQL: every write when a DBA has added
 *		to the table (user triggers, foreign keys that point here, generated columns,
 *		check constraints, further columns), and inserts with a key when a user's
 *		index needs the executor.  All that any INSERT, UPDATE or DELETE of these
 *		columns fires is fired.
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

/* The columns by number, and the types of their parameters. */
static const struct
{
	const char *name;
	Oid type;
} columns_of_jobs[JOB_COLUMNS] = {
	[COL_ID] = {"id", INT8OID},
	[COL_QUEUE_ID] = {"queue_id", INT4OID},
	[COL_CREATED_AT] = {"created_at", TIMESTAMPTZOID},
	[COL_PRIORITY] = {"priority", INT2OID},
	[COL_MAX_ATTEMPTS] = {"max_attempts", INT4OID},
	[COL_EXPIRES_AT] = {"expires_at", TIMESTAMPTZOID},
	[COL_RUN_AT] = {"run_at", TIMESTAMPTZOID},
	/* as text: a saved plan outlives the OID of a type */
	[COL_STATUS] = {"status", TEXTOID},
	[COL_ATTEMPT] = {"attempt", INT4OID},
	[COL_TOKEN] = {"token", INT8OID},
	[COL_READY_AT] = {"ready_at", TIMESTAMPTZOID},
	[COL_CLAIMED_AT] = {"claimed_at", TIMESTAMPTZOID},
	[COL_DEADLINE] = {"deadline", TIMESTAMPTZOID},
	[COL_FINISHED_AT] = {"finished_at", TIMESTAMPTZOID},
	[COL_DEAD_AT] = {"dead_at", TIMESTAMPTZOID},
	[COL_KEY_EXPIRES_AT] = {"key_expires_at", TIMESTAMPTZOID},
	[COL_RERUN_AT] = {"rerun_at", TIMESTAMPTZOID},
	[COL_WORKER] = {"worker", TEXTOID},
	[COL_KEY] = {"key", TEXTOID},
	[COL_GROUP_KEY] = {"group_key", TEXTOID},
	[COL_KIND] = {"kind", TEXTOID},
	[COL_HEADERS] = {"headers", JSONBOID},
	[COL_RERUN_PAYLOAD] = {"rerun_payload", JSONBOID},
	[COL_RERUN_HEADERS] = {"rerun_headers", JSONBOID},
	[COL_RERUN_KIND] = {"rerun_kind", TEXTOID},
	[COL_CHECKPOINT] = {"checkpoint", JSONBOID},
	[COL_RESULT] = {"result", JSONBOID},
	[COL_LAST_ERROR] = {"last_error", TEXTOID},
	[COL_PAYLOAD] = {"payload", JSONBOID},
};

/* A statement for one set of columns; there are as many as kinds of transition. */
typedef struct ColumnStatement
{
	uint32 columns; /* COLUMN_BITs */
	SqlStatement statement;
	struct ColumnStatement *next;
} ColumnStatement;

static ColumnStatement *inserts = NULL;
static ColumnStatement *updates = NULL;
static SqlStatement delete_job = {.text = "DELETE FROM idemq.jobs WHERE id = $1",
								  .types = {INT8OID}};

static SqlStatement delete_finished =
	{.text = "WITH old AS MATERIALIZED (SELECT id FROM idemq.jobs WHERE id = $1 "
			 "AND finished_at = $2 FOR UPDATE SKIP LOCKED) "
			 "DELETE FROM idemq.jobs j USING old WHERE j.id = old.id",
	 .types = {INT8OID, TIMESTAMPTZOID}};

/* Raises 09000 when a trigger kept a row from being written. */
void
idemq_jobs_refused(void)
{
	ereport(ERROR, (errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
					errmsg("a trigger on idemq.jobs refused the change"),
					errhint("A BEFORE trigger on idemq.jobs must not return NULL.")));
}

/* Appends "$n", cast where the parameter's type is not the column's. */
static void
append_parameter(StringInfo text, int column, int n)
{
	appendStringInfo(text, column == COL_STATUS ? "$%d::idemq.status" : "$%d", n);
}

/* Returns the text of an INSERT, or, with the id as $1, of an UPDATE. */
static char *
statement_text(uint32 columns, bool insert)
{
	StringInfoData names;
	StringInfoData values;
	int n = insert ? 0 : 1;

	initStringInfo(&names);
	initStringInfo(&values);
	for (int i = 0; i < JOB_COLUMNS; i++)
	{
		if ((columns & COLUMN_BIT(i)) == 0)
			continue;
		if (names.len > 0)
		{
			appendStringInfoString(&names, ", ");
			appendStringInfoString(&values, ", ");
		}
		appendStringInfoString(&names, columns_of_jobs[i].name);
		if (!insert)
		{
			appendStringInfoString(&names, " = ");
			append_parameter(&names, i, ++n);
		}
		else
			append_parameter(&values, i, ++n);
	}
	if (!insert)
		return psprintf("UPDATE idemq.jobs SET %s WHERE id = $1", names.data);
	return psprintf("INSERT INTO idemq.jobs (%s) VALUES (%s) ON CONFLICT (queue_id, key) "
					"WHERE key IS NOT NULL DO NOTHING",
					names.data, values.data);
}

/* Returns the statement for a set of columns, made at first use. */
static SqlStatement *
statement_for(ColumnStatement **list, uint32 columns, bool insert)
{
	ColumnStatement *made;
	SqlStatement *statement;

	for (made = *list; made != NULL; made = made->next)
	{
		if (made->columns == columns)
			return &made->statement;
	}
	made = MemoryContextAllocZero(TopMemoryContext, sizeof(ColumnStatement));
	made->columns = columns;
	statement = &made->statement;
	statement->text = MemoryContextStrdup(TopMemoryContext, statement_text(columns, insert));
	if (!insert)
		statement->types[statement->nargs++] = INT8OID;
	for (int i = 0; i < JOB_COLUMNS; i++)
	{
		if (columns & COLUMN_BIT(i))
			statement->types[statement->nargs++] = columns_of_jobs[i].type;
	}
	made->next = *list;
	*list = made;
	return statement;
}

/* Puts the set columns into parameters from n on. */
static void
fill_parameters(const JobChange *change, int n, Datum *values, char *nulls)
{
	for (int i = 0; i < JOB_COLUMNS; i++)
	{
		if ((change->set & COLUMN_BIT(i)) == 0)
			continue;
		values[n] = change->values[i];
		nulls[n] = change->isnull[i] ? 'n' : ' ';
		if (i == COL_STATUS)
			values[n] = CStringGetTextDatum(
				idemq_status_name(idemq_status_from_oid(DatumGetObjectId(change->values[i]))));
		n++;
	}
}

/*
 * Inserts a row; returns false when its key is taken, or a trigger refused it.
 * Waits for a twin whose transaction is open.  Above READ COMMITTED it raises
 * 40001 when the twin is not in the transaction's snapshot.
 */
bool
idemq_jobs_insert_sql(const JobChange *columns)
{
	Datum values[JOB_COLUMNS];
	char nulls[JOB_COLUMNS];
	SqlScope scope;
	uint64 inserted;

	fill_parameters(columns, 0, values, nulls);
	idemq_spi_begin_on_jobs(&scope);
	inserted =
		idemq_spi_run(statement_for(&inserts, columns->set, true), values, nulls, SPI_OK_INSERT);
	idemq_spi_end(&scope);
	return inserted > 0;
}

/* Updates the locked row of that id; raises 09000 when a trigger refuses. */
void
idemq_jobs_update_sql(int64 id, const JobChange *change)
{
	Datum values[JOB_COLUMNS + 1] = {Int64GetDatum(id)};
	char nulls[JOB_COLUMNS + 1] = {' '};
	SqlScope scope;

	fill_parameters(change, 1, values, nulls);
	idemq_spi_begin_on_jobs(&scope);
	if (idemq_spi_run(statement_for(&updates, change->set, false), values, nulls, SPI_OK_UPDATE) ==
		0)
		idemq_jobs_refused();
	idemq_spi_end(&scope);
}

/* Deletes the locked row of that id; raises 09000 when a trigger refuses. */
void
idemq_jobs_delete_sql(int64 id)
{
	Datum value = Int64GetDatum(id);
	SqlScope scope;

	idemq_spi_begin_on_jobs(&scope);
	if (idemq_spi_run(&delete_job, &value, NULL, SPI_OK_DELETE) == 0)
		idemq_jobs_refused();
	idemq_spi_end(&scope);
}

/*
 * Deletes the row of a job that finished at that time, and is not locked; returns
 * false when it is held, came back to life, or a trigger keeps it.
 */
bool
idemq_jobs_delete_finished_sql(int64 id, TimestampTz finished_at)
{
	Datum values[] = {Int64GetDatum(id), TimestampTzGetDatum(finished_at)};
	SqlScope scope;
	uint64 deleted;

	idemq_spi_begin_on_jobs(&scope);
	deleted = idemq_spi_run(&delete_finished, values, NULL, SPI_OK_DELETE);
	idemq_spi_end(&scope);
	return deleted > 0;
}
