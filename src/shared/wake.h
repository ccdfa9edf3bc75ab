/*
 * shared/wake.h
 *		The sessions that sleep until there is work, and what wakes them.
 */
#ifndef IDEMQ_SHARED_WAKE_H
#define IDEMQ_SHARED_WAKE_H

#include "shared/slots.h"

/* The sleepers for one thing: a bit for each session. */
typedef struct Sleepers
{
	pg_atomic_uint32 count; /* never less than the bits set; no lock */
	pg_atomic_uint32 turn;	/* the word where the next search begins; no lock */
	pg_atomic_uint64 bits[FLEXIBLE_ARRAY_MEMBER]; /* no lock */
} Sleepers;

extern Size idemq_wake_shmem_size(void);
extern void idemq_wake_shmem_init(void *area, bool found);

extern Sleepers *idemq_sleepers_of_queue(const QueueSlot *slot);
extern Sleepers *idemq_sleepers_of_place(int place);
extern Sleepers *idemq_sleepers_of_job(Oid database, int64 job_id);
extern bool idemq_sleepers_any(Sleepers *sleepers);
extern bool idemq_sleepers_join(Sleepers *sleepers);
extern bool idemq_sleepers_waits(Sleepers *sleepers);
extern bool idemq_sleepers_leave(Sleepers *sleepers);
extern int idemq_sleepers_wake(Sleepers *sleepers, int max);

extern void idemq_wake_ready(QueueSlot *slot, int32 queue_id, int count, TimestampTz later);
extern void idemq_wake_perhaps(QueueSlot *slot, int32 queue_id, int count);
extern void idemq_wake_queue(QueueSlot *slot, int32 queue_id);
extern void idemq_wake_database(Oid database, bool ready);
extern void idemq_wake_due_at(QueueSlot *slot, TimestampTz due);
extern void idemq_wake_to_expire_at(QueueSlot *slot, int32 queue_id, TimestampTz expires_at);
extern void idemq_wake_again(QueueSlot *slot);
extern void idemq_wake_claimed(QueueSlot *slot);
extern void idemq_wake_for_result(int64 job_id);
extern void idemq_wake_for_results(void);

#endif
