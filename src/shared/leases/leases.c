/*
 * shared/leases/leases.c
 *		The lease table in shared memory: which session works on which job, and until when.
 *
 * An entry makes its job busy for every other claimer, with no row locked.  The rows
 * are the truth: an entry may be missing (after a restart, with a full table), and a
 * claim is still guarded by the row.  The life of an entry:
 *
 *		none -> CLAIMING	idemq_lease_take, by a claim
 *		CLAIMING -> ACTIVE	commit of the claim: the lease starts, with a deadline; started by its
 *							session, or by a session that ends the attempt before that
 *		CLAIMING -> none	abort of the claim; or the prior entry is restored
 *		ACTIVE -> ACTIVE	heartbeat: another deadline (lease_beat.c)
 *		ACTIVE -> ending	begin_end (finish, cancel), begin_reap (deadline passed):
 *							the entry has a finisher
 *		ending -> ACTIVE	abort of the finisher
 *		ending -> CLAIMING	the finisher claims the job again: it takes the entry over
 *		ending -> none		commit of the finisher
 *		none -> ACTIVE		adoption of a running job that has no entry, with
 *							the deadline of its row
 *
 * The order of steps matters:
 *
 *	 - Entry before row (claim): other claimers pass the job without touching the row.
 *	 - The note of what is to be undone has its room before the entry is put
 *	   (txn/pending.c): a callback must be able to undo it, and cannot allocate.
 *	 - A lease starts after its claim's commit: a long transaction is not born expired,
 *	   and a token is not valid before it is visible.
 *	 - begin_reap before the row is written: from there on a heartbeat answers stale, so
 *	   a heartbeat and a reap cannot both win.  If the row is held, the mark is taken back
 *	   and DUE_LEASE is set to soon: an open commit or assert_current keeps its job.
 *	   A session that ends the attempt has the row first, and takes the mark over with it; if
 *	   it aborts before the reaper has the row, heartbeats are answered again.  So a reaper
 *	   that has locked the row looks whether the mark is still its own (job/reap.c).
 *	 - A claim is visible before its session starts the lease, and from then on another may end
 *	   the attempt, claim the job again, which gives the entry another token, and take that back.
 *	   The first session would find that token, or come too late.  So begin_end starts the lease,
 *	   and counts a transferred permit, where an entry is still CLAIMING for another session: it
 *	   names the token of a row of a running job that its transaction has written over, so the
 *	   claim has committed.  A CLAIMING entry of its own session is of its own transaction,
 *	   which has yet to end.  What a claim takes over is therefore ACTIVE, or its own
 *	   transaction's, and is right whenever it is restored: the first session changes it at most
 *	   while it is CLAIMING, or has a transferred permit, under that token.  Its deadline is noted
 *	   for reapers by the finisher that aborts; one that commits drops the entry.
 *	 - Likewise an abort is visible before what its claim took over is restored, and from then
 *	   on another may end that attempt for good.  Its drop finds a later token, and says so in the
 *	   entry (ended): then that goes in place of being restored, and the scan starts are unset, for
 *	   nobody knows where it turned claimers away.  A finisher that is open by then finds the
 *	   attempt's entry at its commit, without its mark; one that aborts asks for recovery.
 *	 - At the end entries go first, then scan starts are lowered: a claimer that passed the
 *	   job because of the entry gets a lowering that comes after the entry is gone.
 *	 - Between the finisher's commit and the drop of its entry, another session may make the
 *	   job ready again, and lower.  A claimer that passes the job then, and whose snapshot
 *	   shows it ready, is answered by passed_by: when the entry goes, the scan start is lowered
 *	   to the least key at which the job was passed.
 *	 - Expired entries are collected, then the snapshot is taken, then they are reaped: so
 *	   the snapshot sees every claim whose entry was found.  A row with an older token than
 *	   its entry's is not there yet, and is checked again.
 *	 - After an adoption the row is checked under a newer snapshot.  If the job is still
 *	   running, its end will drop the entry; if not, the adopter drops the entry and
 *	   unsets the queue's scan starts, for it does not know where the entry turned claimers
 *	   away.  A row that this transaction wrote is not adopted: its rollback would leave
 *	   the entry behind.
 *
 * Model: test/model/leases.pml; a worker that claims again what it releases, a reaper, another
 * claimer, a finisher of whatever attempt it sees, heartbeats; one job, one abort, two ends by time.
 *
 * Invariants:
 *	 - every change names the token that it is about; another token's entry is left
 *	   alone, so that a late callback of an older claim changes nothing;
 *	 - a CLAIMING entry, and a finisher, belong to a transaction of the session named that is
 *	   open, or whose end txn/pending.c has not followed yet: it ends both, abort and exit
 *	   included.  A finisher is a session and not a flag: its own transaction may claim again
 *	   what it ended;
 *	 - an entry with a finisher is ACTIVE, or CLAIMING for the finisher's own transaction.
 *
 * Locks: see README.md, level 1.  The functions that txn/pending.c calls after commit or
 * abort neither allocate nor raise.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/leases/leases.h"
#include "shared/waiters/waiters.h"

/* Returns how a job's entry keeps this transaction from claiming it. */
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
 * Notes in a job's entry that the caller lets the scan start pass the job at that key.
 * The lease is ending, and the job is ready again: the finisher has committed, and its entry is
 * not gone yet.  The entry keeps the least such key: the scan start is lowered to it when the
 * entry goes.  Returns false when it has gone.
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

