/*
 * shared/leases.c
 *		The lease table in shared memory: who is on which job, and until when.
 *
 * An entry makes its job busy for every other claimer, with no row locked.  It
 * is CLAIMING while the claim's transaction is open, then ACTIVE with a
 * deadline that heartbeats move.  The rows are the truth: an entry may be
 * missing (after a restart, with a full table), and a claim is still guarded by
 * the row.
 *
 * Invariants:
 *   - every change names the token that it is about; another token's entry is
 *     left alone, so that a late callback of an older claim changes nothing;
 *   - a CLAIMING entry, and an ender, belong to a transaction that is open in
 *     the session named; txn/pending.c ends both with it, abort and exit included.
 *
 * Locks: shared/lease_table.c's.  The functions that txn/pending.c calls after commit or abort
 * neither allocate nor raise.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "job/limits.h"
#include "shared/lease_table.h"
#include "shared/leases.h"
#include "base/clock.h"
#include "base/compat.h"

static LeaseKey
lease_key(int64 job_id)
{
	LeaseKey key = {MyDatabaseId, 0, job_id};

	return key;
}

/* Finds the entry of that token with its partition locked, which the caller releases. */
static Lease *
lock_entry_of(int64 job_id, int64 token, LWLock **lock)
{
	LeaseKey key = lease_key(job_id);
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&key, LW_EXCLUSIVE, lock, &hash);

	return lease != NULL && lease->token == token ? lease : NULL;
}

/*
 * Returns whether somebody is on a job: an entry, unless this transaction is
 * ending it.
 */
bool
idemq_lease_busy(int64 job_id)
{
	LeaseKey key = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&key, LW_SHARED, &lock, &hash);
	bool busy = lease != NULL && lease->ender != IDEMQ_MY_PROC_NUMBER;

	LWLockRelease(lock);
	return busy;
}

/*
 * As idemq_lease_busy, for a claimer who will let the ready cursor pass the job,
 * at that key.  Somebody may make the job ready again as soon as the lease's
 * ender has committed, before the entry is gone: so an entry that has an ender
 * remembers the least key at which it turned a claimer away, for the cursor to
 * be lowered to when it goes.
 */
bool
idemq_lease_turns_away(int64 job_id, int priority, ReadyKey key)
{
	LeaseKey lease_id = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&lease_id, LW_SHARED, &lock, &hash);
	bool busy = lease != NULL && lease->ender != IDEMQ_MY_PROC_NUMBER;
	bool ending = busy && lease->ender != NO_SESSION;

	LWLockRelease(lock);
	if (!ending)
		return busy;
	lease = idemq_lease_lock_entry(&lease_id, LW_EXCLUSIVE, &lock, &hash);
	busy = lease != NULL;
	if (busy && (!lease->turned_away || ready_key_less(key, lease->passed)))
	{
		lease->passed = key;
		lease->priority = priority;
	}
	if (busy)
		lease->turned_away = true;
	LWLockRelease(lock);
	return busy;
}

/* Copies a job's entry; false when there is none. */
bool
idemq_lease_get(int64 job_id, Lease *copy)
{
	LeaseKey key = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&key, LW_SHARED, &lock, &hash);

	if (lease != NULL)
		*copy = *lease;
	LWLockRelease(lock);
	return lease != NULL;
}

/* Makes an entry a claim's, whose transaction is open. */
static void
set_claiming(Lease *lease, const LeaseClaim *claim)
{
	lease->token = claim->token;
	lease->deadline = PG_INT64_MAX;
	lease->length = claim->length;
	lease->queue_id = claim->queue_id;
	lease->session = IDEMQ_MY_PROC_NUMBER;
	lease->pid = MyProcPid;
	lease->ender = NO_SESSION;
	lease->claiming = true;
	lease->attached = claim->attached;
	lease->borrowed = claim->borrow;
	lease->reaping = lease->turned_away = lease->lost = lease->credited = false;
	lease->undone = 0;
}

/*
 * Puts a CLAIMING entry for this transaction.  LEASE_BUSY: another's entry is
 * there.  An entry that this transaction is ending is taken over, and copied
 * to *prior for idemq_lease_restore.  The caller has room for its note.
 */
