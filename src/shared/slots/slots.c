/*
 * shared/slots/slots.c
 *		The queues' slots in shared memory: the array of them, the hash that finds a
 *		queue's, and their locks.
 *
 * The fields of a slot belong to its users (shared/slots/slots.h).  queue/slot_life.c gives
 * a queue its slot and takes it back; slot_reset here is the one place that sets the
 * fields of a slot for its next life.
 *
 * A caller's slot pointer may be NULL or old: a function that takes the queue's id as well
 * checks whose slot it is, and looks for the queue's if need be.  If the queue has none,
 * there is nothing to do: a slot is reset when a queue gets it.
 *
 * Locks: see README.md.  slots_lock (level 2) covers the hash of slots and their
 * allocation; each slot's lock (level 3) covers its fields, unless shared/slots/slots.h says
 * otherwise.  What txn/pending.c calls after commit or abort neither allocates nor
 * raises.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/slots/slots.h"

typedef struct SlotEntry
{
	SlotKey key;
	int slot;
} SlotEntry;

typedef struct SlotsShared
{
	LWLock slots_lock;
	int used;		/* slots that are not free; under slots_lock */
	int first_free; /* no slot before it is free; under slots_lock */
	/* Changes under way in the lower half, changes begun in the upper; no lock. */
	pg_atomic_uint64 changes;
	QueueSlot slots[FLEXIBLE_ARRAY_MEMBER];
} SlotsShared;

static SlotsShared *shared = NULL;
static HTAB *slot_hash = NULL;

typedef void (*SetWord)(volatile pg_atomic_uint64 *word, uint64 value);

/*
 * Sets every field of a slot that is about to get a queue, but for its key and what
 * shared/slots/ready_cursor.c and shared/slots/recovery_point.c reset.  A time of 0 says that
 * it is not known: the worker checks the queue, and notifies those who LISTEN if
 * something is ready.  set: writes an atomic.  The slot's lock held, unless no other
 * session can see the slot yet.
 */
static void
slot_reset(QueueSlot *slot, SetWord set)
{
	uint64 life = RUNNING_LIFE(pg_atomic_read_u64(&slot->running)) + 1;

	/* What was counted in the last life finds another number, and leaves it. */
	(void) pg_atomic_exchange_u64(&slot->running, life << 32);
	pg_atomic_write_u32(&slot->refused_by, 0);
	slot_unset_dependencies(slot, DEPENDENCIES_BITS);
	slot->ring.count = 0;
	slot->known_since = idemq_mono_now();
	slot->next_verify = slot->known_since + USECS_PER_SEC;
	slot->next_fill = 0;
	set(&slot->rate_tat, 0);
	set(&slot->claimed_at, 0);
	for (int kind = 0; kind < DUE_KINDS; kind++)
	{
		bool unasked = kind == DUE_GROUPS || kind == DUE_RECOVERY || kind == DUE_SIGNAL ||
					   kind == DUE_NEWS;

		set(&slot->due[kind], unasked ? DUE_NEVER : 0);
	}
	slot->handler_wanted = 0;
	pg_atomic_write_u32(&slot->handler, 0);
}

/* Makes the slots; their memory is zeros. */
static void
init_slots(int tranche)
{
	LWLockInitialize(&shared->slots_lock, tranche);
	pg_atomic_init_u64(&shared->changes, 0);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueSlot *slot = &shared->slots[i];

		LWLockInitialize(&slot->lock, tranche);
		pg_atomic_init_u64(&slot->running, 0);
		pg_atomic_init_u32(&slot->refused_by, 0);
		pg_atomic_init_u32(&slot->dependencies, 0);
		pg_atomic_init_u32(&slot->handler, 0);
		slot_reset(slot, pg_atomic_init_u64);
	}
}

const ShmemPart idemq_slots_part = {.area = (void **) &shared,
									.size = offsetof(SlotsShared, slots),
									.each = sizeof(QueueSlot),
									.count = idemq_queue_count,
									.lies_in = AREA_QUEUES,
									.tranche = "idemq queues",
									.init = init_slots,
									.hash = &slot_hash,
									.hash_name = "idemq queues",
									.hash_entries = &idemq_max_queues,
									.key_size = sizeof(SlotKey),
									.entry_size = sizeof(SlotEntry)};

/*
 * Returns whether a slot is the queue's.  Without its lock the answer may be old
 * by the time it is used; a queue loses its slot only by a drop or a TRUNCATE.
 */
static bool
is_slot_of(const QueueSlot *slot, Oid database, int32 queue_id)
{
	return slot != NULL && slot->key.database == database && slot->key.queue_id == queue_id;
}

/* Takes slots_lock: no queue gets a slot meanwhile; with LW_EXCLUSIVE none is looked up. */
void
idemq_slots_lock(LWLockMode mode)
{
	LWLockAcquire(&shared->slots_lock, mode);
}

