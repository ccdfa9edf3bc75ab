/*
 * shared/waiters/listeners.c
 *		Ending the waits of other sessions early, either because a session asks for that, or because
 *		an attempt of a worker's process is being cancelled or has been ended by another session.
 *
 * There is one element per PGPROC, with marks that such a session leaves before it sets the latch.
 * A waiting session resets its latch before it reads its marks, so it does not sleep while it has
 * one.  An unnecessary mark does no harm, because a wait may return early at any time.
 *
 * End of a wait.  A worker that is stopping has a session asleep in CALL idemq.wait.  A cancel
 * request would end that call, but the server logs each one as an ERROR.  Instead, another session
 * of the same role asks for the end of the wait (report_worker, argument end_waits).  The mark is
 * the process id of the waiting session, so that a later session with the same PGPROC ignores it.
 * It stays until a wait of the session takes it, so a request that arrives just before a wait begins
 * is not lost.
 *
 * Listeners.  The sessions of a process have the same value of idemq.process.  This value, the
 * database and the login role are hashed to the key of the process, so no other role is told.  A
 * claim and a heartbeat store the key in the lease (shared/leases/lease_beat.c).  The session in
 * which the process sleeps is its listener: a session with a key listens in every wait and wait_any
 * (api/wait.c).  The session that cancels or ends an attempt tells the listeners of the process.
 * They are not told which attempt is over: their next heartbeats return that.  So a process with
 * 1,000 jobs needs one listener, and a cancel wakes one session.
 *
 * The element of a session contains its key, or 0 if the session does not listen, and a mark that says
 * that the session was told.
 *
 *		listener						teller
 *		1 writes its key				1 changes the entry, so that a heartbeat finds it
 *		2 full barrier					2 full barrier
 *		3 takes the mark				3 finds the key, sets the mark
 *		4 sleeps on its latch			4 sets the latch
 *		5 resets its latch, goes to 3
 *
 * A session remains a listener until it ends or gets another key, so an event between two of its
 * waits ends the second wait.  A teller that came before the listener wrote its key has not found
 * it.  Therefore a session that begins to listen sets its own mark: its first wait ends at once, and
 * the process sends heartbeats.  If the teller's step 3 does not find the key, the listener's step 1
 * comes after it, and the heartbeat that follows finds the change of the teller's step 1.  After an
 * unnecessary mark, the process sends a heartbeat that was not due.
 *
 * A handler's process runs a function, and so it neither sleeps in a wait nor sends heartbeats.
 * Its element contains the token of the job whose function is running.  The session that marks that
 * attempt adds INTERRUPTED to the token and sends SIGUSR2.  A later job replaces both, so a late
 * signal does not interrupt another job (handler/limits.c).  A job of the same batch that is not
 * running yet is marked only in its lease.  The process writes its token and then looks at the
 * lease; the sender marks the lease and then looks at the token; so one of them finds the other.
 * The sender holds the lock of the lease's partition, which the process takes when it exits
 * (leases/lease_sessions.c), so the signal cannot reach another process.
 *
 * Locks: ProcArrayLock, shared, while a session is looked up whose wait must end, so that it cannot
 * exit in the meantime; otherwise none.  The elements are atomics.  Telling neither allocates nor
 * raises.
 */
#include "postgres.h"

#include <signal.h>

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/waiters/waiters.h"

typedef struct Listener
{
	pg_atomic_uint64 process; /* key of its process; 0: it does not listen; no lock */
	pg_atomic_uint32 told;	  /* no lock */
	pg_atomic_uint32 ends;	  /* process id of the session whose wait must end; 0: none; no lock */
	pg_atomic_uint64 token;	  /* of the job that a handler's process is running; 0: none; no lock */
} Listener;

/* In Listener.token: that attempt is being cancelled. */
#define INTERRUPTED (UINT64CONST(1) << 63)

static Listener *listeners = NULL;

static void
init_listeners(int tranche)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u64(&listeners[i].process, 0);
		pg_atomic_init_u32(&listeners[i].told, 0);
		pg_atomic_init_u32(&listeners[i].ends, 0);
		pg_atomic_init_u64(&listeners[i].token, 0);
	}
}

const ShmemPart idemq_listeners_part = {.area = (void **) &listeners,
										.each = sizeof(Listener),
										.count = idemq_session_count,
										.lies_in = AREA_SESSIONS,
										.init = init_listeners};

