/*
 * queue/queue_settings.c
 *		The settings of a queue, in one table.
 *
 * A setting is a column of idemq.queues, an argument of create_queue and alter_queue,
 * and a field of QueueInfo.  What checks, writes and reads settings is made from the
 * table; to add one, add a row (and the field), the column and the two arguments.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "queue/queue.h"

/* How a setting is kept: its type in SQL, and in QueueInfo. */
typedef enum SettingKind
{
	SETTING_INTERVAL, /* interval; int64 */
	SETTING_FLOAT,	  /* float8; double */
	SETTING_INT,	  /* int; int32 */
	SETTING_LIMIT,	  /* int; int32: NULL is "no limit", and 0 to alter_queue */
	SETTING_TIMEOUT,  /* interval; int64: NULL is "none", and 0 to alter_queue */
	SETTING_QUEUE,	  /* text; QueueName: NULL is "none", and '' to alter_queue */
	SETTING_BOOL	  /* boolean; bool */
} SettingKind;

typedef struct QueueSetting
{
	const char *name;
	SettingKind kind;
	SqlField field; /* of QueueInfo */
	double least;
	double most;
} QueueSetting;

/* A field of QueueInfo; a pointer of another type than the field's does not compile. */
/* clang-format off */
#define FIELD(type, field)                                                                         \
	{offsetof(QueueInfo, field) + 0 * sizeof((type *) NULL == &((QueueInfo *) NULL)->field),       \
	 sizeof(type), NULL}
/* clang-format on */

/*
 * All settings: name, kind, field, least and most.  They are in the order of the
 * arguments of create_queue and alter_queue, which come after the queue's name.  The
 * least of an interval is in microseconds; its most is that of every interval argument.
 */
static const QueueSetting settings[] = {
	{"lease", SETTING_INTERVAL, FIELD(int64, lease), 1, 0},
	{"max_attempts", SETTING_INT, FIELD(int32, max_attempts), 1, PG_INT32_MAX},
	{"retry_base", SETTING_INTERVAL, FIELD(int64, retry_base), 1, 0},
	{"retry_factor", SETTING_FLOAT, FIELD(double, retry_factor), 1, 1000},
	{"retry_max", SETTING_INTERVAL, FIELD(int64, retry_max), 1, 0},
	{"retry_jitter", SETTING_FLOAT, FIELD(double, retry_jitter), 0, 1},
	{"retention", SETTING_INTERVAL, FIELD(int64, retention), 0, 0},
	{"idempotency_window", SETTING_INTERVAL, FIELD(int64, idempotency_window), 0, 0},
	{"max_running", SETTING_LIMIT, FIELD(int32, max_running), 1, PG_INT32_MAX},
	{"rate_limit", SETTING_LIMIT, FIELD(int32, rate_limit), 1, PG_INT32_MAX},
	{"rate_period", SETTING_INTERVAL, FIELD(int64, rate_period), 1, 0},
	{"dead_queue", SETTING_QUEUE, FIELD(QueueName, dead_queue), 0, 0},
	{"dead_retention", SETTING_INTERVAL, FIELD(int64, dead_retention), 0, 0},
	{"max_lease", SETTING_INTERVAL, FIELD(int64, max_lease), 1, 0},
	{"job_timeout", SETTING_TIMEOUT, FIELD(int64, job_timeout), 1, 0},
	{"dead_queue_cancelled", SETTING_BOOL, FIELD(bool, dead_queue_cancelled), 0, 0},
	{"group_running", SETTING_INT, FIELD(int32, group_running), 1, PG_INT32_MAX},
	{"group_rate", SETTING_LIMIT, FIELD(int32, group_rate), 1, PG_INT32_MAX},
	{"group_period", SETTING_INTERVAL, FIELD(int64, group_period), 1, 0},
};

/* With the name, which is argument 0 of the functions and parameter 1 of the statements. */
#define SETTING_ARGS (lengthof(settings) + 1)

StaticAssertDecl(SETTING_ARGS <= SQL_MAX_ARGS, "more settings than parameters of a statement");

