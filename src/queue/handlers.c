/*
 * queue/handlers.c
 *		The handler of a queue: which function runs its jobs, with the privileges of which role, and
 *		whether the role may run it.
 *
 * A handler is a row of idemq_internal.handler_entries.  The row contains the names of the
 * function, its schema and the role, because names survive a dump and pg_upgrade.  The function,
 * the role and their privileges are looked up for every job, so a handler cannot do anything that
 * its role may no longer do.
 *
 * The function is called as f(payload jsonb), and returns jsonb (the result) or void.  A
 * superuser's handler runs only functions owned by superusers, because another owner could replace
 * the function, and so act as the superuser.  Any other handler runs a function owned by its role,
 * by a superuser, or by the role that owned the function when the handler was set.  Because the
 * function is found by name, any role that may create objects in the schema could otherwise create
 * a function in place of a dropped one.
 *
 * The role must also be permitted to log in and to connect, because NOLOGIN is the usual way to
 * lock out a role.  VALID UNTIL and pg_hba.conf do not matter, because they concern clients.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "base/base.h"
#include "base/compat.h"
#include "queue/queue.h"

static SqlStatement read_handler =
	{.text = "SELECT queue_id, schema_name, function_name, role_name, role_oid, workers, batch, "
			 "max_idle, "
			 "set_at, crashes, stopped_at IS NOT NULL, owner_name, owner_oid "
			 "FROM idemq_internal.handler_entries WHERE queue_id = $1",
	 .types = {INT4OID},
	 .fields = (const SqlField[]){SQL_FIELD(HandlerInfo, queue_id), SQL_FIELD(HandlerInfo, schema),
								  SQL_FIELD(HandlerInfo, function), SQL_FIELD(HandlerInfo, role),
								  SQL_FIELD(HandlerInfo, role_oid), SQL_FIELD(HandlerInfo, workers),
								  SQL_FIELD(HandlerInfo, batch), SQL_FIELD(HandlerInfo, max_idle),
								  SQL_FIELD(HandlerInfo, set_at), SQL_FIELD(HandlerInfo, crashes),
								  SQL_FIELD(HandlerInfo, stopped), SQL_FIELD(HandlerInfo, owner),
								  SQL_FIELD(HandlerInfo, owner_oid)}};

/* Reads the handler of a queue under the latest snapshot; returns false if the queue has none. */
bool
idemq_handler_read(int32 queue_id, HandlerInfo *info)
{
	Datum value = Int32GetDatum(queue_id);

	return idemq_spi_row(&read_handler, &value, info, sizeof(*info));
}

/* Returns whether a process that runs handler a may continue with handler b. */
bool
idemq_handler_same(const HandlerInfo *a, const HandlerInfo *b)
{
	return a->queue_id == b->queue_id && a->set_at == b->set_at && a->stopped == b->stopped &&
		   a->role_oid == b->role_oid && namestrcmp((Name) &a->role, NameStr(b->role)) == 0 &&
		   namestrcmp((Name) &a->schema, NameStr(b->schema)) == 0 &&
		   namestrcmp((Name) &a->function, NameStr(b->function)) == 0;
}

/* Returns why a role may not run a function as a handler; NULL if it may.  Sets returns_void. */
static char *
refuse_function(const HandlerInfo *info, const char *name, Oid schema, HandlerTarget *target)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(target->function));
	Form_pg_proc function;
	char *why = NULL;

	if (!HeapTupleIsValid(tuple))
		return psprintf("function %s(jsonb) does not exist", name);
	function = (Form_pg_proc) GETSTRUCT(tuple);
	target->returns_void = function->prorettype == VOIDOID;
	if ((function->prorettype != VOIDOID && function->prorettype != JSONBOID) ||
		function->proretset || function->prokind != PROKIND_FUNCTION)
		why = psprintf("function %s(jsonb) must return jsonb or void", name);
	else if (!compat_may(NamespaceRelationId, schema, target->role, ACL_USAGE))
		why = psprintf("role \"%s\" lacks USAGE on schema %s", NameStr(info->role),
					   quote_identifier(NameStr(info->schema)));
	else if (!compat_may(ProcedureRelationId, target->function, target->role, ACL_EXECUTE))
		why =
			psprintf("role \"%s\" lacks EXECUTE on function %s(jsonb)", NameStr(info->role), name);
	else if (superuser_arg(target->role) && !superuser_arg(function->proowner))
		why = psprintf("role \"%s\" is a superuser, but the owner of function %s(jsonb) is not",
					   NameStr(info->role), name);
	/* The owner must be one that the role trusted when it set the handler. */
	else if (function->proowner != target->role && !superuser_arg(function->proowner) &&
			 function->proowner != idemq_role_of(NameStr(info->owner), info->owner_oid))
		why = psprintf(
			"function %s(jsonb) was owned by role \"%s\" when the handler was set, and now has "
			"another owner: call idemq.set_handler again if you intended the change",
			name, NameStr(info->owner));
	ReleaseSysCache(tuple);
	return why;
}

/*
 * Looks up the role and the function of a handler.  Returns why the role may not run the function
 * for the queue's jobs, or NULL if it may.
 */
char *
idemq_handler_resolve(const HandlerInfo *info, HandlerTarget *target)
{
	Oid types[] = {JSONBOID};
	QueueInfo queue;
	HeapTuple tuple;
	bool may_login;
	char *why;
	char *name;
	Oid schema;

	target->function = InvalidOid;
	target->role = idemq_role_of(NameStr(info->role), info->role_oid);
	if (!OidIsValid(target->role))
		return psprintf("role \"%s\", which set the handler, no longer exists",
						NameStr(info->role));
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(target->role));
	if (!HeapTupleIsValid(tuple))
		return psprintf("role \"%s\" does not exist", NameStr(info->role));
	may_login = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;
	ReleaseSysCache(tuple);
	if (!may_login)
		return psprintf("role \"%s\" is not permitted to log in: run ALTER ROLE %s LOGIN",
						NameStr(info->role), quote_identifier(NameStr(info->role)));
	if (!compat_may(DatabaseRelationId, MyDatabaseId, target->role, ACL_CONNECT))
		return psprintf(
			"role \"%s\" is not permitted to connect to this database: grant CONNECT to it",
			NameStr(info->role));
	name = quote_qualified_identifier(NameStr(info->schema), NameStr(info->function));
	schema = get_namespace_oid(NameStr(info->schema), true);
	if (OidIsValid(schema))
		target->function =
			GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, NameGetDatum(&info->function),
							PointerGetDatum(buildoidvector(types, 1)), ObjectIdGetDatum(schema));
	why = refuse_function(info, name, schema, target);
	if (why != NULL)
		return why;
	if (!idemq_queue_allows_role(info->queue_id, target->role, PRIVILEGE_CLAIM, &queue))
		return psprintf("role \"%s\" lacks the claim privilege on the queue", NameStr(info->role));
	return NULL;
}

/* Returns the message for a handler that has been stopped. */
const char *
idemq_handler_stopped_text(const HandlerInfo *info)
{
	return psprintf(
		"stopped after %d consecutive server crashes during its jobs: find the cause, then call "
		"idemq.set_handler again",
		info->crashes);
}
