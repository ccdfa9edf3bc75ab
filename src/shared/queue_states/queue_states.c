/*
 * shared/queue_states/queue_states.c
 *		The queue states: their array in shared memory, the hash table that finds the state of a
 *		queue, and their locks.
 *
 * Each field of a queue state belongs to the file that queue_states.h names.
 * queue/queue_state_life.c gives a queue its state and takes it away again.  qstate_reset is the
 * only function that sets the fields for a queue state's next life.
 *
 * A session keeps the pointer to a queue's state.  The pointer may be NULL, or the queue state may
 * have passed to another queue since.  A function that also takes the queue's id therefore compares
 * it with the id in the queue state, and looks up the right queue state if they differ.  If the
 * queue has none, the function does nothing, because a queue state is reset when a queue gets it.
 *
 * Locks: see src/shared/README.md.  qstates_lock (level 2) protects the hash table and the
 * allocation of queue states.  The lock of a queue state (level 3) protects its fields, unless
 * queue_states.h says otherwise.  A key changes only while both are held, so either lock suffices
 * to read it.  Functions that are called after commit or abort neither allocate nor raise errors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "shared/queue_states/queue_states.h"

typedef struct QueueStateEntry
{
	QueueStateKey key;
	int qstate_index;
} QueueStateEntry;

QueueStatesShared *idemq_queue_states = NULL;
static HTAB *qstate_hash = NULL;

/*
 * Begins a new life of a queue state: sets every field except the key, and except the fields that
 * scan_start.c, leases/recovery_point.c and processes/handler_registry.c reset.  A due time of 0 means that it is not known
 * whether something is due, so the worker looks.  The queue state's lock must be held.
 */
static void
qstate_reset(QueueState *qstate)
{
	uint64 life = RUNNING_LIFE(pg_atomic_read_u64(&qstate->running)) + 1;

	/*
	 * Lease entries that were counted in the last life find another number, and are not subtracted.
	 */
	(void) pg_atomic_exchange_u64(&qstate->running, life << 32);
	pg_atomic_write_u32(&qstate->running_refused, 0);
	qstate_unset_dependencies(qstate, DEPENDENCIES_BITS);
	qstate->read_ahead.count = 0;
	qstate->known_since = idemq_mono_now();
	qstate->next_verify = qstate->known_since + USECS_PER_SEC;
	qstate->next_fill = 0;
	SpinLockAcquire(&qstate->rate_mutex);
	memset(&qstate->rate, 0, sizeof(qstate->rate));
	SpinLockRelease(&qstate->rate_mutex);
	pg_atomic_write_u64(&qstate->claimed_at, 0);
	for (int kind = 0; kind < DUE_KINDS; kind++)
	{
		bool unasked = kind == DUE_GROUPS || kind == DUE_RECOVERY || kind == DUE_SIGNAL ||
					   kind == DUE_ROOM || kind == DUE_NOTIFY;

		pg_atomic_write_u64(&qstate->due[kind], unasked ? DUE_NEVER : 0);
	}
}

static void
init_qstates(int tranche)
{
	LWLockInitialize(&idemq_queue_states->qstates_lock, tranche);
	pg_atomic_init_u64(&idemq_queue_states->changes, 0);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueState *qstate = &idemq_queue_states->qstates[i];

		SpinLockInit(&qstate->rate_mutex);
		LWLockInitialize(&qstate->lock, tranche);
		pg_atomic_init_u64(&qstate->running, 0);
		pg_atomic_init_u32(&qstate->running_refused, 0);
		pg_atomic_init_u32(&qstate->dependencies, 0);
		pg_atomic_init_u32(&qstate->handler, 0);
		pg_atomic_init_u64(&qstate->claimed_at, 0);
		for (int kind = 0; kind < DUE_KINDS; kind++)
			pg_atomic_init_u64(&qstate->due[kind], 0);
		qstate_reset(qstate);
	}
}

