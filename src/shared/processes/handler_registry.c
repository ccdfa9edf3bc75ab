/*
 * shared/processes/handler_registry.c
 *		The processes that run handlers: the registry in shared memory by which these processes,
 *		the worker that starts them, and the sessions that need them find each other.
 *
 * A handler slot is for one process.  Its life:
 *
 *		free -> STARTING, with a new serial: a worker has reserved it, and asks the postmaster
 *		STARTING -> ATTACHED: the process came, showing the serial
 *		ATTACHED -> READY: it is connected, and has read what it is to run
 *		any -> free: it ended; STARTING also when it did not come in time, or when a session
 *			needs the database: a process that comes all the same finds no STARTING, or
 *			another serial
 *
 * A process that ends before it is READY has failed: the next one is deferred, for a second,
 * twice as long each time, up to 64 s.  (The server's log says why it failed: perhaps the role
 * was locked out between the worker's check and the login.)  A handler that may not run is looked at
 * again after such a time, or as soon as the queue's settings have changed.  The queue's state says
 * how often either has happened, and why (HandlerStatus); without a queue state no handler runs.
 *
 * What asks for a process.  DUE_HANDLER in a queue's state is the time when the worker next looks
 * at its handler.  A commit that makes a job ready sets it, if the queue state is armed: the
 * handler may have another process, and has none that is idle, which the commit's own signal would
 * wake (shared/waiters/wake.c).  Whether it is armed is computed anew at each change of a handler
 * slot or of the number of processes.  A process that is no longer idle asks too, if that has armed
 * the queue state: what became ready while it woke up has found the queue state unarmed.
 *
 * When all idemq.max_handler_workers are used and a handler has none, one of another handler is
 * asked to leave: an idle one, or else one that has run for a while, of the handler that has
 * most.  It leaves after its job; if that lasts, another one is asked.
 *
 * Locks: handlers_lock, level 4, covers the handler slots, and QueueState.handler_status.
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

/* A process that has not attached by then never came. */
#define START_PATIENCE (10 * USECS_PER_SEC)
/* What does not need to be looked at sooner is looked at after that. */
#define LOOK_PAUSE (USECS_PER_SEC / 20)
/* A process that others wait for may stay for so long. */
#define FAIR_SLICE (5 * USECS_PER_SEC)

/* After a failed start the next one is deferred for a second, doubled up to 2^6. */
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
	int64 since; /* mono: of the start */
	bool idle;
	bool leave;	 /* it is to end after its job */
	int64 asked; /* mono: when it was asked to, for another handler */
} HandlerSlot;

typedef struct HandlerRegistry
{
	LWLock handlers_lock;
	HandlerSlot processes[FLEXIBLE_ARRAY_MEMBER];
} HandlerRegistry;

static HandlerRegistry *handler_registry = NULL;
/* The handler slot of this process, when it runs a handler. */
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

/* Asks for a process, if the queue's handler wants one: something is ready, after a commit. */
void
idemq_handler_call(QueueState *qstate)
{
	/* A time that is set already is a pause, or soon. */
	if ((pg_atomic_read_u32(&qstate->handler) & HANDLER_ARMED) != 0)
		idemq_due_in(qstate, DUE_HANDLER, 0);
}

/*
 * Notes that a former server ended while a handler of the queue was at a job; again: at a job at
 * which that has happened too often.
 */
void
idemq_handler_crashed(QueueState *qstate, bool again)
{
	uint32 bit = again ? HANDLER_CRASHED_AGAIN : HANDLER_CRASHED;

	if ((pg_atomic_fetch_or_u32(&qstate->handler, bit) & (bit | HANDLER_CRASHED_AGAIN)) == 0)
		idemq_due_by(qstate, DUE_HANDLER, 0);
}

/*
 * Returns whether a queue state is that of a handler's queue.  A session may have found the queue
 * state before another queue got it; then the status is not its to write.  The key changes before
 * idemq_handler_reset takes the lock, so what a session writes before it sees the change is reset.
 * Lock held.
 */
