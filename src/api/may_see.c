/*
 * api/may_see.c
 *		SQL functions that tell row-level security and views what a role may do; and functions that
 *		convert between a queue's id and its name.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "queue/queue.h"

static Datum
allows(FunctionCallInfo fcinfo, int wanted)
{
	QueueInfo queue;

	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(false);
	PG_RETURN_BOOL(idemq_queue_allows(PG_GETARG_INT32(0), wanted, &queue));
}

/* may_see(queue_id) -> whether the current role may claim from or administer it. */
SQL_FUNCTION(idemq_sql_may_see)
{
	return allows(fcinfo, PRIVILEGE_CLAIM | PRIVILEGE_ADMIN);
}

/* may_use(queue_id) -> whether the current role holds any privilege on it. */
SQL_FUNCTION(idemq_sql_may_use)
{
	return allows(fcinfo, PRIVILEGE_ALL);
}

/* may_administer(queue_id) -> whether the current role may administer it. */
SQL_FUNCTION(idemq_sql_may_administer)
{
	return allows(fcinfo, PRIVILEGE_ADMIN);
}

/* may_enqueue(queue_id) -> whether the current role may enqueue to it. */
SQL_FUNCTION(idemq_sql_may_enqueue)
{
	return allows(fcinfo, PRIVILEGE_ENQUEUE);
}

/* may_change_schedule(queue_id, created_by, its oid) -> whether the current role may replace it. */
SQL_FUNCTION(idemq_sql_may_change_schedule)
{
	PG_RETURN_BOOL(!PG_ARGISNULL(0) && !PG_ARGISNULL(1) &&
				   idemq_may_change_schedule(PG_GETARG_INT32(0), NameStr(*PG_GETARG_NAME(1)),
											 PG_ARGISNULL(2) ? InvalidOid : PG_GETARG_OID(2)));
}

/* queue_id(queue) -> the queue's id; IQ005, 42501 for a role without any privilege on it. */
SQL_FUNCTION(idemq_sql_queue_id)
{
	QueueInfo queue;

	idemq_queue_arg(fcinfo, 0, "queue", PRIVILEGE_ALL, &queue);
	PG_RETURN_INT32(queue.id);
}

/* queue_name(queue_id) -> its name; NULL if the role has no privilege on it. */
SQL_FUNCTION(idemq_sql_queue_name)
{
	QueueInfo queue;

	if (!idemq_queue_by_id(PG_GETARG_INT32(0), &queue) ||
		(queue.privileges == 0 && !has_privs_of_role(GetUserId(), ROLE_PG_MONITOR)))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(queue.name));
}
