/*
 * api/release.c
 *		SQL functions that give jobs back unharmed, as if they had not been claimed:
 *		release, release_many; and revoke_lease, by which an administrator does so for a worker.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"

/* Reads delay. */
static Finish
release_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_RELEASE};

	if (!PG_ARGISNULL(2))
		finish.delay = idemq_arg_interval(fcinfo, 2, "delay", 0);
	return finish;
}

/* release(id, token, delay) -> released | cancelled | stale | not_found; 40001. */
SQL_FUNCTION(idemq_sql_release)
{
	Finish finish = release_args(fcinfo);

	return idemq_finish_one(fcinfo, &finish, false);
}

/* release_many(ids, tokens, delay) -> setof (id, token, outcome as release). */
SQL_FUNCTION(idemq_sql_release_many)
{
	Finish finish = release_args(fcinfo);

	return idemq_finish_many(fcinfo, &finish);
}

static bool
decide_revoke(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_RELEASE;
	args->error = cstring_to_text("the lease was revoked");
	*outcome = job->status == JOB_RUNNING ? OUTCOME_RELEASED : idemq_outcome_of_status(job->status);
	return job->status == JOB_RUNNING;
}

/*
 * revoke_lease(id) -> released | current (not running) | blocked | completed | dead | cancelled |
 * not_found; 22004, 40001.
 */
SQL_FUNCTION(idemq_sql_revoke_lease)
{
	static const JobChanger revoker = {.decide = decide_revoke,
									   .privileges = PRIVILEGE_ADMIN,
									   .audit = {.action = "revoke_lease"}};

	return idemq_change_one(fcinfo, &revoker);
}
