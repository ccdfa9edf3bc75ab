/*
 * api/admit.c
 *		SQL function admit, which says whether a call may be made now without exceeding a limit on
 *		the number of calls in a period.
 *
 * It works in shared memory alone and touches no table, so it can be called in any transaction, and
 * on a standby, which has its own buckets.  It takes effect immediately, and a rollback does not
 * undo it.  If the shard has moved, it raises an error, because its successor now counts the calls;
 * if both counted, twice the limit would be possible.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"

#define MAX_BUCKET_NAME 1024 /* bytes */

/*
 * admit(bucket, max_calls, per, cost, burst) -> (allowed, remaining, retry_after); 22004,
 * 22023, 55000 where the shard has moved.
 */
SQL_FUNCTION(idemq_sql_admit)
{
	char *name = idemq_arg_text(fcinfo, 0, "bucket", MAX_BUCKET_NAME);
	RateLimit limit = {.max_calls = idemq_arg_int(fcinfo, 1, "max_calls", 1, PG_INT32_MAX)};
	int64 period = idemq_arg_interval(fcinfo, 2, "per", 1);
	int32 cost;
	RateAnswer answer;
	Datum values[3];
	bool nulls[3] = {false, false, false};

	if (period > RATE_MAX_PERIOD / NSECS_PER_USEC)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("\"per\" must not be longer than 100 years"),
				errhint("Pass an interval, for example '1 s'."));
	limit.period = period * NSECS_PER_USEC;
	cost = idemq_arg_int(fcinfo, 3, "cost", 0, PG_INT32_MAX);
	if (!PG_ARGISNULL(4))
		limit.burst = idemq_arg_int(fcinfo, 4, "burst", 1, PG_INT32_MAX);
	idemq_following_refuse_moved();
	if (limit.burst > 0 && cost > limit.burst)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("cost must be at most burst (%d), not %d", (int) limit.burst, cost),
				errhint(
					"A call with this cost could never be allowed. Raise burst or lower cost."));
	if (limit.burst == 0 && cost > limit.max_calls)
		ereport(
			ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("cost must be at most max_calls (%d), not %d", (int) limit.max_calls, cost),
			errhint(
				"A call with this cost could never be allowed. Raise max_calls or lower cost."));
	idemq_bucket_call(&(BucketName){BUCKET_ADMIT, name, (int) strlen(name)}, &limit, cost, &answer);
	values[0] = BoolGetDatum(answer.allowed);
	values[1] = Int32GetDatum((int32) answer.remaining);
	/* Rounded up, so that a call after this time is not refused again. */
	values[2] = idemq_interval_datum(idemq_rate_retry_after(&answer));
	return idemq_row_datum(fcinfo, values, nulls);
}
