/*
 * lowers.h
 *		The keys that this transaction makes claimable.
 */
#ifndef IDEMQ_LOWERS_H
#define IDEMQ_LOWERS_H

#include "cursor.h"

extern void idemq_lowers_note(QueueSlot *slot, int32 queue_id, int priority, ReadyKey key);
extern void idemq_lowers_note_taken(QueueSlot *slot, int32 queue_id, int priority, ReadyKey key);
extern void idemq_lowers_note_expiry(QueueSlot *slot, int32 queue_id, int priority,
									 TimestampTz expires_at);
extern void idemq_lowers_view(int32 queue_id, CursorView *view);
extern void idemq_lowers_apply(SubTransactionId from, bool committed);
extern bool idemq_lowers_any(void);
extern void idemq_lowers_forget(void);

#endif
