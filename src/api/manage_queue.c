/*
 * api/manage_queue.c
 *		SQL functions about queues: drop_queue, pause, resume, purge, grant_queue,
 *		revoke_queue.  (create_queue, alter_queue: api/create_queue.c)
 *
 * They write idemq.queues and idemq.queue_grants through SQL; the triggers there
 * tell every backend.  create_queue is the DBA's to grant; the others ask for
 * the queue's admin privilege.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "api/manage_queue.h"
#include "table/jobs.h"
#include "txn/pending.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/oids.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_drop_queue);
PG_FUNCTION_INFO_V1(idemq_sql_pause);
PG_FUNCTION_INFO_V1(idemq_sql_resume);
PG_FUNCTION_INFO_V1(idemq_sql_purge);
PG_FUNCTION_INFO_V1(idemq_sql_grant_queue);
PG_FUNCTION_INFO_V1(idemq_sql_revoke_queue);

static SqlStatement count_unfinished =
	{.text = "SELECT count(*) FROM idemq.jobs WHERE queue_id = $1 AND finished_at IS NULL",
	 .nargs = 1,
	 .types = {INT4OID}};
static SqlStatement delete_jobs = {.text = "DELETE FROM idemq.jobs WHERE queue_id = $1",
								   .nargs = 1,
								   .types = {INT4OID}};
static SqlStatement delete_attempts = {.text = "DELETE FROM idemq.attempts WHERE queue_id = $1",
									   .nargs = 1,
									   .types = {INT4OID}};
static SqlStatement delete_queue = {.text = "DELETE FROM idemq.queues WHERE queue_id = $1",
									.nargs = 1,
									.types = {INT4OID}};
static SqlStatement any_job = {.text = "SELECT FROM idemq.jobs WHERE queue_id = $1 LIMIT 1",
							   .nargs = 1,
							   .types = {INT4OID}};
static SqlStatement users_of_dead_queue =
	{.text = "SELECT string_agg(quote_ident(name), ', ' ORDER BY name) FROM idemq.queues "
			 "WHERE dead_queue = $1 AND name <> $1",
	 .nargs = 1,
	 .types = {TEXTOID}};
static SqlStatement forget_dead_queue =
	{.text = "UPDATE idemq.queues SET dead_queue = NULL WHERE dead_queue = $1",
	 .nargs = 1,
	 .types = {TEXTOID}};
static SqlStatement set_paused = {.text = "UPDATE idemq.queues SET paused = $2 WHERE queue_id = $1",
								  .nargs = 2,
								  .types = {INT4OID, BOOLOID}};

/* Waits for nobody's row: whoever holds one may be about to wait for ours. */
static SqlStatement purge_jobs =
	{.text = "WITH free AS MATERIALIZED (SELECT id FROM idemq.jobs WHERE queue_id = $1 "
			 "AND status <> 'processing' AND ($2 IS NULL OR status::text = $2) "
			 "FOR UPDATE SKIP LOCKED), "
			 "gone AS (DELETE FROM idemq.jobs j USING free WHERE j.id = free.id RETURNING j.id), "
			 "history AS (DELETE FROM idemq.attempts a USING gone WHERE a.job_id = gone.id) "
			 "SELECT count(*) FROM gone",
	 .nargs = 2,
	 .types = {INT4OID, TEXTOID}};

static SqlStatement add_grant =
	{.text = "INSERT INTO idemq.queue_grants (queue_id, role_name, privilege) VALUES ($1, $2, $3) "
			 "ON CONFLICT DO NOTHING",
	 .nargs = 3,
	 .types = {INT4OID, NAMEOID, TEXTOID}};
static SqlStatement remove_grant =
	{.text =
		 "DELETE FROM idemq.queue_grants WHERE queue_id = $1 AND role_name = $2 AND privilege = $3",
	 .nargs = 3,
	 .types = {INT4OID, NAMEOID, TEXTOID}};

