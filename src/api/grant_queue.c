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
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"

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

/*
 * What stands on a role's privilege on a queue: what of which role, and whether it is enqueue
 * that it needs, or claim.
 */
static SqlStatement dependents =
	{.text = "SELECT format('dead_queue of queue %I', name), dead_queue_role, "
			 "dead_queue_role_oid, true FROM idemq.queues WHERE dead_queue = $2 UNION ALL "
			 "SELECT format('binding of %L', pattern), role_name, role_oid, true "
			 "FROM idemq.topic_binding_entries WHERE queue_id = $1 UNION ALL "
			 "SELECT format('schedule %I', name), created_by, created_by_oid, true "
			 "FROM idemq.schedule_entries WHERE queue_id = $1 UNION ALL "
			 "SELECT 'handler', role_name, role_oid, false "
			 "FROM idemq.handler_entries WHERE queue_id = $1 ORDER BY 1",
	 .nargs = 2,
	 .types = {INT4OID, TEXTOID}};

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
	idemq_usage_settle(role);
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

/* Says what ends with a privilege that was taken from a role, or has ended before. */
static void
say_what_ends(const QueueInfo *queue, Oid revoked)
{
	Datum values[] = {Int32GetDatum(queue->id), CStringGetTextDatum(queue->name)};
	StringInfoData list;
	SqlScope scope;
	uint64 rows;

	initStringInfo(&list);
	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&dependents, values, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		QueueInfo unused;
		bool isnull;
		char *what = TextDatumGetCString(idemq_spi_value(i, 1, &isnull));
		Datum name = idemq_spi_value(i, 2, &isnull);
		const char *role_name = isnull ? "" : NameStr(*DatumGetName(name));
		Oid oid = DatumGetObjectId(idemq_spi_value(i, 3, &isnull));
		Oid role = idemq_role_of(role_name, isnull ? InvalidOid : oid);
		bool enqueues = DatumGetBool(idemq_spi_value(i, 4, &isnull));

		if (OidIsValid(role) && has_privs_of_role(role, revoked) &&
			!idemq_queue_allows_role(queue->id, role,
									 (enqueues ? PRIVILEGE_ENQUEUE : PRIVILEGE_CLAIM) |
										 PRIVILEGE_ADMIN,
									 &unused))
			appendStringInfo(&list, "%s%s", list.len > 0 ? ", " : "", what);
	}
	idemq_spi_end(&scope);
	if (list.len > 0)
		ereport(NOTICE, (errmsg("what needs the privilege on queue \"%s\" does nothing more: %s",
								queue->name, list.data),
						 errhint("It goes on when the privilege is granted again; or remove it.")));
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
	idemq_usage_settle(PG_GETARG_OID(1));
	if (statement != &add_grant)
		say_what_ends(&queue, PG_GETARG_OID(1));
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
