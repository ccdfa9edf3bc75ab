/*
 * observe/check_topics.c
 *		The audit of topics: rows that name a role, a queue or a topic which is not there.
 *
 * Queue and topic are held while a row that names them is made, and whoever deletes them
 * deletes it (hooks/queue_trigger.c, idemq_inside.drop_topic): so no snapshot shows one without the
 * other, unless a hand or a restore has brought it.  A role is another's to drop; its grants
 * and bindings are void then, which is a warning.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "base/base.h"
#include "observe/observe.h"

#define IS_OF_NOBODY                                                                               \
	"NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = t.role_name AND "             \
	"(t.role_oid IS NULL OR r.oid = t.role_oid))"

static SqlStatement broken = {
	.text =
		"SELECT 'topics.role', false, count(*), 'grants of role ' || quote_ident(role_name) || ', "
		"which was dropped or renamed, are void: DELETE FROM idemq.topic_grants WHERE role_name = ' "
		"|| quote_literal(role_name) FROM idemq.topic_grants t WHERE " IS_OF_NOBODY " GROUP BY "
		"role_name UNION ALL "
		"SELECT 'topics.role', false, count(*), 'bindings of role ' || quote_ident(role_name) || ', "
		"which was dropped or renamed, are skipped: idemq.unbind_topic, and bind them anew' "
		"FROM idemq.topic_binding_entries t WHERE " IS_OF_NOBODY " GROUP BY role_name UNION ALL "
		"SELECT 'topics.queue', true, count(*), 'bindings are of queue ' || queue_id || ', which "
		"does not exist: DELETE FROM idemq.topic_binding_entries WHERE queue_id = ' || queue_id "
		"FROM idemq.topic_binding_entries t WHERE NOT EXISTS (SELECT FROM idemq.queues q "
		"WHERE q.queue_id = t.queue_id) GROUP BY queue_id UNION ALL "
		"SELECT 'topics.topic', true, count(*), 'grants and bindings are of topic ' || topic || ', "
		"which does not exist: restore idemq.topic_entries, or delete them' FROM "
		"(SELECT topic FROM idemq.topic_grants UNION ALL SELECT topic FROM "
		"idemq.topic_binding_entries) t WHERE NOT EXISTS (SELECT FROM idemq.topic_entries e "
		"WHERE e.topic = t.topic) GROUP BY topic ORDER BY 1, 4"};

/* Checks the rows of topics, all under one snapshot. */
void
idemq_check_topics(CheckCall *call)
{
	SqlScope scope;
	uint64 rows;
	bool isnull;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&broken, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		bool error = DatumGetBool(idemq_spi_value(i, 2, &isnull));

		idemq_check_report(call, error ? CHECK_ERROR : CHECK_WARNING,
						   TextDatumGetCString(idemq_spi_value(i, 1, &isnull)), "%lld %s",
						   (long long) idemq_spi_int64(i, 3, &isnull),
						   TextDatumGetCString(idemq_spi_value(i, 4, &isnull)));
	}
	idemq_spi_end(&scope);
}
