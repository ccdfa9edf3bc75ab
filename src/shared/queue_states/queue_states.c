/*
 * shared/queue_states/queue_states.c
 *		The queue states in shared memory: their array, the hash that finds a queue's state, and
 *		their locks.
 *
 * The fields of a queue state belong to its users (shared/queue_states/queue_states.h).
 * queue/queue_state_life.c gives a queue its state and takes it back; qstate_reset here is the one
 * place that sets the fields of a queue state for its next life.
 *
 * A caller's pointer to a queue state may be NULL or old: a function that takes the queue's id as
 * well checks whose queue state it is, and looks up the right one if need be.  If the queue has
 * none, there is nothing to do: a queue state is reset when a queue gets it.
 *
 * Locks: see README.md.  qstates_lock (level 2) covers the hash of queue states and their
 * allocation; each queue state's lock (level 3) covers its fields, unless
 * shared/queue_states/queue_states.h says otherwise.  What txn/pending.c calls after commit or
 * abort neither allocates nor raises.
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

typedef struct QueueStatesShared
{
	LWLock qstates_lock;
	int used;		/* queue states that are not free; under qstates_lock */
	int first_free; /* no queue state before it is free; under qstates_lock */
	/* Changes under way in the lower half, changes begun in the upper; no lock. */
	pg_atomic_uint64 changes;
	QueueState qstates[FLEXIBLE_ARRAY_MEMBER];
} QueueStatesShared;

static QueueStatesShared *queue_states_shared = NULL;
static HTAB *qstate_hash = NULL;

typedef void (*SetWord)(volatile pg_atomic_uint64 *word, uint64 value);

/*
 * Sets every field of a queue state that is about to get a queue, but for its key and what
 * shared/queue_states/scan_start.c and shared/leases/recovery_point.c reset.  A time of 0
 * says that it is not known: the worker checks the queue, and notifies those who LISTEN if
 * something is ready.  set: writes an atomic.  The queue state's lock held, unless no other
 * session can see the queue state yet.
 */
static void
qstate_reset(QueueState *qstate, SetWord set)
{
	uint64 life = RUNNING_LIFE(pg_atomic_read_u64(&qstate->running)) + 1;

	/* What was counted in the last life finds another number, and leaves it. */
	(void) pg_atomic_exchange_u64(&qstate->running, life << 32);
	pg_atomic_write_u32(&qstate->refused_by, 0);
	qstate_unset_dependencies(qstate, DEPENDENCIES_BITS);
	qstate->read_ahead.count = 0;
	qstate->known_since = idemq_mono_now();
	qstate->next_verify = qstate->known_since + USECS_PER_SEC;
	qstate->next_fill = 0;
	SpinLockAcquire(&qstate->rate_mutex);
	memset(&qstate->rate, 0, sizeof(qstate->rate));
	SpinLockRelease(&qstate->rate_mutex);
	set(&qstate->claimed_at, 0);
	for (int kind = 0; kind < DUE_KINDS; kind++)
	{
		bool unasked = kind == DUE_GROUPS || kind == DUE_RECOVERY || kind == DUE_SIGNAL ||
					   kind == DUE_ROOM || kind == DUE_NOTIFY;

		set(&qstate->due[kind], unasked ? DUE_NEVER : 0);
	}
	qstate->handler_wanted = 0;
	pg_atomic_write_u32(&qstate->handler, 0);
}

/* Makes the queue states; their memory is zeros. */
static void
init_qstates(int tranche)
{
	LWLockInitialize(&queue_states_shared->qstates_lock, tranche);
	pg_atomic_init_u64(&queue_states_shared->changes, 0);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueState *qstate = &queue_states_shared->qstates[i];

		SpinLockInit(&qstate->rate_mutex);
		LWLockInitialize(&qstate->lock, tranche);
		pg_atomic_init_u64(&qstate->running, 0);
		pg_atomic_init_u32(&qstate->refused_by, 0);
		pg_atomic_init_u32(&qstate->dependencies, 0);
		pg_atomic_init_u32(&qstate->handler, 0);
		qstate_reset(qstate, pg_atomic_init_u64);
	}
}