static const Oid sql_types[] =
	{[SETTING_INTERVAL] = INTERVALOID, [SETTING_FLOAT] = FLOAT8OID,		[SETTING_INT] = INT4OID,
	 [SETTING_LIMIT] = INT4OID,		   [SETTING_TIMEOUT] = INTERVALOID, [SETTING_QUEUE] = TEXTOID,
	 [SETTING_BOOL] = BOOLOID};

/* What alter_queue takes for "none", in SQL; NULL for a setting that a queue always has. */
static const char *const none_values[] =
	{[SETTING_LIMIT] = "0", [SETTING_TIMEOUT] = "interval '0'", [SETTING_QUEUE] = "''"};

static const char *
none_value(SettingKind kind)
{
	return kind < lengthof(none_values) ? none_values[kind] : NULL;
}

/* What load_queues and load_queue read; the settings come behind these. */
static const SqlField first_fields[] = {SQL_FIELD(QueueInfo, id),
										SQL_FIELD(QueueInfo, name),
										SQL_FIELD(QueueInfo, paused),
										SQL_FIELD(QueueInfo, paused_until),
										SQL_FIELD(QueueInfo, created_at),
										SQL_FIELD(QueueInfo, dead_queue_role),
										SQL_FIELD(QueueInfo, dead_queue_role_oid)};

/* Made by build_statements. */
static SqlField fields[lengthof(first_fields) + lengthof(settings)];
static SqlStatement insert_queue = {.nargs = SETTING_ARGS, .types = {TEXTOID}};
static SqlStatement update_queue = {.nargs = SETTING_ARGS, .types = {TEXTOID}};
static SqlStatement load_queues = {0};
static SqlStatement load_queue = {.types = {INT4OID}};

/* Makes the text of the statements, at their first use. */
static void
build_statements(void)
{
	StringInfoData names;
	StringInfoData parameters;
	StringInfoData changes;

	if (load_queue.text != NULL)
		return;
	initStringInfo(&names);
	initStringInfo(&parameters);
	initStringInfo(&changes);
	memcpy(fields, first_fields, sizeof(first_fields));
	for (int i = 0; i < (int) lengthof(settings); i++)
	{
		const char *name = settings[i].name;
		const char *none = none_value(settings[i].kind);
		int parameter = i + 2;

		appendStringInfo(&names, ", %s", name);
		appendStringInfo(&parameters, ", $%d", parameter);
		appendStringInfo(&changes,
						 none != NULL ? "%s%s = nullif(coalesce($%d, %s), %s)"
									  : "%s%s = coalesce($%d, %s)",
						 i > 0 ? ", " : "", name, parameter, name, none);
		fields[lengthof(first_fields) + i] = settings[i].field;
		insert_queue.types[i + 1] = update_queue.types[i + 1] = sql_types[settings[i].kind];
	}
	insert_queue.text =
		MemoryContextStrdup(TopMemoryContext,
							psprintf("INSERT INTO idemq.queues (name%s) VALUES ($1%s) "
									 "ON CONFLICT (name) DO NOTHING RETURNING queue_id",
									 names.data, parameters.data));
	update_queue.text =
		MemoryContextStrdup(TopMemoryContext,
							psprintf("UPDATE idemq.queues SET %s WHERE name = $1", changes.data));
	load_queues.text = MemoryContextStrdup(
		TopMemoryContext,
		psprintf("SELECT queue_id, name, paused, coalesce(paused_until, 'infinity'), created_at, "
				 "dead_queue_role, dead_queue_role_oid%s FROM idemq.queues",
				 names.data));
	load_queue.text =
		MemoryContextStrdup(TopMemoryContext, psprintf("%s WHERE queue_id = $1", load_queues.text));
}

/*
 * Checks the settings that are given, and, of a new queue, that none is missing; raises
 * 22004, 22023.  A queue's name is the caller's to check: see job/dead_queue.c.
 */