/* Looks up the queue of argument name, of which the current role must be an administrator. */
void
idemq_arg_admin_queue(FunctionCallInfo fcinfo, QueueInfo *queue)
{
	idemq_queue_by_name(idemq_arg_text(fcinfo, 0, "name", IDEMQ_MAX_NAME_ARG), PRIVILEGE_ADMIN,
						queue);
}

/*
 * Takes a queue away as dead_queue of others; without force raises 2BP01 when it is
 * one.  The queue is locked against being made one meanwhile.
 */
static void
release_dead_queue(const QueueInfo *queue, bool force)
{
	Datum name = CStringGetTextDatum(queue->name);
	bool none;
	Datum users;

	(void) idemq_sql_query_latest(&users_of_dead_queue, &name, NULL);
	users = idemq_sql_value(0, 1, &none);
	if (none)
		return;
	if (!force)
		ereport(ERROR, (errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
						errmsg("queue \"%s\" is the dead_queue of others", queue->name),
						errdetail("Of %s.", TextDatumGetCString(users)),
						errhint("Take it away with idemq.alter_queue(..., dead_queue => ''), or "
								"use force => true.")));
	(void) idemq_sql_run(&forget_dead_queue, &name, NULL, SPI_OK_UPDATE);
}

/* drop_queue(name, force) -> void; IQ005, 42501, 55006 with unfinished jobs, 2BP01. */
Datum
idemq_sql_drop_queue(PG_FUNCTION_ARGS)
{
	bool force = idemq_arg_bool(fcinfo, 1, "force");
	QueueInfo queue;
	SqlScope scope;
	Datum id;
	int64 unfinished;
	bool isnull;

	idemq_jobs_check_writable();
	idemq_arg_admin_queue(fcinfo, &queue);
	idemq_queue_lock(queue.id, AccessExclusiveLock);
	idemq_arg_admin_queue(fcinfo, &queue);
	id = Int32GetDatum(queue.id);
	idemq_sql_begin_on_jobs(&scope);
	(void) idemq_sql_query_latest(&count_unfinished, &id, NULL);
	unfinished = DatumGetInt64(idemq_sql_value(0, 1, &isnull));
	if (unfinished > 0 && !force)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
						errmsg("queue \"%s\" has %lld unfinished jobs", queue.name,
							   (long long) unfinished),
						errhint("Use force => true to drop them with it.")));
	release_dead_queue(&queue, force);
	(void) idemq_sql_run(&delete_jobs, &id, NULL, SPI_OK_DELETE);
	(void) idemq_sql_run(&delete_attempts, &id, NULL, SPI_OK_DELETE);
	(void) idemq_sql_run(&delete_queue, &id, NULL, SPI_OK_DELETE);
	if (idemq_sql_query_latest(&any_job, &id, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("queue \"%s\" has jobs that this transaction cannot see", queue.name),
				 errhint("Run idemq.drop_queue at READ COMMITTED.")));
	idemq_sql_end(&scope);
	idemq_xact_note_drop_queue(queue.id);
	PG_RETURN_VOID();
}

static Datum
change_paused(FunctionCallInfo fcinfo, bool paused)
{
	QueueInfo queue;
	SqlScope scope;
	Datum values[2];

	idemq_arg_admin_queue(fcinfo, &queue);
	values[0] = Int32GetDatum(queue.id);
	values[1] = BoolGetDatum(paused);
	idemq_sql_begin(&scope);
	(void) idemq_sql_run(&set_paused, values, NULL, SPI_OK_UPDATE);
	if (!paused)
		idemq_xact_note_settings(queue.id);
	idemq_sql_end(&scope);
	PG_RETURN_VOID();
}

/* pause(name) -> void; IQ005, 42501. */
Datum
idemq_sql_pause(PG_FUNCTION_ARGS)
{
	return change_paused(fcinfo, true);
}

