/*
 * schedule/worker_tick.h
 *		Ticks of schedules, by the background worker.
 */
#ifndef IDEMQ_SCHEDULE_WORKER_TICK_H
#define IDEMQ_SCHEDULE_WORKER_TICK_H

#include "shared/slots.h"

extern void idemq_tick_begin(void);
extern int64 idemq_tick_due_at(const SlotView *view);
extern void idemq_tick_some(void);

#endif
