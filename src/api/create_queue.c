/*
 * api/create_queue.c
 *		SQL functions that create queues, and change their settings and handlers: create_queue,
 *		alter_queue, ensure_queue, ensure_handler; and the C function that set_handler calls
 *		(sql/parts/75_handlers.sql).
 *
 * queue/queue_settings.c contains the table of settings.  The trigger on idemq.queues makes every
 * session read the queue again.  Only the DBA can grant create_queue; alter_queue requires the
 * queue's admin privilege.  In alter_queue, NULL leaves a setting as it is, 0 removes a limit, and
 * '' removes the dead-letter queue.  If the number of jobs of a group that may run changes, the
 * queue's groups are checked after the commit.  Such a change, or a change of how many jobs of a
 * group may be started, makes the jobs due that wait for group_rate_limit.
 *
 * ensure_queue declares a queue: each call names settings.  If the queue exists, and all settings
 * that the call names were last declared with the same values (queue/declared.c), the outcome is
 * unchanged.  The queue's current settings do not matter: a setting that a DBA has changed since
 * then with alter_queue stays, and a WARNING names it.  Such a call only reads the queue's row.  It
 * takes no other lock, and works in a read-only transaction, on a standby and in a follower.
 *
 * Any other call of ensure_queue writes.  It creates the queue as create_queue does, or changes, as
 * alter_queue does, those of the newly declared settings that the queue does not have yet, and
 * stores the declaration.  It first locks the queue's name, as create_queue, alter_queue and
 * drop_queue do, and then looks again under the latest snapshot.  So if two calls create a queue at
 * once, the second one finds the queue of the first at every isolation level, or creates it if the
 * first rolls back.  Above READ COMMITTED, the call raises 40001 if it waits for another change of
 * the row (pause, resume).  Pauses, holds and grants are not settings, so they stay.
 *
 * set_handler can be called again, but each call writes, makes the handler's processes end after
 * their job, and restarts a handler that idemq has stopped because of crashes.  A program that
 * declares its handler whenever it starts therefore calls ensure_handler.  This function compares
 * the handler with its arguments under the latest snapshot; if they are equal, nothing is to be
 * done.  Otherwise it locks the queue's name, as set_handler and drop_handler do, compares again,
 * and calls set_handler.
 *
 * Locks, in this order: the name of the queue, the dead-letter queue (check_dead_letter_queue), the
 * row of the queue.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "api/api.h"
#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * Checks dead_letter_queue (idemq_dead_letter_check), if it is given.  id: 0 for a new queue.  The
 * caller must not hold the queue's row yet, because this may wait for a session that drops the
 * dead-letter queue, and that session writes the rows of queues that refer to it.
 */
static void
check_dead_letter_queue(FunctionCallInfo fcinfo, const char *name, int32 id)
{
	int n = idemq_setting_arg("dead_letter_queue");

	if (PG_ARGISNULL(n))
		return;
	/* alter_queue removes the setting. */
	if (id != 0 && VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(n)) == 0)
		return;
	idemq_dead_letter_check(name, id,
							idemq_arg_text(fcinfo, n, "dead_letter_queue", IDEMQ_MAX_NAME_ARG));
}

/* Warns if a key may be forgotten while its first job still has attempts left. */
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

/* Raises 42602 if a queue cannot have this name. */
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
 * Creates a queue with the arguments of create_queue, and looks it up; the caller adds the audit
 * entry.  Returns false if there is a queue with this name.  Waits for a session that is creating
 * or declaring a queue with this name.  Raises 42602, 22004, 22023, IQ005, 42501, 53400, 25006,
 * 55000.
 */
