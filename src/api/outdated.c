/*
 * api/outdated.c
 *		What the SQL objects of 0.1.0 call.  With this library they need ALTER EXTENSION idemq
 *		UPDATE first, and each of these functions says so.
 *
 * Where idemq.auto_update has the background worker do that (worker/update.c), a call waits for
 * it, for WAIT_FOR_UPDATE at most, and then calls the function that has its name by then.
 *
 * A function of this library is idemq_sql_v2_NAME; what 0.1.0 knows is idemq_sql_NAME.  So
 * neither runs with the tables and arguments of the other: an older library in memory has
 * no function that newer SQL calls.  From here on a function that changes gets the next number,
 * beside the former one: src/README.md, what a version keeps.
 *
 * The SQL objects of 0.1.0 could not exist without these names: pg_upgrade and CREATE EXTENSION
 * idemq VERSION '0.1.0' look them up.
 *
 * The triggers of 0.1.0 do nothing, so that its rows can be restored.  Shared memory then knows
 * nothing of these rows.  It is not asked before the update, which has it forget the database.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "base/base.h"
#include "shared/processes/processes.h"

/* How long a call waits for the update. */
#define WAIT_FOR_UPDATE (5 * USECS_PER_SEC)
/* Between two looks for it, microseconds. */
#define LOOK_EVERY 10000L

/* A call that can be made by its name. */
typedef struct NamedCall
{
	char *text; /* NULL: it cannot */
	int nargs;
	Oid *types;
	Oid result;
	int columns; /* of the result's row type; 0: it is none */
} NamedCall;

static int
columns_of(Oid type)
{
	TupleDesc desc = lookup_rowtype_tupdesc_noerror(type, -1, true);
	int columns = desc != NULL ? desc->natts : 0;

	if (desc != NULL)
		ReleaseTupleDesc(desc);
	return columns;
}

/* Describes the call while the function exists; a set, a trigger and a procedure have no text. */
static NamedCall
read_call(FunctionCallInfo fcinfo)
{
	Oid function = fcinfo->flinfo->fn_oid;
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	NamedCall call = {0};
	StringInfoData text;
	char **names;
	char *modes;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	call.nargs = get_func_arg_info(tuple, &call.types, &names, &modes);
	ReleaseSysCache(tuple);
	if (CALLED_AS_TRIGGER(fcinfo) || get_func_retset(function) ||
		get_func_prokind(function) == PROKIND_PROCEDURE)
		return call;
	call.result = get_func_rettype(function);
	call.columns = columns_of(call.result);
	initStringInfo(&text);
	appendStringInfo(&text, "SELECT " IDEMQ_SCHEMA ".%s(",
					 quote_identifier(get_func_name(function)));
	for (int i = 0; i < call.nargs; i++)
		appendStringInfo(&text, "%s%s => $%d", i > 0 ? ", " : "", quote_identifier(names[i]),
						 i + 1);
	appendStringInfoChar(&text, ')');
	call.text = text.data;
	return call;
}

/* Returns whether the SQL objects are updated now; waits for the worker to do that. */
static bool
is_updated(void)
{
	int64 until = idemq_stopwatch() + WAIT_FOR_UPDATE;

	if (!idemq_auto_update || RecoveryInProgress() || !idemq_worker_comes())
		return false;
	idemq_worker_announce_use();
	while (idemq_sql_presence() != IDEMQ_HERE)
	{
		if (idemq_stopwatch() >= until)
			/* The update may have come while this process was waiting for a processor. */
			return idemq_sql_presence() == IDEMQ_HERE;
		pg_usleep(LOOK_EVERY);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * Makes the call again, by name.  Raises 40001 if it has no text, if its answer would have another
 * shape, or if the transaction's snapshot is from before the update.
 */
static Datum
call_again(FunctionCallInfo fcinfo, const NamedCall *call)
{
	Datum *values = palloc(call->nargs * sizeof(Datum));
	char *nulls = palloc(call->nargs);
	Datum result;
	bool typbyval;
	int16 typlen;

	AcceptInvalidationMessages();
	if (call->text == NULL || columns_of(call->result) != call->columns ||
		IsolationUsesXactSnapshot())
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("the SQL objects of idemq were updated during the call"),
						errhint("Run the transaction again.")));
	for (int i = 0; i < call->nargs; i++)
	{
		values[i] = fcinfo->args[i].value;
		nulls[i] = fcinfo->args[i].isnull ? 'n' : ' ';
	}
	SPI_connect();
	if (SPI_execute_with_args(call->text, call->nargs, call->types, values, nulls, false, 1) !=
			SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "cannot run \"%s\"", call->text);
	result = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &fcinfo->isnull);
	get_typlenbyval(call->result, &typlen, &typbyval);
	if (!fcinfo->isnull)
		result = SPI_datumTransfer(result, typbyval, typlen);
	SPI_finish();
	return result;
}

static Datum
refuse_or_wait(FunctionCallInfo fcinfo)
{
	NamedCall call = read_call(fcinfo);

	if (!is_updated())
		idemq_refuse_outdated();
	return call_again(fcinfo, &call);
}

#define OUTDATED(name)                                                                             \
	PG_FUNCTION_INFO_V1(idemq_sql_##name);                                                         \
	Datum idemq_sql_##name(PG_FUNCTION_ARGS)                                                       \
	{                                                                                              \
		return refuse_or_wait(fcinfo);                                                             \
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
