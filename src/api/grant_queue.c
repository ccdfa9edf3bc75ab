/*
 * api/grant_queue.c
 *		SQL functions that let roles use a queue: grant_queue, revoke_queue.
 *
 * They write idemq.queue_grants through SQL; its trigger has every session read that
 * queue anew.  With its first privilege on a queue a role gets USAGE of the schema, which
 * goes with the last.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "api/grant_queue.h"
#include "table/audit_log.h"
#include "table/jobs.h"
#include "queue/queues.h"
#include "queue/roles.h"
#include "base/args.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_grant_queue);
PG_FUNCTION_INFO_V1(idemq_sql_v2_revoke_queue);

static SqlStatement add_grant =
	{.text =
		 "INSERT INTO idemq.queue_grants (queue_id, role_name, privilege) VALUES ($1, $2, $3) "
		 "ON CONFLICT (queue_id, role_name, privilege) DO UPDATE SET role_oid = excluded.role_oid "
		 "WHERE queue_grants.role_oid IS DISTINCT FROM excluded.role_oid",
	 .nargs = 3,
	 .types = {INT4OID, NAMEOID, TEXTOID}};
static SqlStatement remove_grant =
	{.text =
		 "DELETE FROM idemq.queue_grants WHERE queue_id = $1 AND role_name = $2 AND privilege = $3",
	 .nargs = 3,
	 .types = {INT4OID, NAMEOID, TEXTOID}};

/* Makes a role an administrator of a queue. */
void
idemq_grant_admin(int32 queue_id, Oid role)
{
	NameData name;
	Datum values[] = {Int32GetDatum(queue_id), NameGetDatum(&name), CStringGetTextDatum("admin")};
	SqlScope scope;

	namestrcpy(&name, GetUserNameFromId(role, false));
	idemq_role_lock(role, ROLE_LOCK_GRANTS);
	idemq_spi_begin(&scope);
	(void) idemq_spi_run(&add_grant, values, NULL, SPI_OK_INSERT);
	idemq_spi_end(&scope);
	idemq_usage_grant(role);
}

/* Reads the arguments of grant_queue and revoke_queue as parameters of their statements. */
static void
grant_values(FunctionCallInfo fcinfo, Datum *values, NameData *role, const QueueInfo *queue)
{
	char *privilege;

	idemq_arg_required(fcinfo, 1, "role");
	privilege = idemq_arg_text(fcinfo, 2, "privilege", NAMEDATALEN);
	if (strcmp(privilege, "enqueue") != 0 && strcmp(privilege, "claim") != 0 &&
		strcmp(privilege, "admin") != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("privilege must be enqueue, claim or admin, not \"%s\"", privilege),
						errhint("admin includes the other two.")));
	namestrcpy(role, GetUserNameFromId(PG_GETARG_OID(1), false));
	values[0] = Int32GetDatum(queue->id);
	values[1] = NameGetDatum(role);
	values[2] = CStringGetTextDatum(privilege);
}

/*
 * Runs a statement with the arguments; what has changed anything is written down.  A grant
 * keeps its queue from being dropped, so that it is not left behind; a revocation does not
 * wait for somebody who drops it.
 */
static Datum
change_grant(FunctionCallInfo fcinfo, SqlStatement *statement, int code, const char *action)
{
	Datum values[3];
	NameData role;
	QueueInfo queue;
	SqlScope scope;
	bool changed;

	idemq_jobs_check_writable();
	if (statement == &add_grant)
		idemq_queue_open(fcinfo, 0, "name", PRIVILEGE_ADMIN, AccessShareLock, &queue);
	else
		idemq_queue_arg(fcinfo, 0, "name", PRIVILEGE_ADMIN, &queue);
	grant_values(fcinfo, values, &role, &queue);
	if (statement == &add_grant)
		idemq_queue_keep(&queue);
	idemq_role_lock(PG_GETARG_OID(1), ROLE_LOCK_GRANTS);
	idemq_spi_begin(&scope);
	changed = idemq_spi_run(statement, values, NULL, code) > 0;
	idemq_spi_end(&scope);
	if (statement == &add_grant)
		idemq_usage_grant(PG_GETARG_OID(1));
	else
		idemq_usage_settle(PG_GETARG_OID(1));
	if (changed)
		idemq_audit(&(AuditEntry){.action = action,
								  .queue = &queue,
								  .members = {"role", NameStr(role), "privilege",
											  TextDatumGetCString(values[2])}});
	PG_RETURN_VOID();
}

/* grant_queue(name, role, privilege) -> void; IQ005, 42501, 42704, 22023. */
Datum
idemq_sql_v2_grant_queue(PG_FUNCTION_ARGS)
{
	return change_grant(fcinfo, &add_grant, SPI_OK_INSERT, "grant_queue");
}

/* revoke_queue(name, role, privilege) -> void; IQ005, 42501, 42704, 22023. */
Datum
idemq_sql_v2_revoke_queue(PG_FUNCTION_ARGS)
{
	return change_grant(fcinfo, &remove_grant, SPI_OK_DELETE, "revoke_queue");
}
