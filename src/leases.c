/*
 * leases.c
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
 *     the session named; xact.c ends both with it, abort and exit included.
 *
 * Locks: the hash is partitioned; each partition's lock covers its entries.
 * Under them only slots.c's slots_lock is taken.  The functions that xact.c calls
 * after commit or abort neither allocate nor raise.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "clock.h"
#include "compat.h"
#include "cursor.h"
#include "guc.h"
#include "leases.h"
#include "token.h"

#define LEASE_PARTITIONS 32

typedef struct LeasesShared
{
	int tranche;
	pg_atomic_uint64 last_token; /* the greatest issued since the start */
	pg_atomic_uint32 count;		 /* entries: bounds the table exactly */
	pg_atomic_uint64 refused;	 /* entries that found the table full */
	LWLockPadded locks[LEASE_PARTITIONS];
} LeasesShared;

static LeasesShared *shared = NULL;
static HTAB *lease_hash = NULL;

/* Returns the bytes of shared memory for the locks. */
Size
idemq_leases_shmem_size(void)
{
	return sizeof(LeasesShared);
}

/* Returns the bytes of shared memory for the hash table. */
Size
idemq_leases_hash_size(void)
{
	return hash_estimate_size(idemq_max_leases, sizeof(Lease));
}

/* Attaches to the table, and makes it when this is the first process. */
void
idemq_leases_shmem_init(void *area, bool found)
{
	HASHCTL info = {0};

	shared = area;
	if (!found)
	{
		shared->tranche = LWLockNewTrancheId();
		pg_atomic_init_u64(&shared->last_token, 0);
		pg_atomic_init_u32(&shared->count, 0);
		pg_atomic_init_u64(&shared->refused, 0);
		for (int i = 0; i < LEASE_PARTITIONS; i++)
			LWLockInitialize(&shared->locks[i].lock, shared->tranche);
	}
	LWLockRegisterTranche(shared->tranche, "idemq leases");
	info.keysize = sizeof(LeaseKey);
	info.entrysize = sizeof(Lease);
	info.num_partitions = LEASE_PARTITIONS;
	lease_hash = ShmemInitHash("idemq leases", idemq_max_leases, idemq_max_leases, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_PARTITION | HASH_FIXED_SIZE);
}

/* Returns a new token for a job whose row carries row_token; see token.c. */
int64
idemq_lease_issue_token(int64 row_token)
{
	TimestampTz now = idemq_now();
	uint32 timeline = compat_timeline();
	uint64 last = pg_atomic_read_u64(&shared->last_token);
	int64 next;

	do
	{
		next = idemq_token_next(row_token, (int64) last, now, timeline);
	} while (!pg_atomic_compare_exchange_u64(&shared->last_token, &last, (uint64) next));
	return next;
}

/* Returns the greatest token issued since the start; 0 for none. */
int64
idemq_lease_last_token(void)
{
	return (int64) pg_atomic_read_u64(&shared->last_token);
}

static LeaseKey
lease_key(int64 job_id)
{
	LeaseKey key = {MyDatabaseId, 0, job_id};

	return key;
}

/*
 * Finds a job's entry with its partition locked in mode; the caller releases
 * *lock also when there is none.
 */
static Lease *
lock_entry(const LeaseKey *key, LWLockMode mode, LWLock **lock, uint32 *hash)
{
	*hash = get_hash_value(lease_hash, key);
	*lock = &shared->locks[*hash % LEASE_PARTITIONS].lock;
	LWLockAcquire(*lock, mode);
	return hash_search_with_hash_value(lease_hash, key, *hash, HASH_FIND, NULL);
}

/* As lock_entry, exclusively, but only the entry of that token. */
static Lease *
lock_entry_of(int64 job_id, int64 token, LWLock **lock)
{
	LeaseKey key = lease_key(job_id);
	uint32 hash;
	Lease *lease = lock_entry(&key, LW_EXCLUSIVE, lock, &hash);

	return lease != NULL && lease->token == token ? lease : NULL;
}

/* Enters a key that is not in the table; NULL when it is full.  Partition locked. */
static Lease *
enter(const LeaseKey *key, uint32 hash)
{
	Lease *lease;

	if (pg_atomic_fetch_add_u32(&shared->count, 1) >= (uint32) idemq_max_leases)
		lease = NULL;
	else
		lease = hash_search_with_hash_value(lease_hash, key, hash, HASH_ENTER_NULL, NULL);
	if (lease == NULL)
	{
		pg_atomic_fetch_sub_u32(&shared->count, 1);
		pg_atomic_fetch_add_u64(&shared->refused, 1);
	}
	return lease;
}

static void
remove_entry(const LeaseKey *key, uint32 hash)
{
	if (hash_search_with_hash_value(lease_hash, key, hash, HASH_REMOVE, NULL) != NULL)
		pg_atomic_fetch_sub_u32(&shared->count, 1);
}

/* Returns the number of entries, of all databases. */
int
idemq_lease_count(void)
{
	return (int) pg_atomic_read_u32(&shared->count);
}

/* Returns whether the table has no room: some lease may be on its row alone. */
bool
idemq_lease_table_is_full(void)
{
	return pg_atomic_read_u32(&shared->count) >= (uint32) idemq_max_leases;
}