static bool
create_queue(FunctionCallInfo fcinfo, QueueInfo *queue)
{
	char *name = idemq_arg_text(fcinfo, 0, "name", IDEMQ_MAX_QUEUE_NAME);
	Oid creator = GetUserId();
	int32 id;

	check_name(name);
	idemq_settings_check(fcinfo, true);
	idemq_jobs_check_writable();
	idemq_queue_lock_name(name);
	check_dead_letter_queue(fcinfo, name, 0);
	if (!idemq_settings_insert(fcinfo, name, &id))
		return false;
	idemq_pending_note(ACTION_CREATE_QUEUE, NULL, id);
	if (!has_privs_of_role(creator, idemq_oids()->owner))
		grant_admin(id, creator);
	/* A trigger that the DBA has added to the table may have changed or deleted the row. */
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

	if (!create_queue(fcinfo, &queue))
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

/* Returns whether a call of alter_queue contains a setting. */
static bool
is_given(FunctionCallInfo fcinfo, const char *name)
{
	return !PG_ARGISNULL(idemq_setting_arg(name));
}

/*
 * Changes a queue to the arguments of alter_queue that are not NULL, and looks it up again.  The
 * caller has checked the privilege and the arguments, and holds the row (idemq_settings_document,
 * with the same latest).  Raises 22023 for lease.
 */
static void
change_queue(FunctionCallInfo fcinfo, QueueInfo *queue, bool latest)
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
	/*
	 * Locked before the row, as in ensure_queue, so that the two do not deadlock, even in one
	 * transaction.
	 */
	idemq_queue_lock_name(queue.name);
	idemq_queue_by_name(queue.name, PRIVILEGE_ADMIN, &queue);
	check_dead_letter_queue(fcinfo, queue.name, queue.id);
	before = idemq_settings_document(queue.id, 0, false);
	if (before == (Datum) 0)
	{
		if (IsolationUsesXactSnapshot() && idemq_queue_by_id(queue.id, &queue))
			ereport(ERROR, errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					errmsg("could not serialize access due to concurrent create_queue"),
					errhint("Run the transaction again."));
		PG_RETURN_VOID(); /* dropped in the meantime */
	}
	change_queue(fcinfo, &queue, false);
	entry.details = idemq_settings_document(queue.id, before, false);
	if (entry.details != (Datum) 0)
		idemq_audit(&entry);
	PG_RETURN_VOID();
}

/* Result of ensure_queue. */
typedef struct Ensured
{
	const char *outcome;
	Datum changes; /* jsonb; 0: nothing was changed */
} Ensured;

/*
 * Returns a function of schema idemq that the role may execute.  Used by calls that create an
 * object that does not exist, which requires this privilege.  Raises 42501.
 */
Oid
idemq_ensure_may_call(const char *function, const char *what, const char *name)
{
	Oid oid = idemq_function_oid(function);
	const char *role = quote_identifier(GetUserNameFromId(GetUserId(), false));

	if (!compat_may(ProcedureRelationId, oid, GetUserId(), ACL_EXECUTE))
		ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("permission denied for function %s", function),
				errdetail("The call would %s \"%s\".", what, name),
				errhint("Ask a DBA to run GRANT EXECUTE ON FUNCTION idemq.%s TO %s.", function,
						role));
	return oid;
}

/* Raises 42501 if the declaration has changed, unless the role administers the queue. */
static void
check_may_change(const QueueInfo *queue, const DeclaredDifference *difference)
{
	if (queue->privileges & PRIVILEGE_ADMIN)
		return;
	ereport(
		ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
		errmsg("permission denied to change queue \"%s\"", queue->name),
		errdetail("These settings were last declared with other values, or not at all: %s.",
				  TextDatumGetCString(difference->new_names)),
		errhint("Ask an administrator of the queue to make this call of idemq.ensure_queue, or to "
				"run %s.",
				idemq_grant_text(queue->name, GetUserNameFromId(GetUserId(), false), "admin")));
}

/* Warns about settings that have been changed since they were declared. */
static void
warn_of_kept(const QueueInfo *queue, const DeclaredDifference *difference)
{
	if (VARSIZE_ANY_EXHDR(DatumGetTextPP(difference->kept_names)) == 0)
		return;
	ereport(WARNING,
			errmsg("settings of queue \"%s\" have been changed since they were declared: %s",
				   queue->name, TextDatumGetCString(difference->kept_names)),
			errdetail("%s.", TextDatumGetCString(difference->kept_details)),
			errhint("idemq.ensure_queue keeps such a setting until its declared value changes. Use "
					"idemq.alter_queue to set it."));
}

/* Copies a declaration. */
static void
copy_settings(FunctionCallInfo to, FunctionCallInfo from)
{
	memcpy(to, from, SizeForFunctionCallInfo(from->nargs));
}

