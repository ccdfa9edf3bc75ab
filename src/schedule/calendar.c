/*
 * schedule/calendar.c
 *		A cron expression in its time zone: reading it, the tick that is due, the next
 *		run.
 *
 * Times here are the wall clock's, not idemq_now(): a calendar means that one.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "schedule/schedule.h"

/* A clock that was set back by no more is waited for. */
#define CLOCK_STEP (10 * USECS_PER_MINUTE)

/*
 * Reads a cron expression and the name of a time zone.  Returns false, or raises
 * 22023, for what is none.
 */
bool
idemq_calendar_read(const char *cron, const char *zone, bool raise, Calendar *calendar)
{
	char error[CRON_MAX_ERROR];

	if (!idemq_cron_parse(cron, &calendar->cron, error))
	{
		if (raise)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("cron expression \"%s\" is not valid", cron), errdetail("%s.", error),
					 errhint("Pass minute, hour, day of month, month and day of week, such as "
							 "'30 2 * * mon-fri', or @hourly, @daily, @weekly, @monthly, "
							 "@yearly.")));
		return false;
	}
	calendar->zone = pg_tzset(zone);
	if (calendar->zone == NULL || !pg_tz_acceptable(calendar->zone))
	{
		if (raise)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("time zone \"%s\" is not known", zone),
							errhint("Pass a name from pg_timezone_names, such as "
									"'Europe/Berlin'.")));
		return false;
	}
	return true;
}

/*
 * Returns whether a done_until was written by a clock that was ahead, and is to be
 * now.  By a little, it is not: those ticks are enqueued.  Where all of them were,
 * their keys keep them from being enqueued again.
 */
bool
idemq_calendar_is_ahead(TimestampTz done_until, TimestampTz now)
{
	return done_until > now + CLOCK_STEP;
}

/* Finds the tick that is due: the last one until now that is not dealt with. */
bool
idemq_calendar_due(const Calendar *calendar, TimestampTz done_until, TimestampTz now,
				   TimestampTz *tick)
{
	return idemq_cron_last(&calendar->cron, calendar->zone, done_until, now, tick);
}

/* Finds the next run: the tick that is due, or else the first one to come. */
bool
idemq_calendar_next_run(const Calendar *calendar, TimestampTz done_until, TimestampTz *tick)
{
	TimestampTz now = GetCurrentTimestamp();

	if (idemq_calendar_is_ahead(done_until, now))
		done_until = now;
	return idemq_calendar_due(calendar, done_until, now, tick) ||
		   idemq_cron_next(&calendar->cron, calendar->zone, Max(done_until, now), tick);
}
