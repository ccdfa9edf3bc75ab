/*
 * worker/expire.h
 *		Cancelling jobs that were not claimed in time.
 */
#ifndef IDEMQ_WORKER_EXPIRE_H
#define IDEMQ_WORKER_EXPIRE_H

#include "queue/queue_settings.h"

extern int64 idemq_expire_due_at(const SlotView *view);
extern void idemq_expire_some(const QueueInfo *queue);
extern void idemq_expire_ended(const SlotView *view, bool done);

#endif