void
idemq_slots_unlock(void)
{
	LWLockRelease(&shared->slots_lock);
}

/* As idemq_slot_find.  slots_lock held. */
QueueSlot *
idemq_slot_find_locked(Oid database, int32 queue_id)
{
	SlotKey key = {database, queue_id};
	SlotEntry *entry = hash_search(slot_hash, &key, HASH_FIND, NULL);

	return entry == NULL ? NULL : &shared->slots[entry->slot];
}

/* Returns whether no slot is free.  slots_lock held. */
bool
idemq_slots_are_full(void)
{
	return shared->used == idemq_max_queues;
}

/*
 * Makes a free slot the queue's, and resets it; its cursors and its search for lost
 * leases are the caller's to reset.  Returns it with its lock held, NULL when all are
 * used.  slots_lock held exclusively.
 */
QueueSlot *
idemq_slot_occupy(Oid database, int32 queue_id)
{
	SlotKey key = {database, queue_id};
	SlotEntry *entry;
	int i = shared->first_free;

	if (idemq_slots_are_full())
		return NULL;
	while (shared->slots[i].key.queue_id != 0)
		i++;
	entry = hash_search(slot_hash, &key, HASH_ENTER_NULL, NULL);
	if (entry == NULL)
		return NULL;
	entry->slot = i;
	shared->used++;
	shared->first_free = i + 1;
	LWLockAcquire(&shared->slots[i].lock, LW_EXCLUSIVE);
	/* Its new life before its new key: see idemq_running_count_in. */
	slot_reset(&shared->slots[i], pg_atomic_write_u64);
	shared->slots[i].key = key;
	return &shared->slots[i];
}

/* Makes a slot free.  slots_lock held exclusively. */
void
idemq_slot_vacate(QueueSlot *slot)
{
	SlotKey key = slot->key;

	LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
	slot->key = (SlotKey){InvalidOid, 0};
	LWLockRelease(&slot->lock);
	hash_search(slot_hash, &key, HASH_REMOVE, NULL);
	shared->used--;
	shared->first_free = Min(shared->first_free, idemq_slot_index(slot));
}

/* Returns which of idemq_max_queues slots this is, from 0. */
int
idemq_slot_index(const QueueSlot *slot)
{
	return (int) (slot - shared->slots);
}

QueueSlot *
idemq_slot_at(int index)
{
	return &shared->slots[index];
}

/*
 * Copies views of a database's queues, max at most, from the slots behind the index after;
 * returns how many.
 */
static int
copy_views(Oid database, int after, SlotView *views, int max)
{
	int count = 0;

	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	for (int i = after + 1; i < idemq_max_queues && count < max; i++)
	{
		QueueSlot *slot = &shared->slots[i];

		if (slot->key.queue_id == 0 || slot->key.database != database)
			continue;
		LWLockAcquire(&slot->lock, LW_SHARED);
		views[count++] = (SlotView){slot, slot->key.queue_id};
		LWLockRelease(&slot->lock);
	}
	LWLockRelease(&shared->slots_lock);
	return count;
}

/* Calls a function, with no lock held, for each queue of a database that has a slot. */
void
idemq_for_each_slot(Oid database, void (*function)(const SlotView *view, void *arg), void *arg)
{
	SlotView views[32];
	int after = -1;
	int count;

	do
	{
		count = copy_views(database, after, views, lengthof(views));
		for (int i = 0; i < count; i++)
		{
			after = idemq_slot_index(views[i].slot);
			function(&views[i], arg);
		}
	} while (count == (int) lengthof(views));
}

/* Copies the view of the slot of that index; false when no queue of the database has it. */
bool
idemq_slot_view(int index, Oid database, SlotView *view)
{
	QueueSlot *slot = &shared->slots[index];
	bool used;

	LWLockAcquire(&slot->lock, LW_SHARED);
	used = slot->key.queue_id != 0 && slot->key.database == database;
	*view = (SlotView){slot, slot->key.queue_id};
	LWLockRelease(&slot->lock);
	return used;
}

TableUsage
idemq_slots_usage(void)
{
	TableUsage usage = {.room = idemq_max_queues, .refused = idemq_count_read(COUNT_FULL_QUEUES)};

	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	usage.used = shared->used;
	LWLockRelease(&shared->slots_lock);
	return usage;
}

/* Returns the slot of a queue, NULL when it has none. */
QueueSlot *
idemq_slot_find(Oid database, int32 queue_id)
{
	QueueSlot *slot;

	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	slot = idemq_slot_find_locked(database, queue_id);
	LWLockRelease(&shared->slots_lock);
	return slot;
}

