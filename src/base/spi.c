/*
 * base/spi.c
 *		SQL from C: saved plans, run as the owner of the extension.
 *
 * Everything in the database that table/ does not access directly goes through these functions:
 *
 *		idemq_spi_begin(&scope);
 *		n = idemq_spi_run(&statement, args, nulls);
 *		idemq_spi_end(&scope);
 *
 * If there is only one statement, one call is enough: idemq_spi_do or idemq_spi_finds if its rows
 * are not read, idemq_spi_row or idemq_spi_rows if they are read into structs.
 *
 * Between begin and end, the user is the owner of idemq's tables, in a security-restricted context,
 * and search_path is pinned, so nothing that the caller's role or search_path refers to can run.
 * Settings that change how SQL is read, and how values become text, are pinned as well.  Statements
 * with on_jobs are different: they need an unrestricted context, and keep the session's settings
 * for the DBA's triggers that they fire.  If an error occurs, the abort of the transaction restores
 * everything.  The text of each statement is constant; values are parameters.
 *
 * To the caller, an error of a statement looks like an error of a C function: its CONTEXT does not
 * contain the line 'SQL statement "..."' that SPI adds.  What a trigger of the DBA has added to the
 * context remains, and so do the lines of the functions that have called idemq.
 *
 * All state is private to the session, so there are no locks.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"

/* Sets a setting until idemq_spi_end, or until the end of the caller's GUC nesting level. */
void
idemq_spi_set(const char *setting, const char *value)
{
	(void) set_config_option(setting, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
							 false);
}

/*
 * Pins the settings that change how SQL is read, which rows it finds and how values become text,
 * until idemq_spi_end, or until the end of the caller's GUC nesting level.  A role or a database
 * may have other defaults.  TimeZone is not pinned, because a time as text includes its offset
 * from UTC.
 */
void
idemq_spi_pin_settings(void)
{
	if (!COMPAT_STRINGS_CONFORM)
		idemq_spi_set("standard_conforming_strings", "on");
	if (quote_all_identifiers)
		idemq_spi_set("quote_all_identifiers", "off");
	if (!row_security)
		idemq_spi_set("row_security", "on");
	/* This does not change the order of day and month in dates that are read. */
	if (DateStyle != USE_ISO_DATES)
		idemq_spi_set("DateStyle", "ISO");
	if (IntervalStyle != INTSTYLE_POSTGRES)
		idemq_spi_set("IntervalStyle", "postgres");
	if (extra_float_digits != 1)
		idemq_spi_set("extra_float_digits", "1");
	if (bytea_output != BYTEA_OUTPUT_HEX)
		idemq_spi_set("bytea_output", "hex");
}

/* Becomes the owner, pins settings and connects to SPI; on_jobs: see SqlStatement. */
static void
spi_scope_begin(SqlScope *scope, bool on_jobs)
{
	GetUserIdAndSecContext(&scope->user, &scope->sec_context);
	SetUserIdAndSecContext(idemq_oids()->owner, scope->sec_context | SECURITY_LOCAL_USERID_CHANGE |
													(on_jobs ? 0 : SECURITY_RESTRICTED_OPERATION));
	scope->guc_level = NewGUCNestLevel();
	idemq_spi_set("search_path", "pg_catalog, pg_temp");
	if (!on_jobs)
		idemq_spi_pin_settings();
	SPI_connect();
}

/* Begins SQL as the owner, for statements without on_jobs. */
void
idemq_spi_begin(SqlScope *scope)
{
	spi_scope_begin(scope, false);
}

/* Returns how many trigger functions are running, nested in each other. */
static int
trigger_depth(void)
{
	LOCAL_FCINFO(fcinfo, 0);

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	return DatumGetInt32(pg_trigger_depth(fcinfo));
}

/* Error context callback: records the trigger depth at which an error was raised. */
static void
note_depth(void *arg)
{
	*(int *) arg = trigger_depth();
}

/* The innermost code whose context is hidden now; NULL if there is none. */
static HiddenContext *hidden = NULL;
static emit_log_hook_type prev_emit_log = NULL;

/*
 * Hides the context of messages until idemq_context_show.  statement: the statement that SPI is
 * about to run; NULL: a function in SQL that idemq calls as an implementation, whose whole context
 * is idemq's.  After an error, call idemq_context_show in PG_CATCH.
 */
void
idemq_context_hide(HiddenContext *context, const char *statement)
{
	int depth = trigger_depth();

	*context = (HiddenContext){statement, depth, depth, hidden};
	hidden = context;
}

