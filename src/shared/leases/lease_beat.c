/*
 * shared/leases/lease_beat.c
 *		What a worker says and hears of its lease: heartbeats, how far they reach, that it has
 *		ended, and cancels, of which its process hears at once.
 *
 * How far: an entry has a limit, the queue's job_timeout after the commit of its claim.  No
 * deadline is beyond it (idemq_lease_set_deadline is the one place that moves one ahead), so
 * the lease ends then, however often it was renewed, and is taken back like any other:
 * attached or not, with heartbeats or without.  A heartbeat before the limit moves the
 * deadline to it at most, and answers current; from the limit on it moves nothing, and says
 * so.  The attempt may still commit, until another has the job.
 *
 * Cancels: a cancel has to write the job's row, and waits while a transaction of the worker
 * holds it (assert_current, fence, checkpoint, or a commit that came before its effect).
 * So it first counts itself in the entry of that attempt, wakes the session that holds the
 * lease, and tells the listener of its process (shared/waiters/listeners.c).  The worker's next
 * heartbeat, perhaps from another session, is told, and so is a caller of
 * idemq_lease_is_cancelled.  revoke_lease and drop_queue do the same.  The worker rolls back, and the
 * cancel has the row.  A commit is not refused: the first of the two to come has the row, as ever.
 *
 *	 - The mark is of one (job, token).  It is no signal: a process that has gone on to
 *	   another job has another token, and is not met.  The latch only wakes the process, and
 *	   says nothing.
 *	 - It lasts as long as the canceller's transaction.  If that commits, the entry goes, and
 *	   the job is cancelled.  If it aborts, the mark goes, and heartbeats are current again;
 *	   the worker may have rolled back for nothing.  It releases the job (job/finish.c), or
 *	   the job is taken back at its lease's end.
 *	 - It is counted, for several may cancel at once.  An entry that is taken over by a
 *	   transaction that ends the attempt, and restored, begins at 0: then a cancel that waits
 *	   is as it would be without an entry, which every cancel has to bear.
 *
 * Locks: see README.md, level 1.  idemq_lease_unmark_cancel is called after commit or abort,
 * and neither allocates nor raises.
 */
#include "postgres.h"

#include "storage/latch.h"
#include "storage/proc.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/leases/leases.h"
#include "shared/waiters/waiters.h"

/*
 * Starts a lease again from now, of length microseconds or, when that is 0, of
 * its own length.
 */
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
 * Ends the lease of an attempt that its worker has ended while somebody holds the row.  Once
 * nobody does, a reaper writes the row as loss says (job/reap.c).
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
 * Tells the worker of that token that an open transaction cancels its job, or takes it back.  Returns
 * false if there is no entry of that token, and so nothing to undo.  If several transactions do so,
 * the first tells the process.  Without at_once, only a heartbeat finds the mark.
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
		if (at_once && idemq_lease_pid(lease) != 0 && lease->handler)
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
 * Returns the key of the process that has the attempt of that token; 0: it is not known, or its worker
 * has given the attempt up.
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

/* Returns whether an open transaction cancels the job of that token. */
bool
idemq_lease_is_cancelled(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock(job_id, LW_SHARED, &lock);
	bool cancelled = lease != NULL && lease->token == token && lease->cancels > 0;

	LWLockRelease(lock);
	return cancelled;
}
