/*
 * job/kept_key.h
 *		Keys that producers do not give: of ticks, and of published jobs.
 */
#ifndef IDEMQ_JOB_KEPT_KEY_H
#define IDEMQ_JOB_KEPT_KEY_H

/* Between a publisher's key and the space of its topic. */
#define TOPIC_KEY_MARK "@topic:"

extern void idemq_tick_key_check(int32 queue_id, Datum key);
extern void idemq_topic_key_check(Datum key);

#endif
