/*
 * shared/leases/leases.c
 *		Leases: which session is working on which job, and until when.
 *
 * A job that has an entry in the lease table is busy for every other session that claims, although
 * its row is not locked.  The rows are the source of truth: an entry may be missing (after a
 * restart, or because the table was full), and a claim also checks the row.  The life of an entry:
 *
 *		none -> CLAIMING	idemq_lease_take, by a claim
 *		CLAIMING -> ACTIVE	commit of the claim: the lease starts, and gets a deadline.  Its own session
 *							starts it, or a session that ends the attempt before that
 *		CLAIMING -> none	abort of the claim; or the entry that it took over is restored
 *		ACTIVE -> ACTIVE	heartbeat: a new deadline (lease_beat.c)
 *		ACTIVE -> ending	begin_end (finish, cancel) or begin_reap (the deadline has passed): the entry
 *							has a finisher
 *		ending -> ACTIVE	abort of the finisher
 *		ending -> CLAIMING	the finisher claims the job again, and takes over the entry
 *		ending -> none		commit of the finisher
 *		none -> ACTIVE		adoption of a running job that has no entry, with the deadline in its row
 *
 * The order of steps matters:
 *
 *	 - A claim adds the entry before it writes the row.  So other claims skip the job without
 *	   reading its row.
 *	 - The note that will undo a change is allocated before the change is made (txn/pending.c),
 *	   because a callback cannot allocate.
 *	 - A lease starts after the commit of its claim.  Otherwise a lease could expire before a long
 *	   transaction ends, and a token could be valid before it is visible.
 *	 - begin_reap comes before the row is written.  From then on, heartbeats are refused as stale,
 *	   so a heartbeat and a reap cannot both succeed.  If another transaction holds the row, the
 *	   mark is taken back, and DUE_LEASE is set to a time soon, so an open commit or assert_current
 *	   keeps its job.  A session that ends the attempt has locked the row first, and takes over the
 *	   mark with it; if it aborts before the reaper has the row, heartbeats succeed again.
 *	   Therefore a reaper that has locked the row checks whether the mark is still its own
 *	   (job/reap.c).
 *	 - A claim is visible before its session starts the lease.  In between, another session may end
 *	   the attempt, claim the job again, which gives the entry another token, and undo that.  The
 *	   first session would find the other token, or come too late.  So if the entry is still
 *	   CLAIMING for another session, begin_end starts the lease, and counts a transferred permit.
 *	   It specifies the token of a running job's row over which its transaction has written, so the
 *	   claim has committed.  An entry that is CLAIMING for the same session belongs to the same
 *	   transaction, which has not ended yet.  As a result, an entry that a claim takes over is
 *	   either ACTIVE or belongs to the claim's own transaction, and it is correct whenever it is
 *	   restored: the first session changes it under that token only while it is CLAIMING or has a
 *	   transferred permit.  A finisher that aborts notes the deadline for reapers; one that commits
 *	   drops the entry.
 *	 - Similarly, an abort is visible before the entry that its claim took over is restored.  In
 *	   between, another session may end that attempt.  Its drop finds a later token, and records its
 *	   own token in the entry (ended).  Then the entry is removed instead of restored, and the scan
 *	   starts are unset, because it is not known where the entry made claims pass the job.  A
 *	   finisher that is open by then finds the restored entry at its commit, without its mark; if it
 *	   aborts, it asks for recovery.
 *	 - When an attempt ends, the entry is removed first, and then the scan start is lowered.  So a
 *	   claim that passed the job because of the entry is answered by a lowering that comes after the
 *	   removal.
 *	 - Between the commit of the finisher and the removal of its entry, another session may make the
 *	   job ready again, and lower the scan start.  A claim that passes the job then, although its
 *	   snapshot shows the job as ready, records the least such key in the entry (passed_by).  When
 *	   the entry is removed, the scan start is lowered to that key.
 *	 - Expired entries are collected, then the snapshot is taken, then the jobs are reaped.  So the
 *	   snapshot shows every claim whose entry was found.  If a row has an older token than the
 *	   entry, its claim is not visible yet, and the job is checked again later.
 *	 - After an adoption, the row is checked again under a newer snapshot.  If the job is still
 *	   running, its end will drop the entry.  Otherwise the adopter drops the entry, and unsets the
 *	   scan starts of the queue, because it does not know where the entry made claims pass the job.
 *	   A row that was written by this transaction is not adopted, because the entry would remain
 *	   after a rollback.
 *
 * Model: test/model/leases.pml; a worker that claims again what it releases, a reaper, another
 * session that claims, a finisher of any attempt that it sees, heartbeats; one job, one abort, two
 * expirations.
 *
 * Invariants:
 *	 - Every change specifies the token of the attempt.  An entry with another token remains
 *	   unchanged, so a late callback of an earlier claim changes nothing.
 *	 - A CLAIMING entry or a finisher belongs to a transaction of that session.  The transaction is
 *	   open, or its end has not been processed by txn/pending.c yet, which also processes aborts and
 *	   exits.  A finisher is a session, and not a flag, because its own transaction may claim again
 *	   what it has ended.
 *	 - An entry with a finisher is ACTIVE, or CLAIMING for the finisher's own transaction.
 *
 * Locks: see src/shared/README.md, level 1.  The functions that txn/pending.c calls after commit or
 * abort neither allocate nor raise errors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/leases/leases.h"
#include "shared/waiters/waiters.h"

/* Returns whether, and how, the entry of a job keeps this transaction from claiming the job. */
LeaseHold
idemq_lease_hold(int64 job_id)
{
	Lease lease;

	IDEMQ_STOP("idemq_lease_hold");
	if (!idemq_lease_get(job_id, &lease) || lease.ending.finisher == IDEMQ_MY_PROC_NUMBER)
		return LEASE_HOLDS_NOT;
	return lease.ending.finisher == NO_SESSION ? LEASE_HOLDS : LEASE_HOLDS_ENDING;
}

