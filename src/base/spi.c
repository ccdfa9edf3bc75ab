/*
 * base/spi.c
 *		SQL from C: saved plans, run as the extension's owner.
 *
 * Everything that the table room does not do by direct access goes through here:
 *
 *		idemq_spi_begin(&scope);
 *		n = idemq_spi_run(&statement, args, nulls, SPI_OK_...);
 *		idemq_spi_end(&scope);
 *
 * or, for one statement whose rows nobody reads, idemq_spi_do and idemq_spi_finds.
 *
 * Between begin and end the user is the owner of idemq's tables, in a
 * security-restricted context, and search_path is pinned, so that nothing that
 * the caller's role or path brings in is run.  On an error, transaction abort
 * puts all of it back.  Statements are constant text; values are parameters.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "base/base.h"

/* Becomes the owner, with those flags, pins search_path and connects to SPI. */
static void
begin(SqlScope *scope, int flags)
{
	GetUserIdAndSecContext(&scope->user, &scope->sec_context);
	SetUserIdAndSecContext(idemq_oids()->owner, scope->sec_context | flags);
	scope->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
}

/* Begins SQL as the owner, in a security-restricted context. */
void
idemq_spi_begin(SqlScope *scope)
{
	begin(scope, SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
}

/*
 * Begins SQL that writes idemq.jobs.  Its owner may have put deferred triggers or
 * foreign keys on it, which a security-restricted context does not allow.
 */
void
idemq_spi_begin_on_jobs(SqlScope *scope)
{
	begin(scope, SECURITY_LOCAL_USERID_CHANGE);
}

/*
 * Until idemq_spi_end no table is read as a whole, if that can be: for a statement of
 * which each run is for few rows, and whose plan may be from when the table had none.
 */
void
idemq_spi_no_seqscan(void)
{
	(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}

/* As idemq_spi_no_seqscan, and rows come one by one in the order of an index, and are not sorted. */
void
idemq_spi_in_order(void)
{
	idemq_spi_no_seqscan();
	(void) set_config_option("enable_bitmapscan", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("enable_sort", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}

static SPIPlanPtr
prepared(SqlStatement *statement)
{
	if (statement->few)
		idemq_spi_no_seqscan();
	if (statement->plan == NULL)
	{
		int nargs = statement->nargs;
		SPIPlanPtr plan;

		while (nargs < SQL_MAX_ARGS && OidIsValid(statement->types[nargs]))
			nargs++;
		plan = SPI_prepare(statement->text, nargs, statement->types);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "cannot prepare \"%s\": %s", statement->text,
				 SPI_result_code_string(SPI_result));
		statement->plan = plan;
	}
	return statement->plan;
}

/*
 * Runs a statement under the transaction's snapshot; returns its number of
 * rows.  Raises whatever it raises.
 */
uint64
idemq_spi_run(SqlStatement *statement, const Datum *args, const char *nulls, int expected)
{
	int code = SPI_execute_plan(prepared(statement), (Datum *) args, nulls, false, 0);

	if (code != expected)
		elog(ERROR, "\"%s\" returned %s", statement->text, SPI_result_code_string(code));
	return SPI_processed;
}

/* Runs a query under a registered snapshot; returns its number of rows. */
uint64
idemq_spi_query_at(SqlStatement *statement, const Datum *args, const char *nulls, Snapshot snapshot)
{
	int code = SPI_execute_snapshot(prepared(statement), (Datum *) args, nulls, snapshot,
									InvalidSnapshot, true, false, 0);

	if (code != SPI_OK_SELECT)
		elog(ERROR, "\"%s\" returned %s", statement->text, SPI_result_code_string(code));
	return SPI_processed;
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

/* Runs one statement as the owner, of which nobody reads rows; returns their number. */
uint64
idemq_spi_do(SqlStatement *statement, const Datum *args, const char *nulls)
{
	SqlScope scope;
	uint64 rows;
	int code;

	idemq_spi_begin(&scope);
	code = SPI_execute_plan(prepared(statement), (Datum *) args, nulls, false, 0);
	if (code < 0)
		elog(ERROR, "\"%s\" returned %s", statement->text, SPI_result_code_string(code));
	rows = SPI_processed;
	idemq_spi_end(&scope);
	return rows;
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

/* Runs a statement as idemq_spi_do whose one parameter is a bigint[]; not without any. */
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
 * isnull: NULL for a column that never is.
 */
Datum
idemq_spi_value(uint64 row, int column, bool *isnull)
{
	bool unused;

	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column,
						 isnull == NULL ? &unused : isnull);
}

/*
 * As idemq_spi_value, of an int8 or a timestamptz, which go by reference on 32 bits: 0 when
 * it is NULL.
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

/* Puts back what idemq_spi_begin changed. */
void
idemq_spi_end(SqlScope *scope)
{
	SPI_finish();
	AtEOXact_GUC(true, scope->guc_level);
	SetUserIdAndSecContext(scope->user, scope->sec_context);
}
