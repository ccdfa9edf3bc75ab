/*
 * api/database.c
 *		SQL functions that say what a database is for: follow, take_over and retire, if its queues
 *		and jobs come from another database by logical replication, or went there (the work is in
 *		job/follow.c); set_shard and assert_shard, if it is one of many shards
 *		(table/jobs_shard.c); advance_tokens; and primary_since for the install script.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

#define MAX_MOVED_TO 1024 /* bytes */

/* follow() -> whether this database did not follow another one before; 25006. */
SQL_FUNCTION(idemq_sql_follow)
{
	PG_RETURN_BOOL(idemq_follow_begin());
}

/* take_over() -> whether it was following another one; 25006, 54000, 55000, 55006. */
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

/* set_shard(shard, shards) -> whether that changed anything; 22004, 22023, 25006, 55000. */
SQL_FUNCTION(idemq_sql_set_shard)
{
	int32 shards = idemq_arg_int(fcinfo, 1, "shards", 1, MAX_SHARDS);
	int32 shard = idemq_arg_int(fcinfo, 0, "shard", 0, shards - 1);

	if ((shards & (shards - 1)) != 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("shards must be a power of two, not %d", shards),
				errhint("Use 64 for a new cluster. For an existing cluster, use the number in "
						"cluster.settings on the router."));
	PG_RETURN_BOOL(idemq_shard_set(shard, shards));
}

/* assert_shard(shard, shards) -> true; 22004, 22023, 55000. */
SQL_FUNCTION(idemq_sql_assert_shard)
{
	int32 shards = idemq_arg_int(fcinfo, 1, "shards", 1, MAX_SHARDS);
	int32 shard = idemq_arg_int(fcinfo, 0, "shard", 0, shards - 1);

	idemq_shard_assert(shard, shards);
	PG_RETURN_BOOL(true);
}

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
