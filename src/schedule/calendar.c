/*
 * schedule/calendar.c
 *		When a schedule has ticks, and when it must run: the SQL functions next_tick, last_tick,
 *		next_run, due_at and interval_seconds.
 *
 * Times come from the wall clock (idemq_wall_now) rather than from idemq_now(), because expressions
 * refer to wall-clock time.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "schedule/schedule.h"

/*
 * If the clock was set back by at most this time, ticks wait; sql/parts/80_schedules.sql has it,
 * too.
 */
#define CLOCK_STEP (10 * USECS_PER_MINUTE)

/* A failed tick is tried again after this time, unless the next tick comes earlier. */
#define RETRY_PAUSE USECS_PER_MINUTE

typedef struct Calendar
{
	Cron cron;
	pg_tz *zone;
} Calendar;

/* Returns the time zone of that name, or NULL. */
static pg_tz *
find_zone(const char *name)
{
	pg_tz *zone = pg_tzset(name);

	return zone != NULL && pg_tz_acceptable(zone) ? zone : NULL;
}

/* Returns whether the field of days has a symbol that other programs use for the last day. */
static bool
asks_for_last_day(const char *cron)
{
	static const char blanks[] = " \t";
	const char *day = cron + strspn(cron, blanks);

	for (int field = 0; field < 2; field++)
	{
		day += strcspn(day, blanks);
		day += strspn(day, blanks);
	}
	for (const char *c = day; *c != '\0' && strchr(blanks, *c) == NULL; c++)
	{
		if ((c == day || c[-1] == ',') && strchr("Ll$", *c) != NULL)
			return true;
	}
	return false;
}

/* Raises 22023 for an invalid expression; error: from idemq_cron_parse. */
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

/* Reads the first two arguments, cron and time_zone; raises 22004 and 22023. */
static void
read_calendar(FunctionCallInfo fcinfo, Calendar *calendar)
{
	char *cron = idemq_arg_text(fcinfo, 0, "cron", CRON_MAX_TEXT);
	char *zone = idemq_arg_text(fcinfo, 1, "time_zone", TZ_STRLEN_MAX);
	char error[CRON_MAX_ERROR];

	if (!idemq_cron_parse(cron, &calendar->cron, error))
		refuse_expression(cron, error);
	/* UTC is the default, and the ticks of an interval are multiples of it since a time in UTC. */
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

/* next_tick(cron, time_zone, after) -> the first tick after that time, or NULL; 22004, 22023. */
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

/* last_tick(cron, time_zone, until) -> the last tick up to that time, or NULL; 22004, 22023. */
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

/*
 * Reads the first two arguments, which come from a row of idemq_internal.schedule_entries.  Returns
 * false if they are NULL or invalid.
 */
static bool
read_stored(FunctionCallInfo fcinfo, Calendar *calendar)
{
	char error[CRON_MAX_ERROR];

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return false;
	/* An update of the server may have removed the time zone. */
	calendar->zone = find_zone(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	return calendar->zone != NULL &&
		   idemq_cron_parse(text_to_cstring(PG_GETARG_TEXT_PP(0)), &calendar->cron, error);
}

/*
 * Finds the tick that is due, which is the last one in (done_until, now], or else the next one.
 * Returns false if there is neither.
 */
static bool
find_run(const Calendar *calendar, TimestampTz done_until, TimestampTz now, TimestampTz *tick)
{
	/* If the clock was set back by more, ticks are repeated, and their keys prevent second jobs. */
	if (done_until > now + CLOCK_STEP)
		done_until = now;
	return idemq_cron_last(&calendar->cron, calendar->zone, done_until, now, tick) ||
		   idemq_cron_next(&calendar->cron, calendar->zone, Max(done_until, now), tick);
}

/*
 * next_run(cron, time_zone, done_until) -> the tick that is due, or else the next one; NULL if
 * there is neither, or if an argument is invalid.
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

/*
 * interval_seconds(cron) -> the length of an interval in seconds; NULL if cron is not an interval.
 */
SQL_FUNCTION(idemq_sql_interval_seconds)
{
	char error[CRON_MAX_ERROR];
	Cron cron;

	if (PG_ARGISNULL(0) || !idemq_cron_parse(text_to_cstring(PG_GETARG_TEXT_PP(0)), &cron, error) ||
		cron.every == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT32(cron.every);
}

/*
 * due_at(cron, time_zone, done_until, failed_at, now) -> when the schedule must run next.
 *
 * This is the time of its next run (next_run), except:
 *	- If its last tick failed at failed_at, the schedule runs again at its next tick, or after
 *	  RETRY_PAUSE if that is earlier.  Pass NULL if it did not fail, or must not wait.
 *	- If the schedule is invalid, it must run now, to raise the error.
 *	- If done_until was written by a clock that was ahead, it must run now.
 *	- If it has no more ticks, the result is infinity.
 * NULL: cron, done_until or now is NULL.
 */
SQL_FUNCTION(idemq_sql_due_at)
{
	bool failed = !PG_ARGISNULL(3);
	TimestampTz failed_at = failed ? PG_GETARG_TIMESTAMPTZ(3) : 0;
	TimestampTz retry_at = failed_at + RETRY_PAUSE;
	Calendar calendar;
	TimestampTz done_until;
	TimestampTz now;
	TimestampTz tick;
	bool is_valid;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(2) || PG_ARGISNULL(4))
		PG_RETURN_NULL();
	done_until = PG_GETARG_TIMESTAMPTZ(2);
	now = PG_GETARG_TIMESTAMPTZ(4);
	is_valid = read_stored(fcinfo, &calendar);
	if (failed && is_valid && idemq_cron_next(&calendar.cron, calendar.zone, failed_at, &tick))
		retry_at = Min(retry_at, tick);
	if (failed && failed_at <= now && retry_at > now)
		PG_RETURN_TIMESTAMPTZ(retry_at);
	if (!is_valid || done_until > now + CLOCK_STEP)
		PG_RETURN_TIMESTAMPTZ(now);
	if (!find_run(&calendar, done_until, now, &tick))
		PG_RETURN_TIMESTAMPTZ(DT_NOEND);
	PG_RETURN_TIMESTAMPTZ(tick);
}