const ShmemPart idemq_qstates_part = {.area = (void **) &idemq_queue_states,
									  .size = offsetof(QueueStatesShared, qstates),
									  .each = sizeof(QueueState),
									  .count = idemq_queue_count,
									  .lies_in = AREA_QUEUES,
									  .tranche = "idemq queues",
									  .init = init_qstates,
									  .hash = &qstate_hash,
									  .hash_name = "idemq queues",
									  .hash_entries = &idemq_max_queues,
									  .key_size = sizeof(QueueStateKey),
									  .entry_size = sizeof(QueueStateEntry)};

/* Like idemq_qstate_find, but the caller holds qstates_lock. */
QueueState *
idemq_qstate_find_locked(Oid database, int32 queue_id)
{
	QueueStateKey key = {database, queue_id};
	QueueStateEntry *entry = hash_search(qstate_hash, &key, HASH_FIND, NULL);

	return entry == NULL ? NULL : &idemq_queue_states->qstates[entry->qstate_index];
}

/*
 * Gives a free queue state to a queue, and resets it, except for what the caller must reset: the
 * scan starts, the recovery point and the handler's status.  Returns the queue state with its lock held, or NULL if none
 * is free. qstates_lock must be held exclusively.
 */
QueueState *
idemq_qstate_occupy(Oid database, int32 queue_id)
{
	QueueStateKey key = {database, queue_id};
	QueueStateEntry *entry;
	QueueState *qstate;
	int i = idemq_queue_states->first_free;

	if (idemq_queue_states->used == idemq_max_queues)
		return NULL;
	while (idemq_queue_states->qstates[i].key.queue_id != 0)
		i++;
	entry = hash_search(qstate_hash, &key, HASH_ENTER_NULL, NULL);
	if (entry == NULL)
		return NULL;
	entry->qstate_index = i;
	idemq_queue_states->used++;
	idemq_queue_states->first_free = i + 1;
	qstate = &idemq_queue_states->qstates[i];
	LWLockAcquire(&qstate->lock, LW_EXCLUSIVE);
	/* The new life comes before the new key: see idemq_running_count_in. */
	qstate_reset(qstate);
	qstate->key = key;
	return qstate;
}

/* Makes a queue state free.  qstates_lock must be held exclusively. */
void
idemq_qstate_vacate(QueueState *qstate)
{
	QueueStateKey key = qstate->key;

	LWLockAcquire(&qstate->lock, LW_EXCLUSIVE);
	qstate->key = (QueueStateKey){InvalidOid, 0};
	LWLockRelease(&qstate->lock);
	hash_search(qstate_hash, &key, HASH_REMOVE, NULL);
	idemq_queue_states->used--;
	idemq_queue_states->first_free =
		Min(idemq_queue_states->first_free, idemq_qstate_index(qstate));
}

/*
 * Moves *view to the next queue of a database that has a state; a view of zeros is before the
 * first.  Returns false at the end.  No lock is held on return.
 */
bool
idemq_qstate_next(Oid database, QueueStateView *view)
{
	int i = view->qstate == NULL ? 0 : idemq_qstate_index(view->qstate) + 1;
	bool found = false;

	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_SHARED);
	for (; i < idemq_max_queues && !found; i++)
	{
		QueueState *qstate = &idemq_queue_states->qstates[i];

		found = qstate->key.queue_id != 0 && qstate->key.database == database;
		if (found)
			*view = (QueueStateView){qstate, qstate->key.queue_id};
	}
	LWLockRelease(&idemq_queue_states->qstates_lock);
	return found;
}

/* Sets *view to the queue state at an index; returns false if no queue of the database has it. */
bool
idemq_qstate_view(int index, Oid database, QueueStateView *view)
{
	QueueState *qstate = &idemq_queue_states->qstates[index];
	bool used;

	LWLockAcquire(&qstate->lock, LW_SHARED);
	used = qstate->key.queue_id != 0 && qstate->key.database == database;
	*view = (QueueStateView){qstate, qstate->key.queue_id};
	LWLockRelease(&qstate->lock);
	return used;
}

/* Returns the state of a queue, or NULL if it has none. */
QueueState *
idemq_qstate_find(Oid database, int32 queue_id)
{
	QueueState *qstate;

	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_SHARED);
	qstate = idemq_qstate_find_locked(database, queue_id);
	LWLockRelease(&idemq_queue_states->qstates_lock);
	return qstate;
}

