/*
 * txn/pending.h
 *		What shared memory does once this transaction has ended.
 */
#ifndef IDEMQ_TXN_PENDING_H
#define IDEMQ_TXN_PENDING_H

#include "shared/leases.h"
#include "shared/notify_ring.h"

extern void idemq_xact_reserve(void);
extern void idemq_xact_reserve_claim(void);
extern void idemq_xact_note_claim(const LeaseClaim *claim, int32 priority, ReadyKey key,
								  bool rowonly, const Lease *prior);
extern void idemq_xact_note_end(QueueSlot *slot, int32 queue_id, int64 job_id, int64 token);
extern void idemq_xact_note_recovery(QueueSlot *slot, int32 queue_id);
extern void idemq_xact_note_create_queue(int32 queue_id);
extern void idemq_xact_note_drop_queue(int32 queue_id);
extern void idemq_xact_note_forget(void);
extern void idemq_xact_note_event(QueueSlot *slot, int32 queue_id, EventKind kind, int64 job_id,
								  int32 attempt);
extern void idemq_xact_note_finished(int64 job_id);
extern void idemq_xact_note_gone(void);
extern void idemq_xact_note_settings(int32 queue_id);
extern void idemq_xact_note_extension(Oid database);
extern void idemq_xact_undo_last(void);
extern bool idemq_xact_any(void);
extern void idemq_xact_apply(void);
extern void idemq_xact_undo(SubTransactionId from);
extern void idemq_xact_before_prepare(void);
extern void idemq_xact_prepare(void);
extern void idemq_xact_forget(void);

#endif
