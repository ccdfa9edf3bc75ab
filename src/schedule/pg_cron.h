/*
 * schedule/pg_cron.h
 *		Who calls idemq.tick(): pg_cron, or whoever does.
 */
#ifndef IDEMQ_SCHEDULE_PG_CRON_H
#define IDEMQ_SCHEDULE_PG_CRON_H

#include "datatype/timestamp.h"

extern void idemq_driver_require(void);
extern void idemq_driver_note_call(TimestampTz now);
extern int64 idemq_driver_abandoned(void);

#endif
