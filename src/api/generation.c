/*
 * api/generation.c
 *		SQL functions new_generation, and primary_since for the install script.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/* new_generation() -> bigint */
SQL_FUNCTION(idemq_sql_new_generation)
{
	idemq_jobs_check_writable();
	PG_RETURN_INT64(idemq_generation_new(0));
}

/* primary_since() -> bigint, microseconds since 2000-01-01 */
SQL_FUNCTION(idemq_sql_primary_since)
{
	PG_RETURN_INT64(idemq_primary_since());
}