/* Ends what idemq_context_hide began. */
void
idemq_context_show(HiddenContext *context)
{
	hidden = context->outer;
}

/*
 * Removes what a message says about idemq's own code.  If it was raised in a trigger function of a
 * statement, only the line that SPI has added for the statement is removed, from the end of the
 * context.
 */
static void
drop_context(ErrorData *message, const HiddenContext *own)
{
	if (own->statement != NULL && own->inside > own->outside)
	{
		char *line = psprintf(_("SQL statement \"%s\""), own->statement);
		size_t length = message->context == NULL ? 0 : strlen(message->context);
		size_t rest = length - Min(strlen(line), length);

		if (length == 0 || strcmp(message->context + rest, line) != 0)
			return;
		if (rest == 0)
			message->context = NULL;
		else
			message->context[message->context[rest - 1] == '\n' ? rest - 1 : rest] = '\0';
		return;
	}
	message->context = NULL;
	message->internalquery = NULL;
	message->internalpos = message->cursorpos = 0;
}

/*
 * emit_log_hook: called before a message goes to the log and to the client.  WARNING and FATAL
 * messages inside a statement of idemq are not caught there.  PostgreSQL calls this only for
 * messages that log_min_messages lets into the log; the context of any other WARNING is not
 * hidden.  Therefore, idemq's own SQL raises warnings through idemq_wrapper_report.
 */
static void
emit_log(ErrorData *message)
{
	if (hidden != NULL && (message->elevel == WARNING || message->elevel == FATAL))
		drop_context(message, hidden);
	if (prev_emit_log != NULL)
		prev_emit_log(message);
}

/* Installs the hook; called once, from _PG_init. */
void
idemq_context_install(void)
{
	prev_emit_log = emit_log_hook;
	emit_log_hook = emit_log;
}

/*
 * Runs a statement, and prepares its plan when it is first used.  Returns SPI's result code.
 *
 * snapshot: registered; the statement must not write.  NULL: the statement may write, and runs
 * under the transaction's snapshot, or under the latest one (SqlStatement.latest).  In the latter
 * case, even above READ COMMITTED, it can write rows that the transaction's snapshot does not see,
 * as the checks of foreign keys do.  A row that was changed after the latest snapshot raises
 * 40001.
 */
static int
execute_plan(SqlStatement *statement, const Datum *args, const char *nulls, Snapshot snapshot)
{
	char flags[SQL_MAX_ARGS];

	/*
	 * The plan may have been made while the table was empty.  If a sequential scan cannot be
	 * avoided, its cost is 1e10, so jit would seem to pay.
	 */
	if (statement->in_order || statement->few)
	{
		idemq_spi_set("enable_seqscan", "off");
		idemq_spi_set("jit", "off");
	}
	if (statement->in_order)
	{
		idemq_spi_set("enable_bitmapscan", "off");
		idemq_spi_set("enable_sort", "off");
	}
	if (statement->plan == NULL)
	{
		SPIPlanPtr plan;

		while (statement->nargs < SQL_MAX_ARGS && OidIsValid(statement->types[statement->nargs]))
			statement->nargs++;
		for (int i = 0; i < statement->nargs; i++)
			statement->by_reference |= get_typbyval(statement->types[i]) ? 0 : 1U << i;
		plan = SPI_prepare(statement->text, statement->nargs, statement->types);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "cannot prepare \"%s\": %s", statement->text,
				 SPI_result_code_string(SPI_result));
		statement->plan = plan;
	}
	if (nulls == NULL && statement->by_reference != 0)
	{
		for (int i = 0; i < statement->nargs; i++)
			flags[i] = (statement->by_reference & (1U << i)) && args[i] == (Datum) 0 ? 'n' : ' ';
		nulls = flags;
	}
	if (snapshot != NULL)
		return SPI_execute_snapshot(statement->plan, (Datum *) args, nulls, snapshot,
									InvalidSnapshot, true, false, 0);
	if (statement->latest && IsolationUsesXactSnapshot())
	{
		Snapshot latest = RegisterSnapshot(GetLatestSnapshot());
		int code = SPI_execute_snapshot(statement->plan, (Datum *) args, nulls, latest,
										InvalidSnapshot, false, true, 0);

		UnregisterSnapshot(latest);
		return code;
	}
	return SPI_execute_plan(statement->plan, (Datum *) args, nulls, false, 0);
}

/*
 * Runs a statement as execute_plan does, and returns its number of rows.  Errors of the statement
 * are raised without the context of idemq's own code.
 */
