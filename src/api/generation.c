/*
 * api/generation.c
 *		SQL functions new_generation, and primary_since for the install script.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_new_generation);
PG_FUNCTION_INFO_V1(idemq_sql_v2_primary_since);

/* new_generation() -> bigint */
Datum
idemq_sql_v2_new_generation(PG_FUNCTION_ARGS)
{
	idemq_jobs_check_writable();
	PG_RETURN_INT64(idemq_generation_new(0));
}

/* primary_since() -> bigint, microseconds since 2000-01-01 */
Datum
idemq_sql_v2_primary_since(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(idemq_primary_since());
}
