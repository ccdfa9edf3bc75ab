/*
 * admin.c
 *		SQL functions about queues: create_queue, alter_queue, drop_queue, pause,
 *		resume, purge, grant_queue, revoke_queue.
 *
 * They write idemq.queues and idemq.queue_grants through SQL; the triggers there
 * tell every backend.  create_queue is the DBA's to grant; the others ask for
 * the queue's admin privilege.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "args.h"
#include "catalog.h"
#include "gauges.h"
#include "jobs.h"
#include "queues.h"
#include "sql.h"
#include "xact.h"

PG_FUNCTION_INFO_V1(idemq_sql_create_queue);
PG_FUNCTION_INFO_V1(idemq_sql_alter_queue);
PG_FUNCTION_INFO_V1(idemq_sql_drop_queue);
PG_FUNCTION_INFO_V1(idemq_sql_pause);
PG_FUNCTION_INFO_V1(idemq_sql_resume);
PG_FUNCTION_INFO_V1(idemq_sql_purge);
PG_FUNCTION_INFO_V1(idemq_sql_grant_queue);
PG_FUNCTION_INFO_V1(idemq_sql_revoke_queue);

/* Arguments of create_queue and alter_queue; the name is 0. */
enum
{
	ARG_LEASE = 1,
	ARG_MAX_ATTEMPTS,
	ARG_RETRY_BASE,
	ARG_RETRY_FACTOR,
	ARG_RETRY_MAX,
	ARG_RETRY_JITTER,
	ARG_RETENTION,
	ARG_WINDOW,
	ARG_MAX_RUNNING,
	ARG_RATE_LIMIT,
	ARG_RATE_PERIOD,
	ARG_DEAD_QUEUE,
	SETTING_ARGS
};

#define SETTING_TYPES                                                                              \
	{                                                                                              \
		TEXTOID, INTERVALOID, INT4OID, INTERVALOID, FLOAT8OID, INTERVALOID, FLOAT8OID,             \
			INTERVALOID, INTERVALOID, INTERVALOID                                                  \
	}
#define SETTING_COUNT 10 /* with the name */

static SqlStatement insert_queue = {
	.text =
		"INSERT INTO idemq.queues (name, lease, max_attempts, retry_base, retry_factor, retry_max, "
		"retry_jitter, retention, idempotency_window, rate_period) "
		"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (name) DO NOTHING "
		"RETURNING queue_id",
	.nargs = SETTING_COUNT,
	.types = SETTING_TYPES};

static SqlStatement update_queue =
	{.text = "UPDATE idemq.queues SET lease = coalesce($2, lease), "
			 "max_attempts = coalesce($3, max_attempts), retry_base = coalesce($4, retry_base), "
			 "retry_factor = coalesce($5, retry_factor), retry_max = coalesce($6, retry_max), "
			 "retry_jitter = coalesce($7, retry_jitter), retention = coalesce($8, retention), "
			 "idempotency_window = coalesce($9, idempotency_window), "
			 "rate_period = coalesce($10, rate_period) WHERE name = $1",
	 .nargs = SETTING_COUNT,
	 .types = SETTING_TYPES};

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
static SqlStatement set_paused = {.text = "UPDATE idemq.queues SET paused = $2 WHERE queue_id = $1",
								  .nargs = 2,
								  .types = {INT4OID, BOOLOID}};

static SqlStatement purge_jobs =
	{.text = "WITH gone AS (DELETE FROM idemq.jobs WHERE queue_id = $1 AND status <> 'processing' "
			 "AND ($2 IS NULL OR status::text = $2) RETURNING id), "
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

/* Returns a queue's name for create_queue; raises 22023 for one that is not allowed. */
static char *
new_queue_name(FunctionCallInfo fcinfo)
{
	char *name = idemq_arg_text(fcinfo, 0, "name", IDEMQ_MAX_QUEUE_NAME);

	for (char *c = name; *c != '\0'; c++)
	{
		bool letter = (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || *c == '_';
		bool other = (*c >= '0' && *c <= '9') || *c == '.' || *c == '-';

		if (!letter && !(other && c > name))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_NAME),
					 errmsg("\"%s\" cannot be the name of a queue", name),
					 errhint("Use letters, digits, _ . and -, beginning with a letter or _.")));
	}
	return name;
}

