/*
 * api/once.c
 *		SQL function once: dedupe for an effect that has no job.
 *
 * idemq_internal.seen has one row for each (scope, key).  Its unique index decides which call is
 * first, and waits for a concurrent duplicate whose transaction is open.  A row that has expired
 * does not count.
 *
 * No index has expires_at, so renewing a row is a HOT update, except once a minute (visit_at)
 * and when the page is full.  So a key that is used again and again leaves few entries behind,
 * also while a snapshot is held, and its lookup and the check of its uniqueness meet only these.
 *
 * A query comes first, and again after a wait: an upsert would lock the row that it
 * finds, and each late caller would wait for the transaction of the one before it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "table/table.h"

#define MAX_SCOPE 256 /* bytes */

/* Parameters of all three: scope, key, now, the new expires_at. */
static SqlStatement find =
	{.text = "SELECT $4 FROM idemq_internal.seen WHERE scope = $1 AND key = $2 AND expires_at > $3",
	 .types = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};
static SqlStatement insert =
	{.text = "INSERT INTO idemq_internal.seen (scope, key, expires_at) SELECT $1, $2, $4 "
			 "WHERE $3 IS NOT NULL ON CONFLICT (scope, key) DO NOTHING",
	 .types = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};
static SqlStatement renew =
	{.text = "UPDATE idemq_internal.seen SET expires_at = $4 WHERE scope = $1 AND key = $2 "
			 "AND expires_at <= $3",
	 .types = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};

/*
 * Returns whether the key is new.  The second query finds a concurrent duplicate that committed
 * after the first one.  A row that has expired by then is renewed; if it has been deleted, the loop
 * starts again.
 */
static bool
is_first(const Datum *values)
{
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (idemq_spi_query_latest(&find, values, NULL) > 0)
			return false;
		if (idemq_spi_run(&insert, values, NULL) > 0)
			return true;
		if (idemq_spi_query_latest(&find, values, NULL) > 0)
			return false;
		if (idemq_spi_run(&renew, values, NULL) > 0)
			return true;
	}
}

/*
 * once(scope, key, ttl) -> whether this is the first time, until ttl has passed;
 * 22004, 22023, 25006; 40001 above READ COMMITTED.
 */
SQL_FUNCTION(idemq_sql_once)
{
	TimestampTz now = idemq_now();
	int64 ttl = idemq_arg_interval(fcinfo, 2, "ttl", 1);
	Datum values[4];
	SqlScope scope;
	bool first;

	(void) idemq_arg_text(fcinfo, 0, "scope", MAX_SCOPE);
	idemq_arg_required(fcinfo, 1, "key");
	idemq_check_key("key", VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(1)));
	idemq_jobs_check_writable();
	values[0] = PG_GETARG_DATUM(0);
	values[1] = PG_GETARG_DATUM(1);
	values[2] = TimestampTzGetDatum(now);
	values[3] = TimestampTzGetDatum(now + ttl);
	idemq_spi_begin(&scope);
	first = is_first(values);
	idemq_spi_end(&scope);
	idemq_count(first ? COUNT_ONCE_FIRST : COUNT_ONCE_REPEATED, 1);
	if (!first)
		idemq_sync_rep_await();
	PG_RETURN_BOOL(first);
}