/*
 * Ends the wait of the session with a process id, or its next wait if it is not waiting now.  Does
 * nothing unless that session is in this database and has logged in as the same role as this
 * session.
 */
void
idemq_end_wait_of(int pid)
{
	PGPROC *proc;

	LWLockAcquire(ProcArrayLock, LW_SHARED);
	proc = BackendPidGetProcWithLock(pid);
	if (proc != NULL && proc->databaseId == MyDatabaseId && proc->roleId == MyProc->roleId)
	{
		pg_atomic_write_u32(&listeners[proc - GetPGProcByNumber(0)].ends, (uint32) pid);
		SetLatch(&proc->procLatch);
	}
	LWLockRelease(ProcArrayLock);
}

/* Returns whether another session has asked for the end of this session's wait; takes the mark. */
bool
idemq_end_wait_taken(void)
{
	pg_atomic_uint32 *mark = &listeners[IDEMQ_MY_PROC_NUMBER].ends;

	if (pg_atomic_read_u32(mark) != (uint32) MyProcPid)
		return false;
	pg_atomic_write_u32(mark, 0);
	return true;
}

/* Returns the key of the process that this session belongs to; 0: none. */
uint64
idemq_process_key(void)
{
	uint64 seed;

	if (idemq_process == NULL || idemq_process[0] == '\0')
		return 0;
	seed = (uint64) MyDatabaseId << 32 | MyProc->roleId;
	return Max(hash_bytes_extended((const unsigned char *) idemq_process,
								   (int) strlen(idemq_process), seed),
			   1);
}

static void
stop_listening(int code, Datum arg)
{
	pg_atomic_write_u64(&listeners[IDEMQ_MY_PROC_NUMBER].process, 0);
}

/*
 * Makes this session a listener of its process, if it has one, and of no other.  Returns whether it
 * has one.
 */
bool
idemq_listener_begin(void)
{
	static bool registered = false;
	Listener *own = &listeners[IDEMQ_MY_PROC_NUMBER];
	uint64 key = idemq_process_key();

	if (pg_atomic_read_u64(&own->process) != key)
	{
		if (!registered)
			before_shmem_exit(stop_listening, (Datum) 0);
		registered = true;
		(void) pg_atomic_exchange_u64(&own->process, key);
		(void) pg_atomic_exchange_u32(&own->told, 1);
	}
	return key != 0;
}

/* Returns whether this listener was told to look at the attempts of its process; takes the mark. */
bool
idemq_listener_told(void)
{
	Listener *own = &listeners[IDEMQ_MY_PROC_NUMBER];

	return pg_atomic_read_u32(&own->told) != 0 && pg_atomic_exchange_u32(&own->told, 0) != 0;
}

/* Tells the listeners of a process, if it has any, to look at its attempts. */
void
idemq_listeners_tell(uint64 process)
{
	if (process == 0)
		return;
	pg_memory_barrier();
	for (int i = 0; i < MaxBackends; i++)
	{
		if (pg_atomic_read_u64(&listeners[i].process) != process)
			continue;
		(void) pg_atomic_exchange_u32(&listeners[i].told, 1);
		SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}

/*
 * Tells a handler's process that its attempt of that token is being cancelled, if it is running that
 * job now.  The caller has marked the lease, and holds the lock of its partition.
 */
void
idemq_listener_interrupt(int32 session, int pid, int64 token)
{
	uint64 running = (uint64) token;

	pg_memory_barrier();
	if (pg_atomic_compare_exchange_u64(&listeners[session].token, &running, running | INTERRUPTED))
		(void) kill(pid, SIGUSR2);
}

/*
 * Notes that this handler's process begins to run the job of that token; 0: it runs none.  Afterwards
 * the caller looks whether the attempt had been marked before.
 */
void
idemq_listener_run(int64 token)
{
	(void) pg_atomic_exchange_u64(&listeners[IDEMQ_MY_PROC_NUMBER].token, (uint64) token);
}

/* Returns whether the job that this process is running was interrupted.  A signal handler may call it. */
bool
idemq_listener_interrupted(void)
{
	return (pg_atomic_read_u64(&listeners[IDEMQ_MY_PROC_NUMBER].token) & INTERRUPTED) != 0;
}
