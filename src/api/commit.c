/*
 * api/commit.c
 *		SQL functions that end attempts with success: commit, commit_job, try_commit,
 *		commit_many.
 */
#include "postgres.h"

#include "api/api.h"
#include "base/base.h"

/* Reads result, which is argument 2. */
Finish
idemq_commit_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_COMMIT};

	if (!PG_ARGISNULL(2))
		finish.args.document = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(2)));
	return finish;
}

/* commit(id, token, result) -> committed; IQ001, IQ002, IQ006, 40001, 54000. */
SQL_FUNCTION(idemq_sql_commit)
{
	Finish finish = idemq_commit_args(fcinfo);

	return idemq_finish_one(fcinfo, &finish, true);
}

/* CALL commit_job(id, token, result, INOUT outcome): as commit. */
SQL_FUNCTION(idemq_sql_commit_job)
{
	return idemq_value_row_datum(fcinfo, idemq_sql_commit(fcinfo));
}

/*
 * try_commit(id, token, result) -> committed | already_committed | stale | not_found;
 * 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_try_commit)
{
	Finish finish = idemq_commit_args(fcinfo);

	return idemq_finish_one(fcinfo, &finish, false);
}

/* commit_many(ids, tokens, results) -> setof (id, token, outcome as try_commit). */
SQL_FUNCTION(idemq_sql_commit_many)
{
	Finish finish = {.kind = FINISH_COMMIT};

	return idemq_finish_many(fcinfo, &finish);
}
