/*
 * worker/notify.h
 *		NOTIFY: what became ready, and events of single jobs.
 */
#ifndef IDEMQ_WORKER_NOTIFY_H
#define IDEMQ_WORKER_NOTIFY_H

#include "shared/slots.h"

extern void idemq_notify_look(QueueSlot *slot);
extern bool idemq_notify_waiting(void);
extern void idemq_notify_send(void);
extern bool idemq_notify_sent(void);

#endif