/* resume(name) -> void; IQ005, 42501. */
Datum
idemq_sql_resume(PG_FUNCTION_ARGS)
{
	return change_paused(fcinfo, false);
}

/*
 * purge(name, status) -> number of jobs deleted; IQ005, 42501, 22023 for processing,
 * 40001.  A job at which another open transaction is stays.
 */
Datum
idemq_sql_purge(PG_FUNCTION_ARGS)
{
	char nulls[] = "  ";
	Datum values[2] = {0};
	QueueInfo queue;
	SqlScope scope;
	int64 purged;
	bool isnull;

	idemq_arg_admin_queue(fcinfo, &queue);
	values[0] = Int32GetDatum(queue.id);
	if (PG_ARGISNULL(1))
		nulls[1] = 'n';
	else
	{
		JobStatus status = idemq_status_from_oid(PG_GETARG_OID(1));

		if (status == JOB_PROCESSING)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("jobs in processing cannot be purged"),
							errhint("Cancel them first, with idemq.cancel.")));
		values[1] = CStringGetTextDatum(idemq_status_name(status));
	}
	idemq_sql_begin_on_jobs(&scope);
	(void) idemq_sql_run(&purge_jobs, values, nulls, SPI_OK_SELECT);
	purged = DatumGetInt64(idemq_sql_value(0, 1, &isnull));
	idemq_sql_end(&scope);
	PG_RETURN_INT64(purged);
}

/* Makes a role an administrator of a queue. */
void
idemq_grant_admin(int32 queue_id, Oid role)
{
	NameData name;
	Datum values[] = {Int32GetDatum(queue_id), NameGetDatum(&name), CStringGetTextDatum("admin")};
	SqlScope scope;

	namestrcpy(&name, GetUserNameFromId(role, false));
	idemq_sql_begin(&scope);
	(void) idemq_sql_run(&add_grant, values, NULL, SPI_OK_INSERT);
	idemq_sql_end(&scope);
}

/* Reads the arguments of grant_queue and revoke_queue as parameters of their statements. */
static void
grant_values(FunctionCallInfo fcinfo, Datum *values, NameData *role)
{
	QueueInfo queue;
	char *privilege;

	idemq_arg_admin_queue(fcinfo, &queue);
	idemq_arg_required(fcinfo, 1, "role");
	privilege = idemq_arg_text(fcinfo, 2, "privilege", NAMEDATALEN);
	if (strcmp(privilege, "enqueue") != 0 && strcmp(privilege, "claim") != 0 &&
		strcmp(privilege, "admin") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("privilege is \"%s\"", privilege),
				 errhint("Pass enqueue, claim or admin.")));
	namestrcpy(role, GetUserNameFromId(PG_GETARG_OID(1), false));
	values[0] = Int32GetDatum(queue.id);
	values[1] = NameGetDatum(role);
	values[2] = CStringGetTextDatum(privilege);
}

/* grant_queue(name, role, privilege) -> void; IQ005, 42501, 42704, 22023. */
Datum
idemq_sql_grant_queue(PG_FUNCTION_ARGS)
{
	Datum values[3];
	NameData role;
	SqlScope scope;

	grant_values(fcinfo, values, &role);
	idemq_sql_begin(&scope);
	(void) idemq_sql_run(&add_grant, values, NULL, SPI_OK_INSERT);
	idemq_sql_end(&scope);
	PG_RETURN_VOID();
}

/* revoke_queue(name, role, privilege) -> void; IQ005, 42501, 42704, 22023. */
Datum
idemq_sql_revoke_queue(PG_FUNCTION_ARGS)
{
	Datum values[3];
	NameData role;
	SqlScope scope;

	grant_values(fcinfo, values, &role);
	idemq_sql_begin(&scope);
	(void) idemq_sql_run(&remove_grant, values, NULL, SPI_OK_DELETE);
	idemq_sql_end(&scope);
	PG_RETURN_VOID();
}