static void
ensure_audit(const QueueInfo *queue, const Ensured *done)
{
	Datum settings = done->changes != (Datum) 0 ? done->changes
												: idemq_settings_document(queue->id, 0, true);
	char *text;

	/* A trigger that the DBA has added to the table has deleted the row. */
	if (settings == (Datum) 0)
		return;
	text = JsonbToCString(NULL, &DatumGetJsonbP(settings)->root, 0);
	idemq_audit(&(
		AuditEntry){.action = "ensure_queue",
					.queue = queue,
					.details = DirectFunctionCall1(
						jsonb_in,
						CStringGetDatum(
							psprintf("{\"outcome\": \"%s\", \"%s\": %s}", done->outcome,
									 done->changes != (Datum) 0 ? "changes" : "settings", text)))});
}

/*
 * Creates the queue.  Returns false if it exists by now, because its row was written by hand.
 * Raises 55000 if a trigger of the DBA prevents the row from being inserted.
 */
static bool
ensure_create(FunctionCallInfo settings, const char *name, Ensured *done)
{
	LOCAL_FCINFO(values, SQL_MAX_ARGS);
	QueueInfo queue;

	copy_settings(values, settings);
	idemq_declared_for_create(values);
	if (!create_queue(values, &queue))
	{
		/* Otherwise the caller would try again indefinitely. */
		if (!idemq_queue_find(name, &queue))
			ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("queue \"%s\" could not be created", name),
					errdetail("A trigger on idemq.queues did not insert the queue's row, or gave "
							  "it another name."),
					errhint("Change or drop the trigger, or use a name that it leaves as it is."));
		return false;
	}
	idemq_declared_store(settings, queue.id);
	done->outcome = "created";
	ensure_audit(&queue, done);
	return true;
}

/* Copies a declaration, but only the settings in a set of bits. */
static void
copy_some(FunctionCallInfo to, FunctionCallInfo from, int64 wanted)
{
	copy_settings(to, from);
	for (int i = 1; i < to->nargs; i++)
		to->args[i].isnull |= (wanted & (INT64CONST(1) << (i - 1))) == 0;
}

/*
 * Changes the queue to a new declaration.  Returns false if the queue no longer exists.  The
 * queue's name is locked, so the set of settings that are new cannot change in the meantime.
 */
static bool
ensure_change(FunctionCallInfo settings, QueueInfo *queue, int64 is_new, Ensured *done)
{
	LOCAL_FCINFO(values, SQL_MAX_ARGS);
	DeclaredDifference difference;
	Datum before;

	copy_some(values, settings, is_new);
	check_dead_letter_queue(values, queue->name, queue->id);
	/* Locks the row, so that no setting changes after the comparison. */
	before = idemq_settings_document(queue->id, 0, true);
	if (before == (Datum) 0 || !idemq_declared_compare(settings, queue->id, &difference))
		return false;
	copy_some(values, settings, difference.is_new & difference.differs);
	if ((difference.is_new & difference.differs) != 0)
		change_queue(values, queue, true);
	idemq_declared_store(settings, queue->id);
	done->outcome = "changed";
	done->changes = idemq_settings_document(queue->id, before, true);
	if (done->changes == (Datum) 0)
		done->changes = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));
	ensure_audit(queue, done);
	warn_of_kept(queue, &difference);
	return true;
}

/*
 * Applies a declaration.  Returns false if the caller must start again, because the queue's name is
 * locked now, or because the queue was created or dropped in the meantime.
 */
static bool
ensure_queue(FunctionCallInfo settings, const char *name, bool is_locked, Ensured *done)
{
	DeclaredDifference difference;
	QueueInfo queue;
	bool found = idemq_queue_find(name, &queue);

	if (!found)
		(void) idemq_ensure_may_call("create_queue", "create the queue", name);
	else if (queue.privileges == 0)
		idemq_queue_denied(name, PRIVILEGE_ALL);
	idemq_settings_check(settings, false);
	if (found)
	{
		if (!idemq_declared_compare(settings, queue.id, &difference))
			return false;
		if (difference.is_new == 0)
		{
			done->outcome = "unchanged";
			warn_of_kept(&queue, &difference);
			return true;
		}
		check_may_change(&queue, &difference);
	}
	idemq_jobs_check_writable();
	if (!is_locked)
	{
		idemq_queue_lock_name(name);
		return false;
	}
	return found ? ensure_change(settings, &queue, difference.is_new, done)
				 : ensure_create(settings, name, done);
}

/*
 * ensure_queue(name, exact, settings ...) -> outcome, changes; 42602, 22004, 22023, IQ005, 42501,
 * 53400, 25006, 40001, 55000.
 */
