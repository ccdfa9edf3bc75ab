/*
 * shared/next_deadline.h
 *		When the next lease of a queue ends: one number in its slot, which says no
 *		later than that.  A scan of all leases of the queue notes it anew (job/reap.c).
 */
#ifndef IDEMQ_SHARED_NEXT_DEADLINE_H
#define IDEMQ_SHARED_NEXT_DEADLINE_H

#include "shared/slots.h"

extern bool idemq_slot_deadline_passed(QueueSlot *slot, int32 queue_id);
extern void idemq_slot_reset_deadline(QueueSlot *slot, int32 queue_id);
extern void idemq_slot_note_deadline(QueueSlot *slot, int32 queue_id, int64 deadline);

#endif
