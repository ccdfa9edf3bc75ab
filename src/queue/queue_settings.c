/*
 * queue/queue_settings.c
 *		The settings of a queue: checks them, writes them and reads them.
 *
 * All code for the individual settings is generated from QUEUE_SETTINGS (queue/queue.h).
 *
 * Locks: those of the SQL statements; idemq_settings_document locks the row.
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

/* clang-format off */
#define SETTING_ROW(name, kind, least, most) {#name, SETTING_##kind, least, most},
#define SETTING_FIELD(name, kind, least, most) SQL_FIELD(QueueInfo, name),
#define SETTING_COLUMN(name, kind, least, most) ", " #name
/* clang-format on */

const QueueSetting idemq_queue_settings[] = {QUEUE_SETTINGS(SETTING_ROW)};

/* With the name, which is argument 0 of the functions and parameter 1 of the statements. */
#define SETTING_ARGS (lengthof(idemq_queue_settings) + 1)

StaticAssertDecl(SETTING_ARGS <= SQL_MAX_ARGS, "more settings than parameters of a statement");

const Oid idemq_setting_types[] =
	{[SETTING_INTERVAL] = INTERVALOID, [SETTING_FLOAT] = FLOAT8OID,		[SETTING_INT] = INT4OID,
	 [SETTING_LIMIT] = INT4OID,		   [SETTING_TIMEOUT] = INTERVALOID, [SETTING_QUEUE] = TEXTOID,
	 [SETTING_BOOL] = BOOLOID};

const char *const idemq_setting_nones[] = {[SETTING_LIMIT] = "0",
										   [SETTING_TIMEOUT] = "interval '0'",
										   [SETTING_QUEUE] = "''",
										   [SETTING_BOOL] = NULL};

static const SqlField queue_fields[] = {SQL_FIELD(QueueInfo, id),
										SQL_FIELD(QueueInfo, name),
										SQL_FIELD(QueueInfo, paused),
										SQL_FIELD(QueueInfo, paused_until),
										SQL_FIELD(QueueInfo, created_at),
										SQL_FIELD(QueueInfo, has_paused_groups),
										SQL_FIELD(QueueInfo, group_pauses_end),
										SQL_FIELD(QueueInfo, dead_letter_role),
										SQL_FIELD(QueueInfo, dead_letter_role_oid),
										SQL_FIELD(QueueInfo, held_until),
										SQL_FIELD(QueueInfo, has_group_holds),
										QUEUE_SETTINGS(SETTING_FIELD)};

static SqlStatement load_queues =
	{.few = true,
	 .text = "SELECT queue_id, name, paused, coalesce(paused_until, 'infinity'), created_at, "
			 "EXISTS (SELECT FROM idemq.paused_groups p WHERE p.queue_id = q.queue_id), "
			 "coalesce((SELECT min(p.paused_until) FROM idemq.paused_groups p "
			 "WHERE p.queue_id = q.queue_id), 'infinity'), "
			 "dead_letter_role, dead_letter_role_oid, "
			 "(SELECT coalesce(max(h.until), '-infinity') FROM idemq_internal.hold_entries h "
			 "WHERE h.queue_id = q.queue_id AND coalesce(h.group_key, '') = ''), "
			 "EXISTS (SELECT FROM idemq_internal.hold_entries h WHERE h.queue_id = q.queue_id "
			 "AND coalesce(h.group_key, '') > '')" QUEUE_SETTINGS(
				 SETTING_COLUMN) " FROM idemq.queues q WHERE queue_id BETWEEN $1 AND $2",
	 .types = {INT4OID, INT4OID}};

/* Made by settings_build. */
static SqlStatement insert_queue = {.nargs = SETTING_ARGS, .types = {TEXTOID}};
static SqlStatement update_queue = {.nargs = SETTING_ARGS, .types = {TEXTOID}};

