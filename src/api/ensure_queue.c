/*
 * api/ensure_queue.c
 *		SQL function ensure_queue: declares a queue.
 *
 * Each call names settings.  A call is unchanged if the queue exists, and all settings that it names
 * were last declared with the same values (queue/declared.c).  The queue's current settings do not
 * count: a setting that a DBA has changed since then with alter_queue stays, and a WARNING names it.
 * An unchanged call only reads the queue's row.  It takes no other lock, and works in a read-only
 * transaction, on a standby and in a follower.
 *
 * Any other call writes: it creates the queue as create_queue does, or changes, as alter_queue does,
 * those of the newly declared settings that the queue does not have yet, and stores the declaration.
 * It first locks the queue's name, as create_queue, alter_queue and drop_queue do too, and looks again
 * under the latest snapshot.  So of two calls that create a queue at once, the second finds the queue
 * of the first, at every isolation level, or creates it if the first rolls back.  Locks, in this order:
 * the name, the dead-letter queue (idemq_check_dead_letter_queue), the row of the queue.  Above
 * READ COMMITTED, the call raises 40001 if it waits for another change of the row (pause, resume).
 *
 * Pauses, holds and grants are not settings, so they stay.
 */
#include "postgres.h"

#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "api/api.h"
#include "base/base.h"
#include "base/compat.h"
#include "queue/queue.h"
#include "table/table.h"

/* What a call has done. */
typedef struct Ensured
{
	const char *outcome;
	Datum changes; /* jsonb; 0 unless something was changed */
} Ensured;

/*
 * Returns a function of schema idemq that the role may execute, for a call that makes something which
 * does not exist.  Raises 42501.
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

/* Raises 42501 unless the role administers a queue whose declaration is another than the last. */
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

/* Warns of settings that have been changed since they were declared. */
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
audit(const QueueInfo *queue, const Ensured *done)
{
	Datum settings = done->changes != (Datum) 0 ? done->changes
												: idemq_settings_document(queue->id, 0, true);
	char *text;

	/* A trigger that the DBA has put on the table has deleted the row. */
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
 * Raises 55000 if a trigger that the DBA has put on the table keeps the row out.
 */
static bool
create(FunctionCallInfo settings, const char *name, Ensured *done)
{
	LOCAL_FCINFO(values, SQL_MAX_ARGS);
	QueueInfo queue;

	copy_settings(values, settings);
	idemq_declared_for_create(values);
	if (!idemq_create_queue(values, &queue))
	{
		/* The caller would look again indefinitely. */
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
	audit(&queue, done);
	return true;
}

/* Copies a declaration, without the settings that are not in a set of bits. */
static void
copy_some(FunctionCallInfo to, FunctionCallInfo from, int64 wanted)
{
	copy_settings(to, from);
	for (int i = 1; i < to->nargs; i++)
		to->args[i].isnull |= (wanted & (INT64CONST(1) << (i - 1))) == 0;
}

/*
 * Changes the queue to a new declaration.  Returns false if the queue no longer exists.  Which of its
 * settings are new cannot change meanwhile, because the queue's name is locked.
 */
static bool
change(FunctionCallInfo settings, QueueInfo *queue, int64 is_new, Ensured *done)
{
	LOCAL_FCINFO(values, SQL_MAX_ARGS);
	DeclaredDifference difference;
	Datum before;

	copy_some(values, settings, is_new);
	idemq_check_dead_letter_queue(values, queue->name, queue->id);
	/* Locks the row, so that no setting changes after the comparison. */
	before = idemq_settings_document(queue->id, 0, true);
	if (before == (Datum) 0 || !idemq_declared_compare(settings, queue->id, &difference))
		return false;
	copy_some(values, settings, difference.is_new & difference.differs);
	if ((difference.is_new & difference.differs) != 0)
		idemq_change_queue(values, queue, true);
	idemq_declared_store(settings, queue->id);
	done->outcome = "changed";
	done->changes = idemq_settings_document(queue->id, before, true);
	if (done->changes == (Datum) 0)
		done->changes = DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));
	audit(queue, done);
	warn_of_kept(queue, &difference);
	return true;
}

/*
 * Carries out a declaration.  Returns false if the caller must look again, because the queue's name is
 * locked now, or because the queue was created or dropped in between.
 */
static bool
ensure(FunctionCallInfo settings, const char *name, bool is_locked, Ensured *done)
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
	return found ? change(settings, &queue, difference.is_new, done) : create(settings, name, done);
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
	for (bool is_locked = false; !ensure(settings, name, is_locked, &done); is_locked = true)
		CHECK_FOR_INTERRUPTS();
	values[0] = CStringGetTextDatum(done.outcome);
	values[1] = done.changes;
	nulls[0] = false;
	nulls[1] = done.changes == (Datum) 0;
	return idemq_row_datum(fcinfo, values, nulls);
}
