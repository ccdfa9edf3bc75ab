/*
 * txn/pending_window.h
 *		The windows of groups that this transaction is in.
 */
#ifndef IDEMQ_TXN_PENDING_WINDOW_H
#define IDEMQ_TXN_PENDING_WINDOW_H

#include "shared/slots.h"

extern void idemq_pending_window_enter(const QueueSlot *slot, Oid database, int64 id);
extern void idemq_pending_window_leave(void);

#endif
