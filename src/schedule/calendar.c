/*
 * schedule/calendar.c
 *		A cron expression in its time zone, or an interval: the SQL functions next_tick, last_tick,
 *		next_run and due_at.
 *
 * Times here come from the wall clock (idemq_wall_now), not from idemq_now(), because a calendar
 * follows the wall clock.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "schedule/schedule.h"

/* A clock that was set back by no more is waited for; in sql/parts/80_schedules.sql too. */
#define CLOCK_STEP (10 * USECS_PER_MINUTE)

/* A failed tick is tried again after this time, unless the next tick comes earlier. */
#define RETRY_PAUSE USECS_PER_MINUTE

typedef struct Calendar
{
	Cron cron;
	pg_tz *zone;
} Calendar;

/* Returns a time zone, NULL when the server knows none of that name. */
static pg_tz *
find_zone(const char *name)
{
	pg_tz *zone = pg_tzset(name);

	return zone != NULL && pg_tz_acceptable(zone) ? zone : NULL;
}

/* Returns whether the day of the month has a symbol that other programs use for the last day. */
static bool
asks_for_last_day(const char *cron)
{
	static const char spaces[] = " \t";

	for (int field = 0; field < 2; field++)
	{
		cron += strspn(cron, spaces);
		cron += strcspn(cron, spaces);
	}
	cron += strspn(cron, spaces);
	for (const char *c = cron; *c != '\0' && strchr(spaces, *c) == NULL; c++)
	{
		if ((c == cron || c[-1] == ',') && strchr("Ll$", *c) != NULL)
			return true;
	}
	return false;
}

/* Raises 22023 for an expression that cannot be read. */
pg_noreturn static void
refuse_expression(const char *cron, const char *error)
{
	if (idemq_is_every(cron))
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("invalid interval \"%s\"", cron), errdetail("%s.", error),
				errhint("Pass the word every, a whole number and s, min or h, for example "
						"'every 10 s'. The interval must be between 1 s and 24 h."));
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("invalid cron expression \"%s\"", cron), errdetail("%s.", error),
			asks_for_last_day(cron)
				? errhint(
					  "To run a job on the last day of each month, pass 28-31 as the day of month, "
					  "and make the job do nothing unless the next day is the first. "
					  "Alternatively, run the job on the first day of the next month with '0 0 1 * "
					  "*'.")
				: errhint(
					  "Pass minute, hour, day of month, month and day of week, for example '30 2 * "
					  "* mon-fri', or @hourly, @daily, @weekly, @monthly or @yearly, or an "
					  "interval, for example 'every 10 s'."));
}

/* Reads the arguments cron and time_zone, the first two; raises 22004, 22023. */
static void
read_calendar(FunctionCallInfo fcinfo, Calendar *calendar)
{
	char *cron = idemq_arg_text(fcinfo, 0, "cron", CRON_MAX_TEXT);
	char *zone = idemq_arg_text(fcinfo, 1, "time_zone", TZ_STRLEN_MAX);
	char error[CRON_MAX_ERROR];

	if (!idemq_cron_parse(cron, &calendar->cron, error))
		refuse_expression(cron, error);
	/* UTC is the default, and what its ticks are aligned to. */
	if (calendar->cron.every > 0 && strcmp(zone, "UTC") != 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("an interval cannot have a time zone"),
				errdetail("The ticks of \"%s\" are multiples of the interval since 1970-01-01 "
						  "00:00 UTC, in every time zone.",
						  cron),
				errhint("Omit time_zone, or pass a cron expression."));
	calendar->zone = find_zone(zone);
	if (calendar->zone == NULL)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("time zone \"%s\" is not recognized", zone),
				errhint("Pass a name from pg_timezone_names, for example 'Europe/Berlin'."));
}

/* next_tick(cron, time_zone, after) -> the first tick after it, or NULL; 22004, 22023. */
SQL_FUNCTION(idemq_sql_next_tick)
{
	Calendar calendar;
	TimestampTz tick;

	idemq_arg_required(fcinfo, 2, "after");
	read_calendar(fcinfo, &calendar);
	if (!idemq_cron_next(&calendar.cron, calendar.zone, PG_GETARG_TIMESTAMPTZ(2), &tick))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(tick);
}

