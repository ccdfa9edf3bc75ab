/*
 * shared/waiters/end_wait.c
 *		Ends the waits of other sessions early, as if their timeouts had passed.
 *
 * A worker that is stopping has a session asleep in CALL idemq.wait.  A cancel request would end
 * that call, but the server logs each one as an ERROR.  Instead, another session of the same role
 * asks for the end of the wait (report_worker, argument end_waits).
 *
 * A request is a mark on a session: an array with one element per PGPROC contains the process id of
 * the session whose wait must end, or 0.  The mark stays until a wait of that session takes it.  So
 * a request that arrives just before the wait begins is not lost: that wait ends at once.  A later
 * session with the same PGPROC has another process id, and ignores the mark.
 *
 *		waiter							requester
 *		1 checks for work				1 writes the mark
 *		2 takes its mark, if any		2 sets the waiter's latch
 *		3 sleeps on its latch
 *		4 resets its latch, goes to 1
 *
 * The mark is written before the latch is set, and the latch is reset before the mark is read, so a
 * waiter does not sleep through a request.  A request that meets no wait, or the wrong session,
 * does no harm, because a wait may return early at any time, and its caller then waits again.
 *
 * Locks: ProcArrayLock, shared, while a session is looked up and marked, so that it cannot exit in
 * the meantime.  The marks are atomics.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/waiters/waiters.h"

static pg_atomic_uint32 *end_marks = NULL;

static void
init_end_marks(int tranche)
{
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&end_marks[i], 0);
}

const ShmemPart idemq_end_wait_part = {.area = (void **) &end_marks,
									   .each = sizeof(pg_atomic_uint32),
									   .count = idemq_session_count,
									   .lies_in = AREA_SESSIONS,
									   .init = init_end_marks};

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
		pg_atomic_write_u32(&end_marks[proc - GetPGProcByNumber(0)], (uint32) pid);
		SetLatch(&proc->procLatch);
	}
	LWLockRelease(ProcArrayLock);
}

/* Returns whether another session has asked for the end of this session's wait; takes the mark. */
bool
idemq_end_wait_taken(void)
{
	pg_atomic_uint32 *mark = &end_marks[IDEMQ_MY_PROC_NUMBER];

	if (pg_atomic_read_u32(mark) != (uint32) MyProcPid)
		return false;
	pg_atomic_write_u32(mark, 0);
	return true;
}
