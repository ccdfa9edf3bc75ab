/*
 * shared/processes/handler_registry.c
 *		The registry, in shared memory, of the processes that run handlers.  These processes, the
 *		worker that starts them, and the sessions that need them use it.
 *
 * Each process has a handler slot.  Its states:
 *
 *		free -> STARTING, with a new serial: a worker has reserved it, and asks the postmaster to
 *			start the process
 *		STARTING -> ATTACHED: the process has started, and has shown the serial
 *		ATTACHED -> READY: the process is connected, and knows its handler
 *		any -> free: the process has exited; or it did not start in time, or a session needs
 *			exclusive access to the database.  A process that starts later does not find its slot
 *			STARTING with its serial, and exits
 *
 * If a process exits before it is READY, it has failed, and the next one is started only after 1 s,
 * or twice as long after each further failure, up to 64 s.  (The server log says why it failed; for
 * example, the role may have lost LOGIN after the worker's check.)  If a handler may not run, the
 * worker checks again after the same delays, or when the queue's settings have changed.  The queue's
 * state contains the number of failures and the last reason (HandlerStatus).  A queue without a
 * state runs no handler.
 *
 * When a process is started.  DUE_HANDLER in a queue's state is the time when the worker next checks
 * the handler.  A commit that makes a job ready sets it if the queue state is armed, that is, if the
 * handler may have another process and none of its processes is idle.  (An idle process would be
 * woken by the commit's own signal: shared/waiters/wake.c.)  Whether a queue state is armed is
 * computed again at each change of a handler slot or of the number of processes.  A process that is
 * no longer idle also sets DUE_HANDLER if that has armed the queue state, because jobs that became
 * ready while it woke up did not set it.
 *
 * If all idemq.max_handler_workers are used and a handler has none, a process of another handler is
 * asked to exit: an idle one, or else one that has run for a while, of the handler with the most
 * processes.  It exits after its current job.  If that takes long, another one is asked.
 *
 * Locks: handlers_lock, level 4, protects the handler slots and QueueState.handler_status.
 */
#include "postgres.h"

#include <signal.h>

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/processes/processes.h"

/* If a process has not attached by then, it will not start. */
#define START_PATIENCE (10 * USECS_PER_SEC)
/* Delay before the worker checks a handler again while a process is starting. */
#define LOOK_PAUSE (USECS_PER_SEC / 20)
/* Minimum time that a process may run while another handler has none. */
#define FAIR_SLICE (5 * USECS_PER_SEC)

/* After a failed start, the next one is delayed by FAILED_PAUSE, doubled at most this often. */
#define FAILED_PAUSE USECS_PER_SEC
#define FAILED_DOUBLINGS 6

typedef enum ProcessState
{
	HANDLER_FREE,
	HANDLER_STARTING,
	HANDLER_ATTACHED,
	HANDLER_READY
} ProcessState;

/* Every field is under handlers_lock.  The slot's own process may read key without it. */
typedef struct HandlerSlot
{
	ProcessState state;
	QueueStateKey key;
	uint64 serial; /* grows with each start */
	pid_t pid;	   /* from ATTACHED on */
	int32 proc;
	int64 since; /* mono: when it was started */
	bool idle;
	bool leave;	 /* it must exit after its current job */
	int64 asked; /* mono: when it was asked to exit, so that another handler can run */
} HandlerSlot;

typedef struct HandlerRegistry
{
	LWLock handlers_lock;
	HandlerSlot processes[FLEXIBLE_ARRAY_MEMBER];
} HandlerRegistry;

static HandlerRegistry *handler_registry = NULL;
/* The handler slot of this process; NULL: it does not run a handler. */
static HandlerSlot *my_handler_slot = NULL;

static void
handler_registry_init(int tranche)
{
	LWLockInitialize(&handler_registry->handlers_lock, tranche);
}

const ShmemPart idemq_handlers_part = {.area = (void **) &handler_registry,
									   .size = offsetof(HandlerRegistry, processes),
									   .each = sizeof(HandlerSlot),
									   .count = idemq_workers_max,
									   .lies_in = AREA_WORKERS,
									   .tranche = "idemq handlers",
									   .init = handler_registry_init};

static bool
same(QueueStateKey a, QueueStateKey b)
{
	return a.database == b.database && a.queue_id == b.queue_id;
}

/*
 * Called after a commit that has made a job ready: makes the worker start a process, if the queue
 * state is armed.
 */
void
idemq_handler_call(QueueState *qstate)
{
	/* If a time is set already, it is a delay after a failure, or soon. */
	if ((pg_atomic_read_u32(&qstate->handler) & HANDLER_ARMED) != 0)
		idemq_due_in(qstate, DUE_HANDLER, 0);
}

