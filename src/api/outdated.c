/*
 * api/outdated.c
 *		What the SQL objects of 0.1.0 call: nothing of it works with this library but
 *		ALTER EXTENSION idemq UPDATE, which each of these functions says.
 *
 * A function of this library is idemq_sql_v2_NAME; what 0.1.0 knows is idemq_sql_NAME.  So
 * neither runs with the tables and arguments of the other: an older library in memory has
 * no function that newer SQL calls.  The number grows with a version that changes tables,
 * or the arguments of functions, so that it cannot be used with those before it.
 *
 * The names are needed as well for the SQL objects to be there: pg_upgrade and CREATE
 * EXTENSION idemq VERSION '0.1.0' look for them.
 *
 * The triggers of 0.1.0 do nothing, so that its rows can be restored.  Memory knows nothing
 * of this database then: it is not asked before the update, which has it forget all.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"

#define OUTDATED(name)                                                                             \
	PG_FUNCTION_INFO_V1(idemq_sql_##name);                                                         \
	Datum idemq_sql_##name(PG_FUNCTION_ARGS)                                                       \
	{                                                                                              \
		idemq_refuse_outdated();                                                                   \
	}                                                                                              \
	extern int idemq_semicolon

#define OUTDATED_TRIGGER(name)                                                                     \
	PG_FUNCTION_INFO_V1(idemq_sql_##name);                                                         \
	Datum idemq_sql_##name(PG_FUNCTION_ARGS)                                                       \
	{                                                                                              \
		return PointerGetDatum(NULL);                                                              \
	}                                                                                              \
	extern int idemq_semicolon

OUTDATED(acquire);
OUTDATED(admission_counts);
OUTDATED(admit);
OUTDATED(alter_queue);
OUTDATED(apply_retention);
OUTDATED(assert_current);
OUTDATED(cancel);
OUTDATED(cancel_by_key);
OUTDATED(check);
OUTDATED(checkpoint);
OUTDATED(claim);
OUTDATED(claim_any);
OUTDATED(claim_job);
OUTDATED(commit);
OUTDATED(commit_many);
OUTDATED(commit_once);
OUTDATED(create_queue);
OUTDATED(drop_queue);
OUTDATED(due_schedules);
OUTDATED(enqueue);
OUTDATED(enqueue_many);
OUTDATED(fail);
OUTDATED(fail_many);
OUTDATED(fence);
OUTDATED(grant_queue);
OUTDATED(heartbeat);
OUTDATED(heartbeat_many);
OUTDATED(last_tick);
OUTDATED(leases);
OUTDATED(may_change_schedule);
OUTDATED(may_enqueue);
OUTDATED(may_see);
OUTDATED(may_use);
OUTDATED(memory_usage);
OUTDATED(next_run);
OUTDATED(next_tick);
OUTDATED(once);
OUTDATED(pause);
OUTDATED(purge);
OUTDATED(queue_id);
OUTDATED(queue_metrics);
OUTDATED(reap);
OUTDATED(recount);
OUTDATED(redrive);
OUTDATED(release);
OUTDATED(resume);
OUTDATED(retry);
OUTDATED(revoke_queue);
OUTDATED(run_schedule);
OUTDATED(schedule);
OUTDATED(schedule_failed);
OUTDATED(try_commit);
OUTDATED(unschedule);
OUTDATED(validate);
OUTDATED(wait);
OUTDATED(wait_any);
OUTDATED(wait_result);
OUTDATED(why);

OUTDATED_TRIGGER(jobs_changed);
OUTDATED_TRIGGER(jobs_truncated);
OUTDATED_TRIGGER(settings_changed);
