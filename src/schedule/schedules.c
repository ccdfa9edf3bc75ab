/*
 * schedule/schedules.c
 *		SQL functions that make, end and show schedules: schedule, unschedule,
 *		next_tick, last_tick, and what the view idemq.schedules asks.
 *
 * A schedule is a row of idemq.schedule_entries.  Its ticks up to done_until are
 * dealt with; schedule/tick.c enqueues what comes after, with the rights of the role that
 * has made it.  That role, and administrators of its queue, may change it.  Others do not
 * get as far as its row lock, which keeps the tick away: rights are asked of the row as it
 * is read, and again of the row that is locked, which another role may have taken over.
 *
 * Times here are the wall clock's, not idemq_now(): a calendar means that one.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "schedule/schedule.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_schedule);
PG_FUNCTION_INFO_V1(idemq_sql_v2_unschedule);
PG_FUNCTION_INFO_V1(idemq_sql_v2_next_tick);
PG_FUNCTION_INFO_V1(idemq_sql_v2_last_tick);
PG_FUNCTION_INFO_V1(idemq_sql_v2_next_run);
PG_FUNCTION_INFO_V1(idemq_sql_v2_may_enqueue);
PG_FUNCTION_INFO_V1(idemq_sql_v2_may_change_schedule);

#define MAX_SCHEDULE_NAME 256 /* bytes */
/* What a tick adds to the headers is shorter: the name at 6 bytes each, a time, their keys. */
#define TICK_HEADERS 2048

/* Arguments of schedule. */
enum
{
	ARG_NAME,
	ARG_CRON,
	ARG_QUEUE,
	ARG_PAYLOAD,
	ARG_ZONE,
	ARG_PRIORITY,
	ARG_GROUP_KEY,
	ARG_MAX_ATTEMPTS,
	ARG_HEADERS,
	ARG_EXPIRES_IN,
	ARG_KIND,
	SCHEDULE_ARGS
};

/* Parameters of the statements that write a row: the arguments, and these. */
enum
{
	VALUE_ROLE = SCHEDULE_ARGS,
	VALUE_NOW,
	SCHEDULE_VALUES
};

#define SCHEDULE_TYPES                                                                             \
	{                                                                                              \
		TEXTOID, TEXTOID, INT4OID, JSONBOID, TEXTOID, INT4OID, TEXTOID, INT4OID, JSONBOID,         \
			INTERVALOID, TEXTOID, NAMEOID, TIMESTAMPTZOID                                          \
	}

static SqlStatement read_schedule =
	{.text =
		 "SELECT created_by, created_by_oid, queue_id FROM idemq.schedule_entries WHERE name = $1",
	 .nargs = 1,
	 .types = {TEXTOID}};

static SqlStatement lock_schedule = {
	.text =
		"SELECT created_by, created_by_oid, queue_id FROM idemq.schedule_entries WHERE name = $1 FOR UPDATE",
	.nargs = 1,
	.types = {TEXTOID}};

static SqlStatement insert_schedule = {
	.text = "INSERT INTO idemq.schedule_entries (name, cron, queue_id, payload, time_zone, "
			"priority, group_key, max_attempts, headers, expires_in, kind, created_by, created_at, "
			"done_until) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13) "
			"ON CONFLICT (name) DO NOTHING RETURNING done_until",
	.nargs = SCHEDULE_VALUES,
	.types = SCHEDULE_TYPES};

/* Made again as it is, by a deployment perhaps, it does not lose the tick that is due now. */
static SqlStatement replace_schedule =
	{.text = "UPDATE idemq.schedule_entries SET cron = $2, queue_id = $3, payload = $4, "
			 "time_zone = $5, priority = $6, group_key = $7, max_attempts = $8, headers = $9, "
			 "expires_in = $10, kind = $11, created_by = $12, failed_at = NULL, last_error = NULL, "
			 "created_at = CASE WHEN queue_id = $3 THEN created_at ELSE $13 END, "
			 "done_until = CASE WHEN cron = $2 AND time_zone = $5 THEN done_until ELSE $13 END "
			 "WHERE name = $1 RETURNING done_until",
	 .nargs = SCHEDULE_VALUES,
	 .types = SCHEDULE_TYPES};

