/*
 * slots.c
 *		A queue's place in shared memory: its ready cursors (cursor.c), its next
 *		deadline, and how far the search for leases that memory lost has come.
 *
 * Locks: slots_lock covers the hash of slots and their allocation; each slot's
 * lock covers its fields unless slots.h says otherwise.  slots_lock is taken
 * first.  A caller's slot pointer may be NULL or old: every function checks
 * whose slot it is, and looks for the queue's if need be.  A queue without a
 * slot (all are used) works: its claims scan from the start of the index.
 *
 * What xact.c calls after commit or abort neither allocates nor raises.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "clock.h"
#include "cursor.h"
#include "guc.h"
#include "slots.h"

/* A search that missed something begins again after so many microseconds. */
#define RECOVERY_INTERVAL USECS_PER_SEC

typedef struct SlotEntry
{
	SlotKey key;
	int slot;
} SlotEntry;

typedef struct SlotsShared
{
	LWLock slots_lock;
	int tranche;
	int used; /* slots that are not free; under slots_lock */
	/* Changes under way in the lower half, changes begun in the upper; no lock. */
	pg_atomic_uint64 changes;
	QueueSlot slots[FLEXIBLE_ARRAY_MEMBER];
} SlotsShared;

static SlotsShared *shared = NULL;
static HTAB *slot_hash = NULL;

/* Returns the bytes of shared memory for all slots. */
Size
idemq_slots_shmem_size(void)
{
	return offsetof(SlotsShared, slots) + mul_size(sizeof(QueueSlot), idemq_max_queues);
}

/* Returns the bytes of shared memory for the hash table. */
Size
idemq_slots_hash_size(void)
{
	return hash_estimate_size(idemq_max_queues, sizeof(SlotEntry));
}

/* Attaches to the slots, and makes them when this is the first process. */
void
idemq_slots_shmem_init(void *area, bool found)
{
	HASHCTL info = {0};

	shared = area;
	if (!found)
	{
		memset(area, 0, idemq_slots_shmem_size());
		shared->tranche = LWLockNewTrancheId();
		LWLockInitialize(&shared->slots_lock, shared->tranche);
		pg_atomic_init_u64(&shared->changes, 0);
		for (int i = 0; i < idemq_max_queues; i++)
		{
			LWLockInitialize(&shared->slots[i].lock, shared->tranche);
			pg_atomic_init_u64(&shared->slots[i].next_deadline, 0);
		}
	}
	LWLockRegisterTranche(shared->tranche, "idemq queues");
	info.keysize = sizeof(SlotKey);
	info.entrysize = sizeof(SlotEntry);
	slot_hash = ShmemInitHash("idemq queues", idemq_max_queues, idemq_max_queues, &info,
							  HASH_ELEM | HASH_BLOBS);
}

/*
 * Returns whether a slot is the queue's.  Without its lock the answer may be old
 * by the time it is used; only a queue that is being dropped loses its slot.
 */
static bool
is_slot_of(const QueueSlot *slot, Oid database, int32 queue_id)
{
	return slot != NULL && slot->key.database == database && slot->key.queue_id == queue_id;
}

static QueueSlot *
find_slot(Oid database, int32 queue_id)
{
	SlotKey key = {database, queue_id};
	SlotEntry *entry = hash_search(slot_hash, &key, HASH_FIND, NULL);

	return entry == NULL ? NULL : &shared->slots[entry->slot];
}

/* Has the queue searched from its start.  The slot's lock held. */
static void
begin_recovery(QueueSlot *slot, int64 not_before)
{
	slot->needs_recovery = true;
	slot->next_recovery = not_before;
	slot->recovery = (RecoveryPoint){slot->recovery.epoch + 1, 0, READY_KEY_MIN, false};
}

/* Makes a free slot the queue's; NULL when there is none.  slots_lock held. */
static QueueSlot *
assign_slot(int32 queue_id)
{
	SlotKey key = {MyDatabaseId, queue_id};
	SlotEntry *entry;
	int i = 0;

	if (shared->used == idemq_max_queues)
		return NULL;
	while (shared->slots[i].key.queue_id != 0)
		i++;
	entry = hash_search(slot_hash, &key, HASH_ENTER_NULL, NULL);
	if (entry == NULL)
		return NULL;
	entry->slot = i;
	shared->used++;

	LWLockAcquire(&shared->slots[i].lock, LW_EXCLUSIVE);
	shared->slots[i].key = key;
	/* Also bounds every view of the slot's former life. */
	idemq_cursor_unset_locked(&shared->slots[i]);
	begin_recovery(&shared->slots[i], 0);
	shared->slots[i].next_verify = idemq_mono_now() + USECS_PER_SEC;
	pg_atomic_write_u64(&shared->slots[i].next_deadline, 0);
	LWLockRelease(&shared->slots[i].lock);
	return &shared->slots[i];
}

