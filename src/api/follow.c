/*
 * api/follow.c
 *		SQL functions follow, take_over and retire: a database whose queues and jobs come
 *		from another by logical replication, or went there.  The work is in job/follow.c.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "job/job.h"

#define MAX_MOVED_TO 1024 /* bytes */

/* follow() -> whether it did not follow before; 25006. */
SQL_FUNCTION(idemq_sql_follow)
{
	PG_RETURN_BOOL(idemq_follow_begin());
}

/* take_over() -> whether it followed; 25006, 54000, 55000, 55006. */
SQL_FUNCTION(idemq_sql_take_over)
{
	PG_RETURN_BOOL(idemq_follow_end());
}

/* retire(moved_to) -> whether that changed anything; 22023, 25006, 55000. */
SQL_FUNCTION(idemq_sql_retire)
{
	const char *moved_to = PG_ARGISNULL(0) ? NULL
										   : idemq_arg_text(fcinfo, 0, "moved_to", MAX_MOVED_TO);

	PG_RETURN_BOOL(idemq_follow_retire(moved_to));
}