static SqlStatement count_schedules =
	{.text = "SELECT count(*) FROM idemq.schedule_entries "
			 "WHERE created_by = $1 AND coalesce(created_by_oid = $2, true)",
	 .nargs = 2,
	 .types = {NAMEOID, OIDOID}};

static SqlStatement delete_schedule = {.text = "DELETE FROM idemq.schedule_entries WHERE name = $1",
									   .nargs = 1,
									   .types = {TEXTOID}};

/* What the current role has to do with the schedule of a name. */
typedef enum Standing
{
	STANDING_NONE,		/* there is no such schedule */
	STANDING_STRANGER,	/* it may not even see it */
	STANDING_BYSTANDER, /* it may see it, and not change it */
	STANDING_CHANGER
} Standing;

/* Reads a row, and locks it if the statement does; returns the current role's standing. */
static Standing
find(SqlStatement *statement, Datum name)
{
	Standing standing = STANDING_NONE;
	NameData creator;
	Oid creator_oid = InvalidOid;
	int32 queue_id = 0;
	QueueInfo queue;
	SqlScope scope;
	bool isnull;

	idemq_spi_begin(&scope);
	if (idemq_spi_run(statement, &name, NULL, SPI_OK_SELECT) > 0)
	{
		namestrcpy(&creator, NameStr(*DatumGetName(idemq_spi_value(0, 1, &isnull))));
		creator_oid = DatumGetObjectId(idemq_spi_value(0, 2, &isnull));
		if (isnull)
			creator_oid = InvalidOid;
		queue_id = DatumGetInt32(idemq_spi_value(0, 3, &isnull));
		standing = STANDING_STRANGER;
	}
	idemq_spi_end(&scope);
	if (standing == STANDING_NONE)
		return STANDING_NONE;
	if (idemq_may_change_schedule(queue_id, NameStr(creator), creator_oid))
		return STANDING_CHANGER;
	return idemq_queue_allows(queue_id, PRIVILEGE_ENQUEUE, &queue) ? STANDING_BYSTANDER
																   : STANDING_STRANGER;
}

/* Locks the row of a schedule that the current role may change; returns its standing. */
static Standing
lock_own(Datum name)
{
	Standing standing = find(&read_schedule, name);

	return standing == STANDING_CHANGER ? find(&lock_schedule, name) : standing;
}

/* Raises 42501 for the schedule of another role. */
pg_noreturn static void
refuse_change(const char *name)
{
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("permission denied for schedule \"%s\"", name),
					errdetail("The role that made it and administrators of its queue may change "
							  "it."),
					errhint("Pass another name, or ask one of them.")));
}

/* Writes a row by one of the statements; true, and its done_until, if that has done anything. */
static bool
write_row(SqlStatement *statement, int code, const Datum *values, const char *nulls,
		  TimestampTz *done_until)
{
	SqlScope scope;
	bool written;
	bool isnull;

	idemq_spi_begin(&scope);
	written = idemq_spi_run(statement, values, nulls, code) > 0;
	if (written)
		*done_until = DatumGetTimestampTz(idemq_spi_value(0, 1, &isnull));
	idemq_spi_end(&scope);
	return written;
}

/* Creates or replaces a row; returns its done_until.  Raises 42501. */
static TimestampTz
save(const char *name, const Datum *values, const char *nulls)
{
	TimestampTz done_until;

	for (;;)
	{
		Standing standing = lock_own(values[ARG_NAME]);

		CHECK_FOR_INTERRUPTS();
		if (standing == STANDING_CHANGER)
		{
			if (write_row(&replace_schedule, SPI_OK_UPDATE_RETURNING, values, nulls, &done_until))
				return done_until;
		}
		else if (standing != STANDING_NONE)
			refuse_change(name);
		else if (write_row(&insert_schedule, SPI_OK_INSERT_RETURNING, values, nulls, &done_until))
			return done_until;
	}
}

