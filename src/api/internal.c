/*
 * api/internal.c
 *		C functions that the implementations of wrappers call (api/wrapper.c); in schema
 *		idemq_internal.
 *
 * Each raises 55000 outside a wrapper's call.  A function that checks rights, or writes who did
 * something, does so as the role that has called.  Arguments come from idemq's own SQL and are
 * not checked, except value and name, which are the caller's.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "table/table.h"
#include "txn/txn.h"

/* caller() -> the role that called the wrapper. */
SQL_FUNCTION(idemq_sql_internal_caller)
{
	PG_RETURN_OID(idemq_wrapper_caller());
}

/* now() -> idemq_now(). */
SQL_FUNCTION(idemq_sql_internal_now)
{
	(void) idemq_wrapper_caller();
	PG_RETURN_TIMESTAMPTZ(idemq_now());
}

/* given(name, value) -> void; 22004 for NULL. */
SQL_FUNCTION(idemq_sql_internal_given)
{
	(void) idemq_wrapper_caller();
	idemq_arg_required(fcinfo, 1, TextDatumGetCString(PG_GETARG_DATUM(0)));
	PG_RETURN_VOID();
}

/* check_text(name, value, most bytes) -> void; 22004, 22023. */
SQL_FUNCTION(idemq_sql_internal_check_text)
{
	(void) idemq_wrapper_caller();
	(void) idemq_arg_text(fcinfo, 1, TextDatumGetCString(PG_GETARG_DATUM(0)), PG_GETARG_INT32(2));
	PG_RETURN_VOID();
}

/* check_int(name, value, lowest, highest) -> void; 22004, 22023. */
SQL_FUNCTION(idemq_sql_internal_check_int)
{
	(void) idemq_wrapper_caller();
	(void) idemq_arg_int(fcinfo, 1, TextDatumGetCString(PG_GETARG_DATUM(0)), PG_GETARG_INT32(2),
						 PG_GETARG_INT32(3));
	PG_RETURN_VOID();
}

/* check_interval(name, value, lowest us) -> void; 22004, 22023. */
SQL_FUNCTION(idemq_sql_internal_check_interval)
{
	(void) idemq_wrapper_caller();
	(void) idemq_arg_interval(fcinfo, 1, TextDatumGetCString(PG_GETARG_DATUM(0)),
							  PG_GETARG_INT32(2));
	PG_RETURN_VOID();
}

/* check_ids(name, value) -> void; 22004, 22023. */
SQL_FUNCTION(idemq_sql_internal_check_ids)
{
	ArrayArg ids;

	(void) idemq_wrapper_caller();
	idemq_arg_array(fcinfo, 1, TextDatumGetCString(PG_GETARG_DATUM(0)), INT8OID, false, &ids);
	PG_RETURN_VOID();
}

/* end_waits(pids) -> void; 22004, 22023; as idemq_end_waits_arg. */
SQL_FUNCTION(idemq_sql_internal_end_waits)
{
	(void) idemq_wrapper_caller();
	idemq_end_waits_arg(fcinfo, 0);
	PG_RETURN_VOID();
}

/*
 * mark_cancels(queue_id) -> void: tells the workers of the queue's running jobs that this transaction
 * ends their attempts.
 */
SQL_FUNCTION(idemq_sql_internal_mark_cancels)
{
	int32 queue_id = PG_GETARG_INT32(0);
	int count;
	Lease *leases;

	(void) idemq_wrapper_caller();
	leases = idemq_lease_copy_all(&count);
	for (int i = 0; i < count; i++)
	{
		if (leases[i].queue_id == queue_id && !leases[i].claiming)
			idemq_pending_note_cancel(queue_id, leases[i].key.job_id, leases[i].token, true);
	}
	PG_RETURN_VOID();
}

/* check_document(name, value, reserve) -> void; 22004, 54000; reserve: bytes that will be added. */
SQL_FUNCTION(idemq_sql_internal_check_document)
{
	char *name;

	(void) idemq_wrapper_caller();
	name = TextDatumGetCString(PG_GETARG_DATUM(0));
	idemq_arg_required(fcinfo, 1, name);
	idemq_check_document(name, PG_GETARG_DATUM(1), PG_GETARG_INT32(2));
	PG_RETURN_VOID();
}

