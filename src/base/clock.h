/*
 * base/clock.h
 *		One clock for the whole server that does not go back by itself.
 */
#ifndef IDEMQ_BASE_CLOCK_H
#define IDEMQ_BASE_CLOCK_H

#include "datatype/timestamp.h"

/* 2026-01-01 as a TimestampTz, 9,497 days after 2000-01-01: tokens and ids count from it. */
#define IDEMQ_EPOCH (INT64CONST(9497) * USECS_PER_DAY)

/* In place of an epoch: equal to none. */
#define CLOCK_EPOCH_NONE UINT64CONST(1)

extern Size idemq_clock_shmem_size(void);
extern void idemq_clock_shmem_init(void *area, bool found);

extern int64 idemq_mono_now(void);
extern uint64 idemq_clock_epoch(void);
extern void idemq_clock_correct(void);
extern TimestampTz idemq_now(void);
extern int64 idemq_mono_from_timestamp(TimestampTz ts);
extern TimestampTz idemq_timestamp_from_mono(int64 mono);
extern TimestampTz idemq_primary_since(void);
extern int64 idemq_primary_since_mono(void);

extern void idemq_begin_transaction(void);

#endif
