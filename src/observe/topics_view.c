/*
 * observe/topics_view.c
 *		SQL functions behind idemq.topics and idemq.topic_bindings: topic_privileges,
 *		topic_states.
 *
 * Who sees a binding: the role that made it, administrators of its topic or its queue, and
 * pg_monitor.  Why it would be skipped is asked as idemq.publish does, at this moment.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_topic_privileges);
PG_FUNCTION_INFO_V1(idemq_sql_v2_topic_states);

#define STATE_COLUMNS 7

static SqlStatement read_bindings = {
	.text = "SELECT topic, pattern, queue_id, role_name, role_oid, bound_at, refused_at "
			"FROM idemq.topic_binding_entries ORDER BY topic, pattern, queue_id, role_name"};

/* Columns of that. */
enum
{
	BINDING_TOPIC = 1,
	BINDING_PATTERN,
	BINDING_QUEUE,
	BINDING_ROLE,
	BINDING_ROLE_OID,
	BINDING_BOUND_AT,
	BINDING_REFUSED_AT
};

/* topic_privileges(topic) -> text[] of the current role; none of a topic that does not exist. */
Datum
idemq_sql_v2_topic_privileges(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"publish", "bind", "admin"};
	char *topic = idemq_arg_text(fcinfo, 0, "topic", IDEMQ_MAX_NAME_ARG);
	Datum elements[lengthof(names)];
	int privileges = 0;
	int count = 0;
	TopicSpace space;

	if (idemq_topic_find(topic, &space))
		privileges = idemq_topic_privileges(&space, GetUserId());
	if ((privileges & TOPIC_ADMIN) != 0)
		privileges = TOPIC_ALL;
	for (int i = 0; i < (int) lengthof(names); i++)
	{
		if (privileges & (1 << i))
			elements[count++] = CStringGetTextDatum(names[i]);
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(elements, count, TEXTOID, -1, false, TYPALIGN_INT));
}

/* Returns why a binding would be skipped now, NULL when it would not. */
static const char *
refusal(const TopicSpace *space, bool exists, Oid role, const char *role_name, int32 queue_id)
{
	QueueInfo queue;

	if (!exists)
		return "its topic does not exist";
	if (!OidIsValid(role))
		return psprintf("role \"%s\" was dropped or renamed", role_name);
	if ((idemq_topic_privileges(space, role) & TOPIC_BIND) == 0)
		return psprintf("role \"%s\" may not bind to the topic any more", role_name);
	if (!idemq_queue_by_id(queue_id, &queue))
		return "its queue does not exist";
	if (!idemq_queue_allows_role(queue_id, role, PRIVILEGE_ENQUEUE, &queue))
		return psprintf("role \"%s\" may not enqueue to the queue any more", role_name);
	return NULL;
}

/* Adds a row of the result, for a role that may see it. */
static void
add_row(uint64 row, Oid user, bool monitor, Tuplestorestate *store, TupleDesc desc)
{
	bool isnull[STATE_COLUMNS + 1];
	Datum in[STATE_COLUMNS + 1];
	Datum values[STATE_COLUMNS];
	bool nulls[STATE_COLUMNS] = {false};
	TopicSpace space;
	QueueInfo queue;
	bool exists;
	Oid role;
	const char *why;

	for (int i = BINDING_TOPIC; i <= BINDING_REFUSED_AT; i++)
		in[i] = idemq_spi_value(row, i, &isnull[i]);
	role = idemq_role_of(NameStr(*DatumGetName(in[BINDING_ROLE])),
						 isnull[BINDING_ROLE_OID] ? InvalidOid
												  : DatumGetObjectId(in[BINDING_ROLE_OID]));
	exists = idemq_topic_find(TextDatumGetCString(in[BINDING_TOPIC]), &space);
	if (!monitor && !(OidIsValid(role) && has_privs_of_role(user, role)) &&
		(idemq_topic_privileges(&space, user) & TOPIC_ADMIN) == 0 &&
		!idemq_queue_allows_role(DatumGetInt32(in[BINDING_QUEUE]), user, PRIVILEGE_ADMIN, &queue))
		return;
	why = refusal(&space, exists, role, NameStr(*DatumGetName(in[BINDING_ROLE])),
				  DatumGetInt32(in[BINDING_QUEUE]));
	values[0] = in[BINDING_TOPIC];
	values[1] = in[BINDING_PATTERN];
	values[2] = in[BINDING_QUEUE];
	values[3] = in[BINDING_ROLE];
	values[4] = in[BINDING_BOUND_AT];
	values[5] = in[BINDING_REFUSED_AT];
	nulls[5] = isnull[BINDING_REFUSED_AT];
	nulls[6] = why == NULL;
	if (why != NULL)
		values[6] = CStringGetTextDatum(why);
	tuplestore_putvalues(store, desc, values, nulls);
}

/* topic_states() -> setof (topic, pattern, queue_id, role, bound_at, refused_at, refusal). */
Datum
idemq_sql_v2_topic_states(PG_FUNCTION_ARGS)
{
	Oid user = GetUserId();
	bool monitor = has_privs_of_role(user, ROLE_PG_MONITOR);
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&read_bindings, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		add_row(i, user, monitor, store, desc);
	}
	idemq_spi_end(&scope);
	return (Datum) 0;
}
