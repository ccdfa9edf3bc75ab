/*
 * cursor.c
 *		The ready cursor: where a claim starts in the ready index.
 *
 * For each queue and priority, a key (ready_at, id) below which nothing can be
 * claimed.  It is a cache: unset (READY_KEY_MIN) is always right, and slow.
 *
 * Invariant: a row below the cursor is unclaimable in its committed version,
 * or has a lease entry, or is being written by somebody who will lower the
 * cursor to its key after his commit or abort.
 *
 * A claimer moves the cursor up past what it proved, and must not pass what
 * became claimable after its snapshot.  So it reads sequence and cursor under
 * the lock *before* it takes its snapshot (idemq_cursor_read); whoever makes a
 * row claimable lowers *after* that is visible (idemq_cursor_lower), which adds
 * the key to a history of lowerings; and the move up is bounded by the least key
 * lowered since the read (idemq_cursor_advance).
 *
 * The history of a priority is a short list of (seq, key), both growing: a new
 * lowering removes every entry whose key is not less, since from then on it
 * decides for whoever that entry would have bounded.  The first entry after a
 * reader's seq is therefore the least key lowered since.  When the list is full,
 * the older half is merged in pairs, (later seq, lesser key): readers of long
 * ago are bounded more than need be, and never less.
 *
 * Beside each cursor stands the end of a stretch: a key some entries ahead, up
 * to which the next claims scan first.  It only saves reading the rest of a leaf
 * page for one job; a scan that comes to its end goes on behind it.
 *
 * Locks: slots_lock covers the hash of slots and their allocation; each slot's
 * lock covers its fields unless said otherwise.  A caller's slot pointer may be
 * NULL or old: every function checks whose slot it is, and looks for the queue's
 * if need be.  A queue without a slot (all are used) has no cursor.
 *
 * What xact.c calls after commit or abort neither allocates nor raises.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "clock.h"
#include "cursor.h"
#include "guc.h"

#define HISTORY_LENGTH 16 /* a multiple of 4 */

/* A verification scan may take this part of the time, and comes at most once a second. */
#define VERIFY_SHARE 100
#define VERIFY_INTERVAL USECS_PER_SEC

typedef struct Lowering
{
	uint64 seq;
	ReadyKey key;
} Lowering;

/* The lowerings of one priority; seq and key grow. */
typedef struct History
{
	int count;
	Lowering entries[HISTORY_LENGTH];
} History;

typedef struct SlotKey
{
	Oid database;
	int32 queue_id;
} SlotKey;

struct QueueSlot
{
	LWLock lock;
	SlotKey key; /* queue_id 0: free; changes under slots_lock and lock */
	uint64 seq;	 /* lowerings so far */
	ReadyKey cursor[IDEMQ_PRIORITIES];
	ReadyKey stretch[IDEMQ_PRIORITIES];
	History history[IDEMQ_PRIORITIES];
	bool needs_recovery;			/* jobs may be in flight without an entry */
	RecoveryPoint recovery;			/* its epoch moves whenever needs_recovery is set */
	int64 next_verify;				/* mono */
	pg_atomic_uint64 next_deadline; /* mono: no lease ends before; no lock */
};

typedef struct SlotEntry
{
	SlotKey key;
	int slot;
} SlotEntry;

typedef struct CursorShared
{
	LWLock slots_lock;
	int tranche;
	int used; /* slots that are not free; under slots_lock */
	QueueSlot slots[FLEXIBLE_ARRAY_MEMBER];
} CursorShared;

static CursorShared *shared = NULL;
static HTAB *slot_hash = NULL;

/* Returns the bytes of shared memory for all slots. */
Size
idemq_cursor_shmem_size(void)
{
	return offsetof(CursorShared, slots) + mul_size(sizeof(QueueSlot), idemq_max_queues);
}

/* Returns the bytes of shared memory for the hash table. */
Size
idemq_cursor_hash_size(void)
{
	return hash_estimate_size(idemq_max_queues, sizeof(SlotEntry));
}

