/*
 * shared/processes/processes.h
 *		The background worker of each database, when it must work, and the processes that run
 *		handlers.
 */
#ifndef IDEMQ_SHARED_PROCESSES_PROCESSES_H
#define IDEMQ_SHARED_PROCESSES_PROCESSES_H

#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "shared/queue_states/queue_states.h"

/*
 * worker_registry.c
 *		Which databases have a background worker.
 */

/* In the order of idemq.maintenance_tasks; a new one has its name in worker_health.c. */
typedef enum TaskKind
{
	TASK_DISCOVER,
	TASK_FOLLOW,
	TASK_PROMOTE,
	TASK_REAP,
	TASK_RECOVER,
	TASK_DUE,
	TASK_REMIND,
	TASK_EXPIRE,
	TASK_HANDLE,
	TASK_TICK,
	TASK_NOTIFY,
	TASK_ANNOUNCE,
	TASK_COUNT_JOBS,
	TASK_PURGE,
	TASK_HISTORY,
	TASK_KINDS
} TaskKind;

/* What is counted for each kind of task. */
typedef enum TaskCount
{
	TASK_RUNS,	   /* runs that have ended, including failures */
	TASK_FAILURES, /* runs that have failed */
	TASK_BUSY,	   /* total time in microseconds */
	TASK_ENDED,	   /* mono: when the last run ended; not a count */
	TASK_COUNTS
} TaskCount;

typedef enum WorkerSlotState
{
	WORKER_FREE,
	WORKER_HELD, /* used only to keep workers from starting */
	WORKER_WANTED,
	WORKER_STARTING,
	WORKER_RUNNING
} WorkerSlotState;

/*
 * A worker without progress for this long is stuck, because a task waits for a lock for 200 ms at
 * most.
 */
#define IDEMQ_STUCK_AFTER (2 * USECS_PER_SEC)
/* Bit of asleep_until: the worker is asleep, and was called at the time in the other bits. */
#define WORKER_CALLED (UINT64CONST(1) << 63)
/* Bits of WorkerSlot.asked. */
#define WORKER_ASKED_RECHECK 1	 /* check for the extension */
#define WORKER_ASKED_SCHEDULES 2 /* schedules have changed since the worker has read them */
#define WORKER_ASKED_HISTORY 4	 /* something has been counted since the last row of the history */

/* workers_lock protects every field that does not say otherwise. */
typedef struct WorkerSlot
{
	WorkerSlotState state;
	Oid database;	  /* also read without the lock, to call the worker */
	uint64 serial;	  /* incremented with each start */
	int away;		  /* number of sessions that need the database for themselves */
	pid_t pid;		  /* of a RUNNING worker; 0: none */
	int32 proc;		  /* its proc number, or -1; also read without the lock */
	int failures;	  /* number of consecutive short lives */
	bool told;		  /* a worker has reported that an update is pending in the database */
	int64 not_before; /* mono: earliest time of the next start */
	int64 started_at; /* mono, if STARTING or RUNNING */
	/* for shared/processes/worker_call.c; no lock */
	pg_atomic_uint64 asleep_until; /* mono; PG_UINT64_MAX: awake; or WORKER_CALLED | mono */
	pg_atomic_uint32 asked;		   /* WORKER_ASKED_... */
	pg_atomic_uint64 beat;		   /* mono: when it last began a piece of work, or woke up */
	/* for shared/processes/clock_call.c; no lock, and none of them is ever reset */
	pg_atomic_uint64 clock_asked; /* number of the last call to do everything that is due */
	pg_atomic_uint64 clock_done;  /* number of the last call that has been answered */
	pg_atomic_uint32 clock_left;  /* bits of TaskKind: what is left to do for the last call */
	ConditionVariable clock_answered;
	pg_atomic_uint64 counted_at; /* with idemq.test_clock: when WORKER_ASKED_HISTORY was set */
	/* for shared/processes/worker_health.c, written by the worker alone; no lock */
	int doing;										 /* kind + 1 of the running task; 0: none */
	pg_atomic_uint64 tasks[TASK_KINDS][TASK_COUNTS]; /* since the database has the worker slot */
} WorkerSlot;

typedef struct WorkerRegistry
{
	LWLock workers_lock;
	int32 launcher; /* proc number of the launcher, or -1; under workers_lock */
	WorkerSlot workers[FLEXIBLE_ARRAY_MEMBER]; /* idemq_workers_max() */
} WorkerRegistry;

extern WorkerRegistry *idemq_worker_registry;
/* The worker slot of this process, if it is a worker. */
extern WorkerSlot *idemq_my_worker_slot;

/* Returns the number of worker slots: one for every worker that may exist. */
static inline int
idemq_workers_max(void)
{
	return Max(max_worker_processes, 1);
}

static inline WorkerSlot *
idemq_worker_at(int index)
{
	return &idemq_worker_registry->workers[index];
}

static inline int
idemq_worker_index(const WorkerSlot *worker)
{
	return (int) (worker - idemq_worker_registry->workers);
}

/* Returns the worker slot of this process; NULL if this process is not a worker. */
static inline WorkerSlot *
idemq_worker_self(void)
{
	return idemq_my_worker_slot;
}

extern WorkerSlot *idemq_worker_here(void);
extern int64 idemq_worker_still_since(WorkerSlot *worker);