/* Raises 22023 for a number outside of least to most, NaN included. */
static void
check_float(FunctionCallInfo fcinfo, int n, const char *name, double least, double most)
{
	double value;

	if (PG_ARGISNULL(n))
		return;
	value = PG_GETARG_FLOAT8(n);
	if (!(value >= least && value <= most))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s is %g", name, value),
						errhint("Pass %g to %g.", least, most)));
}

static void
check_interval(FunctionCallInfo fcinfo, int n, const char *name, int64 least)
{
	if (!PG_ARGISNULL(n))
		(void) idemq_arg_interval(fcinfo, n, name, least);
}

/* Raises 0A000 for a setting that this version does not honour. */
static void
refuse_setting(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (!PG_ARGISNULL(n))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("%s is not in this version of idemq", name),
						errhint("Leave %s out.", name)));
}

/* Checks the settings that are given. */
static void
check_settings(FunctionCallInfo fcinfo)
{
	check_interval(fcinfo, ARG_LEASE, "lease", 1);
	if (!PG_ARGISNULL(ARG_MAX_ATTEMPTS))
		(void) idemq_arg_int(fcinfo, ARG_MAX_ATTEMPTS, "max_attempts", 1, PG_INT32_MAX);
	check_interval(fcinfo, ARG_RETRY_BASE, "retry_base", 1);
	check_float(fcinfo, ARG_RETRY_FACTOR, "retry_factor", 1, 1000);
	check_interval(fcinfo, ARG_RETRY_MAX, "retry_max", 1);
	check_float(fcinfo, ARG_RETRY_JITTER, "retry_jitter", 0, 1);
	check_interval(fcinfo, ARG_RETENTION, "retention", 0);
	check_interval(fcinfo, ARG_WINDOW, "idempotency_window", 0);
	refuse_setting(fcinfo, ARG_MAX_RUNNING, "max_running");
	refuse_setting(fcinfo, ARG_RATE_LIMIT, "rate_limit");
	check_interval(fcinfo, ARG_RATE_PERIOD, "rate_period", 1);
	refuse_setting(fcinfo, ARG_DEAD_QUEUE, "dead_queue");
}

/* Puts name and settings in the order of the statements' parameters. */
static void
setting_values(FunctionCallInfo fcinfo, const char *name, Datum *values, char *nulls)
{
	static const int args[] = {ARG_LEASE,		 ARG_MAX_ATTEMPTS, ARG_RETRY_BASE,
							   ARG_RETRY_FACTOR, ARG_RETRY_MAX,	   ARG_RETRY_JITTER,
							   ARG_RETENTION,	 ARG_WINDOW,	   ARG_RATE_PERIOD};

	values[0] = CStringGetTextDatum(name);
	nulls[0] = ' ';
	for (int i = 0; i < (int) lengthof(args); i++)
	{
		values[i + 1] = PG_GETARG_DATUM(args[i]);
		nulls[i + 1] = PG_ARGISNULL(args[i]) ? 'n' : ' ';
	}
}

/* Warns when a key may be forgotten while its first job still has attempts left. */
static void
warn_of_short_window(FunctionCallInfo fcinfo, const char *name)
{
	double lease = (double) idemq_arg_interval(fcinfo, ARG_LEASE, "lease", 1);
	double window = (double) idemq_arg_interval(fcinfo, ARG_WINDOW, "idempotency_window", 0);

	if (window < lease * PG_GETARG_INT32(ARG_MAX_ATTEMPTS))
		ereport(WARNING,
				(errmsg("idempotency_window of queue \"%s\" is shorter than lease x max_attempts",
						name),
				 errdetail("A message that is delivered again after the window runs its effect "
						   "again.")));
}

