/*
 * schedule/tick.h
 *		Which schedules are due, and enqueuing for one.
 */
#ifndef IDEMQ_SCHEDULE_TICK_H
#define IDEMQ_SCHEDULE_TICK_H

#include "utils/array.h"
#include "utils/timestamp.h"

extern ArrayType *idemq_schedules_due(TimestampTz now, TimestampTz failed_after, TimestampTz *next);
extern bool idemq_schedule_run(Datum name);
extern void idemq_schedule_note_failure(Datum name, Datum error);

#endif