void
idemq_settings_check(FunctionCallInfo fcinfo, bool is_new)
{
	for (int i = 0; i < (int) lengthof(settings); i++)
	{
		const QueueSetting *setting = &settings[i];
		int n = i + 1;

		if (PG_ARGISNULL(n) && !(is_new && none_value(setting->kind) == NULL))
			continue;
		switch (setting->kind)
		{
			case SETTING_INTERVAL:
				(void) idemq_arg_interval(fcinfo, n, setting->name, (int64) setting->least);
				break;
			case SETTING_FLOAT:
				(void) idemq_arg_float(fcinfo, n, setting->name, setting->least, setting->most);
				break;
			case SETTING_INT:
				(void) idemq_arg_int(fcinfo, n, setting->name, (int32) setting->least,
									 (int32) setting->most);
				break;
			case SETTING_LIMIT:
				(void) idemq_arg_int(fcinfo, n, setting->name, is_new ? (int32) setting->least : 0,
									 (int32) setting->most);
				break;
			case SETTING_TIMEOUT:
				(void) idemq_arg_interval(fcinfo, n, setting->name,
										  is_new ? (int64) setting->least : 0);
				break;
			case SETTING_BOOL:
				(void) idemq_arg_bool(fcinfo, n, setting->name);
				break;
			case SETTING_QUEUE:
				break;
		}
	}
}

/* Raises 22023 for a lease, in microseconds, that is longer than the queue allows. */
void
idemq_settings_check_lease(const QueueInfo *queue, int64 lease)
{
	char *most;

	if (lease <= queue->max_lease)
		return;
	most =
		DatumGetCString(DirectFunctionCall1(interval_out, idemq_interval_datum(queue->max_lease)));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("lease is longer than max_lease of queue \"%s\", which is %s", queue->name,
					most),
			 errhint("Take a shorter one and call idemq.heartbeat while the job runs, or have an "
					 "administrator of the queue raise max_lease with idemq.alter_queue.")));
}

/*
 * Returns the effective lease: the requested length, or with 0 the queue's default, capped by
 * job_timeout.
 */
int64
idemq_settings_lease(const QueueInfo *queue, int64 asked)
{
	int64 lease = asked > 0 ? asked : queue->lease;

	return queue->job_timeout > 0 ? Min(lease, queue->job_timeout) : lease;
}

/* Returns which argument of create_queue and alter_queue a setting is. */
int
idemq_setting_arg(const char *name)
{
	for (int i = 0; i < (int) lengthof(settings); i++)
	{
		if (strcmp(settings[i].name, name) == 0)
			return i + 1;
	}
	elog(ERROR, "unknown setting \"%s\"", name);
}

/* Of its own: to write the name anew is to mean the role that has it now (hooks/role_trigger.c). */
static SqlStatement set_dead_queue_role =
	{.text = "UPDATE idemq.queues SET dead_queue_role = CASE WHEN dead_queue IS NOT NULL THEN $2 "
			 "END WHERE name = $1",
	 .types = {TEXTOID, NAMEOID}};

/*
 * Runs a statement with name and settings as its parameters, and writes down who has set a
 * dead_queue; returns whether it wrote a row, whose id, if it returns one, is *id.
 */
