/*
 * api/topics.c
 *		SQL functions about spaces of topics: create_topic, drop_topic, grant_topic,
 *		revoke_topic; topic_matches.
 *
 * A space is a row of idemq.topic_entries; who may use it, rows of idemq.topic_grants; which
 * queues are bound to it, of idemq.topic_binding_entries (api/bind_topic.c).  A drop deletes the
 * space first, which waits for whoever makes one of the others and keeps it
 * (idemq_topic_keep), and then all that names it.
 *
 * With its first privilege a role gets USAGE of the schema, as with one on a queue.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_create_topic);
PG_FUNCTION_INFO_V1(idemq_sql_v2_drop_topic);
PG_FUNCTION_INFO_V1(idemq_sql_v2_grant_topic);
PG_FUNCTION_INFO_V1(idemq_sql_v2_revoke_topic);
PG_FUNCTION_INFO_V1(idemq_sql_v2_topic_matches);

static SqlStatement add_topic =
	{.text = "INSERT INTO idemq.topic_entries (topic, created_at) VALUES ($1, $2) "
			 "ON CONFLICT (topic) DO NOTHING",
	 .nargs = 2,
	 .types = {TEXTOID, TIMESTAMPTZOID}};
static SqlStatement add_grant =
	{.text = "INSERT INTO idemq.topic_grants (topic, role_name, privilege) VALUES ($1, $2, $3) "
			 "ON CONFLICT (topic, role_name, privilege) DO UPDATE SET role_oid = excluded.role_oid "
			 "WHERE topic_grants.role_oid IS DISTINCT FROM excluded.role_oid",
	 .nargs = 3,
	 .types = {TEXTOID, NAMEOID, TEXTOID}};
static SqlStatement remove_grant =
	{.text = "DELETE FROM idemq.topic_grants WHERE topic = $1 AND role_name = $2 AND "
			 "privilege = $3",
	 .nargs = 3,
	 .types = {TEXTOID, NAMEOID, TEXTOID}};
static SqlStatement delete_topic = {.text = "DELETE FROM idemq.topic_entries WHERE topic = $1",
									.nargs = 1,
									.types = {TEXTOID}};
static SqlStatement delete_grants = {.text = "DELETE FROM idemq.topic_grants WHERE topic = $1",
									 .nargs = 1,
									 .types = {TEXTOID}};
static SqlStatement delete_bindings =
	{.text = "DELETE FROM idemq.topic_binding_entries WHERE topic = $1",
	 .nargs = 1,
	 .types = {TEXTOID}};
static SqlStatement grantees =
	{.text = "SELECT DISTINCT r.oid FROM idemq.topic_grants g JOIN pg_catalog.pg_roles r "
			 "ON r.rolname = g.role_name WHERE g.topic = $1 ORDER BY r.oid",
	 .nargs = 1,
	 .types = {TEXTOID}};
static SqlStatement anything_left =
	{.text = "SELECT FROM idemq.topic_grants WHERE topic = $1 UNION ALL "
			 "SELECT FROM idemq.topic_binding_entries WHERE topic = $1 LIMIT 1",
	 .nargs = 1,
	 .types = {TEXTOID}};

/* Writes an action about a space to idemq.audit, where it is of no queue. */
static void
audit(const char *action, const char *topic, const char *role, const char *privilege)
{
	static const QueueInfo none = {0};
	AuditEntry entry = {.action = action, .queue = &none, .members = {"topic", topic}};

	if (role != NULL)
	{
		entry.members[2] = "role";
		entry.members[3] = role;
		entry.members[4] = "privilege";
		entry.members[5] = privilege;
	}
	idemq_audit(&entry);
}

/* Runs a statement about a grant; returns whether it has changed anything. */
static bool
run_grant(SqlStatement *statement, int code, const char *topic, Oid role, const char *privilege)
{
	NameData name;
	Datum values[] = {CStringGetTextDatum(topic), NameGetDatum(&name),
					  CStringGetTextDatum(privilege)};
	SqlScope scope;
	bool changed;

	namestrcpy(&name, GetUserNameFromId(role, false));
	idemq_role_lock(role, ROLE_LOCK_GRANTS);
	idemq_spi_begin(&scope);
	changed = idemq_spi_run(statement, values, NULL, code) > 0;
	idemq_spi_end(&scope);
	if (statement == &add_grant)
		idemq_usage_grant(role);
	else
		idemq_usage_settle(role);
	return changed;
}

/* create_topic(topic) -> void; 42710, 22004, 22023, 25006. */
Datum
idemq_sql_v2_create_topic(PG_FUNCTION_ARGS)
{
	char *topic = idemq_arg_text(fcinfo, 0, "topic", IDEMQ_MAX_NAME_ARG);
	Datum values[] = {PG_GETARG_DATUM(0), TimestampTzGetDatum(idemq_now())};
	SqlScope scope;
	bool added;

	idemq_topic_check_space(topic);
	idemq_jobs_check_writable();
	idemq_spi_begin(&scope);
	added = idemq_spi_run(&add_topic, values, NULL, SPI_OK_INSERT) > 0;
	idemq_spi_end(&scope);
	if (!added)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT), errmsg("topic \"%s\" already exists", topic),
				 errhint("Choose another name, or let its administrator grant you its use "
						 "with idemq.grant_topic.")));
	(void) run_grant(&add_grant, SPI_OK_INSERT, topic, GetUserId(), "admin");
	audit("create_topic", topic, NULL, NULL);
	PG_RETURN_VOID();
}