/* Returns the slot of a queue, NULL when it has none. */
QueueSlot *
idemq_slot_find(Oid database, int32 queue_id)
{
	QueueSlot *slot;

	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	slot = find_slot(database, queue_id);
	LWLockRelease(&shared->slots_lock);
	return slot;
}

/*
 * Returns the slot of a queue of this database: the caller's, or, when that is
 * none or has become another's, the one that somebody else got for it since.
 */
static QueueSlot *
current_slot(QueueSlot *slot, int32 queue_id)
{
	if (is_slot_of(slot, MyDatabaseId, queue_id))
		return slot;
	return idemq_slot_find(MyDatabaseId, queue_id);
}

/* Takes the lock of the queue's slot, *slot or another; false, and none, without a slot. */
bool
idemq_slot_lock(QueueSlot **slot, int32 queue_id, LWLockMode mode)
{
	*slot = current_slot(*slot, queue_id);
	if (*slot == NULL)
		return false;
	LWLockAcquire(&(*slot)->lock, mode);
	if (is_slot_of(*slot, MyDatabaseId, queue_id))
		return true;
	LWLockRelease(&(*slot)->lock);
	return false;
}

/* Returns the slot of a queue of this database, given one if need be; NULL when all are used. */
QueueSlot *
idemq_slot_for_queue(int32 queue_id)
{
	QueueSlot *slot;
	bool full;

	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	slot = find_slot(MyDatabaseId, queue_id);
	full = shared->used == idemq_max_queues;
	LWLockRelease(&shared->slots_lock);
	if (slot != NULL || full)
		return slot;

	LWLockAcquire(&shared->slots_lock, LW_EXCLUSIVE);
	slot = find_slot(MyDatabaseId, queue_id);
	if (slot == NULL)
		slot = assign_slot(queue_id);
	LWLockRelease(&shared->slots_lock);
	return slot;
}

/* Notes that a job of the queue went in flight without a lease entry. */
void
idemq_slot_need_recovery(QueueSlot *slot, int32 queue_id)
{
	if (!idemq_slot_lock(&slot, queue_id, LW_EXCLUSIVE))
		return;
	/* A search under way goes on, and another one follows. */
	if (slot->needs_recovery)
		slot->recovery.incomplete = true;
	else
		begin_recovery(slot, 0);
	LWLockRelease(&slot->lock);
}

/*
 * Returns whether a queue has to be searched, and where to go on: for a step,
 * where the last one ended, and not too often; for the whole, at the start.
 */
bool
idemq_slot_recovery_point(QueueSlot *slot, int32 queue_id, bool whole, RecoveryPoint *point)
{
	bool needed;

	if (!idemq_slot_lock(&slot, queue_id, LW_SHARED))
		return false;
	*point = slot->recovery;
	needed = slot->needs_recovery && (whole || slot->next_recovery <= idemq_mono_now());
	LWLockRelease(&slot->lock);
	if (whole)
	{
		point->priority = 0;
		point->from = READY_KEY_MIN;
		point->incomplete = false;
	}
	return needed;
}

/*
 * Notes how far a search has come; at the end it is over, or begins again if it
 * was incomplete.  Void if recovery was asked for anew meanwhile.
 */
void
idemq_slot_recovered_to(QueueSlot *slot, int32 queue_id, const RecoveryPoint *point)
{
	RecoveryPoint *known;

	if (!idemq_slot_lock(&slot, queue_id, LW_EXCLUSIVE))
		return;
	known = &slot->recovery;
	if (known->epoch == point->epoch)
	{
		bool incomplete = known->incomplete || point->incomplete;

		if (point->priority > known->priority ||
			(point->priority == known->priority && ready_key_less(known->from, point->from)))
			*known = *point;
		known->incomplete = incomplete;
		if (known->priority == IDEMQ_PRIORITIES && incomplete)
			begin_recovery(slot, idemq_mono_now() + RECOVERY_INTERVAL);
		else if (known->priority == IDEMQ_PRIORITIES)
			slot->needs_recovery = false;
	}
	LWLockRelease(&slot->lock);
}

