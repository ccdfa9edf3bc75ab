/*
 * txn/pending.h
 *		What shared memory does once this transaction has ended.
 */
#ifndef IDEMQ_TXN_PENDING_H
#define IDEMQ_TXN_PENDING_H

#include "shared/leases.h"
#include "shared/notify_ring.h"

extern void idemq_pending_reserve(void);
extern void idemq_pending_reserve_claim(void);
extern void idemq_pending_note_claim(const LeaseClaim *claim, int32 priority, ReadyKey key,
									 bool rowonly, const PriorLease *prior);
extern void idemq_pending_note_end(QueueSlot *slot, int32 queue_id, int64 job_id, int64 token);
extern void idemq_pending_note_cancel(int32 queue_id, int64 job_id, int64 token);
extern void idemq_pending_note_recovery(QueueSlot *slot, int32 queue_id);
extern void idemq_pending_note_create_queue(int32 queue_id);
extern void idemq_pending_note_drop_queue(int32 queue_id);
extern void idemq_pending_note_forget(void);
extern void idemq_pending_note_event(QueueSlot *slot, int32 queue_id, EventKind kind, int64 job_id,
									 int32 attempt);
extern void idemq_pending_note_finished(QueueSlot *slot, int32 queue_id, int64 job_id);
extern void idemq_pending_note_rows(void);
extern void idemq_pending_note_gone(void);
extern void idemq_pending_note_settings(int32 queue_id);
extern void idemq_pending_note_groups(int32 queue_id);
extern void idemq_pending_note_switch(void);
extern void idemq_pending_note_schedules(void);
extern void idemq_pending_note_resume(int32 queue_id);
extern void idemq_pending_note_extension(Oid database);
extern void idemq_pending_undo_last(void);
extern bool idemq_pending_any(void);
extern void idemq_pending_apply(void);
extern void idemq_pending_undo(SubTransactionId from);
extern void idemq_pending_before_prepare(void);
extern void idemq_pending_prepare(void);
extern void idemq_pending_forget(void);

#endif