static uint64
execute(SqlStatement *statement, const Datum *args, const char *nulls, Snapshot snapshot)
{
	MemoryContext context = CurrentMemoryContext;
	HiddenContext own;
	ErrorContextCallback callback = {NULL, note_depth, &own.inside};
	int code;

	idemq_context_hide(&own, statement->text);
	PG_TRY();
	{
		error_context_stack = &callback;
		code = execute_plan(statement, args, nulls, snapshot);
	}
	PG_CATCH();
	{
		ErrorData *error;

		idemq_context_show(&own);
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		elog(DEBUG1, "idemq statement failed: %s", statement->text);
		drop_context(error, &own);
		/* This adds the callers' context. */
		ThrowErrorData(error);
		pg_unreachable();
	}
	PG_END_TRY();
	idemq_context_show(&own);
	if (code < 0 || (snapshot != NULL && code != SPI_OK_SELECT))
		elog(ERROR, "\"%s\" returned %s", statement->text, SPI_result_code_string(code));
	return SPI_processed;
}

/* Runs a query under a registered snapshot; returns its number of rows. */
uint64
idemq_spi_query_at(SqlStatement *statement, const Datum *args, const char *nulls, Snapshot snapshot)
{
	IDEMQ_STOP("idemq_spi_query_at");
	return execute(statement, args, nulls, snapshot);
}

/*
 * Runs a query under the latest snapshot, at every isolation level; returns its number of rows.
 */
uint64
idemq_spi_query_latest(SqlStatement *statement, const Datum *args, const char *nulls)
{
	Snapshot latest = RegisterSnapshot(GetLatestSnapshot());
	uint64 rows = idemq_spi_query_at(statement, args, nulls, latest);

	UnregisterSnapshot(latest);
	return rows;
}

/*
 * Runs a statement, which may write, under the transaction's snapshot, or under the latest one
 * (SqlStatement.latest); returns its number of rows.
 */
uint64
idemq_spi_run(SqlStatement *statement, const Datum *args, const char *nulls)
{
	return execute(statement, args, nulls, NULL);
}

/* Runs one statement as the owner, like idemq_spi_run; its rows cannot be read. */
uint64
idemq_spi_do(SqlStatement *statement, const Datum *args, const char *nulls)
{
	SqlScope scope;
	uint64 rows;

	spi_scope_begin(&scope, statement->on_jobs);
	rows = idemq_spi_run(statement, args, nulls);
	idemq_spi_end(&scope);
	return rows;
}

/* Runs a command without parameters as the owner.  It is prepared each time. */
void
idemq_spi_command(const char *command)
{
	SqlStatement statement = {.text = command};
	SqlScope scope;

	spi_scope_begin(&scope, false);
	(void) execute(&statement, NULL, NULL, NULL);
	SPI_freeplan(statement.plan);
	idemq_spi_end(&scope);
}

/* Returns a palloc'ed bigint[]. */
Datum
idemq_int8_array(const int64 *values, int count)
{
	Datum *elements = palloc(Max(count, 1) * sizeof(Datum));
	ArrayType *array;

	for (int i = 0; i < count; i++)
		elements[i] = Int64GetDatum(values[i]);
	array =
		construct_array(elements, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
	pfree(elements);
	return PointerGetDatum(array);
}

/*
 * Like idemq_spi_do, for a statement whose only parameter is a bigint[].  Does nothing if count is
 * 0.
 */
void
idemq_spi_do_for_ids(SqlStatement *statement, const int64 *ids, int count)
{
	Datum value;

	if (count == 0)
		return;
	value = idemq_int8_array(ids, count);
	(void) idemq_spi_do(statement, &value, NULL);
	pfree(DatumGetPointer(value));
}

/* Returns whether a query finds a row under the latest snapshot, as the owner. */
bool
idemq_spi_finds(SqlStatement *statement, const Datum *args, const char *nulls)
{
	SqlScope scope;
	bool found;

	idemq_spi_begin(&scope);
	found = idemq_spi_query_latest(statement, args, nulls) > 0;
	idemq_spi_end(&scope);
	return found;
}

/*
 * Returns a column (from 1), which is not NULL, of a row (from 0) of the last result; valid until
 * idemq_spi_end.
 */
Datum
idemq_spi_value(uint64 row, int column)
{
	bool isnull;

	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, &isnull);
}

