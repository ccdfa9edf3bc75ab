/*
 * shared/promote_round.h
 *		Rounds of promotion by the background worker.
 */
#ifndef IDEMQ_SHARED_PROMOTE_ROUND_H
#define IDEMQ_SHARED_PROMOTE_ROUND_H

#include "shared/slots.h"

extern Size idemq_rounds_shmem_size(void);
extern void idemq_rounds_shmem_init(void *area, bool found);

extern void idemq_round_begin(const QueueSlot *slot);
extern void idemq_round_end(const QueueSlot *slot);
extern uint32 idemq_round_number(const QueueSlot *slot);
extern void idemq_round_await(const QueueSlot *slot);

#endif