/*
 * Notes that the server crashed while a handler of the queue ran a job.  again: this has happened
 * to the job too often.
 */
void
idemq_handler_crashed(QueueState *qstate, bool again)
{
	uint32 bit = again ? HANDLER_CRASHED_AGAIN : HANDLER_CRASHED;

	if ((pg_atomic_fetch_or_u32(&qstate->handler, bit) & (bit | HANDLER_CRASHED_AGAIN)) == 0)
		idemq_due_by(qstate, DUE_HANDLER, 0);
}

/*
 * Returns whether a queue state belongs to a handler's queue.  A session may have found the queue
 * state before another queue got it, and must not change the status then.  The key changes before
 * idemq_handler_reset takes the lock, so if a session still sees the old key under the lock, its
 * changes are reset later.  Lock held.
 */
static bool
is_own(const QueueState *qstate, QueueStateKey key)
{
	return qstate != NULL && same(qstate->key, key);
}

/*
 * Forgets the handler of the queue that had this queue state before.  The caller has changed the
 * key.
 */
void
idemq_handler_reset(QueueState *qstate)
{
	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	memset(&qstate->handler_status, 0, sizeof(qstate->handler_status));
	pg_atomic_write_u32(&qstate->handler, 0);
	LWLockRelease(&handler_registry->handlers_lock);
}

/* The handler slots of one handler, and of all handlers. */
typedef struct Census
{
	int used;		   /* number of processes of all handlers */
	int own;		   /* number of processes of this handler */
	int busy;		   /* number of these that are running a job */
	bool coming;	   /* one of these is starting */
	bool idle;		   /* one of these is idle, and stays */
	HandlerSlot *free; /* a free handler slot; NULL: none */
} Census;

/* Counts the processes of a handler, and of all handlers.  Lock held. */
static Census
count_processes(QueueStateKey key)
{
	Census census = {0};

	for (int i = 0; i < idemq_workers_max(); i++)
	{
		HandlerSlot *process = &handler_registry->processes[i];

		if (process->state == HANDLER_FREE)
		{
			census.free = process;
			continue;
		}
		census.used++;
		if (!same(process->key, key))
			continue;
		census.own++;
		census.busy += process->state == HANDLER_READY && !process->idle;
		census.coming |= process->state != HANDLER_READY;
		census.idle |= process->idle && !process->leave;
	}
	return census;
}

/* Computes whether a queue state is armed, if it still belongs to the queue.  Lock held. */
static void
arm(QueueState *qstate, QueueStateKey key)
{
	Census census;

	if (!is_own(qstate, key))
		return;
	census = count_processes(key);
	if (qstate->handler_status.wanted > census.own && !census.idle)
		(void) pg_atomic_fetch_or_u32(&qstate->handler, HANDLER_ARMED);
	else
		(void) pg_atomic_fetch_and_u32(&qstate->handler, ~HANDLER_ARMED);
}

/* Stores an error of a handler.  Lock held. */
static void
note_error(HandlerStatus *status, const char *error)
{
	int length = pg_mbcliplen(error, (int) strlen(error), HANDLER_TEXT - 1);

	memcpy(status->error, error, length);
	status->error[length] = '\0';
	status->error_at = idemq_now();
}

/* Stores the error of an attempt of a handler. */
void
idemq_handler_note_error(QueueStateKey key, const char *error)
{
	QueueState *qstate = idemq_qstate_find(key.database, key.queue_id);

	IDEMQ_STOP("idemq_handler_note_error");
	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	if (is_own(qstate, key))
		note_error(&qstate->handler_status, error);
	LWLockRelease(&handler_registry->handlers_lock);
}

/*
 * Stores why a handler has no process; why NULL: the server log says it.  Returns when (mono) to
 * try again.  defers: a process has failed, so none may be started before that time.  Otherwise, a
 * change of the queue's settings may remove the reason earlier, and each start checks it again.
 */
int64
idemq_handler_refuse(QueueStateKey key, const char *why, bool defers)
{
	QueueState *qstate = idemq_qstate_find(key.database, key.queue_id);
	int64 again = PG_INT64_MAX;

	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	if (is_own(qstate, key))
	{
		HandlerStatus *status = &qstate->handler_status;

		if (why != NULL)
			note_error(status, why);
		else if (status->failures == 0)
			note_error(status,
					   "one of its processes exited before it was ready: see the server log");
		again = idemq_mono_now() + (FAILED_PAUSE << Min(status->failures, FAILED_DOUBLINGS));
		if (defers)
			status->not_before = again;
		status->failures++;
	}
	LWLockRelease(&handler_registry->handlers_lock);
	return again;
}

