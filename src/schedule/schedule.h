/*
 * schedule/schedule.h
 *		Cron expressions and their ticks.
 */
#ifndef IDEMQ_SCHEDULE_SCHEDULE_H
#define IDEMQ_SCHEDULE_SCHEDULE_H

#include "datatype/timestamp.h"
#include "pgtime.h"
#include "utils/array.h"
#include "utils/timestamp.h"

#include "shared/slots/slots.h"

/*
 * pg_cron.c
 *		What calls idemq.tick(): pg_cron, or another driver.
 */

extern void idemq_driver_require(void);
extern void idemq_driver_note_call(TimestampTz now);
extern int64 idemq_driver_abandoned(void);

/*
 * cron.c
 *		Cron expressions: which days and minutes, and at which instants that is.
 */

#define CRON_MAX_TEXT 1024 /* bytes */
#define CRON_MAX_ERROR 200 /* bytes of what is wrong, with its end */

/* A set of minutes by the local clock; bit n stands for the value n. */
typedef struct Cron
{
	uint64 minutes;
	uint64 hours;
	uint64 days;	 /* of the month, from 1 */
	uint64 months;	 /* from 1 */
	uint64 weekdays; /* 0: Sunday */
	bool any_day;	 /* the field began with *: the other one decides */
	bool any_weekday;
} Cron;

extern bool idemq_cron_parse(const char *text, Cron *cron, char *error);
extern bool idemq_cron_has_day(const Cron *cron, int month, int day, int weekday);
extern bool idemq_cron_every_hour(const Cron *cron);

/*
 * cron_times.c
 *		The instants at which a cron expression has ticks in a time zone: arithmetic
 *		with PostgreSQL's time zone library, no state, no clock.
 */

extern bool idemq_cron_next(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz *tick);
extern bool idemq_cron_last(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz until,
							TimestampTz *tick);

/*
 * calendar.c
 *		A cron expression in its time zone.
 */

/* A cron expression in its time zone. */
typedef struct Calendar
{
	Cron cron;
	pg_tz *zone;
} Calendar;

extern bool idemq_calendar_read(const char *cron, const char *zone, bool raise, Calendar *calendar);
extern bool idemq_calendar_is_ahead(TimestampTz done_until, TimestampTz now);
extern bool idemq_calendar_due(const Calendar *calendar, TimestampTz done_until, TimestampTz now,
							   TimestampTz *tick);
extern bool idemq_calendar_next_run(const Calendar *calendar, TimestampTz done_until,
									TimestampTz *tick);

/*
 * tick.c
 *		Which schedules are due, and enqueuing for one.
 */

extern ArrayType *idemq_schedules_due(TimestampTz now, TimestampTz failed_after, TimestampTz *next);
extern bool idemq_schedule_run(Datum name);
extern void idemq_schedule_note_failure(Datum name, Datum error);

/*
 * worker_tick.c
 *		Ticks of schedules, by the background worker.
 */

extern void idemq_tick_begin(void);
extern int64 idemq_tick_due_at(const SlotView *view);
extern void idemq_tick_some(void);

#endif
