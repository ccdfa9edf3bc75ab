/*
 * txn/pending_groups.h
 *		What this transaction does to FIFO groups.
 */
#ifndef IDEMQ_TXN_PENDING_GROUPS_H
#define IDEMQ_TXN_PENDING_GROUPS_H

#include "shared/groups.h"

extern void idemq_pending_groups_note(QueueSlot *slot, int32 queue_id, Datum name, int64 id);
extern void idemq_pending_groups_reserve(int count);
extern void idemq_pending_groups_note_owned(QueueSlot *slot, const GroupTaken *group);
extern bool idemq_pending_groups_owns(const GroupKey *key);
extern TimestampTz idemq_pending_groups_last(const GroupKey *key);
extern void idemq_pending_groups_note_floor(const GroupTaken *group, GroupFloor floor);
extern void idemq_pending_groups_done(QueueSlot *slot, const GroupTaken *group, GroupRelease how);
extern void idemq_pending_groups_note_scan(QueueSlot *slot, int32 queue_id);
extern GroupFloor idemq_pending_groups_floor(QueueSlot *slot, const GroupKey *key);
extern bool idemq_pending_groups_any(void);
extern void idemq_pending_groups_before_commit(void);
extern void idemq_pending_groups_apply(void);
extern void idemq_pending_groups_undo(SubTransactionId from);
extern void idemq_pending_groups_prepare(void);
extern void idemq_pending_groups_forget(void);

#endif