/* Raises 53400 when the current role has made more schedules than it may.  Its lock held. */
static void
check_number(NameData *role)
{
	Datum values[] = {NameGetDatum(role), ObjectIdGetDatum(GetUserId())};
	SqlScope scope;
	int64 count;
	bool isnull;

	idemq_spi_begin(&scope);
	(void) idemq_spi_query_latest(&count_schedules, values, NULL);
	count = DatumGetInt64(idemq_spi_value(0, 1, &isnull));
	idemq_spi_end(&scope);
	if (count > idemq_max_schedules_per_role)
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						errmsg("role \"%s\" may have no more than %d schedules", NameStr(*role),
							   idemq_max_schedules_per_role),
						errhint("End one with idemq.unschedule, or raise "
								"idemq.max_schedules_per_role.")));
}

/* Checks the arguments that a job will have. */
static void
check_job(FunctionCallInfo fcinfo)
{
	idemq_arg_required(fcinfo, ARG_PAYLOAD, "payload");
	idemq_check_document("payload", PG_GETARG_DATUM(ARG_PAYLOAD), 0);
	if (!PG_ARGISNULL(ARG_HEADERS))
		idemq_check_document("headers", PG_GETARG_DATUM(ARG_HEADERS), TICK_HEADERS);
	(void) idemq_arg_int(fcinfo, ARG_PRIORITY, "priority", 0, IDEMQ_PRIORITIES - 1);
	if (!PG_ARGISNULL(ARG_GROUP_KEY))
		(void) idemq_arg_text(fcinfo, ARG_GROUP_KEY, "group_key", IDEMQ_MAX_KEY);
	if (!PG_ARGISNULL(ARG_MAX_ATTEMPTS))
		(void) idemq_arg_int(fcinfo, ARG_MAX_ATTEMPTS, "max_attempts", 1, PG_INT32_MAX);
	if (!PG_ARGISNULL(ARG_HEADERS) && !JB_ROOT_IS_OBJECT(PG_GETARG_JSONB_P(ARG_HEADERS)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("headers of a schedule must be a JSON object"),
						errhint("Its name and the time of the tick are added to them.")));
	if (!PG_ARGISNULL(ARG_EXPIRES_IN))
		(void) idemq_arg_interval(fcinfo, ARG_EXPIRES_IN, "expires_in", 1);
	if (!PG_ARGISNULL(ARG_KIND))
		idemq_check_kind(VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(ARG_KIND)));
}

/* Reads cron and time_zone, at argument n and zone_n; raises 22004, 22023. */
static void
read_calendar(FunctionCallInfo fcinfo, int n, int zone_n, Calendar *calendar)
{
	char *cron = idemq_arg_text(fcinfo, n, "cron", CRON_MAX_TEXT);
	char *zone = idemq_arg_text(fcinfo, zone_n, "time_zone", TZ_STRLEN_MAX);

	(void) idemq_calendar_read(cron, zone, true, calendar);
}

/*
 * schedule(name, cron, queue, payload, time_zone, priority, group_key, max_attempts,
 *		headers, expires_in, kind) -> next run; IQ005, 42501, 22004, 22023, 53400, 54000,
 *		55000, 25006.
 */
Datum
idemq_sql_v2_schedule(PG_FUNCTION_ARGS)
{
	char *name = idemq_arg_text(fcinfo, ARG_NAME, "name", MAX_SCHEDULE_NAME);
	TimestampTz now = GetCurrentTimestamp();
	Datum values[SCHEDULE_VALUES];
	char nulls[SCHEDULE_VALUES + 1] = {0};
	Calendar calendar;
	QueueInfo queue;
	NameData role;
	TimestampTz tick;
	TimestampTz done_until;
	bool limited;

	read_calendar(fcinfo, ARG_CRON, ARG_ZONE, &calendar);
	if (!idemq_cron_next(&calendar.cron, calendar.zone, now, &tick))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("cron expression \"%s\" names a day that never comes",
							   text_to_cstring(PG_GETARG_TEXT_PP(ARG_CRON))),
						errhint("Look at the day of month and the month.")));
	check_job(fcinfo);
	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, ARG_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_queue_keep(&queue);
	idemq_driver_require();
	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	for (int i = 0; i < SCHEDULE_ARGS; i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	values[ARG_QUEUE] = Int32GetDatum(queue.id);
	values[VALUE_ROLE] = NameGetDatum(&role);
	values[VALUE_NOW] = TimestampTzGetDatum(now);
	nulls[VALUE_ROLE] = nulls[VALUE_NOW] = ' ';
	limited = idemq_max_schedules_per_role >= 0 &&
			  !has_privs_of_role(GetUserId(), idemq_oids()->owner);
	if (limited)
		idemq_role_lock(GetUserId(), ROLE_LOCK_SCHEDULES);
	done_until = save(name, values, nulls);
	if (limited)
		check_number(&role);
	(void) idemq_calendar_next_run(&calendar, done_until, &tick);
	PG_RETURN_TIMESTAMPTZ(tick);
}