/* Returns the roles that hold privileges on a space, and locks what they hold. */
static List *
lock_grantees(Datum topic)
{
	List *roles = NIL;
	uint64 rows = idemq_spi_query_latest(&grantees, &topic, NULL);
	ListCell *lc;

	for (uint64 i = 0; i < rows; i++)
	{
		bool isnull;

		roles = lappend_oid(roles, DatumGetObjectId(idemq_spi_value(i, 1, &isnull)));
	}
	foreach(lc, roles)
		idemq_role_lock(lfirst_oid(lc), ROLE_LOCK_GRANTS);
	return roles;
}

/*
 * Deletes a space and all that names it, and takes USAGE from the roles that have nothing
 * more.  Raises 40001 for what this transaction cannot see.
 */
static void
delete_all(const char *topic)
{
	Datum value = CStringGetTextDatum(topic);
	SqlScope scope;
	List *roles;
	ListCell *lc;

	idemq_spi_begin(&scope);
	(void) idemq_spi_run(&delete_topic, &value, NULL, SPI_OK_DELETE);
	/* Nobody grants any more. */
	roles = lock_grantees(value);
	(void) idemq_spi_run(&delete_bindings, &value, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_grants, &value, NULL, SPI_OK_DELETE);
	if (idemq_spi_query_latest(&anything_left, &value, NULL) > 0)
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("topic \"%s\" has grants or bindings that this transaction cannot "
							   "see",
							   topic),
						errhint("Run idemq.drop_topic at READ COMMITTED.")));
	foreach(lc, roles)
		idemq_usage_settle(lfirst_oid(lc));
	idemq_spi_end(&scope);
}

/* drop_topic(topic) -> void; 42704, 42501, 22004, 25006, 40001. */
Datum
idemq_sql_v2_drop_topic(PG_FUNCTION_ARGS)
{
	char *topic = idemq_arg_text(fcinfo, 0, "topic", IDEMQ_MAX_NAME_ARG);
	TopicSpace space;

	idemq_jobs_check_writable();
	idemq_topic_open(topic, TOPIC_ADMIN, &space);
	delete_all(topic);
	audit("drop_topic", topic, NULL, NULL);
	PG_RETURN_VOID();
}

/* Grants or revokes a privilege, as the arguments say. */
static Datum
change_grant(FunctionCallInfo fcinfo, SqlStatement *statement, int code, const char *action)
{
	char *topic = idemq_arg_text(fcinfo, 0, "topic", IDEMQ_MAX_NAME_ARG);
	TopicSpace space;
	char *privilege;
	Oid role;

	idemq_arg_required(fcinfo, 1, "role");
	role = PG_GETARG_OID(1);
	privilege = idemq_arg_text(fcinfo, 2, "privilege", NAMEDATALEN);
	if (strcmp(privilege, "publish") != 0 && strcmp(privilege, "bind") != 0 &&
		strcmp(privilege, "admin") != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("privilege must be publish, bind or admin, not \"%s\"", privilege),
						errhint("admin includes the other two.")));
	idemq_jobs_check_writable();
	idemq_topic_open(topic, TOPIC_ADMIN, &space);
	if (statement == &add_grant)
		idemq_topic_keep(topic);
	if (run_grant(statement, code, topic, role, privilege))
		audit(action, topic, GetUserNameFromId(role, false), privilege);
	PG_RETURN_VOID();
}

/* grant_topic(topic, role, privilege) -> void; 42704, 42501, 22004, 22023, 25006. */
Datum
idemq_sql_v2_grant_topic(PG_FUNCTION_ARGS)
{
	return change_grant(fcinfo, &add_grant, SPI_OK_INSERT, "grant_topic");
}

/* revoke_topic(topic, role, privilege) -> void; as grant_topic. */
Datum
idemq_sql_v2_revoke_topic(PG_FUNCTION_ARGS)
{
	return change_grant(fcinfo, &remove_grant, SPI_OK_DELETE, "revoke_topic");
}

/* topic_matches(pattern, topic) -> whether a queue bound by the one hears of the other; 22023. */
Datum
idemq_sql_v2_topic_matches(PG_FUNCTION_ARGS)
{
	TopicWords pattern;
	TopicWords topic;

	idemq_topic_split("pattern", idemq_arg_text(fcinfo, 0, "pattern", TOPIC_MAX), true, &pattern);
	idemq_topic_split("topic", idemq_arg_text(fcinfo, 1, "topic", TOPIC_MAX), false, &topic);
	PG_RETURN_BOOL(idemq_topic_matches(&pattern, &topic));
}
