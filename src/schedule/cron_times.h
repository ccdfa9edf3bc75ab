/*
 * schedule/cron_times.h
 *		The instants at which a cron expression has ticks in a time zone: arithmetic
 *		with PostgreSQL's time zone library, no state, no clock.
 */
#ifndef IDEMQ_SCHEDULE_CRON_TIMES_H
#define IDEMQ_SCHEDULE_CRON_TIMES_H

#include "schedule/cron.h"

extern bool idemq_cron_next(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz *tick);
extern bool idemq_cron_last(const Cron *cron, pg_tz *zone, TimestampTz after, TimestampTz until,
							TimestampTz *tick);

#endif
