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
 * cron.c
 *		Parses cron expressions, and intervals such as "every 10 s".
 */

#define CRON_MAX_TEXT 1024 /* bytes of an expression */
#define CRON_MAX_ERROR 200 /* bytes of an error message, including the terminating zero */

/* An expression: an interval, or sets of local times, in which bit n stands for the value n. */
typedef struct Cron
{
	int every; /* seconds of the interval; 0: not an interval */
	uint64 minutes;
	uint64 hours;
	uint64 days;	 /* of the month, from 1 */
	uint64 months;	 /* from 1 */
	uint64 weekdays; /* 0: Sunday */
	bool any_day;	 /* its field begins with *: then a day must match both fields of days */
	bool any_weekday;
} Cron;

extern bool idemq_is_every(const char *text);
extern bool idemq_cron_parse(const char *text, Cron *cron, char *error);

/*
 * cron_times.c
 *		The instants at which an expression has ticks.
 */

extern bool idemq_cron_next(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz *tick);
extern bool idemq_cron_last(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz until,
							TimestampTz *tick);

/*
 * tick.c
 *		Enqueues the ticks that are due.
 */

extern void idemq_tick_begin(void);
extern int64 idemq_tick_due_at(const QueueStateView *view);
extern void idemq_tick_some(void);
extern void idemq_tick_ended(const QueueStateView *view, bool done);
extern char *idemq_tick_overdue(TimestampTz by);

#endif
