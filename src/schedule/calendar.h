/*
 * schedule/calendar.h
 *		A cron expression in its time zone.
 */
#ifndef IDEMQ_SCHEDULE_CALENDAR_H
#define IDEMQ_SCHEDULE_CALENDAR_H

#include "schedule/cron.h"

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

#endif
