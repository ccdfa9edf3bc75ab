/*
 * schedule/cron_times.c
 *		The instants at which an expression has ticks, in a time zone.  Arithmetic with PostgreSQL's
 *		time zone library: no state and no clock.
 *
 * Where the local clock jumps (at the start and end of daylight saving time), we do what Vixie cron
 * documents, but define it exactly:
 *
 *		fixed hours ("30 2 * * *", any field of hours but *): one tick per matching local time and
 *		day.
 *			If the clock skips a time, its tick is at the instant of the jump; several skipped
 *			times make one tick.  If the clock shows a time twice, only the first counts.
 *		every hour ("30 * * * *", "*" + "/10 * * * *"): ticks follow the minutes that the clock
 *		shows.
 *			A minute that the clock skips has no tick, and a minute that it shows twice has two, so
 *			the time between ticks does not change.
 *
 * Ticks are searched for one local day at a time.  If the clock falls back over midnight, a day
 * may have ticks before those of the previous day.  Therefore, when a tick has been found, the
 * next day in the direction of the search is searched as well.
 */
#include "postgres.h"

#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "schedule/schedule.h"

/*
 * Ticks can be 40 years apart: February 29 on a certain weekday, if 2100, which is not a leap year,
 * is in between.
 */
#define SEARCHED_DAYS (41 * 366)
#define SECS_PER_TICK 60
/* Covers the offset of any time zone, which is at most 16 hours, on either side of a local day. */
#define DAY_MARGIN (2 * SECS_PER_DAY)
#define MAX_SEGMENTS 16

/* The key of a tick has a year of four digits. */
#define FIRST_YEAR 1
#define LAST_YEAR 9999

/* In [begin, end), in seconds since 1970, local time is UTC plus offset seconds. */
typedef struct Segment
{
	pg_time_t begin;
	pg_time_t end;
	long offset;
} Segment;

/* A search for the first or the last tick in (after, until]. */
typedef struct Search
{
	const Cron *cron;
	pg_tz *zone;
	pg_time_t after;
	pg_time_t until;
	bool want_last;
	bool found;
	pg_time_t best; /* the result so far, if found */
} Search;

/* Takes an instant as the result, if it is in the interval and better than the result so far. */
static void
search_consider(Search *search, pg_time_t instant)
{
	if (instant <= search->after || instant > search->until)
		return;
	if (!search->found || (search->want_last ? instant > search->best : instant < search->best))
		search->best = instant;
	search->found = true;
}

/*
 * Fills in the segments around a local day, whose midnight is given as if it were UTC; returns how
 * many there are.
 */
static int
read_segments(pg_tz *zone, pg_time_t midnight, Segment *segments)
{
	pg_time_t at = midnight - DAY_MARGIN;
	pg_time_t end = midnight + SECS_PER_DAY + DAY_MARGIN;
	int n = 0;

	while (at < end && n < MAX_SEGMENTS)
	{
		long before;
		long after;
		int before_dst;
		int after_dst;
		pg_time_t boundary;
		int changes =
			pg_next_dst_boundary(&at, &before, &before_dst, &boundary, &after, &after_dst, zone);

		if (changes < 0)
			break;
		segments[n].begin = at;
		segments[n].end = changes > 0 && boundary < end ? boundary : end;
		segments[n].offset = before;
		at = segments[n++].end;
	}
	return n;
}

/*
 * Considers the instants at which the local clock shows a time, which is given as if it were UTC.
 */
static void
consider_local(Search *search, const Segment *segments, int n, pg_time_t local, bool every_hour)
{
	for (int i = 0; i < n; i++)
	{
		pg_time_t instant = local - segments[i].offset;

		if (instant >= segments[i].begin && instant < segments[i].end)
		{
			search_consider(search, instant);
			if (!every_hour)
				return;
		}
		else if (!every_hour && i > 0 && instant < segments[i].begin &&
				 local - segments[i - 1].offset >= segments[i].begin)
		{
			/* The clock skips this time where the segment begins. */
			search_consider(search, segments[i].begin);
			return;
		}
	}
}

/* Returns whether an expression has ticks on a day; weekday 0 is Sunday. */
static bool
has_day(const Cron *cron, int month, int day, int weekday)
{
	bool by_day = (cron->days >> day & 1) != 0;
	bool by_weekday = (cron->weekdays >> weekday & 1) != 0;

	if ((cron->months >> month & 1) == 0)
		return false;
	if (cron->any_day || cron->any_weekday)
		return by_day && by_weekday;
	return by_day || by_weekday;
}

