/*
 * base/spi.c
 *		SQL from C: saved plans, run as the extension's owner.
 *
 * Everything that the table room does not do by direct access goes through here:
 *
 *		idemq_spi_begin(&scope);
 *		n = idemq_spi_run(&statement, args, nulls);
 *		idemq_spi_end(&scope);
 *
 * One statement runs by itself: by idemq_spi_do or idemq_spi_finds when nobody reads its
 * rows, by idemq_spi_row or idemq_spi_rows when its rows become structs.
 *
 * Between begin and end the user is the owner of idemq's tables, in a
 * security-restricted context (but for a statement on_jobs), and search_path is
 * pinned, so that nothing that the caller's role or path brings in is run.  So are the
 * settings that change how SQL is read and how values become text, again not for a
 * statement on_jobs: it has no such text, and triggers of the DBA that it fires get
 * the session's own settings.  On an error, transaction abort puts all of it back.
 * Statements are constant text; values are parameters.
 *
 * An error leaves a statement as it would leave a C function: without the line
 * 'SQL statement "..."' that SPI adds to its CONTEXT.  What a trigger of the DBA wrote
 * there stays, and so do the lines of the functions that have called idemq.
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

/* Sets a setting until idemq_spi_end, or the end of the caller's nest level of settings. */
void
idemq_spi_set(const char *setting, const char *value)
{
	(void) set_config_option(setting, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
							 false);
}

/*
 * Sets what changes how SQL is read, which rows it finds, and how values become text, until
 * idemq_spi_end, or the end of the caller's nest level of settings.  A role or a database may have
 * set it otherwise.  TimeZone stays: texts of times name their offset.
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
	/* The order of day and month in what is read stays as it is. */
	if (DateStyle != USE_ISO_DATES)
		idemq_spi_set("DateStyle", "ISO");
	if (IntervalStyle != INTSTYLE_POSTGRES)
		idemq_spi_set("IntervalStyle", "postgres");
	if (extra_float_digits != 1)
		idemq_spi_set("extra_float_digits", "1");
	if (bytea_output != BYTEA_OUTPUT_HEX)
		idemq_spi_set("bytea_output", "hex");
}

/*
 * Becomes the owner, in a security-restricted context unless idemq.jobs is written, pins
 * search_path and connects to SPI.
 */
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

/* Begins SQL as the owner, in a security-restricted context. */
void
idemq_spi_begin(SqlScope *scope)
{
	spi_scope_begin(scope, false);
}

/* Returns how many trigger functions are running, one in another. */
static int
trigger_depth(void)
{
	LOCAL_FCINFO(fcinfo, 0);

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	return DatumGetInt32(pg_trigger_depth(fcinfo));
}

/* Context callback: notes how many trigger functions were running when the error was raised. */
static void
note_depth(void *arg)
{
	*(int *) arg = trigger_depth();
}

/* Whose context is hidden now, the innermost first; NULL: nobody's. */
static HiddenContext *hidden = NULL;
static emit_log_hook_type prev_emit_log = NULL;

/*
 * From here to idemq_context_show, or to an error, the context of a message is idemq's own.
 * statement: what SPI runs; NULL: all of the context is idemq's.
 */
static void
context_hide(HiddenContext *context, const char *statement)
{
	*context = (HiddenContext){statement, trigger_depth(), 0, hidden};
	context->inside = context->outside;
	hidden = context;
}

/* As context_hide, for a function in SQL that idemq calls as an implementation. */
void
idemq_context_hide(HiddenContext *context)
{
	context_hide(context, NULL);
}

/* Ends what idemq_context_hide began; after an error, too. */
void
idemq_context_show(HiddenContext *context)
{
	hidden = context->outer;
}