/* Attaches to the slots, and makes them when this is the first process. */
void
idemq_cursor_shmem_init(void *area, bool found)
{
	HASHCTL info = {0};

	shared = area;
	if (!found)
	{
		memset(area, 0, idemq_cursor_shmem_size());
		shared->tranche = LWLockNewTrancheId();
		LWLockInitialize(&shared->slots_lock, shared->tranche);
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

/* Adds a lowering to a history; see the file's header. */
static void
remember(History *history, uint64 seq, ReadyKey key)
{
	Lowering *entries = history->entries;

	while (history->count > 0 && !ready_key_less(entries[history->count - 1].key, key))
		history->count--;
	if (history->count == HISTORY_LENGTH)
	{
		int merged = HISTORY_LENGTH / 4;

		for (int i = 0; i < merged; i++)
			entries[i] = (Lowering){entries[2 * i + 1].seq, entries[2 * i].key};
		memmove(&entries[merged], &entries[2 * merged],
				(HISTORY_LENGTH - 2 * merged) * sizeof(Lowering));
		history->count -= merged;
	}
	entries[history->count++] = (Lowering){seq, key};
}

/* Lowers one cursor.  The slot's lock held. */
static void
lower_locked(QueueSlot *slot, int priority, ReadyKey to)
{
	slot->seq++;
	remember(&slot->history[priority], slot->seq, to);
	if (ready_key_less(to, slot->cursor[priority]))
		slot->cursor[priority] = to;
}

/* Unsets all cursors.  The slot's lock held. */
static void
unset(QueueSlot *slot)
{
	for (int p = 0; p < IDEMQ_PRIORITIES; p++)
	{
		lower_locked(slot, p, READY_KEY_MIN);
		slot->stretch[p] = READY_KEY_MIN;
	}
}

/* Has the queue searched for jobs in flight without an entry.  The slot's lock held. */
static void
begin_recovery(QueueSlot *slot)
{
	slot->needs_recovery = true;
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
	unset(&shared->slots[i]);
	begin_recovery(&shared->slots[i]);
	shared->slots[i].next_verify = idemq_mono_now() + VERIFY_INTERVAL;
	pg_atomic_write_u64(&shared->slots[i].next_deadline, 0);
	LWLockRelease(&shared->slots[i].lock);
	return &shared->slots[i];
}

/* Returns the slot of a queue, NULL when it has none. */
QueueSlot *
idemq_cursor_find(Oid database, int32 queue_id)
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
	return idemq_cursor_find(MyDatabaseId, queue_id);
}

/* Takes the lock of the queue's slot, *slot or another; false, and none, without a slot. */
static bool
lock_slot(QueueSlot **slot, int32 queue_id, LWLockMode mode)
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
idemq_cursor_slot(int32 queue_id)
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

/* Reads cursors and sequence; to be called before the claim's snapshot is taken. */
void
idemq_cursor_read(QueueSlot *slot, int32 queue_id, CursorView *view)
{
	view->shared = lock_slot(&slot, queue_id, LW_SHARED);
	if (!view->shared)
	{
		view->seq = 0;
		for (int p = 0; p < IDEMQ_PRIORITIES; p++)
			view->from[p] = view->stretch[p] = READY_KEY_MIN;
		return;
	}
	view->seq = slot->seq;
	memcpy(view->from, slot->cursor, sizeof(view->from));
	memcpy(view->stretch, slot->stretch, sizeof(view->stretch));
	LWLockRelease(&slot->lock);
}

/*
 * Moves a cursor up to a key below which the caller's scan, under a snapshot
 * taken after view, found nothing claimable; not past what was lowered since.
 * stretch: where it looked ahead to, READY_KEY_MIN when it did not.
 */
void
idemq_cursor_advance(QueueSlot *slot, int32 queue_id, const CursorView *view, int priority,
					 ReadyKey to, ReadyKey stretch)
{
	History *history;

	if (!view->shared || !lock_slot(&slot, queue_id, LW_EXCLUSIVE))
		return;
	if (ready_key_less(slot->stretch[priority], stretch))
		slot->stretch[priority] = stretch;
	history = &slot->history[priority];
	for (int i = 0; i < history->count; i++)
	{
		if (history->entries[i].seq > view->seq)
		{
			if (ready_key_less(history->entries[i].key, to))
				to = history->entries[i].key;
			break;
		}
	}
	if (ready_key_less(slot->cursor[priority], to))
		slot->cursor[priority] = to;
	LWLockRelease(&slot->lock);
}

/* Lowers a cursor to a key that has become claimable; to be called after that is visible. */
void
idemq_cursor_lower(QueueSlot *slot, int32 queue_id, int priority, ReadyKey to)
{
	if (!lock_slot(&slot, queue_id, LW_EXCLUSIVE))
		return;
	lower_locked(slot, priority, to);
	LWLockRelease(&slot->lock);
}

/*
 * Returns whether it is time to look from the start of the index, whatever the
 * cursor says: the net under DML that no trigger and no hook has seen.
 */
bool
idemq_cursor_verify_due(QueueSlot *slot, int32 queue_id)
{
	int64 now = idemq_mono_now();
	bool due;

	if (!lock_slot(&slot, queue_id, LW_EXCLUSIVE))
		return false;
	due = now >= slot->next_verify;
	if (due)
		slot->next_verify = now + VERIFY_INTERVAL;
	LWLockRelease(&slot->lock);
	return due;
}

/* Puts off the next verification after one that took so many microseconds. */
void
idemq_cursor_verified(QueueSlot *slot, int32 queue_id, int64 took)
{
	if (!lock_slot(&slot, queue_id, LW_EXCLUSIVE))
		return;
	slot->next_verify = idemq_mono_now() + Max(VERIFY_INTERVAL, took * VERIFY_SHARE);
	LWLockRelease(&slot->lock);
}

/* Notes that a job of the queue went in flight without a lease entry. */
void
idemq_cursor_need_recovery(QueueSlot *slot, int32 queue_id)
{
	if (!lock_slot(&slot, queue_id, LW_EXCLUSIVE))
		return;
	begin_recovery(slot);
	LWLockRelease(&slot->lock);
}

/* Returns whether a queue has to be searched, and where to go on. */
bool
idemq_cursor_recovery_point(QueueSlot *slot, int32 queue_id, RecoveryPoint *point)
{
	bool needed;

	if (!lock_slot(&slot, queue_id, LW_SHARED))
		return false;
	needed = slot->needs_recovery;
	*point = slot->recovery;
	LWLockRelease(&slot->lock);
	return needed;
}

/*
 * Notes how far a search has come; at the end it is over, or begins again if it
 * was incomplete.  Void if recovery was asked for anew meanwhile.
 */
void
idemq_cursor_recovered_to(QueueSlot *slot, int32 queue_id, const RecoveryPoint *point)
{
	RecoveryPoint *known;

	if (!lock_slot(&slot, queue_id, LW_EXCLUSIVE))
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
			begin_recovery(slot);
		else if (known->priority == IDEMQ_PRIORITIES)
			slot->needs_recovery = false;
	}
	LWLockRelease(&slot->lock);
}

