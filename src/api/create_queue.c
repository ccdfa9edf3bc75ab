/*
 * api/create_queue.c
 *		SQL functions that set what a queue is like: create_queue, alter_queue.
 *
 * queue/queue_settings.c lists the settings.  The trigger of idemq.queues makes every session read
 * the queue again.  Only the DBA can grant create_queue; alter_queue requires the queue's admin
 * privilege.  After the commit of a change of how many jobs of a group may run, the queue's groups
 * are checked.  Such a change, and one of how many may be started, makes due the jobs that wait for
 * group_rate_limit.  In alter_queue NULL leaves a setting as it is; 0
 * removes a limit, and '' removes the dead-letter queue.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * Checks dead_letter_queue, if it is given; id is 0 for a new queue.  See idemq_dead_letter_check.  The
 * caller does not hold the row of the queue yet: this waits for a session that drops the dead-letter
 * queue, and that session writes the rows of the queues that have it.
 */
void
idemq_check_dead_letter_queue(FunctionCallInfo fcinfo, const char *name, int32 id)
{
	int n = idemq_setting_arg("dead_letter_queue");

	if (PG_ARGISNULL(n))
		return;
	/* alter_queue takes it away. */
	if (id != 0 && VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(n)) == 0)
		return;
	idemq_dead_letter_check(name, id,
							idemq_arg_text(fcinfo, n, "dead_letter_queue", IDEMQ_MAX_NAME_ARG));
}

/* Warns when a key may be forgotten while its first job still has attempts left. */
static void
warn_of_short_window(const QueueInfo *queue)
{
	if ((double) queue->idempotency_window < (double) queue->lease * queue->max_attempts)
		ereport(WARNING,
				errmsg("idempotency_window of queue \"%s\" is shorter than lease x max_attempts",
					   queue->name),
				errdetail(
					"If a request is repeated after the window has passed, its job runs again."));
}

static SqlStatement add_grant =
	{.text = "INSERT INTO idemq_internal.queue_grants (queue_id, role_name, privilege) "
			 "VALUES ($1, $2, $3) ON CONFLICT (queue_id, role_name, privilege) "
			 "DO UPDATE SET role_oid = excluded.role_oid "
			 "WHERE queue_grants.role_oid IS DISTINCT FROM excluded.role_oid",
	 .types = {INT4OID, NAMEOID, TEXTOID}};

/* Makes a role an administrator of a queue. */
static void
grant_admin(int32 queue_id, Oid role)
{
	NameData name;
	Datum values[] = {Int32GetDatum(queue_id), NameGetDatum(&name), CStringGetTextDatum("admin")};
	namestrcpy(&name, GetUserNameFromId(role, false));
	idemq_role_lock(role, ROLE_LOCK_GRANTS);
	(void) idemq_spi_do(&add_grant, values, NULL);
	idemq_usage_settle(role);
}

