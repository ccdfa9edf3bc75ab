/*
 * worker/handle.h
 *		Starting the processes that run handlers.
 */
#ifndef IDEMQ_WORKER_HANDLE_H
#define IDEMQ_WORKER_HANDLE_H

#include "queue/queue_settings.h"

extern int64 idemq_handle_due_at(const SlotView *view);
extern void idemq_handle(const QueueInfo *queue);
extern void idemq_handle_ended(const SlotView *view, bool done);

#endif
