/*
 * api/create_queue.c
 *		SQL functions that set what a queue is like: create_queue, alter_queue.
 *
 * They write idemq.queues through SQL; the triggers there tell every backend.
 * create_queue is the DBA's to grant; alter_queue asks for the queue's admin
 * privilege.  In alter_queue NULL leaves a setting as it is; 0 takes a limit away,
 * and '' the dead queue.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "api/grant_queue.h"
#include "job/dead_queue.h"
#include "txn/pending.h"
#include "queue/queue_counts.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/oids.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_create_queue);
PG_FUNCTION_INFO_V1(idemq_sql_alter_queue);

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

/* With the name. */
#define SETTING_TYPES                                                                              \
	{                                                                                              \
		TEXTOID, INTERVALOID, INT4OID, INTERVALOID, FLOAT8OID, INTERVALOID, FLOAT8OID,             \
			INTERVALOID, INTERVALOID, INT4OID, INT4OID, INTERVALOID, TEXTOID                       \
	}

static SqlStatement insert_queue = {
	.text =
		"INSERT INTO idemq.queues (name, lease, max_attempts, retry_base, retry_factor, retry_max, "
		"retry_jitter, retention, idempotency_window, max_running, rate_limit, rate_period, "
		"dead_queue) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) "
		"ON CONFLICT (name) DO NOTHING RETURNING queue_id",
	.nargs = SETTING_ARGS,
	.types = SETTING_TYPES};

static SqlStatement update_queue =
	{.text = "UPDATE idemq.queues SET lease = coalesce($2, lease), "
			 "max_attempts = coalesce($3, max_attempts), retry_base = coalesce($4, retry_base), "
			 "retry_factor = coalesce($5, retry_factor), retry_max = coalesce($6, retry_max), "
			 "retry_jitter = coalesce($7, retry_jitter), retention = coalesce($8, retention), "
			 "idempotency_window = coalesce($9, idempotency_window), "
			 "max_running = nullif(coalesce($10, max_running), 0), "
			 "rate_limit = nullif(coalesce($11, rate_limit), 0), "
			 "rate_period = coalesce($12, rate_period), "
			 "dead_queue = nullif(coalesce($13, dead_queue), '') WHERE name = $1",
	 .nargs = SETTING_ARGS,
	 .types = SETTING_TYPES};

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

/* Checks the settings that are given; a limit is at least least_limit. */
static void
check_settings(FunctionCallInfo fcinfo, int least_limit)
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
	if (!PG_ARGISNULL(ARG_MAX_RUNNING))
		(void) idemq_arg_int(fcinfo, ARG_MAX_RUNNING, "max_running", least_limit, PG_INT32_MAX);
	if (!PG_ARGISNULL(ARG_RATE_LIMIT))
		(void) idemq_arg_int(fcinfo, ARG_RATE_LIMIT, "rate_limit", least_limit, PG_INT32_MAX);
	check_interval(fcinfo, ARG_RATE_PERIOD, "rate_period", 1);
}

/* Checks dead_queue for the queue of that name; see idemq_dead_queue_check. */
static void
check_dead_queue(FunctionCallInfo fcinfo, const char *name)
{
	if (!PG_ARGISNULL(ARG_DEAD_QUEUE))
		idemq_dead_queue_check(name, idemq_arg_text(fcinfo, ARG_DEAD_QUEUE, "dead_queue",
													IDEMQ_MAX_NAME_ARG));
}

/* Puts name and settings into the statements' parameters. */
static void
setting_values(FunctionCallInfo fcinfo, const char *name, Datum *values, char *nulls)
{
	values[0] = CStringGetTextDatum(name);
	nulls[0] = ' ';
	for (int i = 1; i < SETTING_ARGS; i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
}

/* Warns when a key may be forgotten while its first job still has attempts left. */
static void
warn_of_short_window(const QueueInfo *queue)
{
	if ((double) queue->idempotency_window < (double) queue->lease * queue->max_attempts)
		ereport(WARNING,
				(errmsg("idempotency_window of queue \"%s\" is shorter than lease x max_attempts",
						queue->name),
				 errdetail("A message that is delivered again after the window runs its effect "
						   "again.")));
}

/* create_queue(name, settings ...) -> queue_id; 42710, 42602, 22004, 22023, IQ005, 42501. */
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
	Datum values[SETTING_ARGS];
	char nulls[SETTING_ARGS];
	QueueInfo queue;
	SqlScope scope;
	bool isnull;
	int32 id;

	for (int i = 1; i < (int) lengthof(required); i++)
	{
		if (required[i] != NULL)
			idemq_arg_required(fcinfo, i, required[i]);
	}
	check_settings(fcinfo, 1);
	check_dead_queue(fcinfo, name);
	setting_values(fcinfo, name, values, nulls);
	idemq_sql_begin(&scope);
	if (idemq_sql_run(&insert_queue, values, nulls, SPI_OK_INSERT_RETURNING) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT), errmsg("queue \"%s\" already exists", name),
				 errhint("Change it with idemq.alter_queue.")));
	id = DatumGetInt32(idemq_sql_value(0, 1, &isnull));
	idemq_xact_note_create_queue(id);
	idemq_gauges_set_empty(id);
	idemq_sql_end(&scope);
	if (!has_privs_of_role(creator, idemq_catalog()->owner))
		idemq_grant_admin(id, creator);
	if (idemq_queue_by_id(id, &queue))
		warn_of_short_window(&queue);
	PG_RETURN_INT32(id);
}

/* Returns whether dead_queue is ''. */
static bool
takes_dead_queue_away(FunctionCallInfo fcinfo)
{
	return !PG_ARGISNULL(ARG_DEAD_QUEUE) &&
		   VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(ARG_DEAD_QUEUE)) == 0;
}

/* alter_queue(name, settings ...) -> void; IQ005, 42501, 22004, 22023. */
Datum
idemq_sql_alter_queue(PG_FUNCTION_ARGS)
{
	Datum values[SETTING_ARGS];
	char nulls[SETTING_ARGS];
	QueueInfo queue;
	SqlScope scope;

	idemq_queue_arg(fcinfo, 0, "name", PRIVILEGE_ADMIN, &queue);
	check_settings(fcinfo, 0);
	if (!takes_dead_queue_away(fcinfo))
		check_dead_queue(fcinfo, queue.name);
	setting_values(fcinfo, queue.name, values, nulls);
	idemq_sql_begin(&scope);
	(void) idemq_sql_run(&update_queue, values, nulls, SPI_OK_UPDATE);
	idemq_sql_end(&scope);
	if (!(PG_ARGISNULL(ARG_LEASE) && PG_ARGISNULL(ARG_MAX_ATTEMPTS) && PG_ARGISNULL(ARG_WINDOW)) &&
		idemq_queue_by_id(queue.id, &queue))
		warn_of_short_window(&queue);
	PG_RETURN_VOID();
}
