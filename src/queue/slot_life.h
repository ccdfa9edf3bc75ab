/*
 * queue/slot_life.h
 *		How a queue gets its slot in shared memory, and loses it.
 */
#ifndef IDEMQ_QUEUE_SLOT_LIFE_H
#define IDEMQ_QUEUE_SLOT_LIFE_H

#include "shared/slots.h"

extern QueueSlot *idemq_slot_for_queue(int32 queue_id);
extern void idemq_slot_forget_queue(int32 queue_id);
extern void idemq_slots_forget_database(Oid database);
extern void idemq_slots_unset_database(Oid database);

#endif