/* Says how many leases are in the table, and how often there was no room for one. */
void
idemq_leases_usage(int *used, int64 *refused)
{
	*used = (int) Min(pg_atomic_read_u32(&shared->count), (uint32) idemq_max_leases);
	*refused = (int64) pg_atomic_read_u64(&shared->refused);
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
	Lease *lease = lock_entry(&key, LW_SHARED, &lock, &hash);
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
	Lease *lease = lock_entry(&lease_id, LW_SHARED, &lock, &hash);
	bool busy = lease != NULL && lease->ender != IDEMQ_MY_PROC_NUMBER;
	bool ending = busy && lease->ender != NO_SESSION;

	LWLockRelease(lock);
	if (!ending)
		return busy;
	lease = lock_entry(&lease_id, LW_EXCLUSIVE, &lock, &hash);
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
	Lease *lease = lock_entry(&key, LW_SHARED, &lock, &hash);

	if (lease != NULL)
		*copy = *lease;
	LWLockRelease(lock);
	return lease != NULL;
}

/*
 * Puts a CLAIMING entry for this transaction.  LEASE_BUSY: another's entry is
 * there.  An entry that this transaction is ending is taken over, and copied
 * to *prior for idemq_lease_restore.  The caller has a touch ready for it.
 */
LeaseTake
idemq_lease_take(int64 job_id, int64 token, int32 queue_id, int64 length, bool attached,
				 Lease *prior, bool *has_prior)
{
	LeaseKey key = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
	LeaseTake take = LEASE_TAKEN;

	*has_prior = lease != NULL;
	if (lease == NULL)
		lease = enter(&key, hash);
	else if (lease->ender != IDEMQ_MY_PROC_NUMBER)
		take = LEASE_BUSY;
	else
		*prior = *lease;

	if (lease == NULL)
		take = LEASE_FULL;
	else if (take == LEASE_TAKEN)
	{
		lease->token = token;
		lease->deadline = PG_INT64_MAX;
		lease->length = length;
		lease->queue_id = queue_id;
		lease->session = IDEMQ_MY_PROC_NUMBER;
		lease->pid = MyProcPid;
		lease->ender = NO_SESSION;
		lease->claiming = true;
		lease->attached = attached;
		lease->reaping = lease->turned_away = lease->lost = false;
		lease->undone = 0;
	}
	LWLockRelease(lock);
	return take;
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

	if (lease != NULL && lease->claiming)
	{
		lease->claiming = false;
		lease->deadline = deadline = idemq_mono_now() + lease->length;
	}
	LWLockRelease(lock);
	return deadline;
}

/* Removes the entry of that token, and copies it to *dropped; false when there is none. */
bool
idemq_lease_drop(int64 job_id, int64 token, Lease *dropped)
{
	LeaseKey key = lease_key(job_id);
	LWLock *lock;
	uint32 hash;
	Lease *lease = lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
	bool found = lease != NULL && lease->token == token;

	if (found)
	{
		*dropped = *lease;
		remove_entry(&key, hash);
	}
	LWLockRelease(lock);
	return found;
}

/* Puts back what idemq_lease_take(token) had taken over. */
void
idemq_lease_restore(int64 token, const Lease *prior)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(prior->key.job_id, token, &lock);

	if (lease != NULL)
		*lease = *prior;
	LWLockRelease(lock);
}

/* Marks that this transaction ends the lease, so that its own claims may follow. */
void
idemq_lease_begin_end(int64 job_id, int64 token)
{
	LWLock *lock;
	Lease *lease = lock_entry_of(job_id, token, &lock);

	if (lease != NULL && lease->ender != IDEMQ_MY_PROC_NUMBER)
	{
		lease->ender = IDEMQ_MY_PROC_NUMBER;
		lease->reaping = false;
	}
	LWLockRelease(lock);
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
		lease->reaping = lease->turned_away = false;
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
	Lease *lease = lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
	LeaseTake take = LEASE_TAKEN;

	if (lease != NULL)
		take = LEASE_BUSY;
	else if ((lease = enter(&key, hash)) == NULL)
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
		lease->undone = 0;
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
	Lease *lease = lock_entry(&key, LW_EXCLUSIVE, &lock, &hash);
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

/*
 * Visits every entry, of all databases, with the whole table locked in mode;
 * with LW_EXCLUSIVE the entries for which visit returns false are removed.
 */
void
idemq_leases_visit(LWLockMode mode, bool (*visit)(Lease *lease, void *arg), void *arg)
{
	HASH_SEQ_STATUS seq;
	Lease *lease;

	for (int i = 0; i < LEASE_PARTITIONS; i++)
		LWLockAcquire(&shared->locks[i].lock, mode);
	hash_seq_init(&seq, lease_hash);
	while ((lease = hash_seq_search(&seq)) != NULL)
	{
		if (!visit(lease, arg))
			remove_entry(&lease->key, get_hash_value(lease_hash, &lease->key));
	}
	for (int i = LEASE_PARTITIONS - 1; i >= 0; i--)
		LWLockRelease(&shared->locks[i].lock);
}
