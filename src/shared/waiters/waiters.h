/*
 * shared/waiters/waiters.h
 *		The sessions that sleep until there is work, and when the background worker has to look.
 */
#ifndef IDEMQ_SHARED_WAITERS_WAITERS_H
#define IDEMQ_SHARED_WAITERS_WAITERS_H

#include "shared/queue_states/queue_states.h"

/*
 * wake.c
 *		The sessions that sleep until there is work, and what wakes them.
 */

/* The waiters for one thing: a bit for each session. */
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
extern int idemq_waiters_wake(Waiters *waiters, int max);
extern int64 idemq_waiters_wake_for_room(Waiters *waiters, int64 room, int *next);

extern void idemq_wake_ready(QueueState *qstate, int32 queue_id, int count, TimestampTz later);
extern void idemq_wake_if_ready(QueueState *qstate, int32 queue_id, int count);
extern void idemq_wake_queue(QueueState *qstate, int32 queue_id);
extern void idemq_wake_database(Oid database, bool ready);
extern void idemq_wake_again(QueueState *qstate, int count);
extern void idemq_wake_claimed(QueueState *qstate);
extern void idemq_wake_for_result(int64 job_id);
extern void idemq_wake_for_results(void);

/*
 * end_wait.c
 *		Ending the waits of other sessions early, as if their timeouts had passed.
 */

extern const ShmemPart idemq_end_wait_part;

extern void idemq_end_wait_of(int pid);
extern bool idemq_end_wait_taken(void);

/*
 * listeners.c
 *		Telling a worker's process at once that one of its attempts is being cancelled or has
 *		ended.
 */

extern const ShmemPart idemq_listeners_part;

extern uint64 idemq_process_key(void);
extern bool idemq_listener_begin(void);
extern bool idemq_listener_told(void);
extern void idemq_listeners_tell(uint64 process);
extern void idemq_listener_interrupt(int32 session, int pid, int64 token);
extern void idemq_listener_run(int64 token);
extern bool idemq_listener_interrupted(void);

/*
 * worker_call.c
 *		How a background worker is woken; whether it moves.
 */

/* The shortest step of idemq.history. */
#define IDEMQ_HISTORY_STEP (10 * USECS_PER_SEC)

/* for everybody */
extern bool idemq_worker_present(void);
extern void idemq_worker_need_by(int64 mono);
extern void idemq_worker_need_for_queue(const QueueState *qstate, int64 mono);
extern void idemq_worker_mark_queue(int qstate_index);
extern void idemq_worker_need_all(void);
extern void idemq_worker_note_schedules(void);
extern void idemq_worker_note_counts(void);

/* for a worker */
extern void idemq_worker_awake(void);
extern void idemq_worker_asleep(int64 until);
extern void idemq_worker_beats(void);
extern bool idemq_worker_is_asked(uint32 what, bool take);

/*
 * clock_call.c
 *		Doing everything that is due, once the test clock has moved.
 */

/* for the session that moves the clock */
typedef struct ClockCall
{
	int worker;	   /* index of this database's worker slot; -1 if it has none */
	uint64 number; /* of the call to that worker slot */
} ClockCall;

extern ClockCall idemq_clock_call(void);
extern bool idemq_clock_holds(const ClockCall *call);
extern bool idemq_clock_await(const ClockCall *call, int64 patience, uint32 *left);

/* for a worker */
extern uint64 idemq_clock_called(void);
extern void idemq_clock_answer(uint64 call, uint32 left);
extern TimestampTz idemq_clock_counted_at(void);

/*
 * due_times.c
 *		When the background worker is to do what for a queue.
 */

extern int64 idemq_due_at(QueueState *qstate, DueKind kind);
extern void idemq_due_by(QueueState *qstate, DueKind kind, int64 when);
extern void idemq_due_in(QueueState *qstate, DueKind kind, int64 delay);
extern bool idemq_due_take(QueueState *qstate, DueKind kind);

/*
 * due_queues.c
 *		The queue states whose times have changed, for the background worker of a database.
 */

extern const ShmemPart idemq_due_queues_part;

extern void idemq_due_queues_mark(int worker, int qstate_index);
extern void idemq_due_queues_mark_all(int worker);
extern bool idemq_due_queues_take(int worker, void (*function)(int qstate_index, void *arg),
								  void *arg);

#endif