/* check_kind(value) -> void; 22023. */
SQL_FUNCTION(idemq_sql_internal_check_kind)
{
	(void) idemq_wrapper_caller();
	idemq_check_kind(VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/* raise_message(is a warning, message, hint, detail) -> void; hint and detail may be NULL. */
SQL_FUNCTION(idemq_sql_internal_raise_message)
{
	(void) idemq_wrapper_caller(); /* raises an error outside a wrapper's call */
	idemq_wrapper_report(PG_GETARG_BOOL(0) ? WARNING : NOTICE,
						 TextDatumGetCString(PG_GETARG_DATUM(1)),
						 PG_ARGISNULL(3) ? NULL : TextDatumGetCString(PG_GETARG_DATUM(3)),
						 PG_ARGISNULL(2) ? NULL : TextDatumGetCString(PG_GETARG_DATUM(2)));
	PG_RETURN_VOID();
}

/* Returns the QueuePrivilege bits for the name of a privilege. */
static int
internal_privileges_named(const char *word)
{
	return strcmp(word, "enqueue") == 0	 ? PRIVILEGE_ENQUEUE
		   : strcmp(word, "claim") == 0	 ? PRIVILEGE_CLAIM
		   : strcmp(word, "change") == 0 ? PRIVILEGE_CHANGE
										 : PRIVILEGE_ADMIN;
}

/* Returns a queue's id if the caller has the privilege; locks the queue as hold says. */
static int32
open_queue(FunctionCallInfo fcinfo, const char *privilege, const char *hold, const char *argument)
{
	LOCKMODE mode = strcmp(hold, "exclusive") == 0 ? AccessExclusiveLock : AccessShareLock;
	int wanted = internal_privileges_named(privilege);
	bool is_named = strcmp(hold, "name") == 0;
	QueueInfo queue;

	if (strcmp(privilege, "any") == 0)
	{
		/* The names of queues are not secret, so no privilege is needed to look one up. */
		if (!idemq_queue_find(idemq_arg_text(fcinfo, 0, argument, IDEMQ_MAX_NAME_ARG), &queue))
			idemq_queue_arg(fcinfo, 0, argument, wanted, &queue);
		return queue.id;
	}
	idemq_queue_arg(fcinfo, 0, argument, wanted, &queue);
	if (is_named || mode == AccessExclusiveLock)
		idemq_queue_lock_name(queue.name);
	if (strcmp(hold, "") != 0)
		idemq_queue_hold(&queue, wanted, mode);
	if (is_named || strcmp(hold, "keep") == 0)
		idemq_queue_keep(&queue, is_named);
	return queue.id;
}

/*
 * queue(name, privilege, hold, argument) -> its id; IQ005, 42501, 22004, 22023.
 *
 * privilege: enqueue, claim or admin; change: enqueue or admin; any: none is required, and hold is
 * ignored.
 *
 * hold, until the end of the transaction: '': no lock; share: the queue cannot be dropped; keep: in
 * addition, its row cannot be deleted; name: like keep, even if the row is newer than the snapshot,
 * and the name is locked (idemq_queue_lock_name); exclusive: no other session holds the queue, and
 * the name is locked.
 *
 * argument: the name of the caller's argument, for messages.
 */
SQL_FUNCTION(idemq_sql_internal_queue)
{
	int level = idemq_wrapper_become_caller();
	int32 id = open_queue(fcinfo, TextDatumGetCString(PG_GETARG_DATUM(1)),
						  TextDatumGetCString(PG_GETARG_DATUM(2)),
						  TextDatumGetCString(PG_GETARG_DATUM(3)));

	idemq_wrapper_become_owner(level);
	PG_RETURN_INT32(id);
}

/*
 * try_share_queue(queue_id) -> false if a session is dropping the queue; otherwise the queue cannot
 * be dropped until the end of the transaction.  Never waits.
 */
SQL_FUNCTION(idemq_sql_internal_try_share_queue)
{
	(void) idemq_wrapper_caller();
	PG_RETURN_BOOL(idemq_queue_try_lock(PG_GETARG_INT32(0), AccessShareLock));
}

/*
 * tick_key(queue_id, key) -> void: the next tick is enqueued with this key; queue_id 0: ends this.
 */
SQL_FUNCTION(idemq_sql_internal_tick_key)
{
	text *key;

	(void) idemq_wrapper_caller();
	key = PG_GETARG_TEXT_PP(1);
	idemq_tick_key_own(PG_GETARG_INT32(0), VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	PG_RETURN_VOID();
}

/* worker_comes() -> whether this database has a background worker, or will have one. */
SQL_FUNCTION(idemq_sql_internal_worker_comes)
{
	(void) idemq_wrapper_caller();
	PG_RETURN_BOOL(idemq_worker_comes());
}

/* role_may(role, queue_id, privilege) -> whether it may; false for no role, or no such queue. */
SQL_FUNCTION(idemq_sql_internal_role_may)
{
	QueueInfo queue;

	(void) idemq_wrapper_caller();
	PG_RETURN_BOOL(
		!PG_ARGISNULL(0) &&
		idemq_queue_allows_role(PG_GETARG_INT32(1), PG_GETARG_OID(0),
								internal_privileges_named(TextDatumGetCString(PG_GETARG_DATUM(2))),
								&queue));
}

/* role_of(name, oid) -> the role that a row refers to; NULL if that role no longer exists. */
SQL_FUNCTION(idemq_sql_internal_role_of)
{
	Oid role;

	(void) idemq_wrapper_caller();
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	role =
		idemq_role_of(NameStr(*PG_GETARG_NAME(0)), PG_ARGISNULL(1) ? InvalidOid : PG_GETARG_OID(1));
	if (!OidIsValid(role))
		PG_RETURN_NULL();
	PG_RETURN_OID(role);
}

/*
 * lock_role(role, what) -> its name; locks its grants or its schedules until the end of the
 * transaction; 42704.
 */
SQL_FUNCTION(idemq_sql_internal_lock_role)
{
	Oid role = PG_GETARG_OID(0);
	Name name = palloc(sizeof(NameData));

	(void) idemq_wrapper_caller();
	namestrcpy(name, GetUserNameFromId(role, false));
	idemq_role_lock(role, strcmp(TextDatumGetCString(PG_GETARG_DATUM(1)), "schedules") == 0
							  ? ROLE_LOCK_SCHEDULES
							  : ROLE_LOCK_GRANTS);
	PG_RETURN_NAME(name);
}

/*
 * settle_usage(role) -> void: grants USAGE on schema idemq to a role if it needs it, and otherwise
 * revokes it.  The caller holds the role's lock.
 */
SQL_FUNCTION(idemq_sql_internal_settle_usage)
{
	(void) idemq_wrapper_caller();
	idemq_usage_settle(PG_GETARG_OID(0));
	PG_RETURN_VOID();
}

/*
 * deletable(queue_id, ids, hold) -> those of the queue's jobs that may be deleted together.
 * table/jobs_deletable.c says what must be locked before, and what hold locks.
 */
SQL_FUNCTION(idemq_sql_internal_deletable)
{
	QueueInfo queue;
	QueueState *qstate;
	Datum *values;
	int64 *ids;
	int count;

	(void) idemq_wrapper_caller();
	qstate = idemq_queue_by_id(PG_GETARG_INT32(0), &queue) ? queue.qstate : NULL;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &values, NULL, &count);
	ids = palloc(Max(count, 1) * sizeof(int64));
	for (int i = 0; i < count; i++)
		ids[i] = DatumGetInt64(values[i]);
	count = idemq_jobs_deletable(qstate, ids, count, PG_GETARG_BOOL(2), true);
	IDEMQ_STOP("idemq_sql_internal_deletable");
	PG_RETURN_DATUM(idemq_int8_array(ids, count));
}

/* forget_queue(queue_id) -> void: frees the queue's shared memory when its deletion commits. */
SQL_FUNCTION(idemq_sql_internal_forget_queue)
{
	(void) idemq_wrapper_caller();
	idemq_pending_note(ACTION_DROP_QUEUE, NULL, PG_GETARG_INT32(0));
	PG_RETURN_VOID();
}

/* wake_queue(queue_id) -> void: after the commit, wakes the sessions that wait for its jobs. */
SQL_FUNCTION(idemq_sql_internal_wake_queue)
{
	(void) idemq_wrapper_caller();
	idemq_pending_note(ACTION_RESUME, NULL, PG_GETARG_INT32(0));
	PG_RETURN_VOID();
}

/* pause_group(queue_id, group) -> void: blocks the claimable jobs of a newly paused group. */
SQL_FUNCTION(idemq_sql_internal_pause_group)
{
	QueueInfo queue;
	JobsTable table;

	(void) idemq_wrapper_caller();
	if (!idemq_queue_by_id(PG_GETARG_INT32(0), &queue))
		PG_RETURN_VOID(); /* cannot happen, because the caller has locked the queue's row */
	idemq_jobs_open(&table);
	(void) idemq_group_pause_block(&table, &queue, PG_GETARG_DATUM(1), DT_NOBEGIN, PG_INT32_MAX);
	idemq_jobs_close(&table);
	PG_RETURN_VOID();
}

/* handler_refusal(queue_id) -> why its handler cannot run; NULL: it can; 53400. */
SQL_FUNCTION(idemq_sql_internal_handler_refusal)
{
	HandlerInfo handler;
	HandlerTarget target;
	QueueInfo queue;
	char *why = NULL;

	(void) idemq_wrapper_caller();
	if (idemq_queue_by_id(PG_GETARG_INT32(0), &queue))
		idemq_queue_need_qstate(&queue);
	if (idemq_handler_read(PG_GETARG_INT32(0), &handler))
		why = idemq_handler_resolve(&handler, &target);
	if (why == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(why));
}

/*
 * audit(action, queue_id, queue, details, job_id, jobs) -> void: adds an audit entry.  NULL means
 * unknown; queue_id 0 means that the entry does not belong to a queue.
 */
SQL_FUNCTION(idemq_sql_internal_audit)
{
	int level = idemq_wrapper_become_caller();
	QueueInfo queue = {.id = PG_GETARG_INT32(1)};
	AuditEntry entry = {.action = TextDatumGetCString(PG_GETARG_DATUM(0)),
						.queue = &queue,
						.job_id = PG_ARGISNULL(4) ? 0 : PG_GETARG_INT64(4),
						.jobs = PG_ARGISNULL(5) ? 0 : PG_GETARG_INT64(5),
						.details = PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3)};

	strlcpy(queue.name, TextDatumGetCString(PG_GETARG_DATUM(2)), sizeof(queue.name));
	idemq_audit(&entry);
	idemq_wrapper_become_owner(level);
	PG_RETURN_VOID();
}

/* Returns the statement of a query and the types of its arguments; keeps it for the session. */
static SqlStatement *
kept_statement(FunctionCallInfo fcinfo, int first)
{
	static List *kept = NIL;
	char *query = TextDatumGetCString(PG_GETARG_DATUM(first));
	MemoryContext old;
	SqlStatement *statement;
	ListCell *lc;

	foreach(lc, kept)
	{
		statement = lfirst(lc);
		if (strcmp(statement->text, query) == 0)
			return statement;
	}
	old = MemoryContextSwitchTo(TopMemoryContext);
	statement = palloc0(sizeof(SqlStatement));
	statement->text = pstrdup(query);
	statement->nargs = PG_NARGS() - first - 1;
	for (int i = 0; i < statement->nargs; i++)
		statement->types[i] = get_fn_expr_argtype(fcinfo->flinfo, first + 1 + i);
	kept = lappend(kept, statement);
	MemoryContextSwitchTo(old);
	return statement;
}

/*
 * Runs the query in argument first, with the following arguments as its parameters; returns its
 * rows as a set.
 */
static void
run_query(FunctionCallInfo fcinfo, int first, bool latest)
{
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	SqlStatement *statement = kept_statement(fcinfo, first);
	Datum values[SQL_MAX_ARGS];
	char nulls[SQL_MAX_ARGS + 1];
	MemoryContext old;
	uint64 rows;

	for (int i = 0; i < statement->nargs; i++)
	{
		values[i] = PG_GETARG_DATUM(first + 1 + i);
		nulls[i] = PG_ARGISNULL(first + 1 + i) ? 'n' : ' ';
	}
	SPI_connect();
	rows = latest ? idemq_spi_query_latest(statement, values, nulls)
				  : idemq_spi_run(statement, values, nulls);
	for (uint64 i = 0; i < rows; i++)
		tuplestore_puttuple(set->setResult, SPI_tuptable->vals[i]);
	/* The executor compares this with the columns that the caller has declared. */
	old = MemoryContextSwitchTo(set->econtext->ecxt_per_query_memory);
	set->setDesc = CreateTupleDescCopy(SPI_tuptable->tupdesc);
	MemoryContextSwitchTo(old);
	SPI_finish();
}

/*
 * latest(query, args ...) -> its rows under the latest snapshot, as the owner; it must not write.
 */
SQL_FUNCTION(idemq_sql_internal_latest)
{
	(void) idemq_wrapper_caller();
	run_query(fcinfo, 0, true);
	return (Datum) 0;
}

/* as_caller(query, args ...) -> its rows, as the role that called the wrapper; it may write. */
SQL_FUNCTION(idemq_sql_internal_as_caller)
{
	int level = idemq_wrapper_become_caller();

	run_query(fcinfo, 0, false);
	idemq_wrapper_become_owner(level);
	return (Datum) 0;
}

/* as_role(role, query, args ...) -> its rows, as another role; it may write. */
SQL_FUNCTION(idemq_sql_internal_as_role)
{
	int level;

	(void) idemq_wrapper_caller();
	level = idemq_wrapper_become(PG_GETARG_OID(0));
	run_query(fcinfo, 1, false);
	idemq_wrapper_become_owner(level);
	return (Datum) 0;
}
