/*
 * schedule/pg_cron.h
 *		What calls idemq.tick(): pg_cron, or another driver.
 */
#ifndef IDEMQ_SCHEDULE_PG_CRON_H
#define IDEMQ_SCHEDULE_PG_CRON_H

#include "datatype/timestamp.h"

extern void idemq_driver_require(void);
extern void idemq_driver_note_call(TimestampTz now);
extern int64 idemq_driver_abandoned(void);

#endif
