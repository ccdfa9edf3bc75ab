/*
 * schedule/schedule.h
 *		Cron expressions and intervals, and their ticks.
 */
#ifndef IDEMQ_SCHEDULE_SCHEDULE_H
#define IDEMQ_SCHEDULE_SCHEDULE_H

#include "datatype/timestamp.h"
#include "pgtime.h"
#include "utils/timestamp.h"

#include "shared/queue_states/queue_states.h"

/*
 * every.c
 *		Intervals: "every 10 s".
 */

extern bool idemq_is_every(const char *text);
extern bool idemq_every_parse(const char *text, int *seconds, char *error);

/*
 * cron.c
 *		Cron expressions: which days and minutes, and at which instants that is.
 */

#define CRON_MAX_TEXT 1024 /* bytes */
#define CRON_MAX_ERROR 200 /* bytes of what is wrong, with its end */

/* A set of minutes by the local clock, bit n stands for the value n; or an interval. */
typedef struct Cron
{
	int every; /* seconds of the interval; 0: the sets below */
	uint64 minutes;
	uint64 hours;
	uint64 days;	 /* of the month, from 1 */
	uint64 months;	 /* from 1 */
	uint64 weekdays; /* 0: Sunday */
	bool any_day;	 /* its field began with *: then a day has to fit both fields of days */
	bool any_weekday;
} Cron;

extern bool idemq_cron_parse(const char *text, Cron *cron, char *error);
extern bool idemq_cron_has_day(const Cron *cron, int month, int day, int weekday);
extern bool idemq_cron_every_hour(const Cron *cron);

/*
 * cron_times.c
 *		The instants at which an expression has ticks in a time zone: arithmetic
 *		with PostgreSQL's time zone library, no state, no clock.
 */

extern bool idemq_cron_next(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz *tick);
extern bool idemq_cron_last(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz until,
							TimestampTz *tick);

/*
 * worker_tick.c
 *		Ticks of schedules, by the background worker.
 */

extern void idemq_tick_begin(void);
extern int64 idemq_tick_due_at(const QueueStateView *view);
extern void idemq_tick_some(void);
extern void idemq_tick_ended(const QueueStateView *view, bool done);
extern char *idemq_tick_overdue(TimestampTz by);

#endif
