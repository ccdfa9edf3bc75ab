/*
 * txn/pending_kin.h
 *		Jobs with parents or children that this transaction's commit marks.
 */
#ifndef IDEMQ_TXN_PENDING_KIN_H
#define IDEMQ_TXN_PENDING_KIN_H

#include "shared/kin.h"

extern void idemq_pending_kin_note(QueueSlot *slot, int32 queue_id, KinMark mark, int64 job_id);
extern void idemq_pending_kin_note_blocked(QueueSlot *slot, int32 queue_id, int64 job_id);

#endif