/* create_queue(name, settings ...) -> queue_id; 42710, 42602, 22004, 22023, 0A000. */
Datum
idemq_sql_create_queue(PG_FUNCTION_ARGS)
{
	static const char *const required[] = {[ARG_LEASE] = "lease",
										   [ARG_MAX_ATTEMPTS] = "max_attempts",
										   [ARG_RETRY_BASE] = "retry_base",
										   [ARG_RETRY_FACTOR] = "retry_factor",
										   [ARG_RETRY_MAX] = "retry_max",
										   [ARG_RETRY_JITTER] = "retry_jitter",
										   [ARG_RETENTION] = "retention",
										   [ARG_WINDOW] = "idempotency_window",
										   [ARG_RATE_PERIOD] = "rate_period"};
	char *name = new_queue_name(fcinfo);
	Oid creator = GetUserId();
	Datum values[SETTING_COUNT];
	char nulls[SETTING_COUNT];
	SqlScope scope;
	bool isnull;
	int32 id;

	for (int i = 1; i < (int) lengthof(required); i++)
	{
		if (required[i] != NULL)
			idemq_arg_required(fcinfo, i, required[i]);
	}
	check_settings(fcinfo);
	warn_of_short_window(fcinfo, name);
	setting_values(fcinfo, name, values, nulls);
	idemq_sql_begin(&scope);
	if (idemq_sql_run(&insert_queue, values, nulls, SPI_OK_INSERT_RETURNING) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT), errmsg("queue \"%s\" already exists", name),
				 errhint("Change it with idemq.alter_queue.")));
	id = DatumGetInt32(idemq_sql_value(0, 1, &isnull));
	idemq_xact_note_create_queue(id);
	idemq_gauges_set_empty(id);
	if (!has_privs_of_role(creator, idemq_catalog()->owner))
	{
		NameData role;
		Datum grant[] = {Int32GetDatum(id), NameGetDatum(&role), CStringGetTextDatum("admin")};

		namestrcpy(&role, GetUserNameFromId(creator, false));
		(void) idemq_sql_run(&add_grant, grant, NULL, SPI_OK_INSERT);
	}
	idemq_sql_end(&scope);
	PG_RETURN_INT32(id);
}

/* Looks up the queue of argument name, of which the current role must be an administrator. */
static void
admin_queue(FunctionCallInfo fcinfo, QueueInfo *queue)
{
	idemq_queue_by_name(idemq_arg_text(fcinfo, 0, "name", IDEMQ_MAX_NAME_ARG), PRIVILEGE_ADMIN,
						queue);
}

/* alter_queue(name, settings ...) -> void; IQ005, 42501, 22023, 0A000. */
Datum
idemq_sql_alter_queue(PG_FUNCTION_ARGS)
{
	Datum values[SETTING_COUNT];
	char nulls[SETTING_COUNT];
	QueueInfo queue;
	SqlScope scope;

	admin_queue(fcinfo, &queue);
	check_settings(fcinfo);
	setting_values(fcinfo, queue.name, values, nulls);
	idemq_sql_begin(&scope);
	(void) idemq_sql_run(&update_queue, values, nulls, SPI_OK_UPDATE);
	idemq_sql_end(&scope);
	PG_RETURN_VOID();
}

/* drop_queue(name, force) -> void; IQ005, 42501, 55006 with unfinished jobs. */
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
	admin_queue(fcinfo, &queue);
	idemq_queue_lock(queue.id, AccessExclusiveLock);
	admin_queue(fcinfo, &queue);
	id = Int32GetDatum(queue.id);
	idemq_sql_begin_on_jobs(&scope);
	(void) idemq_sql_query_latest(&count_unfinished, &id, NULL);
	unfinished = DatumGetInt64(idemq_sql_value(0, 1, &isnull));
	if (unfinished > 0 && !force)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
						errmsg("queue \"%s\" has %lld unfinished jobs", queue.name,
							   (long long) unfinished),
						errhint("Use force => true to drop them with it.")));
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

	admin_queue(fcinfo, &queue);
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

/* purge(name, status) -> number of jobs deleted; IQ005, 42501, 22023 for processing. */
Datum
idemq_sql_purge(PG_FUNCTION_ARGS)
{
	char nulls[] = "  ";
	Datum values[2] = {0};
	QueueInfo queue;
	SqlScope scope;
	int64 purged;
	bool isnull;

	admin_queue(fcinfo, &queue);
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

/* Reads the arguments of grant_queue and revoke_queue as parameters of their statements. */
static void
grant_values(FunctionCallInfo fcinfo, Datum *values, NameData *role)
{
	QueueInfo queue;
	char *privilege;

	admin_queue(fcinfo, &queue);
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