/*
 * Records in the entry of a job that the scan start passes the job at a key, although the job is
 * ready again: the finisher has committed, but its entry has not been removed yet.  The entry keeps
 * the least such key, and the scan start is lowered to it when the entry is removed.  Returns false
 * if the entry has been removed.
 */
bool
idemq_lease_turns_away(int64 job_id, int priority, ReadyKey key)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock(job_id, LW_EXCLUSIVE, &lock);
	bool there = lease != NULL;

	if (there && (!lease->passed_by.any || key.ready_at < lease->passed_by.least))
		lease->passed_by = (PassedBy){key.ready_at, (int16) priority, true};
	LWLockRelease(lock);
	return there;
}

/* Copies the entry of a job; returns false if there is none. */
bool
idemq_lease_get(int64 job_id, Lease *copy)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock(job_id, LW_SHARED, &lock);

	if (lease != NULL)
		*copy = *lease;
	LWLockRelease(lock);
	return lease != NULL;
}

/* Sets the terms of an entry to those of a claim whose transaction is open. */
static void
set_claiming(Lease *lease, const LeaseClaim *claim)
{
	idemq_lease_unplace(lease);
	lease->token = claim->token;
	lease->deadline = PG_INT64_MAX;
	lease->length = claim->length;
	lease->limit = claim->timeout > 0 ? claim->timeout : PG_INT64_MAX;
	lease->process = idemq_process_key();
	lease->cancels = 0;
	lease->marked = lease->told = false;
	lease->queue_id = claim->queue_id;
	lease->session = IDEMQ_MY_PROC_NUMBER;
	lease->pid = MyProcPid;
	lease->claiming = true;
	lease->attached = claim->attached;
	lease->handler = claim->handler;
	lease->session_life = idemq_lease_session_life(lease);
	lease->loss = LOSS_EXPIRED;
	lease->transferred = claim->transfer;
	lease->restored = false;
	lease->ahead = false;
	lease->tid_hint = claim->tid_hint;
	lease->ending = (Ending){.finisher = NO_SESSION};
	lease->passed_by.any = false;
	lease->due = PG_INT64_MAX;
	idemq_lease_place(lease);
}

/*
 * Adds a CLAIMING entry for this transaction.  An entry whose attempt this transaction is ending is
 * taken over, and copied to *prior for idemq_lease_restore.  Returns LEASE_BUSY if there is any
 * other entry.  The caller has allocated its note.
 */
LeaseTake
idemq_lease_take(const LeaseClaim *claim, PriorLease *prior, bool *has_prior)
{
	LWLock *lock;
	Lease *lease;
	LeaseTake take = LEASE_TAKEN;

	IDEMQ_STOP("idemq_lease_take");
	lease = idemq_lease_lock(claim->job_id, LW_EXCLUSIVE, &lock);
	*has_prior = lease != NULL;
	if (lease == NULL)
		lease = idemq_lease_enter(claim->job_id, claim->max_running > 0);
	else if (lease->ending.finisher != IDEMQ_MY_PROC_NUMBER)
		take = LEASE_BUSY;
	else
		memcpy(prior->terms, LEASE_TERMS(lease), sizeof(prior->terms));

	if (lease == NULL)
		take = LEASE_FULL;
	else if (take == LEASE_TAKEN && !claim->transfer &&
			 !idemq_running_count_in(&lease->running, claim->qstate, claim->queue_id,
									 claim->max_running))
	{
		/* Without a limit, it failed because the queue has just lost its state. */
		take = claim->max_running > 0 ? LEASE_LIMIT : LEASE_BUSY;
		if (!*has_prior)
			(void) idemq_lease_remove(lease);
	}
	if (take == LEASE_TAKEN)
		set_claiming(lease, claim);
	LWLockRelease(lock);
	return take;
}