/* Considers the ticks of a local day. */
static void
search_day(Search *search, int julian)
{
	pg_time_t midnight = ((pg_time_t) julian - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
	bool every_hour = search->cron->hours == (UINT64CONST(1) << 24) - 1;
	Segment segments[MAX_SEGMENTS];
	int year;
	int month;
	int day;
	int n;

	j2date(julian, &year, &month, &day);
	if (!has_day(search->cron, month, day, j2day(julian)))
		return;
	n = read_segments(search->zone, midnight, segments);
	for (int minute = 0; minute < MINS_PER_HOUR * HOURS_PER_DAY; minute++)
	{
		if ((search->cron->hours >> (minute / MINS_PER_HOUR) & 1) != 0 &&
			(search->cron->minutes >> (minute % MINS_PER_HOUR) & 1) != 0)
			consider_local(search, segments, n, midnight + minute * SECS_PER_TICK, every_hour);
	}
}

/* Returns the local date at an instant, as a Julian day. */
static int
local_day(pg_time_t instant, pg_tz *zone)
{
	struct pg_tm *tm = pg_localtime(&instant, zone);

	if (tm == NULL)
		return 0;
	return date2j(tm->tm_year + 1900, tm->tm_mon + 1, tm->tm_mday);
}

/*
 * Searches local days (Julian days), in the direction of the search, until one day after it has
 * found a tick.  Returns whether it has found one.
 */
static bool
search_days(Search *search, int from, int to)
{
	int step = search->want_last ? -1 : 1;

	for (int julian = from; step > 0 ? julian <= to : julian >= to; julian += step)
	{
		bool found_before = search->found;

		search_day(search, julian);
		if (found_before)
			break;
	}
	return search->found;
}

/* Returns a time in seconds since 1970, rounded down. */
static pg_time_t
to_seconds(TimestampTz time)
{
	pg_time_t seconds = time / USECS_PER_SEC - (time % USECS_PER_SEC < 0 ? 1 : 0);

	return seconds + ((pg_time_t) POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
}

/* Returns whether ticks near a time have keys with years of four digits. */
static bool
is_searchable(TimestampTz time)
{
	int year;
	int month;
	int day;

	if (TIMESTAMP_NOT_FINITE(time))
		return false;
	j2date((int) (time / USECS_PER_DAY) + POSTGRES_EPOCH_JDATE, &year, &month, &day);
	return year > FIRST_YEAR && year < LAST_YEAR;
}

static TimestampTz
to_timestamp(pg_time_t seconds)
{
	return (seconds - ((pg_time_t) POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY) *
		   USECS_PER_SEC;
}

/* Returns the last whole multiple of an interval since 1970 that is not after an instant. */
static pg_time_t
round_down(pg_time_t instant, int every)
{
	pg_time_t rest = instant % every;

	return instant - rest - (rest < 0 ? every : 0);
}

/*
 * Finds the first tick after a time.  Returns false if there is none within 41 years, or before
 * the year 9999.
 */
bool
idemq_cron_next(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz *tick)
{
	Search search = {.cron = cron, .zone = zone, .until = PG_INT64_MAX};
	int from;

	if (!is_searchable(after))
		return false;
	search.after = to_seconds(after);
	if (cron->every > 0)
	{
		*tick = to_timestamp(round_down(search.after, cron->every) + cron->every);
		return true;
	}
	from = local_day(search.after, zone) - 1;
	if (!search_days(&search, from, Min(from + SEARCHED_DAYS, date2j(LAST_YEAR, 12, 30))))
		return false;
	*tick = to_timestamp(search.best);
	return true;
}

/*
 * Finds the last tick in (after, until].  Returns false if there is none; if after is infinite, the
 * search goes back 41 years.
 */
bool
idemq_cron_last(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz until,
				TimestampTz *tick)
{
	Search search = {.cron = cron, .zone = zone, .want_last = true};
	int from;

	if (!is_searchable(until))
		return false;
	search.after = is_searchable(after) ? to_seconds(after) : PG_INT64_MIN;
	search.until = to_seconds(until);
	if (cron->every > 0)
	{
		*tick = to_timestamp(round_down(search.until, cron->every));
		return round_down(search.until, cron->every) > search.after;
	}
	from = local_day(search.until, zone) + 1;
	if (!search_days(&search, from,
					 is_searchable(after) ? local_day(search.after, zone) - 1
										  : from - SEARCHED_DAYS))
		return false;
	*tick = to_timestamp(search.best);
	return true;
}