/* Removes the line that SPI has added from the end of an error's context. */
static void
cut_statement(ErrorData *error, const char *statement)
{
	char *line = psprintf(_("SQL statement \"%s\""), statement);
	size_t length = error->context == NULL ? 0 : strlen(error->context);
	size_t cut = strlen(line);

	if (length < cut || strcmp(error->context + length - cut, line) != 0)
		return;
	if (length > cut && error->context[length - cut - 1] == '\n')
		cut++;
	error->context[length - cut] = '\0';
	if (length == cut)
		error->context = NULL;
}

/*
 * Removes what a message says about idemq's own code.  If a trigger function of a statement raised
 * it, its context stays.
 */
static void
drop_context(ErrorData *message, const HiddenContext *own)
{
	if (own->statement != NULL && own->inside > own->outside)
	{
		cut_statement(message, own->statement);
		return;
	}
	message->context = NULL;
	message->internalquery = NULL;
	message->internalpos = message->cursorpos = 0;
}

/*
 * Raises the caught error of a statement again, without what it says about the statement.
 * ThrowErrorData adds the callers' context.
 */
pg_noreturn static void
raise_again(const HiddenContext *own, MemoryContext context)
{
	ErrorData *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	elog(DEBUG1, "idemq statement failed: %s", own->statement);
	drop_context(error, own);
	ThrowErrorData(error);
	pg_unreachable();
}

/*
 * Called before a message is sent to the log and to the client.  A WARNING or a FATAL error that is
 * raised inside a statement of idemq's is not caught there.  PostgreSQL calls this only for messages
 * that log_min_messages lets into the log: another WARNING keeps its context.  What idemq's own SQL
 * has to say therefore goes through idemq_wrapper_report.
 */
static void
emit_log(ErrorData *message)
{
	if (hidden != NULL && (message->elevel == WARNING || message->elevel == FATAL))
		drop_context(message, hidden);
	if (prev_emit_log != NULL)
		prev_emit_log(message);
}

void
idemq_context_install(void)
{
	prev_emit_log = emit_log_hook;
	emit_log_hook = emit_log;
}

/*
 * Runs a prepared statement that may write, under the latest snapshot; returns SPI's code.  Above
 * READ COMMITTED it can thus write rows that the transaction's own snapshot does not see, as
 * foreign key checks do.  A row that was changed since the latest snapshot raises 40001.
 */
static int
execute_latest(SqlStatement *statement, const Datum *args, const char *nulls)
{
	Snapshot latest = RegisterSnapshot(GetLatestSnapshot());
	int code = SPI_execute_snapshot(statement->plan, (Datum *) args, nulls, latest, InvalidSnapshot,
									false, true, 0);

	UnregisterSnapshot(latest);
	return code;
}

/*
 * Runs a statement, and prepares its plan at the first use; returns SPI's code.  snapshot: a
 * registered one; with NULL it is the transaction's own, or the latest, and the statement may
 * write.
 */