SQL_FUNCTION(idemq_sql_ensure_queue)
{
	LOCAL_FCINFO(settings, SQL_MAX_ARGS);
	char *name = idemq_arg_text(fcinfo, 0, "name", IDEMQ_MAX_NAME_ARG);
	bool exact = idemq_arg_bool(fcinfo, 1, "exact");
	Ensured done = {0};
	Datum values[2];
	bool nulls[2];

	InitFunctionCallInfoData(*settings, fcinfo->flinfo, PG_NARGS() - 1, fcinfo->fncollation, NULL,
							 NULL);
	settings->args[0] = fcinfo->args[0];
	memcpy(&settings->args[1], &fcinfo->args[2], (PG_NARGS() - 2) * sizeof(NullableDatum));
	if (exact)
		idemq_declared_name_all(settings);
	for (bool is_locked = false; !ensure_queue(settings, name, is_locked, &done); is_locked = true)
		CHECK_FOR_INTERRUPTS();
	values[0] = CStringGetTextDatum(done.outcome);
	values[1] = done.changes;
	nulls[0] = false;
	nulls[1] = done.changes == (Datum) 0;
	return idemq_row_datum(fcinfo, values, nulls);
}

typedef struct HandlerDifference
{
	Datum changes; /* jsonb */
	bool is_same;
	bool is_stopped;
} HandlerDifference;

/*
 * $1: queue, $2: function, $3: role, $4: workers, $5: batch, $6: max_idle.  If the name of a role now
 * belongs to another role, or to none, it is shown as null.
 */
static SqlStatement compare_handler =
	{.few = true,
	 .text =
		 "SELECT (SELECT coalesce(jsonb_object_agg(key, jsonb_build_object('from', o.value, 'to', "
		 "n.value)), '{}') FROM jsonb_each(before) o JOIN jsonb_each(wanted) n USING (key) "
		 "WHERE o.value <> n.value), before = wanted, stopped_at IS NOT NULL "
		 "FROM idemq_internal.handler_entries h CROSS JOIN LATERAL (SELECT jsonb_build_object("
		 "'function', format('%I.%I(%s)', schema_name, function_name, argument_types), "
		 "'owner', (SELECT rolname FROM pg_roles WHERE rolname = owner_name "
		 "AND (owner_oid IS NULL OR oid = owner_oid)), "
		 "'role', (SELECT rolname FROM pg_roles WHERE rolname = role_name "
		 "AND (role_oid IS NULL OR oid = role_oid)), "
		 "'workers', workers, 'batch', batch, 'max_idle', max_idle) AS before, "
		 "(SELECT jsonb_build_object('function', format('%I.%I(jsonb)', nspname, proname), "
		 "'owner', pg_get_userbyid(proowner), 'role', pg_get_userbyid($3), "
		 "'workers', $4, 'batch', $5, "
		 "'max_idle', CASE WHEN max_idle = $6 THEN max_idle ELSE $6 END) "
		 "FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace "
		 "WHERE p.oid = $2 AND proargtypes::text = '3802') AS wanted) d WHERE queue_id = $1",
	 .types = {INT4OID, OIDOID, OIDOID, INT4OID, INT4OID, INTERVALOID},
	 .fields = (const SqlField[]){SQL_FIELD(HandlerDifference, changes),
								  SQL_FIELD(HandlerDifference, is_same),
								  SQL_FIELD(HandlerDifference, is_stopped)}};

/* Returns the function that an argument of set_handler names; 0 if there is none. */
static Datum
find_function(const char *name)
{
	LOCAL_FCINFO(call, 1);
	const char *signature = strchr(name, '(') != NULL ? name : psprintf("%s(jsonb)", name);
	Datum found;

	InitFunctionCallInfoData(*call, NULL, 1, DEFAULT_COLLATION_OID, NULL, NULL);
	call->args[0].value = CStringGetTextDatum(signature);
	call->args[0].isnull = false;
	found = to_regprocedure(call);
	return call->isnull ? ObjectIdGetDatum(InvalidOid) : found;
}

/* Compares the handler of a queue with the arguments; returns false if the queue has no handler. */
static bool
ensure_handler_compare(FunctionCallInfo fcinfo, int32 queue_id, HandlerDifference *difference)
{
	Datum values[] = {Int32GetDatum(queue_id),
					  find_function(idemq_arg_text(fcinfo, 1, "function", 1000)),
					  ObjectIdGetDatum(GetUserId()),
					  PG_GETARG_DATUM(2),
					  PG_GETARG_DATUM(3),
					  PG_GETARG_DATUM(4)};

	return idemq_spi_row(&compare_handler, values, difference, sizeof(*difference));
}