/*
 * Asks a process of another handler to exit, for a handler that has none; see the top of this file.
 * Does nothing if a process was asked less than FAIR_SLICE ago.  After that time, asks another one,
 * because the job of the first one may take long.  Lock held.
 */
static void
ask_to_leave(QueueStateKey key)
{
	HandlerSlot *chosen = NULL;
	int most = 0;
	int64 now = idemq_mono_now();

	for (int i = 0; i < idemq_workers_max(); i++)
	{
		HandlerSlot *process = &handler_registry->processes[i];
		int weight;

		if (process->state == HANDLER_FREE || same(process->key, key))
			continue;
		if (process->leave && process->asked > now - FAIR_SLICE)
			return;
		if (process->leave || process->state != HANDLER_READY ||
			(!process->idle && process->since > now - FAIR_SLICE))
			continue;
		weight = process->idle ? PG_INT32_MAX : count_processes(process->key).own;
		if (weight > most)
		{
			most = weight;
			chosen = process;
		}
	}
	if (chosen != NULL)
	{
		chosen->leave = true;
		chosen->asked = now;
		SetLatch(&GetPGProcByNumber(chosen->proc)->procLatch);
		IDEMQ_STOP_OF(chosen->pid, "handler_asked_to_leave");
	}
}

/*
 * Reserves a handler slot for a process of a queue's handler, which may have wanted processes.
 * Sets *again to when (mono) to try again; PG_INT64_MAX: only when DUE_HANDLER is set.  Reserves
 * none if the queue has lost its state; the worker checks the handler when the queue gets another
 * one.
 */
HandlerReserve
idemq_handler_reserve(QueueState *qstate, int wanted, HandlerTicket *ticket, int64 *again)
{
	int64 now = idemq_mono_now();
	HandlerReserve result = HANDLER_RESERVED;
	Census census;

	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	*again = is_own(qstate, ticket->key) ? qstate->handler_status.not_before : PG_INT64_MAX;
	if (*again > now)
	{
		LWLockRelease(&handler_registry->handlers_lock);
		return HANDLER_LATER;
	}
	*again = PG_INT64_MAX;
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		HandlerSlot *process = &handler_registry->processes[i];

		if (process->state == HANDLER_STARTING && process->since < now - START_PATIENCE)
			process->state = HANDLER_FREE; /* its process has not started */
	}
	census = count_processes(ticket->key);
	if (census.own >= wanted || census.idle)
		result = HANDLER_ENOUGH;
	else if (census.coming)
	{
		result = HANDLER_ENOUGH;
		*again = now + LOOK_PAUSE;
	}
	else if (census.used >= Min(idemq_max_handler_workers, idemq_workers_max()))
	{
		result = HANDLER_FULL;
		*again = now + USECS_PER_SEC;
		if (census.own == 0)
			ask_to_leave(ticket->key);
	}
	else
	{
		HandlerSlot *process = census.free;

		process->state = HANDLER_STARTING;
		process->key = ticket->key;
		process->serial++;
		process->pid = 0;
		process->since = now;
		process->idle = process->leave = false;
		ticket->index = (int32) (process - handler_registry->processes);
		ticket->serial = process->serial;
		*again = wanted > census.own + 1 ? now + LOOK_PAUSE : now + START_PATIENCE;
	}
	qstate->handler_status.waits = result == HANDLER_FULL && census.own == 0;
	arm(qstate, ticket->key);
	LWLockRelease(&handler_registry->handlers_lock);
	return result;
}

/*
 * Returns the handler slot of a ticket, if its process has not attached; otherwise NULL. Lock held.
 */
static HandlerSlot *
reserved(const HandlerTicket *ticket)
{
	HandlerSlot *process = &handler_registry->processes[ticket->index];

	return process->state == HANDLER_STARTING && process->serial == ticket->serial ? process : NULL;
}

/* Frees a reserved slot, because all worker processes of the server are in use. */
void
idemq_handler_unreserve(QueueState *qstate, const HandlerTicket *ticket)
{
	HandlerSlot *process;

	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	process = reserved(ticket);
	if (process != NULL)
		process->state = HANDLER_FREE;
	if (is_own(qstate, ticket->key))
		qstate->handler_status.waits = true;
	arm(qstate, ticket->key);
	LWLockRelease(&handler_registry->handlers_lock);
}

/*
 * Stores the maximum number of processes of a queue's handler; 0: none.  Running processes check
 * this themselves.  If the handler was set again, the failures of the earlier one do not count; if
 * it was dropped (set_at is 0), it is forgotten.
 */