/* A copy of what the launcher must know about a worker slot. */
typedef struct WorkerSlotCopy
{
	int index;
	Oid database;
	uint64 serial;
	int64 not_before; /* mono */
} WorkerSlotCopy;

extern const ShmemPart idemq_workers_part;

/* for all sessions */
extern bool idemq_worker_want(Oid database);
extern void idemq_worker_announce_use(void);
extern void idemq_worker_recheck(Oid database);
extern void idemq_worker_visit(Oid database);
extern bool idemq_worker_comes(void);

/* for hooks/exclusive_database.c */
extern pid_t idemq_worker_hold(Oid database, bool *held);
extern void idemq_worker_release(Oid database);
extern bool idemq_worker_signal(Oid database, pid_t pid, int signal_number);

/* for hooks/utility.c */
extern void idemq_worker_forget_database(Oid database);

/* for the launcher */
extern void idemq_workers_attach_launcher(void);
extern int idemq_workers_list(bool starting, WorkerSlotCopy *copies, int max);
extern bool idemq_worker_start_noted(WorkerSlotCopy *copy);
extern void idemq_worker_start_failed(int index, int64 again_in);
extern void idemq_worker_forget(const WorkerSlotCopy *copy);

/* for a worker */
extern bool idemq_worker_attach(int index, uint64 serial, Oid *database);
extern bool idemq_worker_found_nothing(void);
extern bool idemq_worker_is_wanted(void);
extern bool idemq_worker_tells_of_update(void);

/*
 * handler_registry.c
 *		The processes that run handlers.
 */

/* What a process shows to get the handler slot that was reserved for it. */
typedef struct HandlerTicket
{
	int32 index; /* of its handler slot */
	uint64 serial;
	Oid role;
	QueueStateKey key;
} HandlerTicket;

typedef enum HandlerReserve
{
	HANDLER_RESERVED,
	HANDLER_ENOUGH, /* it has as many as it may, or one that is idle or on its way */
	HANDLER_LATER,	/* the last one failed a moment ago */
	HANDLER_FULL	/* there are idemq.max_handler_workers */
} HandlerReserve;

extern const ShmemPart idemq_handlers_part;

/* for all sessions */
extern void idemq_handler_call(QueueState *qstate);
extern void idemq_handler_crashed(QueueState *qstate, bool again);
extern void idemq_handler_state(QueueStateKey key, HandlerStatus *status, int *processes,
								int *busy);
extern void idemq_handler_note_error(QueueStateKey key, const char *error);
extern int64 idemq_handler_refuse(QueueStateKey key, const char *why, bool defers);

/* for queue/queue_state_life.c, which holds the queue state's lock */
extern void idemq_handler_reset(QueueState *qstate);

/* for the worker, which starts them */
extern HandlerReserve idemq_handler_reserve(QueueState *qstate, int wanted, HandlerTicket *ticket,
											int64 *again);
extern void idemq_handler_unreserve(QueueState *qstate, const HandlerTicket *ticket);
extern void idemq_handler_settle(QueueState *qstate, QueueStateKey key, TimestampTz set_at,
								 int wanted);

/* for hooks/exclusive_database.c */
extern pid_t idemq_handlers_leave(Oid database, int signal_number);

/* for a process that runs a handler */
extern bool idemq_handler_attach(const HandlerTicket *ticket);
extern void idemq_handler_ready(QueueState *qstate);
extern void idemq_handler_idle(QueueState *qstate, bool idle);
extern bool idemq_handler_must_leave(void);

/*
 * worker_health.c
 *		How a background worker does: for idemq.background_worker and idemq.maintenance_tasks.
 */

typedef struct WorkerHealth
{
	pid_t pid;
	int64 stuck_for; /* us: how long it has not moved though it should, from IDEMQ_STUCK_AFTER on */
	bool awake;
	int doing;		/* TaskKind, -1: none */
	int64 last_run; /* mono; 0: none yet */
	int64 lag;		/* us: how long something has been due and is not done */
} WorkerHealth;

extern const char *const idemq_task_names[];

/* for the worker */
extern void idemq_worker_begins_task(TaskKind kind);
extern void idemq_worker_ends_task(TaskKind kind, bool done, int64 usecs);

/* for observe/ */
extern bool idemq_worker_health(WorkerHealth *health);
extern bool idemq_worker_task_counts(uint64 counts[TASK_KINDS][TASK_COUNTS]);

/*
 * worker_call.c
 *		How a session wakes the background worker, and how the worker learns which queues to visit.
 */

/* The shortest interval of a row of idemq.history. */
#define IDEMQ_HISTORY_STEP (10 * USECS_PER_SEC)

extern const ShmemPart idemq_worker_marks_part;

/* for all sessions */
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
extern bool idemq_worker_take_marks(void (*function)(int qstate_index));

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
 *		When the background worker must next do each kind of work for a queue.
 */

extern int64 idemq_due_at(QueueState *qstate, DueKind kind);
extern void idemq_due_by(QueueState *qstate, DueKind kind, int64 when);
extern void idemq_due_in(QueueState *qstate, DueKind kind, int64 delay);
extern bool idemq_due_take(QueueState *qstate, DueKind kind);

#endif
