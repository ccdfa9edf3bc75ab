/*
 * api/set_handler.c
 *		SQL functions that set the handler of a queue: set_handler, drop_handler.
 *
 * A handler runs as the role that sets it (queue/handlers.c).  Replacing or ending another
 * role's needs admin on the queue, as with schedules.  The queue is locked against others
 * who set its handler, and against its drop.
 *
 * What is not as it must be is an error where it is the caller's to mend: the function's
 * shape, the rights to it.  That the role may not log in, or that the function leaves its
 * search_path to whoever may SET it, is a warning: the DBA may mend it later.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "queue/queue.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_set_handler);
PG_FUNCTION_INFO_V1(idemq_sql_v2_drop_handler);

#define MAX_WORKERS 1000
#define MAX_BATCH 10000
/* Bytes of a function's name and arguments. */
#define MAX_SIGNATURE 1000

#define HANDLER_VALUES 10

static SqlStatement write_handler =
	{.text = "INSERT INTO idemq.handler_entries (queue_id, schema_name, function_name, "
			 "argument_types, role_name, workers, batch, max_idle, set_at, owner_name) "
			 "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "
			 "ON CONFLICT (queue_id) DO UPDATE SET schema_name = $2, function_name = $3, "
			 "argument_types = $4, role_name = $5, workers = $6, batch = $7, max_idle = $8, "
			 "set_at = $9, owner_name = $10, crashes = 0, crashed_at = NULL, stopped_at = NULL",
	 .nargs = HANDLER_VALUES,
	 .types = {INT4OID, NAMEOID, NAMEOID, TEXTOID, NAMEOID, INT4OID, INT4OID, INTERVALOID,
			   TIMESTAMPTZOID, NAMEOID}};

static SqlStatement delete_handler = {.text =
										  "DELETE FROM idemq.handler_entries WHERE queue_id = $1",
									  .types = {INT4OID}};

/* Raises 42501 when the queue has a handler of a role that the current one may not act for. */
static void
check_owner(const QueueInfo *queue, const HandlerInfo *handler)
{
	Oid role = idemq_role_of(NameStr(handler->role), handler->role_oid);

	if ((queue->privileges & PRIVILEGE_ADMIN) != 0 ||
		(OidIsValid(role) && has_privs_of_role(GetUserId(), role)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for the handler of queue \"%s\"", queue->name),
			 errdetail("The role that set it and administrators of the queue may change it."),
			 errhint("Let one of them call idemq.drop_handler('%s').", queue->name)));
}

/* Raises 42P13 unless a function is f(jsonb) and returns jsonb or void. */
static void
check_shape(Form_pg_proc function, const char *name)
{
	if (function->pronargs == 1 && function->proargtypes.values[0] == JSONBOID &&
		(function->prorettype == VOIDOID || function->prorettype == JSONBOID) &&
		!function->proretset && function->prokind == PROKIND_FUNCTION)
		return;
	ereport(ERROR, (errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
					errmsg("function %s cannot be a handler", name),
					errhint("A handler is a function f(payload jsonb) that RETURNS void or jsonb, "
							"the result; all else comes from idemq.current_job().")));
}

/* Returns whether a function has a search_path of its own. */
static bool
pins_search_path(HeapTuple tuple)
{
	static const char setting[] = "search_path=";
	bool isnull;
	Datum value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	Datum *settings;
	int count;

	if (isnull)
		return false;
	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, &settings, NULL,
					  &count);
	for (int i = 0; i < count; i++)
	{
		if (strncmp(TextDatumGetCString(settings[i]), setting, sizeof(setting) - 1) == 0)
			return true;
	}
	return false;
}

/*
 * Returns the function of argument n, which may be named without its argument: it can have but one.
 * Raises 42883; PostgreSQL 15 raises 42602 or 22P02 for what is no name.
 */
static Oid
function_arg(FunctionCallInfo fcinfo, int n)
{
	LOCAL_FCINFO(call, 1);
	char *name = idemq_arg_text(fcinfo, n, "function", MAX_SIGNATURE);
	char *signature = strchr(name, '(') != NULL ? name : psprintf("%s(jsonb)", name);
	Datum oid;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = CStringGetTextDatum(signature);
	call->args[0].isnull = false;
	oid = to_regprocedure(call);
	if (call->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %s does not exist", signature),
				 errhint("Pass the name of a function f(payload jsonb), with its schema unless "
						 "that is in search_path, as in 'app.send_mail'.")));
	return DatumGetObjectId(oid);
}

