/*
 * api/advance_tokens.c
 *		SQL functions advance_tokens, and primary_since for the install script.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/* advance_tokens() -> bigint */
SQL_FUNCTION(idemq_sql_advance_tokens)
{
	idemq_jobs_check_writable();
	PG_RETURN_INT64(idemq_token_epoch_advance(0));
}

/* primary_since() -> bigint, microseconds since 2000-01-01 */
SQL_FUNCTION(idemq_sql_primary_since)
{
	PG_RETURN_INT64(idemq_primary_since());
}
