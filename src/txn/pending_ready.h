/*
 * txn/pending_ready.h
 *		The keys that this transaction makes claimable.
 */
#ifndef IDEMQ_TXN_PENDING_READY_H
#define IDEMQ_TXN_PENDING_READY_H

#include "shared/ready_cursor.h"

extern void idemq_pending_ready_note(QueueSlot *slot, int32 queue_id, int priority, ReadyKey key);
extern void idemq_pending_ready_note_taken(QueueSlot *slot, int32 queue_id, int priority,
										   ReadyKey key);
extern void idemq_pending_ready_note_expiry(QueueSlot *slot, int32 queue_id, int priority,
											TimestampTz expires_at);
extern void idemq_pending_ready_view(int32 queue_id, CursorView *view);
extern void idemq_pending_ready_apply(SubTransactionId from, bool committed);
extern bool idemq_pending_ready_any(void);
extern void idemq_pending_ready_forget(void);

#endif
