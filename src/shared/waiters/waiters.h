/*
 * shared/waiters/waiters.h
 *		The sessions that sleep until there is work, a result or room.
 */
#ifndef IDEMQ_SHARED_WAITERS_WAITERS_H
#define IDEMQ_SHARED_WAITERS_WAITERS_H

#include "shared/queue_states/queue_states.h"

/*
 * wake.c
 *		The sessions that sleep until there is work, and what wakes them.
 */

/* A set of waiters: a bit for each session. */
typedef struct Waiters
{
	pg_atomic_uint32 count;						  /* never less than the bits set; no lock */
	pg_atomic_uint64 bits[FLEXIBLE_ARRAY_MEMBER]; /* no lock */
} Waiters;

extern const ShmemPart idemq_wake_part;
extern const ShmemPart idemq_wanted_room_part;

extern Waiters *idemq_waiters_of_queue(const QueueState *qstate);
extern Waiters *idemq_waiters_of_job(Oid database, int64 job_id);
extern Waiters *idemq_waiters_for_room(int qstate_index);
extern int idemq_waiters_room_index(const Waiters *waiters);
extern void idemq_waiters_want_room(uint32 jobs);
extern bool idemq_waiters_any(Waiters *waiters);
extern bool idemq_waiters_join(Waiters *waiters);
extern bool idemq_waiters_waits(Waiters *waiters);
extern bool idemq_waiters_leave(Waiters *waiters);
extern int idemq_waiters_wake(Waiters *waiters, Oid database, int max);
extern int64 idemq_waiters_wake_for_room(Waiters *waiters, int64 room, int *next);

extern void idemq_wake_ready(QueueState *qstate, int32 queue_id, int count, TimestampTz later);
extern void idemq_wake_if_ready(QueueState *qstate, int32 queue_id, int count);
extern void idemq_wake_queue(QueueState *qstate, int32 queue_id);
extern void idemq_wake_database(Oid database, bool ready);
extern void idemq_wake_again(QueueState *qstate, int count);
extern void idemq_wake_claimed(QueueState *qstate);
extern void idemq_wake_for_result(int64 job_id);
extern void idemq_wake_for_results(Oid database);

/*
 * listeners.c
 *		Ending the waits of other sessions early, either because a session asks for that, or because
 *		an attempt of a worker's process is being cancelled or has been ended by another session.
 */

extern const ShmemPart idemq_listeners_part;

extern void idemq_end_wait_of(int pid);
extern bool idemq_end_wait_taken(void);
extern uint64 idemq_process_key(void);
extern bool idemq_listener_begin(void);
extern bool idemq_listener_told(void);
extern void idemq_listeners_tell(uint64 process);
extern void idemq_listener_interrupt(int32 session, int pid, int64 token);
extern void idemq_listener_run(int64 token);
extern bool idemq_listener_interrupted(void);

#endif
