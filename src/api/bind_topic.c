/*
 * api/bind_topic.c
 *		SQL functions that bind queues to topics: bind_topic, unbind_topic.
 *
 * A binding is of the role that makes it, and as good as that role's rights are when
 * something is published (api/publish.c): bind on the topic's space, enqueue on the queue.
 * Two roles may bind one queue by one pattern; each binding stands for itself, so that
 * nobody takes another's away.
 *
 * Locks: the queue against its drop, then the rows of queue and space as a foreign key would.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_bind_topic);
PG_FUNCTION_INFO_V1(idemq_sql_v2_unbind_topic);

static SqlStatement add_binding =
	{.text = "INSERT INTO idemq.topic_binding_entries (topic, pattern, queue_id, role_name, "
			 "bound_at) VALUES ($1, $2, $3, $4, $5) "
			 "ON CONFLICT (topic, pattern, queue_id, role_name) DO UPDATE "
			 "SET role_oid = excluded.role_oid, bound_at = $5, refused_at = NULL "
			 "WHERE topic_binding_entries.role_oid IS DISTINCT FROM excluded.role_oid",
	 .nargs = 5,
	 .types = {TEXTOID, TEXTOID, INT4OID, NAMEOID, TIMESTAMPTZOID}};
static SqlStatement find_bindings =
	{.text = "SELECT role_name, role_oid FROM idemq.topic_binding_entries WHERE topic = $1 "
			 "AND pattern = $2 AND queue_id = $3",
	 .nargs = 3,
	 .types = {TEXTOID, TEXTOID, INT4OID}};
static SqlStatement remove_binding =
	{.text = "DELETE FROM idemq.topic_binding_entries WHERE topic = $1 AND pattern = $2 "
			 "AND queue_id = $3 AND role_name = $4",
	 .nargs = 4,
	 .types = {TEXTOID, TEXTOID, INT4OID, NAMEOID}};

/* Reads the pattern; returns its space. */
static char *
read_pattern(FunctionCallInfo fcinfo)
{
	TopicWords words;

	idemq_topic_split("pattern", idemq_arg_text(fcinfo, 0, "pattern", TOPIC_MAX), true, &words);
	return idemq_topic_space(&words);
}

static void
audit(FunctionCallInfo fcinfo, const char *action, const QueueInfo *queue)
{
	idemq_audit(&(AuditEntry){.action = action,
							  .queue = queue,
							  .members = {"pattern", TextDatumGetCString(PG_GETARG_DATUM(0))}});
}

/*
 * bind_topic(pattern, queue) -> whether it is new; 42704, IQ005, 42501, 22004, 22023, 25006.
 */
Datum
idemq_sql_v2_bind_topic(PG_FUNCTION_ARGS)
{
	char *topic = read_pattern(fcinfo);
	TopicSpace space;
	QueueInfo queue;
	NameData role;
	SqlScope scope;
	Datum values[5];
	bool added;

	idemq_jobs_check_writable();
	idemq_topic_open(topic, TOPIC_BIND, &space);
	idemq_queue_open(fcinfo, 1, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_queue_keep(&queue);
	idemq_topic_keep(topic);
	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	values[0] = CStringGetTextDatum(topic);
	values[1] = PG_GETARG_DATUM(0);
	values[2] = Int32GetDatum(queue.id);
	values[3] = NameGetDatum(&role);
	values[4] = TimestampTzGetDatum(idemq_now());
	idemq_spi_begin(&scope);
	added = idemq_spi_run(&add_binding, values, NULL, SPI_OK_INSERT) > 0;
	idemq_spi_end(&scope);
	if (added)
		audit(fcinfo, "bind_topic", &queue);
	PG_RETURN_BOOL(added);
}

/* Returns the names of the roles whose bindings the current role may end; *others: there are more. */
static List *
find_own(const Datum *values, bool all, bool *others)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid user = GetUserId();
	List *names = NIL;
	SqlScope scope;
	uint64 rows;

	*others = false;
	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&find_bindings, values, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		bool isnull;
		const char *name = NameStr(*DatumGetName(idemq_spi_value(i, 1, &isnull)));
		Oid oid = DatumGetObjectId(idemq_spi_value(i, 2, &isnull));
		Oid role = idemq_role_of(name, isnull ? InvalidOid : oid);
		MemoryContext old = MemoryContextSwitchTo(caller);

		if (all || (OidIsValid(role) && has_privs_of_role(user, role)))
			names = lappend(names, pstrdup(name));
		else
			*others = true;
		MemoryContextSwitchTo(old);
	}
	idemq_spi_end(&scope);
	return names;
}

/* Raises 42501. */
pg_noreturn static void
refuse(const char *topic, const QueueInfo *queue)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for bindings of queue \"%s\" to topic \"%s\"", queue->name,
					topic),
			 errdetail("The role that made a binding, and administrators of queue or topic, may "
					   "end it."),
			 errhint("Let one of them call idemq.unbind_topic.")));
}

/*
 * unbind_topic(pattern, queue) -> whether there was a binding; 42704, IQ005, 42501, 22004,
 * 22023, 25006.
 */
Datum
idemq_sql_v2_unbind_topic(PG_FUNCTION_ARGS)
{
	char *topic = read_pattern(fcinfo);
	char *name = idemq_arg_text(fcinfo, 1, "queue", IDEMQ_MAX_NAME_ARG);
	QueueInfo queue;
	TopicSpace space;
	Datum values[4];
	List *names;
	ListCell *lc;
	SqlScope scope;
	bool removed = false;
	bool others;
	bool all;

	idemq_jobs_check_writable();
	/* A role that has lost its privileges may still end its binding. */
	if (!idemq_topic_find(topic, &space))
		idemq_topic_open(topic, TOPIC_ADMIN, &space);
	if (!idemq_queue_find(name, &queue))
		idemq_queue_by_name(name, PRIVILEGE_ADMIN, &queue);
	values[0] = CStringGetTextDatum(topic);
	values[1] = PG_GETARG_DATUM(0);
	values[2] = Int32GetDatum(queue.id);
	all = (queue.privileges & PRIVILEGE_ADMIN) != 0 ||
		  (idemq_topic_privileges(&space, GetUserId()) & TOPIC_ADMIN) != 0;
	names = find_own(values, all, &others);
	if (names == NIL && others)
		refuse(topic, &queue);
	foreach(lc, names)
	{
		NameData role;

		namestrcpy(&role, lfirst(lc));
		values[3] = NameGetDatum(&role);
		idemq_spi_begin(&scope);
		removed |= idemq_spi_run(&remove_binding, values, NULL, SPI_OK_DELETE) > 0;
		idemq_spi_end(&scope);
	}
	if (removed)
		audit(fcinfo, "unbind_topic", &queue);
	PG_RETURN_BOOL(removed);
}