/* Writes a value, which is not NULL, into a field; returns the size that the field must have. */
static Size
spi_read_field(Oid type, Datum value, const SqlField *field, void *target, MemoryContext context)
{
	MemoryContext old;

	switch (type)
	{
		case BOOLOID:
			*(bool *) target = DatumGetBool(value);
			return sizeof(bool);
		case INT4OID:
		case OIDOID:
		case XIDOID:
			*(int32 *) target = DatumGetInt32(value);
			return sizeof(int32);
		case INT8OID:
		case TIMESTAMPTZOID:
			*(int64 *) target = DatumGetInt64(value);
			return sizeof(int64);
		case INTERVALOID:
			*(int64 *) target = idemq_interval_usecs(DatumGetIntervalP(value));
			return sizeof(int64);
		case FLOAT8OID:
			*(double *) target = DatumGetFloat8(value);
			return sizeof(double);
		case NAMEOID:
			*(NameData *) target = *DatumGetName(value);
			return sizeof(NameData);
		case TEXTOID:
		case JSONBOID:
		case BYTEAOID:
		case TEXTARRAYOID:
			if (field->names != NULL)
			{
				char *name = TextDatumGetCString(value);
				int i = 0;

				while (field->names[i] != NULL && strcmp(field->names[i], name) != 0)
					i++;
				if (field->names[i] == NULL)
					elog(ERROR, "unknown name \"%s\" in a row", name);
				*(int *) target = i;
				return sizeof(int);
			}
			if (field->size != sizeof(Datum))
			{
				text_to_cstring_buffer(DatumGetTextPP(value), target, field->size);
				return field->size;
			}
			old = MemoryContextSwitchTo(context);
			*(Datum *) target = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
			MemoryContextSwitchTo(old);
			return sizeof(Datum);
		default:
			if (type != idemq_oids()->status_type)
				elog(ERROR, "a column of type %u has no field", type);
			*(JobStatus *) target = idemq_status_from_oid(DatumGetObjectId(value));
			return sizeof(JobStatus);
	}
}

/*
 * Reads a row (from 0) of the last result into a struct, with one field per column, in order.  An
 * interval becomes microseconds, and a status becomes a JobStatus.  Text and jsonb are copied into
 * the memory context, or as a string into a char array in the struct.  If a column is NULL, its
 * field does not change.
 */
void
idemq_spi_read(uint64 row, const SqlField *fields, void *target, MemoryContext context)
{
	TupleDesc desc = SPI_tuptable->tupdesc;

	for (int i = 0; i < desc->natts; i++)
	{
		bool isnull;
		Datum value = SPI_getbinval(SPI_tuptable->vals[row], desc, i + 1, &isnull);
		char *field = (char *) target + fields[i].offset;

		if (!isnull && spi_read_field(SPI_gettypeid(desc, i + 1), value, &fields[i], field,
									  context) != fields[i].size)
			elog(ERROR, "column %d of a row has a field of the wrong size", i + 1);
	}
}

/* Runs a statement for idemq_spi_row and idemq_spi_rows. */
static uint64
run_for_rows(SqlStatement *statement, const Datum *args)
{
	return statement->locks ? idemq_spi_run(statement, args, NULL)
							: idemq_spi_query_latest(statement, args, NULL);
}

/*
 * Runs a statement as the owner, and reads its first row into the struct row, which is set to
 * zeros first.  Returns whether there is a row.  The statement runs under the latest snapshot, or,
 * if locks is set, as in idemq_spi_run.
 */
bool
idemq_spi_row(SqlStatement *statement, const Datum *args, void *row, Size size)
{
	MemoryContext caller = CurrentMemoryContext;
	SqlScope scope;
	bool found;

	memset(row, 0, size);
	spi_scope_begin(&scope, statement->on_jobs);
	found = run_for_rows(statement, args) > 0;
	if (found)
		idemq_spi_read(0, statement->fields, row, caller);
	idemq_spi_end(&scope);
	return found;
}

/* Like idemq_spi_row, for all rows: returns a palloc'ed array of structs of that size. */
void *
idemq_spi_rows(SqlStatement *statement, const Datum *args, Size size, int *count)
{
	MemoryContext caller = CurrentMemoryContext;
	SqlScope scope;
	uint64 found;
	char *rows;

	spi_scope_begin(&scope, statement->on_jobs);
	found = run_for_rows(statement, args);
	rows = MemoryContextAllocHuge(caller, Max(found, 1) * size);
	memset(rows, 0, found * size);
	for (uint64 i = 0; i < found; i++)
		idemq_spi_read(i, statement->fields, rows + i * size, caller);
	*count = (int) found;
	idemq_spi_end(&scope);
	return rows;
}

/* Restores what idemq_spi_begin has changed. */
void
idemq_spi_end(SqlScope *scope)
{
	SPI_finish();
	AtEOXact_GUC(true, scope->guc_level);
	SetUserIdAndSecContext(scope->user, scope->sec_context);
}