const ShmemPart idemq_qstates_part = {.area = (void **) &queue_states_shared,
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

/*
 * Returns whether a queue state is the queue's.  Without its lock the answer may be old
 * by the time it is used; a queue loses its state only by a drop or a TRUNCATE.
 */
static bool
is_qstate_of(const QueueState *qstate, Oid database, int32 queue_id)
{
	return qstate != NULL && qstate->key.database == database && qstate->key.queue_id == queue_id;
}

/* Takes qstates_lock: no queue gets a state meanwhile; with LW_EXCLUSIVE none is looked up. */
void
idemq_qstates_lock(LWLockMode mode)
{
	LWLockAcquire(&queue_states_shared->qstates_lock, mode);
}

void
idemq_qstates_unlock(void)
{
	LWLockRelease(&queue_states_shared->qstates_lock);
}

/* As idemq_qstate_find.  qstates_lock held. */
QueueState *
idemq_qstate_find_locked(Oid database, int32 queue_id)
{
	QueueStateKey key = {database, queue_id};
	QueueStateEntry *entry = hash_search(qstate_hash, &key, HASH_FIND, NULL);

	return entry == NULL ? NULL : &queue_states_shared->qstates[entry->qstate_index];
}

/* Returns the number of queue states that are not free.  qstates_lock held. */
int
idemq_qstates_used(void)
{
	return queue_states_shared->used;
}

/*
 * Gives a free queue state to the queue, and resets it, except its scan starts and its search for
 * lost leases, which the caller resets.  Returns it with its lock held, NULL when all are used.
 * qstates_lock held exclusively.
 */
QueueState *
idemq_qstate_occupy(Oid database, int32 queue_id)
{
	QueueStateKey key = {database, queue_id};
	QueueStateEntry *entry;
	int i = queue_states_shared->first_free;

	if (queue_states_shared->used == idemq_max_queues)
		return NULL;
	while (queue_states_shared->qstates[i].key.queue_id != 0)
		i++;
	entry = hash_search(qstate_hash, &key, HASH_ENTER_NULL, NULL);
	if (entry == NULL)
		return NULL;
	entry->qstate_index = i;
	queue_states_shared->used++;
	queue_states_shared->first_free = i + 1;
	LWLockAcquire(&queue_states_shared->qstates[i].lock, LW_EXCLUSIVE);
	/* Its new life before its new key: see idemq_running_count_in. */
	qstate_reset(&queue_states_shared->qstates[i], pg_atomic_write_u64);
	queue_states_shared->qstates[i].key = key;
	return &queue_states_shared->qstates[i];
}

/* Makes a queue state free.  qstates_lock held exclusively. */
void
idemq_qstate_vacate(QueueState *qstate)
{
	QueueStateKey key = qstate->key;

	LWLockAcquire(&qstate->lock, LW_EXCLUSIVE);
	qstate->key = (QueueStateKey){InvalidOid, 0};
	LWLockRelease(&qstate->lock);
	hash_search(qstate_hash, &key, HASH_REMOVE, NULL);
	queue_states_shared->used--;
	queue_states_shared->first_free =
		Min(queue_states_shared->first_free, idemq_qstate_index(qstate));
}

/* Returns which of idemq_max_queues queue states this is, from 0. */
int
idemq_qstate_index(const QueueState *qstate)
{
	return (int) (qstate - queue_states_shared->qstates);
}

QueueState *
idemq_qstate_at(int index)
{
	return &queue_states_shared->qstates[index];
}

/*
 * Copies views of a database's queues, max at most, from the queue states behind the index after;
 * returns how many.
 */
static int
copy_views(Oid database, int after, QueueStateView *views, int max)
{
	int count = 0;

	LWLockAcquire(&queue_states_shared->qstates_lock, LW_SHARED);
	for (int i = after + 1; i < idemq_max_queues && count < max; i++)
	{
		QueueState *qstate = &queue_states_shared->qstates[i];

		if (qstate->key.queue_id == 0 || qstate->key.database != database)
			continue;
		LWLockAcquire(&qstate->lock, LW_SHARED);
		views[count++] = (QueueStateView){qstate, qstate->key.queue_id};
		LWLockRelease(&qstate->lock);
	}
	LWLockRelease(&queue_states_shared->qstates_lock);
	return count;
}

/* Calls a function, with no lock held, for each queue of a database that has a state. */
void
idemq_for_each_qstate(Oid database, void (*function)(const QueueStateView *view, void *arg),
					  void *arg)
{
	QueueStateView views[32];
	int after = -1;
	int count;

	do
	{
		count = copy_views(database, after, views, lengthof(views));
		for (int i = 0; i < count; i++)
		{
			after = idemq_qstate_index(views[i].qstate);
			function(&views[i], arg);
		}
	} while (count == (int) lengthof(views));
}

/* Copies the view of the queue state of that index; false when no queue of the database has it. */
bool
idemq_qstate_view(int index, Oid database, QueueStateView *view)
{
	QueueState *qstate = &queue_states_shared->qstates[index];
	bool used;

	LWLockAcquire(&qstate->lock, LW_SHARED);
	used = qstate->key.queue_id != 0 && qstate->key.database == database;
	*view = (QueueStateView){qstate, qstate->key.queue_id};
	LWLockRelease(&qstate->lock);
	return used;
}

/* Returns the state of a queue, NULL when it has none. */
QueueState *
idemq_qstate_find(Oid database, int32 queue_id)
{
	QueueState *qstate;

	LWLockAcquire(&queue_states_shared->qstates_lock, LW_SHARED);
	qstate = idemq_qstate_find_locked(database, queue_id);
	LWLockRelease(&queue_states_shared->qstates_lock);
	return qstate;
}

/*
 * Returns the state of a queue of this database: the caller's, or, when that is NULL
 * or has become another queue's, the one that the queue has got since.
 */
QueueState *
idemq_qstate_current(QueueState *qstate, int32 queue_id)
{
	if (is_qstate_of(qstate, MyDatabaseId, queue_id))
		return qstate;
	return idemq_qstate_find(MyDatabaseId, queue_id);
}

/*
 * Notes that this transaction has just created the queue, and given it its state: memory
 * knows all that the queue has ever done.  A rollback takes the queue state away.
 */
void
idemq_qstate_note_new(QueueState *qstate, int32 queue_id)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	qstate->known_since = 0;
	LWLockRelease(&qstate->lock);
}

