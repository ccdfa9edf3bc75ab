/*
 * schedule/cron_times.c
 *		The instants at which an expression has ticks in a time zone: arithmetic with
 *		PostgreSQL's time zone library, no state, no clock.  Those of an interval
 *		(schedule/every.c) are in no time zone.
 *
 * Where the local clock jumps (the start and end of daylight saving time), this is
 * what Vixie's cron documents, made exact:
 *
 *		a fixed hour ("30 2 * * *", any hour field but *): once for each day.  A time
 *			that the clock skips is the instant of the jump; several of them are one
 *			tick.  A time that comes twice counts the first time.
 *		every hour ("30 * * * *", "*" + "/10 * * * *"): by the minutes that the clock
 *			shows.  A minute that it skips has no tick, one that it shows twice has two,
 *			so that the distance between ticks stays what it is.
 *
 * A day is searched as a whole.  Where the clock falls back over midnight, its ticks may lie
 * before those of the day before: so the next day in the direction of the search is always
 * searched too.
 */
#include "postgres.h"

#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "schedule/schedule.h"

/* The longest pause there can be: a February 29 on a given weekday, over a year 2100. */
#define SEARCHED_DAYS (41 * 366)
#define SECS_PER_TICK 60
/* A zone is at most 16 hours off: so much around a local day covers it. */
#define DAY_MARGIN (2 * SECS_PER_DAY)
#define MAX_SEGMENTS 16

/* Years of four digits: a key shows no others. */
#define FIRST_YEAR 1
#define LAST_YEAR 9999

/* From begin until just before end (seconds since 1970) the local clock is ahead by offset. */
typedef struct Segment
{
	pg_time_t begin;
	pg_time_t end;
	long offset;
} Segment;

/* What is searched for: the first or the last instant in (after, until]. */
typedef struct Search
{
	const Cron *cron;
	pg_tz *zone;
	pg_time_t after;
	pg_time_t until;
	bool want_last;
	bool found;
	pg_time_t best;
} Search;

static void
cron_consider(Search *search, pg_time_t instant)
{
	if (instant <= search->after || instant > search->until)
		return;
	if (!search->found || (search->want_last ? instant > search->best : instant < search->best))
		search->best = instant;
	search->found = true;
}

/* Fills in the segments around a local day; returns how many. */
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

/* Considers the instants at which the local clock shows a time (seconds as if it were UTC). */
static void
consider_local(Search *search, const Segment *segments, int n, pg_time_t local, bool every_hour)
{
	for (int i = 0; i < n; i++)
	{
		pg_time_t instant = local - segments[i].offset;

		if (instant >= segments[i].begin && instant < segments[i].end)
		{
			cron_consider(search, instant);
			if (!every_hour)
				return;
		}
		else if (!every_hour && i > 0 && instant < segments[i].begin &&
				 local - segments[i - 1].offset >= segments[i].begin)
		{
			/* The jump with which this segment begins skips it. */
			cron_consider(search, segments[i].begin);
			return;
		}
	}
}

/* Considers the ticks of a local day. */
static void
search_day(Search *search, int julian)
{
	pg_time_t midnight = ((pg_time_t) julian - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
	bool every_hour = idemq_cron_every_hour(search->cron);
	Segment segments[MAX_SEGMENTS];
	int year;
	int month;
	int day;
	int n;

	j2date(julian, &year, &month, &day);
	if (!idemq_cron_has_day(search->cron, month, day, j2day(julian)))
		return;
	n = read_segments(search->zone, midnight, segments);
	for (int minute = 0; minute < MINS_PER_HOUR * HOURS_PER_DAY; minute++)
	{
		if ((search->cron->hours >> (minute / MINS_PER_HOUR) & 1) != 0 &&
			(search->cron->minutes >> (minute % MINS_PER_HOUR) & 1) != 0)
			consider_local(search, segments, n, midnight + minute * SECS_PER_TICK, every_hour);
	}
}

/* Returns the day that the local clock shows at an instant, as a Julian day. */
static int
local_day(pg_time_t instant, pg_tz *zone)
{
	struct pg_tm *tm = pg_localtime(&instant, zone);

	if (tm == NULL)
		return 0;
	return date2j(tm->tm_year + 1900, tm->tm_mon + 1, tm->tm_mday);
}

/* Searches days, from one to another, in either direction; one more after it has found a tick. */
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

/* Returns seconds since 1970, rounded down. */
static pg_time_t
to_seconds(TimestampTz time)
{
	pg_time_t seconds = time / USECS_PER_SEC - (time % USECS_PER_SEC < 0 ? 1 : 0);

	return seconds + ((pg_time_t) POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
}

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
 * Finds the first tick after an instant; false when there is none in 41 years, or when years
 * do not have four digits.
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

/* Finds the last tick after one instant and not after another; false when there is none. */
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
