/*
 * job/promote.h
 *		Giving FIFO groups their heads.
 */
#ifndef IDEMQ_JOB_PROMOTE_H
#define IDEMQ_JOB_PROMOTE_H

#include "queue/queue_settings.h"

extern bool idemq_promote_wanted(const QueueInfo *queue);
extern int idemq_promote_some(const QueueInfo *queue, int max);
extern void idemq_promote_batch(const QueueInfo *queue, int max);
extern bool idemq_promote_may_linger(void);
extern void idemq_promote_later(const QueueInfo *queue, Datum name);
extern bool idemq_promote_child(const QueueInfo *queue, int64 id);
extern bool idemq_promote_group(const QueueInfo *queue, Datum name);

#endif
