/*
 * api/generation.c
 *		SQL function primary_since, for the install script.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/clock.h"

PG_FUNCTION_INFO_V1(idemq_sql_primary_since);

/* primary_since() -> bigint, microseconds since 2000-01-01 */
Datum
idemq_sql_primary_since(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(idemq_primary_since());
}
