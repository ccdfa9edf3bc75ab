/*
 * shared/recovery_point.h
 *		How far the search for leases that memory lost has come, in each queue's
 *		slot.  job/recover.c does the searching.
 */
#ifndef IDEMQ_SHARED_RECOVERY_POINT_H
#define IDEMQ_SHARED_RECOVERY_POINT_H

#include "shared/slots.h"

extern void idemq_slot_begin_recovery(QueueSlot *slot, int64 not_before);
extern void idemq_slot_need_recovery(QueueSlot *slot, int32 queue_id);
extern bool idemq_slot_recovery_point(QueueSlot *slot, int32 queue_id, bool whole,
									  RecoveryPoint *point);
extern void idemq_slot_recovered_to(QueueSlot *slot, int32 queue_id, const RecoveryPoint *point);
extern bool idemq_slot_is_uncounted(QueueSlot *slot, int32 queue_id);
extern void idemq_slot_counted(QueueSlot *slot, int32 queue_id);

#endif