/* Returns the result row, and warns if the handler is not running. */
static Datum
ensure_handler_answer(FunctionCallInfo fcinfo, const char *outcome, const char *queue,
					  const HandlerDifference *difference)
{
	bool is_changed = strcmp(outcome, "changed") == 0;
	Datum values[] = {CStringGetTextDatum(outcome), difference->changes};
	bool nulls[] = {false, !is_changed};

	if (difference->is_stopped && !is_changed)
		ereport(WARNING, errmsg("handler of queue \"%s\" is stopped", queue),
				errdetail(
					"The server crashed three times in a row while the handler was running jobs."),
				errhint("Fix the cause, then call idemq.set_handler to start the handler."));
	return idemq_row_datum(fcinfo, values, nulls);
}

/*
 * ensure_handler(queue, function, workers, batch, max_idle) -> outcome, changes; what set_handler
 * raises, and 25006, 42501, IQ005.
 */
SQL_FUNCTION(idemq_sql_ensure_handler)
{
	HandlerDifference difference;
	QueueInfo queue;
	bool found;
	Oid setter;

	idemq_queue_arg(fcinfo, 0, "queue", PRIVILEGE_ALL, &queue);
	idemq_arg_required(fcinfo, 2, "workers");
	idemq_arg_required(fcinfo, 3, "batch");
	idemq_arg_required(fcinfo, 4, "max_idle");
	if (ensure_handler_compare(fcinfo, queue.id, &difference) && difference.is_same)
		return ensure_handler_answer(fcinfo, "unchanged", queue.name, &difference);
	setter = idemq_ensure_may_call("set_handler", "set the handler of queue", queue.name);
	idemq_jobs_check_writable();
	idemq_queue_lock_name(queue.name);
	idemq_queue_by_name(queue.name, PRIVILEGE_ALL, &queue);
	found = ensure_handler_compare(fcinfo, queue.id, &difference);
	if (found && difference.is_same)
		return ensure_handler_answer(fcinfo, "unchanged", queue.name, &difference);
	(void) OidFunctionCall5(setter, PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), PG_GETARG_DATUM(2),
							PG_GETARG_DATUM(3), PG_GETARG_DATUM(4));
	return ensure_handler_answer(fcinfo, found ? "changed" : "created", queue.name, &difference);
}

/* $1: queue, $2: schema, $3: function, $4: its owner, $5: role, $6: workers, $7: batch, $8: max_idle. */
static SqlStatement put_handler =
	{.latest = true,
	 .text =
		 "INSERT INTO idemq_internal.handler_entries AS h (queue_id, schema_name, function_name, "
		 "argument_types, owner_name, role_name, workers, batch, max_idle, set_at) "
		 "VALUES ($1, $2, $3, 'jsonb', $4, $5, $6, $7, $8, idemq.clock_timestamp()) "
		 "ON CONFLICT ON CONSTRAINT handler_entries_pkey DO UPDATE SET "
		 "schema_name = excluded.schema_name, function_name = excluded.function_name, "
		 "argument_types = excluded.argument_types, owner_name = excluded.owner_name, "
		 "role_name = excluded.role_name, workers = excluded.workers, batch = excluded.batch, "
		 "max_idle = excluded.max_idle, set_at = excluded.set_at, "
		 "crashes = 0, crashed_at = NULL, stopped_at = NULL "
		 "WHERE idemq_internal.may_change(h)",
	 .types = {INT4OID, NAMEOID, NAMEOID, NAMEOID, NAMEOID, INT4OID, INT4OID, INTERVALOID}};

/*
 * put_handler(queue_id, schema, function, owner, role, workers, batch, max_idle) -> whether the caller
 * may change the queue's handler; then it is set.  The caller has locked the queue's name, so at each
 * isolation level it replaces the latest handler.  40001 if a session writes the row by hand.
 */
SQL_FUNCTION(idemq_sql_internal_put_handler)
{
	Datum values[8];

	(void) idemq_wrapper_caller();
	for (int i = 0; i < (int) lengthof(values); i++)
		values[i] = PG_GETARG_DATUM(i);
	PG_RETURN_BOOL(idemq_spi_do(&put_handler, values, NULL) > 0);
}