/* Counts an entry that had a transferred permit, now that it has its own. */
static void
count_transferred(Lease *lease)
{
	if (lease->transferred && !idemq_running_is_counted(&lease->running))
		(void) idemq_running_count_in(&lease->running, NULL, lease->queue_id, 0);
	lease->transferred = false;
}

/*
 * Starts the lease of a claim that has committed.  An attempt that the claim took over has ended,
 * so the entry is counted once; returns where it was counted more often.
 */
static RunningFreed
lease_start(Lease *lease)
{
	int64 now = idemq_mono_now();

	lease->claiming = false;
	if (lease->limit < PG_INT64_MAX)
		lease->limit += now;
	(void) idemq_lease_set_deadline(lease, now + lease->length);
	count_transferred(lease);
	return idemq_running_count_out(&lease->running, lease->queue_id, 1);
}

/*
 * Counts an entry that had a transferred permit.  Its claim has committed, and the attempts that it
 * replaces are still counted.
 */
void
idemq_lease_count_transferred(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease;

	IDEMQ_STOP("idemq_lease_count_transferred");
	lease = idemq_lease_lock_of(job_id, token, &lock);
	if (lease != NULL)
		count_transferred(lease);
	LWLockRelease(lock);
}

/*
 * Starts the lease of this session's claim, which has committed.  Returns its deadline (mono), or
 * PG_INT64_MAX if the entry is gone, or if a session that ends the attempt has started the lease.
 */
int64
idemq_lease_activate(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease;
	int64 deadline = PG_INT64_MAX;
	RunningFreed freed = NOTHING_FREED;

	IDEMQ_STOP("idemq_lease_activate");
	lease = idemq_lease_lock_of(job_id, token, &lock);
	if (lease != NULL && lease->claiming)
	{
		freed = lease_start(lease);
		deadline = lease->deadline;
	}
	LWLockRelease(lock);
	idemq_running_freed(freed);
	return deadline;
}

/*
 * Removes the entry of an attempt that has ended, and copies it to *dropped.  Returns false if
 * there is no entry with this token.
 */
bool
idemq_lease_drop(int64 job_id, int64 token, Lease *dropped)
{
	LWLock *lock;
	Lease *lease;
	RunningFreed freed = NOTHING_FREED;
	bool there;

	IDEMQ_STOP("idemq_lease_drop");
	lease = idemq_lease_lock(job_id, LW_EXCLUSIVE, &lock);
	there = lease != NULL && lease->token == token;
	if (there)
	{
		*dropped = *lease;
		freed = idemq_lease_remove(lease);
	}
	else if (lease != NULL && lease->token > token)
		lease->ended = Max(lease->ended, token);
	LWLockRelease(lock);
	idemq_running_freed(freed);
	return there;
}

/*
 * Restores the terms that idemq_lease_take overwrote for the claim with this token, because the
 * claim was undone.  Returns false if the former attempt has ended in the meantime; then the entry
 * is removed.
 */
bool
idemq_lease_restore(int64 job_id, int64 token, const PriorLease *prior)
{
	LWLock *lock;
	Lease *lease;
	RunningFreed freed = NOTHING_FREED;
	bool goes_on = true;

	IDEMQ_STOP("idemq_lease_restore");
	lease = idemq_lease_lock_of(job_id, token, &lock);
	if (lease != NULL)
	{
		idemq_lease_unplace(lease);
		memcpy(LEASE_TERMS(lease), prior->terms, sizeof(prior->terms));
		/* The worker's next heartbeat tells which process it belongs to. */
		lease->process = 0;
		lease->cancels = 0;
		lease->marked = lease->told = false;
		/* The session may have ended in the meantime, and did not find the entry in its lists. */
		if (lease->attached && lease->session_life != idemq_lease_session_life(lease))
			idemq_lease_orphan(lease, LOSS_SESSION, idemq_mono_now());
		lease->due = lease->deadline;
		idemq_lease_place(lease);
		goes_on = lease->token > lease->ended;
		freed = goes_on ? idemq_running_count_out(&lease->running, lease->queue_id, 1)
						: idemq_lease_remove(lease);
	}
	LWLockRelease(lock);
	idemq_running_freed(freed);
	return goes_on;
}

/*
 * Marks that this transaction, which has written the row of the attempt, ends the lease, so that
 * the transaction may claim the job again.  Starts the lease if its claim has just committed.
 * Returns whether one claim may take over the permit of the attempt: the entry is counted as
 * running, or has a transferred permit, and no earlier call has returned true for it.
 */