/* Raises 42602 for a name that no queue may have. */
static void
check_name(const char *name)
{
	for (const char *c = name; *c != '\0'; c++)
	{
		bool letter = (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || *c == '_';
		bool other = (*c >= '0' && *c <= '9') || *c == '.' || *c == '-';

		if (!letter && !(other && c > name))
			ereport(ERROR, errcode(ERRCODE_INVALID_NAME), errmsg("invalid queue name \"%s\"", name),
					errhint("Use letters, digits, _, . and -. Begin with a letter or _."));
	}
}

/*
 * Creates a queue with the arguments of create_queue, and looks it up; the caller writes the audit.
 * Returns false when there is one of that name.  Waits for a session that creates, or declares, a
 * queue of that name.  Raises 42602, 22004, 22023, IQ005, 42501, 53400, 25006, 55000.
 */
bool
idemq_create_queue(FunctionCallInfo fcinfo, QueueInfo *queue)
{
	char *name = idemq_arg_text(fcinfo, 0, "name", IDEMQ_MAX_QUEUE_NAME);
	Oid creator = GetUserId();
	int32 id;

	check_name(name);
	idemq_settings_check(fcinfo, true);
	idemq_jobs_check_writable();
	idemq_queue_lock_name(name);
	idemq_check_dead_letter_queue(fcinfo, name, 0);
	if (!idemq_settings_insert(fcinfo, name, &id))
		return false;
	idemq_pending_note(ACTION_CREATE_QUEUE, NULL, id);
	if (!has_privs_of_role(creator, idemq_oids()->owner))
		grant_admin(id, creator);
	/* A trigger that the DBA has put on the table may have changed the row, or taken it away. */
	if (!idemq_queue_by_id(id, queue))
	{
		memset(queue, 0, sizeof(*queue));
		queue->id = id;
		return true;
	}
	idemq_queue_need_qstate(queue);
	idemq_counters_set_empty(idemq_qstate_index(queue->qstate), id);
	idemq_qstate_note_new(queue->qstate, id);
	idemq_settings_check_lease(queue, queue->lease);
	warn_of_short_window(queue);
	return true;
}

/* create_queue(name, settings ...) -> queue_id; 42710, 42602, 22004, 22023, IQ005, 42501, 53400. */
SQL_FUNCTION(idemq_sql_create_queue)
{
	QueueInfo queue;
	AuditEntry entry = {.action = "create_queue", .queue = &queue};

	if (!idemq_create_queue(fcinfo, &queue))
		ereport(ERROR, errcode(ERRCODE_DUPLICATE_OBJECT),
				errmsg("queue \"%s\" already exists", TextDatumGetCString(PG_GETARG_DATUM(0))),
				errhint(
					"Change it with idemq.alter_queue, or use idemq.ensure_queue, which creates or "
					"changes a queue."));
	entry.details = idemq_settings_document(queue.id, 0, false);
	if (entry.details != (Datum) 0)
		idemq_audit(&entry);
	PG_RETURN_INT32(queue.id);
}

/* Returns whether alter_queue is given a setting. */
static bool
is_given(FunctionCallInfo fcinfo, const char *name)
{
	return !PG_ARGISNULL(idemq_setting_arg(name));
}

/*
 * Changes a queue to the arguments of alter_queue that are not NULL, and looks it up again.  The caller
 * has checked the privilege and the arguments, and holds the row (idemq_settings_document, with the
 * same latest).  Raises 22023 for lease.
 */
void
idemq_change_queue(FunctionCallInfo fcinfo, QueueInfo *queue, bool latest)
{
	QueueInfo former = *queue;

	idemq_settings_update(fcinfo, queue->name, latest);
	if (is_given(fcinfo, "group_max_running"))
		idemq_pending_note(ACTION_GROUPS, NULL, queue->id);
	if (is_given(fcinfo, "group_max_running") || is_given(fcinfo, "group_rate_limit") ||
		is_given(fcinfo, "group_rate_period") || is_given(fcinfo, "group_rate_burst"))
		idemq_group_waits_end(queue->id, (Datum) 0);
	if (!idemq_queue_by_id(former.id, queue))
	{
		*queue = former;
		return;
	}
	if (is_given(fcinfo, "lease") || is_given(fcinfo, "max_lease"))
		idemq_settings_check_lease(queue, queue->lease);
	if (is_given(fcinfo, "lease") || is_given(fcinfo, "max_attempts") ||
		is_given(fcinfo, "idempotency_window"))
		warn_of_short_window(queue);
}

/* alter_queue(name, settings ...) -> void; IQ005, 42501, 22004, 22023. */
SQL_FUNCTION(idemq_sql_alter_queue)
{
	QueueInfo queue;
	AuditEntry entry = {.action = "alter_queue", .queue = &queue};
	Datum before;

	idemq_queue_arg(fcinfo, 0, "name", PRIVILEGE_ADMIN, &queue);
	idemq_settings_check(fcinfo, false);
	idemq_jobs_check_writable();
	/* Before the row, as ensure_queue does: the two do not deadlock, even in one transaction. */
	idemq_queue_lock_name(queue.name);
	idemq_queue_by_name(queue.name, PRIVILEGE_ADMIN, &queue);
	idemq_check_dead_letter_queue(fcinfo, queue.name, queue.id);
	before = idemq_settings_document(queue.id, 0, false);
	if (before == (Datum) 0)
	{
		if (IsolationUsesXactSnapshot() && idemq_queue_by_id(queue.id, &queue))
			ereport(ERROR, errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					errmsg("could not serialize access due to concurrent create_queue"),
					errhint("Run the transaction again."));
		PG_RETURN_VOID(); /* dropped meanwhile */
	}
	idemq_change_queue(fcinfo, &queue, false);
	entry.details = idemq_settings_document(queue.id, before, false);
	if (entry.details != (Datum) 0)
		idemq_audit(&entry);
	PG_RETURN_VOID();
}
