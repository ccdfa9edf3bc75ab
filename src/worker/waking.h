/*
 * worker/waking.h
 *		Waking the sleepers of a queue for what no commit has told them.
 */
#ifndef IDEMQ_WORKER_WAKING_H
#define IDEMQ_WORKER_WAKING_H

#include "queue/queue_settings.h"

extern int64 idemq_due_due_at(const SlotView *view);
extern void idemq_due(const QueueInfo *queue);
extern void idemq_due_ended(const SlotView *view, bool done);
extern int64 idemq_remind_due_at(const SlotView *view);
extern void idemq_remind(const QueueInfo *queue);
extern void idemq_remind_ended(const SlotView *view, bool done);

#endif
