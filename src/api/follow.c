/*
 * api/follow.c
 *		SQL functions follow and take_over: a database whose queues and jobs come from
 *		another by logical replication.  The work is in job/follow.c.
 */
#include "postgres.h"

#include "fmgr.h"

#include "job/follow.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_follow);
PG_FUNCTION_INFO_V1(idemq_sql_v2_take_over);

/* follow() -> whether it did not before; 25006. */
Datum
idemq_sql_v2_follow(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(idemq_follow_begin());
}

/* take_over() -> whether it followed; 25006, 54000, 55000, 55006. */
Datum
idemq_sql_v2_take_over(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(idemq_follow_end());
}