void
idemq_handler_settle(QueueState *qstate, QueueStateKey key, TimestampTz set_at, int wanted)
{
	HandlerStatus *status = &qstate->handler_status;

	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	if (is_own(qstate, key))
	{
		if (set_at == 0)
			memset(status, 0, sizeof(*status));
		else if (status->set_at != set_at)
		{
			status->failures = 0;
			status->not_before = 0;
			status->set_at = set_at;
		}
		status->wanted = wanted;
		arm(qstate, key);
	}
	LWLockRelease(&handler_registry->handlers_lock);
}

/*
 * Makes all handler processes of a database, except this one, exit after their jobs, or at once if
 * signal_number is not 0.  Returns the process id of one that is still running, or 0.  A process
 * that is starting will find that its slot is free.
 */
pid_t
idemq_handlers_leave(Oid database, int signal_number)
{
	pid_t there = 0;

	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	for (int i = 0; i < idemq_workers_max(); i++)
	{
		HandlerSlot *process = &handler_registry->processes[i];

		if (process->state == HANDLER_FREE || process->key.database != database ||
			process->pid == MyProcPid)
			continue;
		if (process->state == HANDLER_STARTING)
		{
			process->state = HANDLER_FREE;
			continue;
		}
		there = process->pid;
		process->leave = true;
		if (signal_number != 0)
			(void) kill(process->pid, signal_number);
		else
			SetLatch(&GetPGProcByNumber(process->proc)->procLatch);
	}
	LWLockRelease(&handler_registry->handlers_lock);
	return there;
}

/* on_shmem_exit: frees this process's handler slot. */
static void
detach(int code, Datum arg)
{
	QueueStateKey key = my_handler_slot->key;
	QueueState *qstate = idemq_qstate_find(key.database, key.queue_id);

	if (my_handler_slot->state == HANDLER_ATTACHED && !my_handler_slot->leave)
		(void) idemq_handler_refuse(key, NULL, true);
	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	my_handler_slot->state = HANDLER_FREE;
	my_handler_slot->pid = 0;
	arm(qstate, key);
	LWLockRelease(&handler_registry->handlers_lock);
	idemq_due_by(qstate, DUE_HANDLER, 0);
}

/*
 * Gives this process the handler slot of its ticket; returns false if the process is no longer
 * wanted.
 */
bool
idemq_handler_attach(const HandlerTicket *ticket)
{
	HandlerSlot *process;

	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	process = reserved(ticket);
	if (process != NULL)
	{
		process->state = HANDLER_ATTACHED;
		process->pid = MyProcPid;
		process->proc = IDEMQ_MY_PROC_NUMBER;
	}
	LWLockRelease(&handler_registry->handlers_lock);
	my_handler_slot = process;
	if (process != NULL)
		on_shmem_exit(detach, (Datum) 0);
	return process != NULL;
}

/* Notes that this process is connected, and is about to run its handler. */
void
idemq_handler_ready(QueueState *qstate)
{
	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	my_handler_slot->state = HANDLER_READY;
	if (is_own(qstate, my_handler_slot->key))
	{
		qstate->handler_status.failures = 0;
		qstate->handler_status.waits = false;
	}
	LWLockRelease(&handler_registry->handlers_lock);
}

/* Notes whether this process is waiting for a job. */
void
idemq_handler_idle(QueueState *qstate, bool idle)
{
	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	my_handler_slot->idle = idle;
	arm(qstate, my_handler_slot->key);
	LWLockRelease(&handler_registry->handlers_lock);
	/* A job that became ready while this process woke up has not called the worker. */
	if (!idle)
		idemq_handler_call(qstate);
}

/* Returns whether this process must exit after its current job. */
bool
idemq_handler_must_leave(void)
{
	bool leave;

	LWLockAcquire(&handler_registry->handlers_lock, LW_SHARED);
	leave = my_handler_slot->leave;
	LWLockRelease(&handler_registry->handlers_lock);
	return leave;
}

/*
 * Copies the status of a handler (zeros if its queue has no state), and sets the number of its
 * processes, and how many of them are running a job.
 */
void
idemq_handler_state(QueueStateKey key, HandlerStatus *status, int *processes, int *busy)
{
	QueueState *qstate = idemq_qstate_find(key.database, key.queue_id);
	Census census;

	memset(status, 0, sizeof(*status));
	LWLockAcquire(&handler_registry->handlers_lock, LW_SHARED);
	if (is_own(qstate, key))
		*status = qstate->handler_status;
	census = count_processes(key);
	LWLockRelease(&handler_registry->handlers_lock);
	*processes = census.own;
	*busy = census.busy;
}
