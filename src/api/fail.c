/*
 * api/fail.c
 *		SQL functions that end attempts with an error: fail, fail_job, fail_many.
 */
#include "postgres.h"

#include "api/api.h"
#include "base/base.h"

/* Reads retry_in and permanent. */
static Finish
fail_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_FAIL};

	finish.has_delay = !PG_ARGISNULL(3);
	if (finish.has_delay)
		finish.delay = idemq_arg_interval(fcinfo, 3, "retry_in", 0);
	finish.permanent = idemq_arg_bool(fcinfo, 4, "permanent");
	return finish;
}

/*
 * fail(id, token, error, retry_in, permanent, details) -> retrying | dead | stale | not_found;
 * 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_fail)
{
	Finish finish = fail_args(fcinfo);

	if (!PG_ARGISNULL(2))
		finish.args.error = PG_GETARG_TEXT_P(2);
	if (!PG_ARGISNULL(5))
		finish.args.details = PG_GETARG_JSONB_P(5);
	return idemq_finish_one(fcinfo, &finish, false);
}

/* CALL fail_job(id, token, error, retry_in, permanent, details, INOUT outcome): as fail. */
SQL_FUNCTION(idemq_sql_fail_job)
{
	return idemq_value_row_datum(fcinfo, idemq_sql_fail(fcinfo));
}

/*
 * fail_many(ids, tokens, errors, retry_in, permanent, details)
 *		-> setof (id, token, outcome as fail).
 */
SQL_FUNCTION(idemq_sql_fail_many)
{
	Finish finish = fail_args(fcinfo);

	return idemq_finish_many(fcinfo, &finish);
}