/* unschedule(name) -> whether there was one, for the role to see; 42501, 22004, 22023, 25006. */
Datum
idemq_sql_v2_unschedule(PG_FUNCTION_ARGS)
{
	char *name = idemq_arg_text(fcinfo, 0, "name", MAX_SCHEDULE_NAME);
	Datum value = PG_GETARG_DATUM(0);
	Standing standing;
	SqlScope scope;

	idemq_jobs_check_writable();
	standing = lock_own(value);
	if (standing == STANDING_BYSTANDER)
		refuse_change(name);
	if (standing != STANDING_CHANGER)
		PG_RETURN_BOOL(false);
	idemq_spi_begin(&scope);
	(void) idemq_spi_run(&delete_schedule, &value, NULL, SPI_OK_DELETE);
	idemq_spi_end(&scope);
	PG_RETURN_BOOL(true);
}

/* next_tick(cron, time_zone, after) -> the first tick after it, or NULL; 22004, 22023. */
Datum
idemq_sql_v2_next_tick(PG_FUNCTION_ARGS)
{
	Calendar calendar;
	TimestampTz tick;

	idemq_arg_required(fcinfo, 2, "after");
	read_calendar(fcinfo, 0, 1, &calendar);
	if (!idemq_cron_next(&calendar.cron, calendar.zone, PG_GETARG_TIMESTAMPTZ(2), &tick))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(tick);
}

/* last_tick(cron, time_zone, until) -> the last tick not after it, or NULL; 22004, 22023. */
Datum
idemq_sql_v2_last_tick(PG_FUNCTION_ARGS)
{
	Calendar calendar;
	TimestampTz tick;

	idemq_arg_required(fcinfo, 2, "until");
	read_calendar(fcinfo, 0, 1, &calendar);
	if (!idemq_cron_last(&calendar.cron, calendar.zone, DT_NOBEGIN, PG_GETARG_TIMESTAMPTZ(2),
						 &tick))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(tick);
}

/* next_run(cron, time_zone, done_until) -> the tick that is due or to come, or NULL. */
Datum
idemq_sql_v2_next_run(PG_FUNCTION_ARGS)
{
	Calendar calendar;
	TimestampTz tick;

	for (int i = 0; i < 3; i++)
	{
		if (PG_ARGISNULL(i))
			PG_RETURN_NULL();
	}
	/* A time zone may have gone with an update of the server. */
	if (!idemq_calendar_read(text_to_cstring(PG_GETARG_TEXT_PP(0)),
							 text_to_cstring(PG_GETARG_TEXT_PP(1)), false, &calendar) ||
		!idemq_calendar_next_run(&calendar, PG_GETARG_TIMESTAMPTZ(2), &tick))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(tick);
}

/* may_enqueue(queue_id) -> whether the current role may enqueue to it. */
Datum
idemq_sql_v2_may_enqueue(PG_FUNCTION_ARGS)
{
	QueueInfo queue;

	PG_RETURN_BOOL(!PG_ARGISNULL(0) &&
				   idemq_queue_allows(PG_GETARG_INT32(0), PRIVILEGE_ENQUEUE, &queue));
}

/* may_change_schedule(queue_id, created_by, its oid) -> whether the current role may replace it. */
Datum
idemq_sql_v2_may_change_schedule(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(!PG_ARGISNULL(0) && !PG_ARGISNULL(1) &&
				   idemq_may_change_schedule(PG_GETARG_INT32(0), NameStr(*PG_GETARG_NAME(1)),
											 PG_ARGISNULL(2) ? InvalidOid : PG_GETARG_OID(2)));
}