static bool
run_with_settings(SqlStatement *statement, FunctionCallInfo fcinfo, const char *name, Oid caller,
				  int expected, int32 *id)
{
	Datum values[SETTING_ARGS];
	char nulls[SETTING_ARGS];
	NameData role;

	values[0] = CStringGetTextDatum(name);
	nulls[0] = ' ';
	for (int i = 1; i < (int) SETTING_ARGS; i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	if (idemq_spi_run(statement, values, nulls, expected) == 0)
		return false;
	if (id != NULL)
		*id = DatumGetInt32(idemq_spi_value(0, 1, NULL));
	if (PG_ARGISNULL(idemq_setting_arg("dead_queue")))
		return true;
	namestrcpy(&role, GetUserNameFromId(caller, false));
	values[1] = NameGetDatum(&role);
	(void) idemq_spi_run(&set_dead_queue_role, values, NULL, SPI_OK_UPDATE);
	return true;
}

/* Whether this session is adding a queue: its trigger asks whether one comes from elsewhere. */
static bool inserting = false;

/* Returns whether the row of idemq.queues that is being added is that of create_queue. */
bool
idemq_settings_is_inserting(void)
{
	return inserting;
}

/* Adds a queue with the settings of create_queue; false when there is one of that name. */
bool
idemq_settings_insert(FunctionCallInfo fcinfo, const char *name, int32 *id)
{
	Oid caller = GetUserId();
	SqlScope scope;
	bool inserted;

	build_statements();
	idemq_spi_begin(&scope);
	inserting = true;
	PG_TRY();
	{
		inserted =
			run_with_settings(&insert_queue, fcinfo, name, caller, SPI_OK_INSERT_RETURNING, id);
	}
	PG_FINALLY();
	{
		inserting = false;
	}
	PG_END_TRY();
	idemq_spi_end(&scope);
	return inserted;
}

/* Changes the settings of a queue to the arguments of alter_queue that are not NULL. */
void
idemq_settings_update(FunctionCallInfo fcinfo, const char *name)
{
	Oid caller = GetUserId();
	SqlScope scope;

	build_statements();
	idemq_spi_begin(&scope);
	(void) run_with_settings(&update_queue, fcinfo, name, caller, SPI_OK_UPDATE, NULL);
	idemq_spi_end(&scope);
}

static SqlStatement describe_queue =
	{.locks = true,
	 .text = "SELECT to_jsonb(q) - '{queue_id,name,paused,paused_until,created_at,"
			 "dead_queue_role,dead_queue_role_oid}'::text[] "
			 "FROM idemq.queues q WHERE queue_id = $1 FOR NO KEY UPDATE",
	 .types = {INT4OID},
	 .fields = (const SqlField[]){{0, sizeof(Datum), NULL}}};
static SqlStatement compare_settings =
	{.text = "SELECT jsonb_object_agg(key, jsonb_build_object('from', o.value, 'to', n.value)) "
			 "FROM jsonb_each($1) o JOIN jsonb_each($2) n USING (key) WHERE o.value <> n.value",
	 .types = {JSONBOID, JSONBOID},
	 .fields = (const SqlField[]){{0, sizeof(Datum), NULL}}};

/*
 * Returns the settings of a queue as jsonb, 0 when it is gone; they stay as they are until this
 * transaction ends.
 */
Datum
idemq_settings_document(int32 queue_id)
{
	Datum id = Int32GetDatum(queue_id);
	Datum document;

	(void) idemq_spi_row(&describe_queue, &id, &document, sizeof(document));
	return document;
}

/* Returns what differs between two of these, or 0: {"lease": {"from": ..., "to": ...}, ...}. */
Datum
idemq_settings_difference(Datum from, Datum to)
{
	Datum values[] = {from, to};
	Datum difference;

	(void) idemq_spi_row(&compare_settings, values, &difference, sizeof(difference));
	return difference;
}

/*
 * Reads a queue, or, with 0, all, under a registered snapshot, within the caller's
 * idemq_spi_begin; returns how many rows there are for idemq_settings_read.
 */
uint64
idemq_settings_load(int32 queue_id, Snapshot snapshot)
{
	Datum id = Int32GetDatum(queue_id);

	build_statements();
	return idemq_spi_query_at(queue_id == 0 ? &load_queues : &load_queue, &id, NULL, snapshot);
}

/* Fills what a row of idemq.queues says of a queue; everything else becomes 0. */
void
idemq_settings_read(uint64 row, QueueInfo *queue)
{
	memset(queue, 0, sizeof(*queue));
	idemq_spi_read(row, fields, queue, CurrentMemoryContext);
}

/* Returns whether a queue hands out no jobs now; see job/pausing.c. */
bool
idemq_queue_is_paused(const QueueInfo *queue)
{
	return queue->paused && (queue->paused_until == DT_NOEND || idemq_now() < queue->paused_until);
}