/* Copies a job's entry; false when there is none. */
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

/* Fills an entry for a claim whose transaction is open. */
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
	lease->tid_hint = claim->tid_hint;
	lease->ending = (Ending){.finisher = NO_SESSION};
	lease->passed_by.any = false;
	lease->due = PG_INT64_MAX;
	idemq_lease_place(lease);
}

/*
 * Writes back what a claim has overwritten, but for where the entry is counted.  The session
 * that it was attached to may have ended meanwhile, and found it in none of its lists.
 */
static void
put_prior(Lease *lease, const PriorLease *prior)
{
	idemq_lease_unplace(lease);
	memcpy(LEASE_TERMS(lease), prior->terms, sizeof(prior->terms));
	/* The worker's next heartbeat says which process it is. */
	lease->process = 0;
	lease->cancels = 0;
	lease->marked = lease->told = false;
	if (lease->attached && lease->session_life != idemq_lease_session_life(lease))
		idemq_lease_orphan(lease, LOSS_SESSION, idemq_mono_now());
	lease->due = lease->deadline;
	idemq_lease_place(lease);
}

/*
 * Puts a CLAIMING entry for this transaction.  LEASE_BUSY: another's entry is
 * there.  An entry that this transaction is ending is taken over, and copied
 * to *prior for idemq_lease_restore.  The caller has room for its note.
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
		/* Without a limit, the queue has just lost its state: this job is not for us. */
		take = claim->max_running > 0 ? LEASE_LIMIT : LEASE_BUSY;
		if (!*has_prior)
			idemq_lease_remove(lease);
	}
	if (take == LEASE_TAKEN)
		set_claiming(lease, claim);
	LWLockRelease(lock);
	return take;
}

/* Counts an entry with a transferred permit. */
static void
count_transferred(Lease *lease)
{
	if (lease->transferred && !idemq_running_is_counted(&lease->running))
		(void) idemq_running_count_in(&lease->running, NULL, lease->queue_id, 0);
	lease->transferred = false;
}

/* Starts the lease of a claim that has committed; the attempt that it took over has ended. */
static RunningFreed
start(Lease *lease)
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
 * Counts an entry with a transferred permit: its claim has committed, and no attempt that it
 * replaces has gone from the count yet.
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
 * Starts the lease of this session's claim, which has committed.  Returns its deadline (mono),
 * PG_INT64_MAX when the entry is gone, or somebody who ends the attempt has started it.
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
		freed = start(lease);
		deadline = lease->deadline;
	}
	LWLockRelease(lock);
	idemq_running_freed(freed);
	return deadline;
}

/* Removes an entry, and returns where it was counted. */
static RunningFreed
take_away(Lease *lease)
{
	RunningFreed freed = idemq_running_count_out(&lease->running, lease->queue_id, 0);

	idemq_lease_remove(lease);
	return freed;
}

/*
 * Removes the entry of that token, whose attempt has ended, and copies it to *dropped; false when
 * there is none.
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
		freed = take_away(lease);
	}
	else if (lease != NULL && lease->token > token)
		lease->ended = Max(lease->ended, token);
	LWLockRelease(lock);
	idemq_running_freed(freed);
	return there;
}

/*
 * Puts back what idemq_lease_take(token) had taken over; false when that attempt has ended
 * meanwhile, and the entry is gone.
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
		put_prior(lease, prior);
		goes_on = lease->token > lease->ended;
		freed = goes_on ? idemq_running_count_out(&lease->running, lease->queue_id, 1)
						: take_away(lease);
	}
	LWLockRelease(lock);
	idemq_running_freed(freed);
	return goes_on;
}

/*
 * Marks that this transaction, which has written the row of that attempt, ends the lease, so that
 * its own claims may follow; starts a lease whose claim has just committed.  Returns whether one
 * claim may run in its place: the entry is counted as running, or has a transferred permit, and
 * this is the first call that says so.
 */
bool
idemq_lease_begin_end(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = idemq_lease_lock_of(job_id, token, &lock);
	RunningFreed freed = NOTHING_FREED;
	bool frees = false;

	if (lease != NULL && lease->claiming && lease->session != IDEMQ_MY_PROC_NUMBER)
		freed = start(lease);
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
 * Marks an expired lease for reaping by this transaction; from here a heartbeat
 * is refused.  Returns false when it is not expired any more, or another session
 * is ending it.  *loss: why it has ended.
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
		/* A worker that has not been heard from since a restart may have died before it. */
		*loss = lease->loss != LOSS_EXPIRED							  ? (LeaseLoss) lease->loss
				: lease->limit <= lease->deadline && !lease->restored ? LOSS_TIMEOUT
																	  : LOSS_EXPIRED;
	}
	LWLockRelease(lock);
	return won;
}

/*
 * Takes back this session's begin_end or begin_reap.  Returns when (mono) the lease is to be
 * checked again, 0 when this session is not ending it: at once after the first reaper, which may
 * just have been rolled back, and a moment later after those that follow.  A reaper that does not get
 * the row at the end of job_timeout tells the process, whose transaction may hold it.
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
			/* Others of the queue come first meanwhile. */
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
 * Puts an ACTIVE entry for a job that is in flight without one.  LEASE_BUSY:
 * there is one already.  The caller checks the row again afterwards, and drops the
 * entry if the job has moved on meanwhile.
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
			idemq_lease_remove(lease);
			take = LEASE_BUSY;
		}
	}
	LWLockRelease(lock);
	return take;
}
