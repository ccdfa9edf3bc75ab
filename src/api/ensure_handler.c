/*
 * api/ensure_handler.c
 *		SQL function ensure_handler: sets a queue's handler unless it is set already.  Also the C
 *		functions that set_handler (sql/parts/75_handlers.sql) calls.
 *
 * set_handler can be called again, but each call writes, makes the handler's processes end after their
 * job, and restarts a handler that idemq has stopped because of crashes.  A program that declares its
 * handler whenever it starts therefore calls ensure_handler.  This function compares the handler with
 * the arguments under the latest snapshot; if they are equal, there is nothing to do.  Otherwise it locks
 * the queue's name, as set_handler and drop_handler do, compares again, and calls set_handler.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"

/*
 * $1: queue, $2: function, $3: role, $4: workers, $5: batch, $6: max_idle.  If the name of a role now
 * belongs to another role, or to none, it is shown as null.
 */
static SqlStatement compare_handler =
	{.few = true,
	 .text =
		 "SELECT (SELECT coalesce(jsonb_object_agg(key, jsonb_build_object('from', o.value, 'to', "
		 "n.value)), '{}') FROM jsonb_each(before) o JOIN jsonb_each(wanted) n USING (key) "
		 "WHERE o.value <> n.value), before = wanted, stopped_at IS NOT NULL "
		 "FROM idemq_internal.handler_entries h CROSS JOIN LATERAL (SELECT jsonb_build_object("
		 "'function', format('%I.%I(%s)', schema_name, function_name, argument_types), "
		 "'owner', (SELECT rolname FROM pg_roles WHERE rolname = owner_name "
		 "AND (owner_oid IS NULL OR oid = owner_oid)), "
		 "'role', (SELECT rolname FROM pg_roles WHERE rolname = role_name "
		 "AND (role_oid IS NULL OR oid = role_oid)), "
		 "'workers', workers, 'batch', batch, 'max_idle', max_idle) AS before, "
		 "(SELECT jsonb_build_object('function', format('%I.%I(jsonb)', nspname, proname), "
		 "'owner', pg_get_userbyid(proowner), 'role', pg_get_userbyid($3), "
		 "'workers', $4, 'batch', $5, "
		 "'max_idle', CASE WHEN max_idle = $6 THEN max_idle ELSE $6 END) "
		 "FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace "
		 "WHERE p.oid = $2 AND proargtypes::text = '3802') AS wanted) d WHERE queue_id = $1",
	 .types = {INT4OID, OIDOID, OIDOID, INT4OID, INT4OID, INTERVALOID}};

typedef struct HandlerDifference
{
	Datum changes; /* jsonb */
	bool is_same;
	bool is_stopped;
} HandlerDifference;

static const SqlField difference_fields[] = {SQL_FIELD(HandlerDifference, changes),
											 SQL_FIELD(HandlerDifference, is_same),
											 SQL_FIELD(HandlerDifference, is_stopped)};

/* Returns the function that an argument of set_handler names, 0 if there is none. */
static Datum
find_function(const char *name)
{
	LOCAL_FCINFO(call, 1);
	const char *signature = strchr(name, '(') != NULL ? name : psprintf("%s(jsonb)", name);
	Datum found;

	InitFunctionCallInfoData(*call, NULL, 1, DEFAULT_COLLATION_OID, NULL, NULL);
	call->args[0].value = CStringGetTextDatum(signature);
	call->args[0].isnull = false;
	found = to_regprocedure(call);
	return call->isnull ? ObjectIdGetDatum(InvalidOid) : found;
}

/* Compares the handler of a queue with the arguments; false when it has none. */
static bool
compare(FunctionCallInfo fcinfo, int32 queue_id, HandlerDifference *difference)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[] = {Int32GetDatum(queue_id),
					  find_function(idemq_arg_text(fcinfo, 1, "function", 1000)),
					  ObjectIdGetDatum(GetUserId()),
					  PG_GETARG_DATUM(2),
					  PG_GETARG_DATUM(3),
					  PG_GETARG_DATUM(4)};
	SqlScope scope;
	bool found;

	memset(difference, 0, sizeof(*difference));
	idemq_spi_begin(&scope);
	found = idemq_spi_query_latest(&compare_handler, values, NULL) > 0;
	if (found)
		idemq_spi_read(0, difference_fields, difference, caller);
	idemq_spi_end(&scope);
	return found;
}

