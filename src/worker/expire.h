/*
 * worker/expire.h
 *		Cancelling jobs that nobody claimed in time.
 */
#ifndef IDEMQ_WORKER_EXPIRE_H
#define IDEMQ_WORKER_EXPIRE_H

#include "queue/queue_settings.h"

extern int64 idemq_expire_due_at(QueueSlot *slot, int32 queue_id);
extern void idemq_expire_some(const QueueInfo *queue);
extern void idemq_expire_ended(QueueSlot *slot, int32 queue_id, bool done);

#endif
