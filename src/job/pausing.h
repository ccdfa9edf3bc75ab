/*
 * job/pausing.h
 *		Pausing a queue, and its end.
 */
#ifndef IDEMQ_JOB_PAUSING_H
#define IDEMQ_JOB_PAUSING_H

#include "queue/queue_settings.h"

extern void idemq_pause_begin(const QueueInfo *queue, TimestampTz until);
extern void idemq_pause_end(const QueueInfo *queue);
extern bool idemq_pause_end_if_over(const QueueInfo *queue);

#endif