static bool
is_own(const QueueState *qstate, QueueStateKey key)
{
	return qstate != NULL && same(qstate->key, key);
}

/* Forgets the handler of the queue that had this queue state before.  The key has changed already. */
void
idemq_handler_reset(QueueState *qstate)
{
	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	memset(&qstate->handler_status, 0, sizeof(qstate->handler_status));
	pg_atomic_write_u32(&qstate->handler, 0);
	LWLockRelease(&handler_registry->handlers_lock);
}

/* What the handler slots show of one handler, and of all. */
typedef struct Census
{
	int used;		   /* processes of all handlers */
	int own;		   /* those of this handler */
	int busy;		   /* of these: at a job */
	bool coming;	   /* of these: one is on its way */
	bool idle;		   /* of these: one is idle */
	HandlerSlot *free; /* a free handler slot; NULL: none */
} Census;

/* Lock held. */
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

/*
 * Computes whether a commit in the queue is to ask for a process, if the queue state is its.  Lock
 * held.
 */
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

/* Notes an error of a handler.  Lock held. */
static void
note_error(HandlerStatus *status, const char *error)
{
	int length = pg_mbcliplen(error, (int) strlen(error), HANDLER_TEXT - 1);

	memcpy(status->error, error, length);
	status->error[length] = '\0';
	status->error_at = idemq_now();
}

/* Notes the error of an attempt of a handler. */
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
 * Notes why no process may run a handler, NULL where that is not known; returns when (mono) to look
 * again.  defers: a process has failed, so none is started before that, whoever looks.  Otherwise
 * the reason is looked up at each start, and a change of the queue's settings may have removed it.
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
 * Asks a process of another handler to leave, for one that has none: see the top of the
 * file.  Asks none while one was asked less than FAIR_SLICE ago; after that another, since that
 * one may be at a job that does not end.  Lock held.
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
 * *again: when (mono) to try again; PG_INT64_MAX: not before something asks for a process.  None is
 * reserved if the queue has lost its state: the worker looks at the handler when it gets another.
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
			process->state = HANDLER_FREE; /* its process never came */
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
 * Finds the handler slot of a ticket that no process has shown yet; NULL when there is none.  Lock
 * held.
 */
static HandlerSlot *
reserved(const HandlerTicket *ticket)
{
	HandlerSlot *process = &handler_registry->processes[ticket->index];

	return process->state == HANDLER_STARTING && process->serial == ticket->serial ? process : NULL;
}

/* Takes a reservation back: the postmaster has no room for a process. */
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
 * Notes how many processes the handler of a queue state may have, 0 for none.  Those that run find
 * out by themselves.  A handler that was set anew is not deferred for the failures of the former, and
 * one that was dropped (set_at is 0) is forgotten.
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
 * Has a database's processes, but this one, end after their jobs; with a signal, at once.
 * Returns the pid of one that is still there, or 0.  Those on their way will find that they are
 * not wanted.
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

/* Gives the handler slot back at this process' end. */
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

/* Gives this process the handler slot of its ticket; false when it is not wanted any more. */
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

/* Notes that this process is connected, and runs its handler from now on. */
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

/* Notes whether this process waits for a job. */
void
idemq_handler_idle(QueueState *qstate, bool idle)
{
	LWLockAcquire(&handler_registry->handlers_lock, LW_EXCLUSIVE);
	my_handler_slot->idle = idle;
	arm(qstate, my_handler_slot->key);
	LWLockRelease(&handler_registry->handlers_lock);
	/* What became ready while it woke up has asked for no process. */
	if (!idle)
		idemq_handler_call(qstate);
}

/* Returns whether this process is to end after its job. */
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
 * Copies what is known of a handler, zeros without a queue state, and counts its processes, and those
 * of them that are at a job.
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