/* Checks the function, of that OID, and copies its names; raises 42P13. */
static void
read_function(Oid oid, HandlerInfo *handler, bool *pinned)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(oid));
	Form_pg_proc function;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", oid);
	function = (Form_pg_proc) GETSTRUCT(tuple);
	check_shape(function, format_procedure(oid));
	handler->function = function->proname;
	handler->owner_oid = function->proowner;
	namestrcpy(&handler->owner, GetUserNameFromId(function->proowner, false));
	namestrcpy(&handler->schema, get_namespace_name(function->pronamespace));
	*pinned = pins_search_path(tuple);
	ReleaseSysCache(tuple);
}

/* Raises 42501 when the current role may not execute a function. */
static void
check_execute(Oid function)
{
	if (!compat_may(ProcedureRelationId, function, GetUserId(), ACL_EXECUTE))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, format_procedure(function));
}

/* Warns of what keeps the handler from running, or makes it run what it should not. */
static void
warn(const HandlerInfo *handler, const char *function, bool pinned)
{
	HandlerTarget target;
	char *why = idemq_handler_resolve(handler, &target);

	if (why != NULL)
		ereport(WARNING, (errcode(ERRCODE_WARNING), errmsg("the handler does not run yet"),
						  errdetail("%s.", why),
						  errhint("Mend it; the handler then runs by itself. Until then "
								  "idemq.handlers says why it does not.")));
	if (!pinned)
		ereport(
			WARNING,
			(errcode(ERRCODE_WARNING), errmsg("function %s does not set its search_path", function),
			 errdetail("Who may create objects in a schema of role \"%s\"'s search_path decides "
					   "what the names in it mean.",
					   NameStr(handler->role)),
			 errhint("ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp, with the "
					 "schemas that it needs between the two.",
					 function)));
}

/* Writes a handler's row. */
static void
write_row(const HandlerInfo *handler)
{
	NameData schema = handler->schema;
	NameData function = handler->function;
	NameData role = handler->role;
	NameData owner = handler->owner;
	Datum values[HANDLER_VALUES] = {Int32GetDatum(handler->queue_id),
									NameGetDatum(&schema),
									NameGetDatum(&function),
									CStringGetTextDatum("jsonb"),
									NameGetDatum(&role),
									Int32GetDatum(handler->workers),
									Int32GetDatum(handler->batch),
									idemq_interval_datum(handler->max_idle),
									TimestampTzGetDatum(handler->set_at),
									NameGetDatum(&owner)};

	(void) idemq_spi_do(&write_handler, values, NULL);
}

/*
 * set_handler(queue, function, workers, batch, max_idle) -> void; IQ005, 42501, 42883, 42P13,
 * 22004, 22023, 25006, 53400.
 */
Datum
idemq_sql_v2_set_handler(PG_FUNCTION_ARGS)
{
	HandlerInfo handler = {0};
	HandlerInfo before;
	QueueInfo queue;
	char *function;
	Oid oid;
	bool pinned;

	oid = function_arg(fcinfo, 1);
	handler.workers = idemq_arg_int(fcinfo, 2, "workers", 1, MAX_WORKERS);
	handler.batch = idemq_arg_int(fcinfo, 3, "batch", 1, MAX_BATCH);
	handler.max_idle = idemq_arg_interval(fcinfo, 4, "max_idle", 0);
	read_function(oid, &handler, &pinned);
	function = format_procedure_qualified(oid);
	check_execute(oid);
	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, 0, "queue", PRIVILEGE_CLAIM, ShareUpdateExclusiveLock, &queue);
	idemq_queue_keep(&queue);
	if (idemq_handler_read(queue.id, &before))
		check_owner(&queue, &before);
	idemq_queue_need_slot(&queue);
	handler.queue_id = queue.id;
	handler.set_at = GetCurrentTimestamp();
	handler.role_oid = GetUserId();
	namestrcpy(&handler.role, GetUserNameFromId(GetUserId(), false));
	write_row(&handler);
	idemq_audit(
		&(AuditEntry){.action = "set_handler", .queue = &queue, .members = {"function", function}});
	warn(&handler, function, pinned);
	PG_RETURN_VOID();
}

/* drop_handler(queue) -> whether there was one; IQ005, 42501, 22004, 22023, 25006. */
Datum
idemq_sql_v2_drop_handler(PG_FUNCTION_ARGS)
{
	HandlerInfo handler;
	QueueInfo queue;
	Datum value;

	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, 0, "queue", PRIVILEGE_CLAIM | PRIVILEGE_ADMIN,
					 ShareUpdateExclusiveLock, &queue);
	if (!idemq_handler_read(queue.id, &handler))
		PG_RETURN_BOOL(false);
	check_owner(&queue, &handler);
	value = Int32GetDatum(queue.id);
	(void) idemq_spi_do(&delete_handler, &value, NULL);
	idemq_audit(&(AuditEntry){.action = "drop_handler", .queue = &queue});
	PG_RETURN_BOOL(true);
}
