/*
 * api/release.c
 *		SQL functions that give jobs back unharmed, as if they had not been claimed:
 *		release, release_many.
 */
#include "postgres.h"

#include "api/finish.h"
#include "base/args.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_release);
PG_FUNCTION_INFO_V1(idemq_sql_v2_release_many);

/* Reads delay. */
static Finish
release_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_RELEASE};

	if (!PG_ARGISNULL(2))
		finish.delay = idemq_arg_interval(fcinfo, 2, "delay", 0);
	return finish;
}

/* release(id, token, delay) -> released | stale | not_found; 40001. */
Datum
idemq_sql_v2_release(PG_FUNCTION_ARGS)
{
	Finish finish = release_args(fcinfo);

	return idemq_finish_one(fcinfo, &finish, false);
}

/* release_many(ids, tokens, delay) -> setof (id, token, outcome as release). */
Datum
idemq_sql_v2_release_many(PG_FUNCTION_ARGS)
{
	Finish finish = release_args(fcinfo);

	return idemq_finish_many(fcinfo, &finish);
}
