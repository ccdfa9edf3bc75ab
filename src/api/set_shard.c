/*
 * api/set_shard.c
 *		SQL functions set_shard, assert_shard: this database is one shard of many.  The
 *		work is in table/jobs_shard.c.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "table/table.h"

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