/* last_tick(cron, time_zone, until) -> the last tick not after it, or NULL; 22004, 22023. */
SQL_FUNCTION(idemq_sql_last_tick)
{
	Calendar calendar;
	TimestampTz tick;

	idemq_arg_required(fcinfo, 2, "until");
	read_calendar(fcinfo, &calendar);
	if (!idemq_cron_last(&calendar.cron, calendar.zone, DT_NOBEGIN, PG_GETARG_TIMESTAMPTZ(2),
						 &tick))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(tick);
}

/* Reads the first two arguments, which a row of idemq_internal.schedule_entries has; or false. */
static bool
read_stored(FunctionCallInfo fcinfo, Calendar *calendar)
{
	char error[CRON_MAX_ERROR];

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return false;
	/* A time zone may have gone with an update of the server. */
	calendar->zone = find_zone(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	return calendar->zone != NULL &&
		   idemq_cron_parse(text_to_cstring(PG_GETARG_TEXT_PP(0)), &calendar->cron, error);
}

/* Finds the tick that is due (the last one up to now, unless it is done), or else the next one. */
static bool
find_run(const Calendar *calendar, TimestampTz done_until, TimestampTz now, TimestampTz *tick)
{
	/* The clock was set back by more: ticks are repeated, and their keys prevent second jobs. */
	if (done_until > now + CLOCK_STEP)
		done_until = now;
	return idemq_cron_last(&calendar->cron, calendar->zone, done_until, now, tick) ||
		   idemq_cron_next(&calendar->cron, calendar->zone, Max(done_until, now), tick);
}

/*
 * next_run(cron, time_zone, done_until) -> the tick that is due, the last one until now that is not
 * done, or else the first one to come; NULL when there is none, or the arguments cannot be read.
 */
SQL_FUNCTION(idemq_sql_next_run)
{
	Calendar calendar;
	TimestampTz tick;

	if (!read_stored(fcinfo, &calendar) || PG_ARGISNULL(2) ||
		!find_run(&calendar, PG_GETARG_TIMESTAMPTZ(2), idemq_wall_now(), &tick))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(tick);
}

/* interval_seconds(cron) -> the length of an interval in seconds; NULL if cron is not an interval. */
SQL_FUNCTION(idemq_sql_interval_seconds)
{
	char error[CRON_MAX_ERROR];
	char *cron;
	int seconds;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	cron = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!idemq_is_every(cron) || !idemq_every_parse(cron, &seconds, error))
		PG_RETURN_NULL();
	PG_RETURN_INT32(seconds);
}

/*
 * due_at(cron, time_zone, done_until, failed_at, now) -> when a schedule is to be run.
 *
 * That is its next run.  A schedule that failed is run again with its next tick, or after RETRY_PAUSE
 * if that is earlier.  failed_at NULL: it has not failed, or must not wait.  A schedule that cannot
 * be read is run now, which raises its error; so is one whose done_until was written by a clock that
 * was ahead.  Infinity: it has no more ticks.  NULL: there is no schedule.
 */
SQL_FUNCTION(idemq_sql_due_at)
{
	bool failed = !PG_ARGISNULL(3);
	TimestampTz failed_at = failed ? PG_GETARG_TIMESTAMPTZ(3) : 0;
	TimestampTz again = failed_at + RETRY_PAUSE;
	Calendar calendar;
	TimestampTz done_until;
	TimestampTz now;
	TimestampTz tick;
	bool is_read;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(2) || PG_ARGISNULL(4))
		PG_RETURN_NULL();
	done_until = PG_GETARG_TIMESTAMPTZ(2);
	now = PG_GETARG_TIMESTAMPTZ(4);
	is_read = read_stored(fcinfo, &calendar);
	if (failed && is_read && idemq_cron_next(&calendar.cron, calendar.zone, failed_at, &tick))
		again = Min(again, tick);
	if (failed && failed_at <= now && again > now)
		PG_RETURN_TIMESTAMPTZ(again);
	if (!is_read || done_until > now + CLOCK_STEP)
		PG_RETURN_TIMESTAMPTZ(now);
	if (!find_run(&calendar, done_until, now, &tick))
		PG_RETURN_TIMESTAMPTZ(DT_NOEND);
	PG_RETURN_TIMESTAMPTZ(tick);
}