/* Unsets the cursors of a queue. */
void
idemq_cursor_unset(QueueSlot *slot, int32 queue_id)
{
	if (!lock_slot(&slot, queue_id, LW_EXCLUSIVE))
		return;
	unset(slot);
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
idemq_cursor_unset_database(Oid database)
{
	LWLockAcquire(&shared->slots_lock, LW_SHARED);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueSlot *slot = &shared->slots[i];

		if (slot->key.database != database || slot->key.queue_id == 0)
			continue;
		LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
		unset(slot);
		begin_recovery(slot);
		LWLockRelease(&slot->lock);
	}
	LWLockRelease(&shared->slots_lock);
}

/* Frees the slots of a dropped database. */
void
idemq_cursor_forget_database(Oid database)
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
idemq_cursor_forget_queue(int32 queue_id)
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
idemq_cursor_slot_is(const QueueSlot *slot, int32 queue_id)
{
	return is_slot_of(slot, MyDatabaseId, queue_id);
}

/*
 * Returns whether a lease of the queue may have expired.  Without a slot nobody
 * knows, so the answer is yes.
 */
bool
idemq_cursor_deadline_passed(QueueSlot *slot, int32 queue_id)
{
	slot = current_slot(slot, queue_id);
	return slot == NULL || pg_atomic_read_u64(&slot->next_deadline) <= (uint64) idemq_mono_now();
}

/* Forgets the earliest deadline, before a look at all leases that notes it anew. */
void
idemq_cursor_reset_deadline(QueueSlot *slot, int32 queue_id)
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
idemq_cursor_note_deadline(QueueSlot *slot, int32 queue_id, int64 deadline)
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