/* Returns the row of the result, and warns of a handler that does not run. */
static Datum
answer(FunctionCallInfo fcinfo, const char *outcome, const char *queue,
	   const HandlerDifference *difference)
{
	bool is_changed = strcmp(outcome, "changed") == 0;
	Datum values[] = {CStringGetTextDatum(outcome), difference->changes};
	bool nulls[] = {false, !is_changed};

	if (difference->is_stopped && !is_changed)
		ereport(WARNING, errmsg("handler of queue \"%s\" is stopped", queue),
				errdetail(
					"The server crashed three times in a row while the handler was running jobs."),
				errhint("Fix the cause, then call idemq.set_handler to start the handler."));
	return idemq_row_datum(fcinfo, values, nulls);
}

/*
 * ensure_handler(queue, function, workers, batch, max_idle) -> outcome, changes; what set_handler
 * raises, and 25006, 42501, IQ005.
 */
SQL_FUNCTION(idemq_sql_ensure_handler)
{
	HandlerDifference difference;
	QueueInfo queue;
	bool found;
	Oid setter;

	idemq_queue_arg(fcinfo, 0, "queue", PRIVILEGE_ALL, &queue);
	idemq_arg_required(fcinfo, 2, "workers");
	idemq_arg_required(fcinfo, 3, "batch");
	idemq_arg_required(fcinfo, 4, "max_idle");
	if (compare(fcinfo, queue.id, &difference) && difference.is_same)
		return answer(fcinfo, "unchanged", queue.name, &difference);
	setter = idemq_ensure_may_call("set_handler", "set the handler of queue", queue.name);
	idemq_jobs_check_writable();
	idemq_queue_lock_name(queue.name);
	idemq_queue_by_name(queue.name, PRIVILEGE_ALL, &queue);
	found = compare(fcinfo, queue.id, &difference);
	if (found && difference.is_same)
		return answer(fcinfo, "unchanged", queue.name, &difference);
	(void) OidFunctionCall5(setter, PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), PG_GETARG_DATUM(2),
							PG_GETARG_DATUM(3), PG_GETARG_DATUM(4));
	return answer(fcinfo, found ? "changed" : "created", queue.name, &difference);
}

/* $1: queue, $2: schema, $3: function, $4: its owner, $5: role, $6: workers, $7: batch, $8: max_idle. */
static SqlStatement put_handler =
	{.latest = true,
	 .text =
		 "INSERT INTO idemq_internal.handler_entries AS h (queue_id, schema_name, function_name, "
		 "argument_types, owner_name, role_name, workers, batch, max_idle, set_at) "
		 "VALUES ($1, $2, $3, 'jsonb', $4, $5, $6, $7, $8, idemq.clock_timestamp()) "
		 "ON CONFLICT ON CONSTRAINT handler_entries_pkey DO UPDATE SET "
		 "schema_name = excluded.schema_name, function_name = excluded.function_name, "
		 "argument_types = excluded.argument_types, owner_name = excluded.owner_name, "
		 "role_name = excluded.role_name, workers = excluded.workers, batch = excluded.batch, "
		 "max_idle = excluded.max_idle, set_at = excluded.set_at, "
		 "crashes = 0, crashed_at = NULL, stopped_at = NULL "
		 "WHERE idemq_internal.may_change(h)",
	 .types = {INT4OID, NAMEOID, NAMEOID, NAMEOID, NAMEOID, INT4OID, INT4OID, INTERVALOID}};

/*
 * put_handler(queue_id, schema, function, owner, role, workers, batch, max_idle) -> whether the caller
 * may change the queue's handler; then it is set.  The caller has locked the queue's name, so at each
 * isolation level it replaces the latest handler.  40001 if a session writes the row by hand.
 */
SQL_FUNCTION(idemq_sql_internal_put_handler)
{
	Datum values[8];

	(void) idemq_wrapper_caller();
	for (int i = 0; i < (int) lengthof(values); i++)
		values[i] = PG_GETARG_DATUM(i);
	PG_RETURN_BOOL(idemq_spi_do(&put_handler, values, NULL) > 0);
}