/*
 * Returns the state of a queue of this database: qstate if it still belongs to the queue, otherwise
 * the one that the queue has now, or NULL.
 */
QueueState *
idemq_qstate_current(QueueState *qstate, int32 queue_id)
{
	return idemq_qstate_is_of(qstate, queue_id) ? qstate
												: idemq_qstate_find(MyDatabaseId, queue_id);
}

/*
 * Locks the state of a queue of this database, and sets *qstate to it.  Returns false, with no lock
 * held, if the queue has no state.
 */
bool
idemq_qstate_lock(QueueState **qstate, int32 queue_id, LWLockMode mode)
{
	*qstate = idemq_qstate_current(*qstate, queue_id);
	if (*qstate == NULL)
		return false;
	LWLockAcquire(&(*qstate)->lock, mode);
	if (idemq_qstate_is_of(*qstate, queue_id))
		return true;
	LWLockRelease(&(*qstate)->lock);
	return false;
}

/*
 * Notes that this transaction has just created the queue and given it its state, so shared memory
 * knows everything that the queue has ever done.  A rollback takes the queue state away.
 */
void
idemq_qstate_note_new(QueueState *qstate, int32 queue_id)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	qstate->known_since = 0;
	LWLockRelease(&qstate->lock);
}

/*
 * Sets *since to the time (mono) since which shared memory knows everything that a queue does: when
 * the queue got its state, or 0 if it got its state when it was created.  Returns false if the
 * queue has no state.
 */
bool
idemq_qstate_known_since(QueueState *qstate, int32 queue_id, int64 *since)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_SHARED))
		return false;
	*since = qstate->known_since;
	LWLockRelease(&qstate->lock);
	return true;
}

/* Notes that a session claims from a queue, whether it gets a job or not. */
void
idemq_qstate_note_claim(QueueState *qstate)
{
	int64 now = idemq_mono_now();

	/* At most once per second, because every claim reads these cache lines. */
	if (now - (int64) pg_atomic_read_u64(&qstate->claimed_at) > USECS_PER_SEC)
		pg_atomic_write_u64(&qstate->claimed_at, (uint64) now);
}

/*
 * Summarizes the state of a queue of this database for idemq.check(); returns false if it has none.
 */
bool
idemq_qstate_summary(int32 queue_id, QueueStateSummary *status)
{
	QueueState *qstate = NULL;
	uint64 next_recovery;

	if (!idemq_qstate_lock(&qstate, queue_id, LW_SHARED))
		return false;
	next_recovery = pg_atomic_read_u64(&qstate->due[DUE_RECOVERY]);
	status->needs_recovery = next_recovery != DUE_NEVER;
	status->searches_now = next_recovery <= (uint64) idemq_mono_now();
	status->next_deadline = (int64) pg_atomic_read_u64(&qstate->due[DUE_LEASE]);
	LWLockRelease(&qstate->lock);
	return true;
}

/*
 * Counts the queue states for idemq.check().  Copies the ids of the queues of this database that
 * have a state to queue_ids, which must have room for idemq_max_queues; returns the number of ids.
 */
int
idemq_qstates_audit(QueueStatesAudit *audit, int32 *queue_ids)
{
	int count = 0;

	memset(audit, 0, sizeof(*audit));
	LWLockAcquire(&idemq_queue_states->qstates_lock, LW_SHARED);
	audit->used = idemq_queue_states->used;
	audit->hashed = (int) hash_get_num_entries(qstate_hash);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueStateKey key = idemq_queue_states->qstates[i].key;

		if (key.queue_id == 0)
			continue;
		audit->taken++;
		audit->misplaced += idemq_qstate_find_locked(key.database, key.queue_id) !=
							&idemq_queue_states->qstates[i];
		if (key.database == MyDatabaseId)
			queue_ids[count++] = key.queue_id;
	}
	LWLockRelease(&idemq_queue_states->qstates_lock);
	return count;
}
