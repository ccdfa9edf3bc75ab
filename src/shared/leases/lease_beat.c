/*
 * shared/leases/lease_beat.c
 *		Heartbeats, jobs that wait in their worker, how a worker ends its own lease, and how a worker
 *		is told that its job is being cancelled.
 *
 * Heartbeats: an entry has a limit, the queue's job_timeout after the commit of its claim.  No
 * deadline is beyond the limit (idemq_lease_set_deadline is the only function that sets a
 * deadline), so the lease ends then, however often it was renewed, and is taken back like any
 * other, whether it is attached or not.  A heartbeat before the limit moves the deadline to the
 * limit at most, and succeeds; a heartbeat after the limit moves nothing, and reports that.  The
 * attempt may still commit, until another worker has the job.
 *
 * Jobs ahead: a worker may claim more jobs than it can run at once.  It marks those that wait for a
 * free place, and removes the mark before it begins one.  If the lease of a marked job ends, the job
 * is released, and the attempt does not count (idemq_lease_begin_reap).  The mark is lost in a
 * restart.  It changes at once, under the lock of the entry's partition.  A job that has begun never
 * has the mark: the worker begins it only if the call that removed the mark has also renewed the
 * lease, and a reaper that came first makes this call return stale.  If a reaper comes between the
 * removal and the renewal, the job has not begun, but its attempt counts.
 *
 * Cancels: a cancel must write the job's row, and waits while a transaction of the worker holds it
 * (after assert_current, fence, checkpoint, or an early commit of the job).  So the cancel first
 * counts itself in the entry of the attempt, wakes the session that has the lease, and tells the
 * listener of its process (shared/waiters/listeners.c).  The worker's next heartbeat, perhaps in
 * another session, reports the cancel, and so does idemq_lease_is_cancelled.  revoke_lease and
 * drop_queue do the same.  The worker then rolls back, and the cancel gets the row.  A commit is
 * not refused: as always, the first of the two that comes gets the row.
 *
 *	 - The mark belongs to one attempt (job, token).  A process that has moved on to another job has
 *	   another token, and is not affected.  The latch only wakes the process.
 *	 - The mark lasts as long as the cancelling transaction.  If that commits, the entry is removed,
 *	   and the job is cancelled.  If it aborts, the mark is removed, and heartbeats succeed again;
 *	   the worker may have rolled back for nothing.  It releases the job (job/finish.c), or the job
 *	   is taken back when the lease ends.
 *	 - Several sessions may cancel at once, so the marks are counted.  If a transaction that ends
 *	   the attempt takes over the entry, and the entry is then restored, its count begins at 0.
 *	   Then a waiting cancel is in the same situation as without an entry, which every cancel must
 *	   handle anyway.
 *
 * Locks: see src/shared/README.md, level 1.  idemq_lease_unmark_cancel is called after commit or
 * abort, and neither allocates nor raises errors.
 */
#include "postgres.h"

#include "storage/latch.h"
#include "storage/proc.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/waiters/waiters.h"

/* Renews a lease from now on, for length microseconds, or, if that is 0, for its own length. */
LeaseBeat
idemq_lease_beat(int64 job_id, int64 token, int64 length)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock(job_id, LW_EXCLUSIVE, &lock);
	int64 now = idemq_mono_now();
	uint64 process = idemq_process_key();
	LeaseBeat beat = LEASE_BEAT_DONE;

	if (lease == NULL)
		beat = LEASE_BEAT_UNKNOWN;
	else if (lease->token != token || lease->ending.reaping || lease->loss >= LOSS_RETURNED ||
			 lease->ending.finisher == IDEMQ_MY_PROC_NUMBER)
		beat = LEASE_BEAT_STALE;
	else if (lease->cancels > 0)
		beat = LEASE_BEAT_CANCELLED;
	else if (!lease->claiming && lease->limit <= now)
		beat = LEASE_BEAT_OVER;
	else
	{
		if (length > 0)
			lease->length = length;
		if (process != 0)
			lease->process = process;
		lease->loss = LOSS_EXPIRED;
		lease->restored = false;
		if (!lease->claiming)
			idemq_lease_set_deadline(lease, now + lease->length);
	}
	LWLockRelease(lock);
	return beat;
}