/*
 * Returns the slot of a queue of this database: the caller's, or, when that is NULL
 * or has become another queue's, the one that the queue has got since.
 */
QueueSlot *
idemq_slot_current(QueueSlot *slot, int32 queue_id)
{
	if (is_slot_of(slot, MyDatabaseId, queue_id))
		return slot;
	return idemq_slot_find(MyDatabaseId, queue_id);
}

/*
 * Notes that this transaction has just created the queue, and given it its slot: memory
 * knows all that the queue has ever done.  A rollback takes the slot away.
 */
void
idemq_slot_note_new(QueueSlot *slot, int32 queue_id)
{
	if (!idemq_slot_lock(&slot, queue_id, LW_EXCLUSIVE))
		return;
	slot->known_since = 0;
	LWLockRelease(&slot->lock);
}

/* Notes that somebody claims from a queue, whether it gets something or not. */
void
idemq_slot_note_claim(QueueSlot *slot)
{
	int64 now = idemq_mono_now();

	/* Once a second: every claim reads the slot's lines. */
	if (now - (int64) pg_atomic_read_u64(&slot->claimed_at) > USECS_PER_SEC)
		pg_atomic_write_u64(&slot->claimed_at, (uint64) now);
}

/*
 * Says since when (mono) memory knows all that a queue does: since it got its slot, or 0,
 * always, if it got the slot when it was created.  False for a queue without a slot.
 */
bool
idemq_slot_known_since(QueueSlot *slot, int32 queue_id, int64 *since)
{
	if (!idemq_slot_lock(&slot, queue_id, LW_SHARED))
		return false;
	*since = slot->known_since;
	LWLockRelease(&slot->lock);
	return true;
}

/*
 * Locks the slot of a queue of this database, and sets *slot to it if it is another.
 * Returns false, with no lock held, when the queue has none.
 */
bool
idemq_slot_lock(QueueSlot **slot, int32 queue_id, LWLockMode mode)
{
	*slot = idemq_slot_current(*slot, queue_id);
	if (*slot == NULL)
		return false;
	LWLockAcquire(&(*slot)->lock, mode);
	if (is_slot_of(*slot, MyDatabaseId, queue_id))
		return true;
	LWLockRelease(&(*slot)->lock);
	return false;
}

/* Returns whether a slot, as remembered, still is the queue's. */
bool
idemq_slot_is_of(const QueueSlot *slot, int32 queue_id)
{
	return is_slot_of(slot, MyDatabaseId, queue_id);
}

/*
 * Begins a change of shared memory that others may see half done, by a transaction
 * that is, or may be, still running: an entry is gone and its cursor not yet
 * lowered.  Only idemq.check() asks for it.  Between begin and end nothing may raise
 * an error.
 */
void
idemq_slots_begin_change(void)
{
	(void) pg_atomic_fetch_add_u64(&shared->changes, (UINT64CONST(1) << 32) + 1);
}

void
idemq_slots_end_change(void)
{
	(void) pg_atomic_fetch_sub_u64(&shared->changes, 1);
}

/*
 * Returns a number that stays as it is while no change begins or ends; its lower
 * half is zero while none is under way.
 */
uint64
idemq_slots_changes(void)
{
	return pg_atomic_fetch_add_u64(&shared->changes, 0);
}

/* Reads the slot of a queue of this database; false when it has none. */
bool
idemq_slot_status(int32 queue_id, SlotStatus *status)
{
	QueueSlot *slot = NULL;
	uint64 next_recovery;

	if (!idemq_slot_lock(&slot, queue_id, LW_SHARED))
		return false;
	next_recovery = pg_atomic_read_u64(&slot->due[DUE_RECOVERY]);
	status->needs_recovery = next_recovery != DUE_NEVER;
	status->searches_now = next_recovery <= (uint64) idemq_mono_now();
	status->next_deadline = (int64) pg_atomic_read_u64(&slot->due[DUE_LEASE]);
	LWLockRelease(&slot->lock);
	return true;
}

/*
 * Counts all slots, and copies the ids of this database's queues that have one to
 * queue_ids, which has room for idemq.max_queues.  Returns how many.
 */
int
idemq_slots_audit(SlotsAudit *audit, int32 *queue_ids)
{
	int count = 0;

	memset(audit, 0, sizeof(*audit));
	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	audit->used = shared->used;
	audit->hashed = (int) hash_get_num_entries(slot_hash);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		SlotKey key = shared->slots[i].key;

		if (key.queue_id == 0)
			continue;
		audit->taken++;
		audit->misplaced += idemq_slot_find_locked(key.database, key.queue_id) != &shared->slots[i];
		if (key.database == MyDatabaseId)
			queue_ids[count++] = key.queue_id;
	}
	LWLockRelease(&shared->slots_lock);
	return count;
}