bool
idemq_lease_begin_end(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);
	RunningFreed freed = NOTHING_FREED;
	bool frees = false;

	if (lease != NULL && lease->claiming && lease->session != IDEMQ_MY_PROC_NUMBER)
		freed = lease_start(lease);
	if (lease != NULL && lease->ending.finisher != IDEMQ_MY_PROC_NUMBER)
	{
		lease->ending.finisher = IDEMQ_MY_PROC_NUMBER;
		lease->ending.reaping = lease->ending.credited = false;
	}
	if (lease != NULL && !lease->ending.credited)
		lease->ending.credited = frees = lease->transferred ||
										 idemq_running_is_counted(&lease->running);
	LWLockRelease(lock);
	idemq_running_freed(freed);
	return frees;
}

/*
 * Marks an expired lease for reaping by this transaction, and sets *loss to why it ended.  From now
 * on, heartbeats are refused.  Returns false if the lease is no longer expired, or if another
 * transaction is ending it.
 */
bool
idemq_lease_begin_reap(int64 job_id, int64 token, LeaseLoss *loss)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);
	bool won = lease != NULL && !lease->claiming && lease->ending.finisher == NO_SESSION &&
			   lease->deadline <= idemq_mono_now() && !idemq_lease_waits_for_cancel(lease);

	if (won)
	{
		lease->ending.finisher = IDEMQ_MY_PROC_NUMBER;
		lease->ending.reaping = true;
		/*
		 * A job that its worker has not begun is returned.  A worker without a heartbeat since a
		 * restart may have died before the restart.
		 */
		*loss = lease->loss < LOSS_RETURNED && lease->ahead			  ? LOSS_RETURNED
				: lease->loss != LOSS_EXPIRED						  ? (LeaseLoss) lease->loss
				: lease->limit <= lease->deadline && !lease->restored ? LOSS_TIMEOUT
																	  : LOSS_EXPIRED;
	}
	LWLockRelease(lock);
	return won;
}

/*
 * Undoes begin_end or begin_reap of this session.  Returns when (mono) the lease must be checked
 * again, or 0 if this session is not ending it.  After the first reaper, which may simply have been
 * rolled back, it is checked at once, and after later ones with a delay.  If a reaper does not get
 * the row at the end of job_timeout, the process of the worker is told, because its transaction may
 * hold the row.
 */
int64
idemq_lease_cancel_end(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);
	int64 again = 0;
	uint64 process = 0;

	if (lease != NULL && lease->ending.finisher == IDEMQ_MY_PROC_NUMBER)
	{
		if (lease->ending.reaping && !lease->ending.undone && lease->limit <= idemq_mono_now())
			process = lease->process;
		if (lease->ending.reaping && lease->ending.undone)
		{
			/* In the meantime, other leases of the queue come first. */
			idemq_lease_unplace(lease);
			lease->due = Max(lease->deadline, idemq_mono_now() + LEASE_BUSY_RETRY);
			idemq_lease_place(lease);
		}
		again = lease->due;
		lease->ending = (Ending){.finisher = NO_SESSION,
								 .undone = lease->ending.undone || lease->ending.reaping};
		lease->passed_by.any = false;
	}
	LWLockRelease(lock);
	idemq_listeners_tell(process);
	return again;
}

/*
 * Adds an ACTIVE entry for a running job that has none.  Returns LEASE_BUSY if it has one.
 * Afterwards the caller checks the row again, and drops the entry if the job is no longer running.
 */
LeaseTake
idemq_lease_adopt(int64 job_id, int64 token, const AdoptingQueue *queue,
				  const AdoptedLease *adopted)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock(job_id, LW_EXCLUSIVE, &lock);
	LeaseTake take = LEASE_TAKEN;

	if (lease != NULL)
		take = LEASE_BUSY;
	else if ((lease = idemq_lease_enter(job_id, queue->limited)) == NULL)
		take = LEASE_FULL;
	else
	{
		lease->token = token;
		lease->limit = adopted->limit;
		lease->deadline = lease->due = Min(adopted->deadline, adopted->limit);
		lease->length = adopted->length;
		lease->process = 0;
		lease->cancels = 0;
		lease->marked = lease->told = false;
		lease->queue_id = queue->id;
		lease->session = NO_SESSION;
		lease->pid = 0;
		lease->claiming = lease->attached = lease->transferred = false;
		lease->handler = adopted->handler;
		lease->restored = adopted->restored;
		lease->loss = LOSS_EXPIRED;
		lease->ending = (Ending){.finisher = NO_SESSION};
		lease->passed_by.any = false;
		lease->tid_hint = (TidHint){0};
		if (idemq_running_count_in(&lease->running, NULL, queue->id, 0))
			idemq_lease_place(lease);
		else
		{
			(void) idemq_lease_remove(lease);
			take = LEASE_BUSY;
		}
	}
	LWLockRelease(lock);
	return take;
}