/*
 * Marks a running job that its worker has not begun, or removes that mark.  When the mark is removed,
 * job_timeout (in microseconds; 0: none) begins.  Does nothing if the attempt is over.
 */
void
idemq_lease_set_ahead(int64 job_id, int64 token, bool ahead, int64 timeout)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);

	if (lease != NULL && !lease->claiming && lease->ending.finisher == NO_SESSION)
	{
		if (lease->ahead && !ahead && lease->limit < PG_INT64_MAX && timeout > 0)
			lease->limit = idemq_mono_now() + timeout;
		lease->ahead = ahead;
	}
	LWLockRelease(lock);
}

/*
 * Ends the lease of an attempt that its worker has ended while another transaction holds the row.
 * Afterwards, a reaper writes the row as loss says (job/reap.c).
 */
void
idemq_lease_hand_over(int64 job_id, int64 token, LeaseLoss loss)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);

	if (lease != NULL && !lease->claiming)
	{
		int64 now = idemq_mono_now();

		idemq_lease_unplace(lease);
		idemq_lease_orphan(lease, loss, now);
		idemq_lease_place(lease);
		idemq_due_by(idemq_qstate_find(MyDatabaseId, lease->queue_id), DUE_LEASE, now);
	}
	LWLockRelease(lock);
}

/*
 * Tells the worker with a token that an open transaction is cancelling its job, or taking it back.
 * Returns false if there is no entry with this token, and so nothing to undo.  If several
 * transactions do so, the first one tells the process.  Without at_once, the worker finds out with
 * its next heartbeat.
 */
bool
idemq_lease_mark_cancel(int64 job_id, int64 token, bool at_once)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);
	bool marked = lease != NULL && lease->cancels < PG_UINT16_MAX;
	uint64 process = 0;

	if (marked)
	{
		lease->cancels++;
		lease->marked = true;
		if (at_once && !lease->told)
			process = lease->process;
		lease->told = process != 0 || lease->told;
		/* attached: the process has not exited yet, and must take this lock to do so. */
		if (at_once && idemq_lease_pid(lease) != 0 && lease->handler && lease->attached)
		{
			/* A function that drops its own queue does not interrupt itself. */
			if (lease->session != IDEMQ_MY_PROC_NUMBER)
				idemq_listener_interrupt(lease->session, lease->pid, token);
		}
		else if (idemq_lease_pid(lease) != 0)
			SetLatch(&GetPGProcByNumber(lease->session)->procLatch);
	}
	LWLockRelease(lock);
	idemq_listeners_tell(process);
	return marked;
}

/*
 * Takes the mark back, if the entry of that token is still there.  If the attempt continues, because
 * the transaction has aborted or did not get the row, the process must be told of the next cancel.
 */
void
idemq_lease_unmark_cancel(int64 job_id, int64 token, bool aborted)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);

	if (lease != NULL && lease->cancels > 0)
	{
		lease->cancels--;
		if (lease->cancels == 0 && (aborted || lease->ending.finisher != IDEMQ_MY_PROC_NUMBER))
			lease->marked = lease->told = false;
	}
	LWLockRelease(lock);
}

/*
 * Returns the key of the process that has the attempt of that token; 0: it is not known, or its
 * worker has given the attempt up.
 */
uint64
idemq_lease_process(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);
	uint64 process = lease != NULL && lease->loss < LOSS_RETURNED ? lease->process : 0;

	LWLockRelease(lock);
	return process;
}

/* Returns whether an open transaction is cancelling an attempt. */
bool
idemq_lease_is_cancelled(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock(job_id, LW_SHARED, &lock);
	bool cancelled = lease != NULL && lease->token == token && lease->cancels > 0;

	LWLockRelease(lock);
	return cancelled;
}