/* Makes the text of the statements that write, at their first use. */
static void
settings_build(void)
{
	StringInfoData parameters;
	StringInfoData changes;

	if (update_queue.text != NULL)
		return;
	initStringInfo(&parameters);
	initStringInfo(&changes);
	for (int i = 0; i < (int) lengthof(idemq_queue_settings); i++)
	{
		const char *name = idemq_queue_settings[i].name;
		const char *none = idemq_setting_nones[idemq_queue_settings[i].kind];
		int parameter = i + 2;

		appendStringInfo(&parameters, ", $%d", parameter);
		appendStringInfo(&changes,
						 none != NULL ? "%s%s = nullif(coalesce($%d, %s), %s)"
									  : "%s%s = coalesce($%d, %s)",
						 i > 0 ? ", " : "", name, parameter, name, none);
		insert_queue.types[i + 1] = update_queue.types[i + 1] =
			idemq_setting_types[idemq_queue_settings[i].kind];
	}
	insert_queue.text = MemoryContextStrdup(
		TopMemoryContext,
		psprintf(
			"INSERT INTO idemq.queues (name" QUEUE_SETTINGS(
				SETTING_COLUMN) ") "
								"VALUES ($1%s) ON CONFLICT (name) DO NOTHING RETURNING queue_id",
			parameters.data));
	update_queue.text =
		MemoryContextStrdup(TopMemoryContext,
							psprintf("UPDATE idemq.queues SET %s WHERE name = $1", changes.data));
}

/*
 * Checks the arguments that are given, and, for a new queue, that no required one is missing;
 * raises 22004 and 22023.  job/dead_letter.c checks dead_letter_queue.
 */
void
idemq_settings_check(FunctionCallInfo fcinfo, bool is_new)
{
	for (int i = 0; i < (int) lengthof(idemq_queue_settings); i++)
	{
		const QueueSetting *setting = &idemq_queue_settings[i];
		bool may_be_none = idemq_setting_nones[setting->kind] != NULL;
		double least = may_be_none && !is_new ? 0 : setting->least;
		int n = i + 1;

		if (PG_ARGISNULL(n) && (may_be_none || !is_new))
			continue;
		switch (setting->kind)
		{
			case SETTING_INTERVAL:
			case SETTING_TIMEOUT:
				(void) idemq_arg_interval(fcinfo, n, setting->name, (int64) least);
				break;
			case SETTING_FLOAT:
				(void) idemq_arg_float(fcinfo, n, setting->name, least, setting->most);
				break;
			case SETTING_INT:
			case SETTING_LIMIT:
				(void) idemq_arg_int(fcinfo, n, setting->name, (int32) least,
									 (int32) setting->most);
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
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("lease is longer than max_lease of queue \"%s\", which is %s", queue->name,
				   most),
			errhint("Use a shorter lease and call idemq.heartbeat while the job runs, or ask an "
					"administrator of the queue to raise max_lease with idemq.alter_queue."));
}

/*
 * Returns the effective lease: the requested length, or, if that is 0, the queue's default; at most
 * job_timeout.
 */
int64
idemq_settings_lease(const QueueInfo *queue, int64 asked)
{
	int64 lease = asked > 0 ? asked : queue->lease;

	return queue->job_timeout > 0 ? Min(lease, queue->job_timeout) : lease;
}

/* Returns the number of the argument of create_queue and alter_queue for a setting. */
int
idemq_setting_arg(const char *name)
{
	for (int i = 0; i < (int) lengthof(idemq_queue_settings); i++)
	{
		if (strcmp(idemq_queue_settings[i].name, name) == 0)
			return i + 1;
	}
	elog(ERROR, "unknown setting \"%s\"", name);
}

/* A statement of its own, because its trigger stores the OID of the role (hooks/row_triggers.c). */
static SqlStatement set_dead_letter_role =
	{.text = "UPDATE idemq.queues SET dead_letter_role = CASE WHEN dead_letter_queue IS NOT NULL "
			 "THEN $2 END WHERE name = $1",
	 .types = {TEXTOID, NAMEOID}};

/*
 * Runs a statement with the name and the settings as its parameters.  If dead_letter_queue is
 * given, also stores the caller as the role that has set it.  Returns whether a row was written;
 * sets *id, unless id is NULL, to the id that the statement returned.
 */
static bool
run_with_settings(SqlStatement *statement, FunctionCallInfo fcinfo, const char *name, Oid caller,
				  int32 *id)
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
	if (idemq_spi_run(statement, values, nulls) == 0)
		return false;
	if (id != NULL)
		*id = DatumGetInt32(idemq_spi_value(0, 1));
	if (PG_ARGISNULL(idemq_setting_arg("dead_letter_queue")))
		return true;
	namestrcpy(&role, GetUserNameFromId(caller, false));
	values[1] = NameGetDatum(&role);
	(void) idemq_spi_run(&set_dead_letter_role, values, NULL);
	return true;
}