/* Notes that somebody claims from a queue, whether it gets something or not. */
void
idemq_qstate_note_claim(QueueState *qstate)
{
	int64 now = idemq_mono_now();

	/* At most once a second: every claim reads these cache lines. */
	if (now - (int64) pg_atomic_read_u64(&qstate->claimed_at) > USECS_PER_SEC)
		pg_atomic_write_u64(&qstate->claimed_at, (uint64) now);
}

/*
 * Says since when (mono) memory knows all that a queue does: since it got its state; 0, for always,
 * if it got its state when it was created.  False for a queue without a state.
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

/*
 * Locks the state of a queue of this database; sets *qstate to that state if it was another one.
 * Returns false, with no lock held, when the queue has none.
 */
bool
idemq_qstate_lock(QueueState **qstate, int32 queue_id, LWLockMode mode)
{
	*qstate = idemq_qstate_current(*qstate, queue_id);
	if (*qstate == NULL)
		return false;
	LWLockAcquire(&(*qstate)->lock, mode);
	if (is_qstate_of(*qstate, MyDatabaseId, queue_id))
		return true;
	LWLockRelease(&(*qstate)->lock);
	return false;
}

/* Returns whether a queue state, as remembered, still is the queue's. */
bool
idemq_qstate_is_of(const QueueState *qstate, int32 queue_id)
{
	return is_qstate_of(qstate, MyDatabaseId, queue_id);
}

/*
 * Begins a change of shared memory that others may see half done, by a transaction
 * that is, or may be, still running: an entry is gone and its scan start not yet
 * lowered.  Only idemq.check() asks for it.  Between begin and end nothing may raise
 * an error.
 */
void
idemq_qstates_begin_change(void)
{
	(void) pg_atomic_fetch_add_u64(&queue_states_shared->changes, (UINT64CONST(1) << 32) + 1);
}

void
idemq_qstates_end_change(void)
{
	(void) pg_atomic_fetch_sub_u64(&queue_states_shared->changes, 1);
}

/*
 * Returns a number that stays as it is while no change begins or ends; its lower
 * half is zero while none is under way.
 */
uint64
idemq_qstates_changes(void)
{
	return pg_atomic_fetch_add_u64(&queue_states_shared->changes, 0);
}

/* Reads the state of a queue of this database; false when it has none. */
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
 * Counts all queue states, and copies the ids of this database's queues that have one to
 * queue_ids, which has room for idemq.max_queues.  Returns how many.
 */
int
idemq_qstates_audit(QueueStatesAudit *audit, int32 *queue_ids)
{
	int count = 0;

	memset(audit, 0, sizeof(*audit));
	LWLockAcquire(&queue_states_shared->qstates_lock, LW_SHARED);
	audit->used = queue_states_shared->used;
	audit->hashed = (int) hash_get_num_entries(qstate_hash);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueStateKey key = queue_states_shared->qstates[i].key;

		if (key.queue_id == 0)
			continue;
		audit->taken++;
		audit->misplaced += idemq_qstate_find_locked(key.database, key.queue_id) !=
							&queue_states_shared->qstates[i];
		if (key.database == MyDatabaseId)
			queue_ids[count++] = key.queue_id;
	}
	LWLockRelease(&queue_states_shared->qstates_lock);
	return count;
}
