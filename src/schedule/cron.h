/*
 * schedule/cron.h
 *		Cron expressions: which days and minutes, and at which instants that is.
 */
#ifndef IDEMQ_SCHEDULE_CRON_H
#define IDEMQ_SCHEDULE_CRON_H

#include "datatype/timestamp.h"
#include "pgtime.h"

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

#endif