LeaseTake
idemq_lease_take(const LeaseClaim *claim, Lease *prior, bool *has_prior)
{
	LeaseKey key = lease_key(claim->job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
	LeaseTake take = LEASE_TAKEN;

	*has_prior = lease != NULL;
	if (lease == NULL)
		lease = idemq_lease_enter(&key, hash);
	else if (lease->ender != IDEMQ_MY_PROC_NUMBER)
		take = LEASE_BUSY;
	else
		*prior = *lease;

	if (lease == NULL)
		take = LEASE_FULL;
	else if (take == LEASE_TAKEN && !claim->borrow &&
			 !idemq_limit_count_in(lease, claim->slot, claim->queue_id, claim->max_running))
	{
		take = LEASE_LIMIT;
		if (!*has_prior)
			idemq_lease_remove(lease, hash);
	}
	if (take == LEASE_TAKEN)
		set_claiming(lease, claim);
	LWLockRelease(lock);
	return take;
}

/*
 * Counts an entry that was borrowed: its claim has committed, and no attempt whose
 * place it took has gone from the count yet.
 */
void
idemq_lease_settle_loan(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(job_id, token, &lock);

	if (lease != NULL && lease->borrowed)
	{
		lease->borrowed = false;
		if (!idemq_limit_is_counted(lease))
			(void) idemq_limit_count_in(lease, NULL, lease->queue_id, 0);
	}
	LWLockRelease(lock);
}

/*
 * Starts the lease of a claim that has committed.  Returns its deadline (mono),
 * PG_INT64_MAX when the entry is gone.
 */
int64
idemq_lease_activate(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(job_id, token, &lock);
	int64 deadline = PG_INT64_MAX;
	LimitPlace freed = NO_PLACE;

	if (lease != NULL && lease->claiming)
	{
		lease->claiming = false;
		lease->deadline = deadline = idemq_mono_now() + lease->length;
		/* What it took over has ended. */
		freed = idemq_limit_count_out(lease, 1);
	}
	LWLockRelease(lock);
	idemq_limit_freed(freed);
	return deadline;
}

/* Removes the entry of that token, and copies it to *dropped; false when there is none. */
bool
idemq_lease_drop(int64 job_id, int64 token, Lease *dropped)
{
	LeaseKey key = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
	bool found = lease != NULL && lease->token == token;
	LimitPlace freed = NO_PLACE;

	if (found)
	{
		*dropped = *lease;
		freed = idemq_limit_count_out(lease, 0);
		idemq_lease_remove(lease, hash);
	}
	LWLockRelease(lock);
	idemq_limit_freed(freed);
	return found;
}

/* Puts back what idemq_lease_take(token) had taken over. */
void
idemq_lease_restore(int64 token, const Lease *prior)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(prior->key.job_id, token, &lock);
	LimitPlace freed = NO_PLACE;

	if (lease != NULL)
	{
		Lease counted = *lease;

		*lease = *prior;
		/* It may have been counted since, in a new slot. */
		lease->slot = counted.slot;
		lease->life = counted.life;
		lease->units = counted.units;
		freed = idemq_limit_count_out(lease, 1);
	}
	LWLockRelease(lock);
	idemq_limit_freed(freed);
}

/*
 * Marks that this transaction ends the lease, so that its own claims may follow.
 * Returns whether one may run in its place: it is counted as running, and nobody
 * has been told so yet.
 */
bool
idemq_lease_begin_end(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(job_id, token, &lock);
	bool frees = false;

	if (lease != NULL && lease->ender != IDEMQ_MY_PROC_NUMBER)
	{
		lease->ender = IDEMQ_MY_PROC_NUMBER;
		lease->reaping = lease->credited = false;
	}
	if (lease != NULL && !lease->credited)
		lease->credited = frees = lease->borrowed || idemq_limit_is_counted(lease);
	LWLockRelease(lock);
	return frees;
}

/*
 * Marks an expired lease for reaping by this transaction; from here a heartbeat
 * is refused.  Returns false when it is not expired any more, or somebody else
 * is ending it.  *lost: whether its end is that of its session.
 */
bool
idemq_lease_begin_reap(int64 job_id, int64 token, bool *lost)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(job_id, token, &lock);
	bool won = lease != NULL && !lease->claiming && lease->ender == NO_SESSION &&
			   lease->deadline <= idemq_mono_now();

	if (won)
	{
		lease->ender = IDEMQ_MY_PROC_NUMBER;
		lease->reaping = true;
		*lost = lease->lost;
	}
	LWLockRelease(lock);
	return won;
}

/*
 * Takes back this session's begin_end or begin_reap.  Returns when (mono) the
 * lease is to be looked at again, 0 when there is none.  What kept us from ending
 * it may keep everybody: then it is looked at less and less often.
 */
int64
idemq_lease_cancel_end(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(job_id, token, &lock);
	int64 again = 0;

	if (lease != NULL && lease->ender == IDEMQ_MY_PROC_NUMBER)
	{
		again = lease->deadline;
		if (lease->reaping && lease->undone > 0)
			again = Max(again, idemq_mono_now() + lease->undone * LEASE_BUSY_RETRY);
		if (lease->reaping && lease->undone < LEASE_MAX_UNDONE)
			lease->undone++;
		lease->ender = NO_SESSION;
		lease->reaping = lease->turned_away = lease->credited = false;
	}
	LWLockRelease(lock);
	return again;
}

/*
 * Puts an ACTIVE entry for a job that is in flight without one.  LEASE_BUSY:
 * there is one already.  The caller looks at the row again afterwards, and
 * drops the entry if the job has moved on meanwhile.
 */
LeaseTake
idemq_lease_adopt(int64 job_id, int64 token, int32 queue_id, int64 deadline, int64 length)
{
	LeaseKey key = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
	LeaseTake take = LEASE_TAKEN;

	if (lease != NULL)
		take = LEASE_BUSY;
	else if ((lease = idemq_lease_enter(&key, hash)) == NULL)
		take = LEASE_FULL;
	else
	{
		lease->token = token;
		lease->deadline = deadline;
		lease->length = length;
		lease->queue_id = queue_id;
		lease->session = NO_SESSION;
		lease->pid = 0;
		lease->ender = NO_SESSION;
		lease->claiming = lease->attached = lease->lost = false;
		lease->reaping = lease->turned_away = false;
		lease->borrowed = lease->credited = false;
		lease->undone = 0;
		(void) idemq_limit_count_in(lease, NULL, queue_id, 0);
	}
	LWLockRelease(lock);
	return take;
}

/*
 * Starts a lease again from now, of length microseconds or, when that is 0, of
 * its own length.
 */
LeaseBeat
idemq_lease_beat(int64 job_id, int64 token, int64 length)
{
	LeaseKey key = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = idemq_lease_lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
	LeaseBeat beat = LEASE_BEAT_DONE;

	if (lease == NULL)
		beat = LEASE_BEAT_UNKNOWN;
	else if (lease->token != token || lease->reaping || lease->ender == IDEMQ_MY_PROC_NUMBER)
		beat = LEASE_BEAT_STALE;
	else
	{
		if (length > 0)
			lease->length = length;
		lease->lost = false;
		if (!lease->claiming)
			lease->deadline = idemq_mono_now() + lease->length;
	}
	LWLockRelease(lock);
	return beat;
}
