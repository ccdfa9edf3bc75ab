/*
 * api/release.c
 *		SQL function release: gives a job back unharmed, as if it had not been claimed.
 */
#include "postgres.h"

#include "api/finish.h"
#include "base/args.h"

PG_FUNCTION_INFO_V1(idemq_sql_release);

/* release(id, token, delay) -> released | stale | not_found; 40001. */
Datum
idemq_sql_release(PG_FUNCTION_ARGS)
{
	Finish finish = {.kind = FINISH_RELEASE};

	if (!PG_ARGISNULL(2))
		finish.delay = idemq_arg_interval(fcinfo, 2, "delay", 0);
	return idemq_finish_one(fcinfo, &finish, false);
}
