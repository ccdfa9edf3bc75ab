/*
 * shared/processes/processes.h
 *		The background worker of each database, and the processes that run handlers.
 */
#ifndef IDEMQ_SHARED_PROCESSES_PROCESSES_H
#define IDEMQ_SHARED_PROCESSES_PROCESSES_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"

#include "shared/queue_states/queue_states.h"

/*
 * worker_registry.c
 *		Which databases have a background worker: a worker slot for each.
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

/* What is counted of each kind. */
typedef enum TaskCount
{
	TASK_RUNS,	   /* that came to an end, failures included */
	TASK_FAILURES, /* that ended in an error */
	TASK_BUSY,	   /* us */
	TASK_ENDED,	   /* mono: when the last one ended; no count */
	TASK_COUNTS
} TaskCount;

typedef enum WorkerSlotState
{
	WORKER_FREE,
	WORKER_HELD, /* only to keep workers from starting */
	WORKER_WANTED,
	WORKER_STARTING,
	WORKER_RUNNING
} WorkerSlotState;

/* A worker that has not moved for that long is stuck: a task waits for a lock at most 200 ms. */
#define IDEMQ_STUCK_AFTER (2 * USECS_PER_SEC)
/* Bit of asleep_until: the worker sleeps, and was called at that time. */
#define WORKER_CALLED (UINT64CONST(1) << 63)
/* Bits of what a worker is asked for. */
#define WORKER_ASKED_RECHECK 1	 /* to check for the extension */
#define WORKER_ASKED_SCHEDULES 2 /* schedules have changed since they were listed */
#define WORKER_ASKED_HISTORY 4	 /* something was counted since the last step of the history */

/* Every field without another rule is under workers_lock. */
typedef struct WorkerSlot
{
	WorkerSlotState state;
	Oid database;	  /* read without the lock to call the worker: that may be another's then */
	uint64 serial;	  /* grows with each start */
	int away;		  /* sessions that need the database for themselves */
	pid_t pid;		  /* of a RUNNING worker; 0: none */
	int32 proc;		  /* its proc number, or -1; read without the lock as database is */
	int failures;	  /* short lives in a row */
	bool told;		  /* that an update waits in the database */
	int64 not_before; /* mono */
	int64 started_at; /* mono, of STARTING and RUNNING */
	/* for shared/waiters/worker_call.c; no lock */
	pg_atomic_uint64 asleep_until; /* mono; PG_UINT64_MAX: awake; or WORKER_CALLED, and when */
	pg_atomic_uint32 asked;
	pg_atomic_uint64 beat; /* mono: it last began a piece of work, or woke up */
	/* for shared/waiters/clock_call.c; no lock, and none of them is ever reset */
	pg_atomic_uint64 clock_asked; /* number of calls to do everything that is due */
	pg_atomic_uint64 clock_done;  /* number of those calls that have been answered */
	pg_atomic_uint32 clock_left;  /* bits of TaskKind: what is left to do for these calls */
	ConditionVariable clock_answered;
	pg_atomic_uint64 counted_at; /* with idemq.test_clock: when WORKER_ASKED_HISTORY was set */
	/* for shared/processes/worker_health.c, written by the worker alone; no lock */
	int doing;										 /* kind + 1 of the task that runs; 0: none */
	pg_atomic_uint64 tasks[TASK_KINDS][TASK_COUNTS]; /* since the database has the worker slot */
} WorkerSlot;

extern int idemq_workers_max(void);
extern WorkerSlot *idemq_worker_at(int index);
extern int idemq_worker_index(const WorkerSlot *worker);
extern WorkerSlot *idemq_worker_self(void);
extern WorkerSlot *idemq_worker_here(void);
extern int64 idemq_worker_still_since(WorkerSlot *worker);

/* What the launcher has to know of one database, copied. */
typedef struct WorkerSlotCopy
{
	int index;
	Oid database;
	uint64 serial;	  /* of this use of the worker slot */
	int64 not_before; /* mono: no worker is to be started before */
} WorkerSlotCopy;

extern const ShmemPart idemq_workers_part;

/* for everybody */
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
 * handler_known.c
 *		What is known of handlers.
 */

/* Bytes of a text about a handler, with its end. */
#define HANDLER_TEXT 512

/* One handler: of a queue of a database. */
typedef struct HandlerKey
{
	Oid database;
	int32 queue_id;
} HandlerKey;

/* What is known of a handler, copied. */
typedef struct HandlerState
{
	int64 done;	  /* jobs since the server started */
	int64 failed; /* attempts that failed; none of them is in done */
	double rate;  /* jobs a second, lately */
	bool refused; /* no process could be started, or it had to end: error says why */
	bool waits;	  /* for a process of idemq.max_handler_workers or max_worker_processes */
	TimestampTz error_at;
	char error[HANDLER_TEXT]; /* "": none */
} HandlerState;

extern const ShmemPart idemq_handlers_known_part;
extern int64 idemq_handler_refuse(HandlerKey key, const char *why);
extern void idemq_handler_defer_start(HandlerKey key, const char *why);
extern void idemq_handler_note_set(HandlerKey key, TimestampTz set_at);
extern int64 idemq_handler_paused_until(HandlerKey key);
extern void idemq_handler_note_waits(HandlerKey key, bool waits);
extern void idemq_handler_note_ready(HandlerKey key);
extern void idemq_handler_note(HandlerKey key, int done, int failed, const char *error);
extern void idemq_handler_forget(HandlerKey key);
extern void idemq_handlers_forget_database(Oid database);
extern void idemq_handler_state(HandlerKey key, HandlerState *state);

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
	HandlerKey key;
} HandlerTicket;

typedef enum HandlerReserve
{
	HANDLER_RESERVED,
	HANDLER_ENOUGH, /* it has as many as it may, or one that is idle or on its way */
	HANDLER_LATER,	/* the last one failed a moment ago */
	HANDLER_FULL	/* there are idemq.max_handler_workers */
} HandlerReserve;

extern const ShmemPart idemq_handlers_part;

/* for everybody */
extern void idemq_handler_call(QueueState *qstate);
extern void idemq_handler_crashed(QueueState *qstate, bool again);
extern void idemq_handler_processes(HandlerKey key, int *processes, int *busy);

/* for the worker, which starts them */
extern HandlerReserve idemq_handler_reserve(QueueState *qstate, int wanted, HandlerTicket *ticket,
											int64 *again);
extern void idemq_handler_unreserve(QueueState *qstate, const HandlerTicket *ticket);
extern void idemq_handler_settle(QueueState *qstate, HandlerKey key, int wanted);

/* for hooks/exclusive_database.c */
extern pid_t idemq_handlers_leave(Oid database, int signal_number);

/* for a process that runs a handler */
extern bool idemq_handler_attach(const HandlerTicket *ticket);
extern void idemq_handler_ready(void);
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

#endif