/*
 * Whether create_queue is inserting a row.  Any other new row comes from a restore or a publisher.
 */
static bool inserting = false;

/* Returns whether create_queue is inserting a row of idemq.queues now; for the row's trigger. */
bool
idemq_settings_is_inserting(void)
{
	return inserting;
}

/* Inserts a queue with the arguments of create_queue; returns false if its name is taken. */
bool
idemq_settings_insert(FunctionCallInfo fcinfo, const char *name, int32 *id)
{
	Oid caller = GetUserId();
	SqlScope scope;
	bool inserted;

	settings_build();
	idemq_spi_begin(&scope);
	inserting = true;
	PG_TRY();
	{
		inserted = run_with_settings(&insert_queue, fcinfo, name, caller, id);
	}
	PG_FINALLY();
	{
		inserting = false;
	}
	PG_END_TRY();
	idemq_spi_end(&scope);
	return inserted;
}

/*
 * Changes the settings of a queue to the arguments of alter_queue that are not NULL.  latest: even
 * if the row is newer than the transaction's snapshot.
 */
void
idemq_settings_update(FunctionCallInfo fcinfo, const char *name, bool latest)
{
	Oid caller = GetUserId();
	SqlScope scope;

	settings_build();
	update_queue.latest = set_dead_letter_role.latest = latest;
	idemq_spi_begin(&scope);
	(void) run_with_settings(&update_queue, fcinfo, name, caller, NULL);
	idemq_spi_end(&scope);
}

/* $2: earlier settings, or NULL. */
static SqlStatement describe_queue =
	{.locks = true,
	 .text = "SELECT CASE WHEN $2 IS NULL THEN n.doc ELSE (SELECT jsonb_object_agg(key, "
			 "jsonb_build_object('from', o.value, 'to', s.value)) FROM jsonb_each($2) o "
			 "JOIN jsonb_each(n.doc) s USING (key) WHERE o.value <> s.value) END "
			 "FROM (SELECT to_jsonb(q) - '{queue_id,name,paused,paused_until,created_at,"
			 "dead_letter_role,dead_letter_role_oid,declared}'::text[] AS doc "
			 "FROM idemq.queues q WHERE queue_id = $1 FOR NO KEY UPDATE) n",
	 .types = {INT4OID, JSONBOID},
	 .fields = SQL_SCALAR(Datum)};

/*
 * Returns the settings of a queue as jsonb, or 0 if the queue is gone, and locks them until the end
 * of the transaction.  If before contains earlier settings, returns only what differs, or 0 if
 * nothing does: {"lease": {"from": ..., "to": ...}, ...}.  latest: as for idemq_settings_update.
 * Without latest, a row that the snapshot does not show counts as gone, and one that has changed
 * since raises 40001.
 */
Datum
idemq_settings_document(int32 queue_id, Datum before, bool latest)
{
	Datum values[] = {Int32GetDatum(queue_id), before};
	Datum document;

	describe_queue.latest = latest;
	(void) idemq_spi_row(&describe_queue, values, &document, sizeof(document));
	return document;
}

/*
 * Reads the queues in a range of ids under a registered snapshot.  Returns the number of rows,
 * which the caller fetches with idemq_settings_read before its idemq_spi_end.
 */
uint64
idemq_settings_load(const Datum *range, Snapshot snapshot)
{
	return idemq_spi_query_at(&load_queues, range, NULL, snapshot);
}

/* Sets *queue to the columns of a row of idemq.queues, and all other fields to 0. */
void
idemq_settings_read(uint64 row, QueueInfo *queue)
{
	memset(queue, 0, sizeof(*queue));
	idemq_spi_read(row, queue_fields, queue, CurrentMemoryContext);
}