/* Frees a slot.  slots_lock held. */
static void
free_slot(QueueSlot *slot)
{
	SlotKey key = slot->key;

	LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
	slot->key = (SlotKey){InvalidOid, 0};
	LWLockRelease(&slot->lock);
	hash_search(slot_hash, &key, HASH_REMOVE, NULL);
	shared->used--;
}

/*
 * Unsets every cursor of a database and asks for recovery: rows changed, and
 * nobody knows which (COMMIT PREPARED, ROLLBACK PREPARED).
 */
void
idemq_slots_unset_database(Oid database)
{
	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueSlot *slot = &shared->slots[i];

		if (slot->key.database != database || slot->key.queue_id == 0)
			continue;
		LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
		idemq_cursor_unset_locked(slot);
		begin_recovery(slot, 0);
		LWLockRelease(&slot->lock);
	}
	LWLockRelease(&shared->slots_lock);
}

/* Frees the slots of a dropped database. */
void
idemq_slots_forget_database(Oid database)
{
	LWLockAcquire(&shared->slots_lock, LW_EXCLUSIVE);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		if (shared->slots[i].key.database == database && shared->slots[i].key.queue_id != 0)
			free_slot(&shared->slots[i]);
	}
	LWLockRelease(&shared->slots_lock);
}

/* Frees the slot of a dropped queue of this database. */
void
idemq_slot_forget_queue(int32 queue_id)
{
	QueueSlot *slot;

	LWLockAcquire(&shared->slots_lock, LW_EXCLUSIVE);
	slot = find_slot(MyDatabaseId, queue_id);
	if (slot != NULL)
		free_slot(slot);
	LWLockRelease(&shared->slots_lock);
}

/* Returns whether a slot, as remembered, still is the queue's. */
bool
idemq_slot_is_of(const QueueSlot *slot, int32 queue_id)
{
	return is_slot_of(slot, MyDatabaseId, queue_id);
}

/*
 * Returns whether a lease of the queue may have expired.  Without a slot nobody
 * knows, so the answer is yes.
 */
bool
idemq_slot_deadline_passed(QueueSlot *slot, int32 queue_id)
{
	slot = current_slot(slot, queue_id);
	return slot == NULL || pg_atomic_read_u64(&slot->next_deadline) <= (uint64) idemq_mono_now();
}

/* Forgets the earliest deadline, before a look at all leases that notes it anew. */
void
idemq_slot_reset_deadline(QueueSlot *slot, int32 queue_id)
{
	slot = current_slot(slot, queue_id);
	if (slot != NULL)
		pg_atomic_write_u64(&slot->next_deadline, PG_UINT64_MAX);
}

/*
 * Notes that a lease ends at a deadline (mono), or, from a reaper, when to look
 * again.
 */
void
idemq_slot_note_deadline(QueueSlot *slot, int32 queue_id, int64 deadline)
{
	uint64 wanted = (uint64) Max(deadline, 0);
	uint64 known;

	slot = current_slot(slot, queue_id);
	if (slot == NULL)
		return;
	known = pg_atomic_read_u64(&slot->next_deadline);
	while (wanted < known && !pg_atomic_compare_exchange_u64(&slot->next_deadline, &known, wanted))
		;
}

/*
 * Begins a change of shared memory that others may see half done, by a transaction
 * that is, or may be, still running: an entry is gone and its cursor not yet
 * lowered.  Nothing but idemq.check() asks.  Between begin and end nothing may
 * raise an error.
 */
void
idemq_slots_begin_change(void)
{
	(void) pg_atomic_fetch_add_u64(&shared->changes, (UINT64CONST(1) << 32) + 1);
}

/* Ends what idemq_slots_begin_change began. */
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

	if (!idemq_slot_lock(&slot, queue_id, LW_SHARED))
		return false;
	status->needs_recovery = slot->needs_recovery;
	status->next_deadline = pg_atomic_read_u64(&slot->next_deadline);
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
		audit->misplaced += find_slot(key.database, key.queue_id) != &shared->slots[i];
		if (key.database == MyDatabaseId)
			queue_ids[count++] = key.queue_id;
	}
	LWLockRelease(&shared->slots_lock);
	return count;
}