static int
execute_plan(SqlStatement *statement, const Datum *args, const char *nulls, Snapshot snapshot)
{
	char flags[SQL_MAX_ARGS];

	/*
	 * Each run is for few rows, and the plan may be from a time when the table was empty.  A
	 * sequential scan that cannot be avoided costs 1e10 then: no reason to compile the plan.
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
	if (snapshot == NULL && statement->latest && IsolationUsesXactSnapshot())
		return execute_latest(statement, args, nulls);
	if (snapshot == NULL)
		return SPI_execute_plan(statement->plan, (Datum *) args, nulls, false, 0);
	return SPI_execute_snapshot(statement->plan, (Datum *) args, nulls, snapshot, InvalidSnapshot,
								true, false, 0);
}

/* As execute_plan; an error has no context but that of triggers and of the callers. */
static int
execute(SqlStatement *statement, const Datum *args, const char *nulls, Snapshot snapshot)
{
	MemoryContext context = CurrentMemoryContext;
	HiddenContext own;
	ErrorContextCallback callback = {NULL, note_depth, &own.inside};
	int code;

	context_hide(&own, statement->text);
	PG_TRY();
	{
		error_context_stack = &callback;
		code = execute_plan(statement, args, nulls, snapshot);
	}
	PG_CATCH();
	{
		idemq_context_show(&own);
		raise_again(&own, context);
	}
	PG_END_TRY();
	idemq_context_show(&own);
	return code;
}

/* Returns the number of rows of a statement that was run; raises an error for another code. */
static uint64
rows_of(const SqlStatement *statement, int code, bool expected)
{
	if (!expected)
		elog(ERROR, "\"%s\" returned %s", statement->text, SPI_result_code_string(code));
	return SPI_processed;
}

/* Runs a query under a registered snapshot; returns its number of rows. */
uint64
idemq_spi_query_at(SqlStatement *statement, const Datum *args, const char *nulls, Snapshot snapshot)
{
	int code;

	IDEMQ_STOP("idemq_spi_query_at");
	code = execute(statement, args, nulls, snapshot);
	return rows_of(statement, code, code == SPI_OK_SELECT);
}

/*
 * Runs a query under the latest snapshot, whatever the isolation level; returns
 * its number of rows.
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
 * Runs a statement under the transaction's snapshot, or the latest where the statement says so;
 * returns its number of rows.  Raises whatever it raises.
 */
uint64
idemq_spi_run(SqlStatement *statement, const Datum *args, const char *nulls)
{
	int code = execute(statement, args, nulls, NULL);

	return rows_of(statement, code, code >= 0);
}

/* Runs one statement as the owner, its rows unread; returns their number. */
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

/* Runs a command that takes no parameters, as the owner.  Its text is not kept. */
void
idemq_spi_command(const char *command)
{
	SqlStatement statement = {.text = command};
	SqlScope scope;
	int code;

	spi_scope_begin(&scope, false);
	code = execute(&statement, NULL, NULL, NULL);
	if (code != SPI_OK_UTILITY)
		elog(ERROR, "\"%s\" returned %s", command, SPI_result_code_string(code));
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

/* Like idemq_spi_do, for a statement whose one parameter is a bigint[]; not run without ids. */
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
 * Returns a column, from 1, of a row, from 0, of the last result; valid until idemq_spi_end.
 * isnull: NULL when the column never is.
 */
Datum
idemq_spi_value(uint64 row, int column, bool *isnull)
{
	bool unused;

	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column,
						 isnull == NULL ? &unused : isnull);
}

/*
 * Like idemq_spi_value, for an int8 or a timestamptz, which 32-bit machines pass by
 * reference; 0 for NULL.
 */
int64
idemq_spi_int64(uint64 row, int column, bool *isnull)
{
	bool is_null;
	Datum value = idemq_spi_value(row, column, &is_null);

	if (isnull != NULL)
		*isnull = is_null;
	return is_null ? 0 : DatumGetInt64(value);
}

/* Writes a value that is not NULL to a field; returns the size that the field has to have. */
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
 * Reads a row, from 0, of the last result into a struct, a column to each of its fields, in
 * order.  An interval becomes microseconds, a status a JobStatus.  Text and jsonb go into the
 * memory context, or, as a string, into an array in the struct.  For NULL the field stays.
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

/* Runs a statement as idemq_spi_row and idemq_spi_rows do. */
static uint64
run_for_rows(SqlStatement *statement, const Datum *args)
{
	return statement->locks ? idemq_spi_run(statement, args, NULL)
							: idemq_spi_query_latest(statement, args, NULL);
}

/*
 * Runs a statement as the owner, under the latest snapshot unless it locks, and reads its
 * first row by its fields; NULL is 0.  Returns false, with all of *row 0, when there is none.
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

/* Like idemq_spi_row, for all rows: returns a palloc'ed array of such structs. */
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

/* Puts back what idemq_spi_begin changed. */
void
idemq_spi_end(SqlScope *scope)
{
	SPI_finish();
	AtEOXact_GUC(true, scope->guc_level);
	SetUserIdAndSecContext(scope->user, scope->sec_context);
}
