/*
 * api/hold_back.c
 *		SQL functions hold_back, with which a worker holds back its group or queue until a given
 *		time, and end_holds, with which idemq.resume ends holds.  The work is done in job/holds.c.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* What the hold applies to. */
typedef enum HoldScope
{
	SCOPE_DEFAULT, /* the group, if the job has one; otherwise the queue */
	SCOPE_GROUP,
	SCOPE_QUEUE
} HoldScope;

/* Reads argument 4, scope; raises 22023 for an unknown one. */
static HoldScope
arg_scope(FunctionCallInfo fcinfo)
{
	char *scope;

	if (PG_ARGISNULL(4))
		return SCOPE_DEFAULT;
	scope = TextDatumGetCString(PG_GETARG_DATUM(4));
	if (strcmp(scope, "group") == 0)
		return SCOPE_GROUP;
	if (strcmp(scope, "queue") == 0)
		return SCOPE_QUEUE;
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("scope must be group or queue, not \"%s\"", scope),
			errhint("Omit scope to hold back the group of the job, or its queue if the job has no "
					"group."));
}

/* Reads the end of a hold from arguments 2 and 3, delay and until; raises 22004, 22023. */
static TimestampTz
arg_end(FunctionCallInfo fcinfo, TimestampTz now)
{
	TimestampTz until;

	if (PG_ARGISNULL(2) == PG_ARGISNULL(3))
		ereport(ERROR,
				errcode(PG_ARGISNULL(2) ? ERRCODE_NULL_VALUE_NOT_ALLOWED
										: ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg(PG_ARGISNULL(2) ? "delay and until must not both be NULL"
									   : "delay and until cannot both be specified"),
				errhint("Pass either delay, an interval from now, or until, a point in time."));
	if (!PG_ARGISNULL(2))
		return now + idemq_arg_interval(fcinfo, 2, "delay", 1);
	until = PG_GETARG_TIMESTAMPTZ(3);
	if (until <= now)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("until must be in the future"), errhint("Pass now() plus an interval."));
	return until;
}

/* Returns the name of the group to hold back; 0: the queue.  Raises 22023. */
static Datum
group_to_hold(const Attempt *attempt, HoldScope scope)
{
	const Job *job = &attempt->job;
	bool grouped = job_has(job, COL_GROUP_KEY) && !idemq_is_no_group(job_value(job, COL_GROUP_KEY));

	if (scope == SCOPE_GROUP && !grouped)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("job %lld has no group to hold back", (long long) attempt->id),
				errhint("To hold back the queue, pass scope => 'queue' or omit scope."));
	if (scope == SCOPE_QUEUE || !grouped)
		return (Datum) 0;
	return PointerGetDatum(PG_DETOAST_DATUM_COPY(job_value(job, COL_GROUP_KEY)));
}

/*
 * hold_back(id, token, delay, until, scope) -> when the hold ends; IQ001, IQ002, IQ006, 22004, 22023,
 * 25006, 55P03.
 */
SQL_FUNCTION(idemq_sql_hold_back)
{
	/* Before the snapshot is taken: job/holds.c relies on this. */
	TimestampTz now = idemq_now();
	HoldScope scope;
	JobsTable table;
	Attempt attempt;
	TimestampTz until;
	Datum group;

	idemq_arg_attempt(fcinfo);
	until = arg_end(fcinfo, now);
	scope = arg_scope(fcinfo);
	idemq_jobs_check_writable();
	idemq_jobs_open_to_read(&table);
	idemq_attempt_find_current(&table, PG_GETARG_INT64(0), PG_GETARG_INT64(1), &attempt);
	group = group_to_hold(&attempt, scope);
	/*
	 * If the queue is being dropped, our row would remain after the drop.  We do not wait for the
	 * drop.
	 */
	if (!idemq_queue_try_lock(attempt.queue.id, AccessShareLock))
		ereport(ERROR, errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				errmsg("queue \"%s\" is being dropped", attempt.queue.name),
				errhint("Roll back the transaction and abandon this job."));
	until = idemq_hold_begin(&attempt, group, now, until);
	idemq_jobs_close(&table);
	PG_RETURN_TIMESTAMPTZ(until);
}

/*
 * end_holds(queue_id, group_key) -> number of holds ended: the hold of a group, or, if group_key is
 * NULL, those of the queue and all of its groups.
 */
SQL_FUNCTION(idemq_sql_internal_end_holds)
{
	(void) idemq_wrapper_caller();
	PG_RETURN_INT32(
		idemq_holds_end(PG_GETARG_INT32(0), PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1)));
}
