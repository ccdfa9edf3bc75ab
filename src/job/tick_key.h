/*
 * job/tick_key.h
 *		Keys of ticks.
 */
#ifndef IDEMQ_JOB_TICK_KEY_H
#define IDEMQ_JOB_TICK_KEY_H

extern void idemq_tick_key_check(int32 queue_id, Datum key);

#endif
