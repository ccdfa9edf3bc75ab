/*
 * groups.c
 *		Which FIFO groups may need a head, in shared memory; and who gives it one.
 *
 * A group needs a head when its head has finished, or when its first job is
 * enqueued.  Whoever does so marks the group after his commit; who promotes heads
 * (promote.c: the worker, or a claim) takes a marked group, looks at its rows
 * under a newer snapshot, and promotes its first job if it has no head.
 *
 * At most one session owns a group, from before its look until after the end of the
 * transaction in which it promoted: else two, with snapshots that differ, could make
 * two heads.  A mark that comes meanwhile is kept for the time after.  So
 *
 *		of a group without a head, whose jobs are committed, there is a mark, or an
 *		owner, or its queue is to be scanned, or somebody between his commit and his
 *		callback is about to mark it.
 *
 * The rows are the truth.  After a start, and whenever a mark may be lost (no room,
 * a prepared transaction), the queue is to be scanned: all its groups are looked at.
 * The name of a group is kept here only up to GROUP_NAME bytes; of a longer one only
 * an owner is kept, and its mark is that its queue is to be scanned.  A queue without
 * a slot has no marks: its claims scan now and then.
 *
 * Locks: one lock covers the hash and the lists; the atomics of a queue are written
 * under it and read without.  It is taken after slots.c's locks.  Functions that are
 * called after commit or abort neither allocate nor raise.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "clock.h"
#include "compat.h"
#include "groups.h"
#include "guc.h"
#include "leases.h"
#include "wake.h"
#include "workers.h"

/* Groups that are marked or owned at a time, in all queues. */
#define MAX_GROUPS 8192
#define LONG_NAME (-1)
/* In place of an owner. */
#define NOBODY (-1)
#define PREPARED (-2)

typedef enum GroupPlace
{
	PLACE_NONE,	   /* owned */
	PLACE_WAITING, /* to be looked at */
	PLACE_DELAYED  /* likewise, from the queue's delayed_until on */
} GroupPlace;

typedef struct GroupEntry
{
	GroupKey key;
	int32 owner; /* proc number, NOBODY or PREPARED */
	bool again;	 /* marked since it has an owner */
	GroupPlace place;
	dlist_node node; /* in a list of its queue */
} GroupEntry;

/* What a queue, at the index of its slot, has to look at. */
typedef struct GroupQueue
{
	Oid database; /* InvalidOid: nobody's */
	int32 queue_id;
	dlist_head waiting;
	dlist_head delayed;
	pg_atomic_uint32 nwaiting;
	pg_atomic_uint64 delayed_until; /* mono; PG_UINT64_MAX: none is delayed */
	pg_atomic_uint64 scan_at;		/* mono: all are to be looked at; likewise */
} GroupQueue;

typedef struct GroupsShared
{
	LWLock lock;
	int tranche;
	int count; /* groups in the hash */
	pg_atomic_uint64 refused;
	GroupQueue queues[FLEXIBLE_ARRAY_MEMBER]; /* idemq_max_queues */
} GroupsShared;

static GroupsShared *shared = NULL;
static HTAB *group_hash = NULL;

/* Returns the bytes of shared memory for the lists. */
Size
idemq_groups_shmem_size(void)
{
	return offsetof(GroupsShared, queues) + mul_size(sizeof(GroupQueue), idemq_max_queues);
}

/* Returns the bytes of shared memory for the hash table. */
Size
idemq_groups_hash_size(void)
{
	return hash_estimate_size(MAX_GROUPS, sizeof(GroupEntry));
}

/* Attaches to the groups, and makes them when this is the first process. */
void
idemq_groups_shmem_init(void *area, bool found)
{
	HASHCTL info = {0};

	shared = area;
	if (!found)
	{
		memset(area, 0, idemq_groups_shmem_size());
		shared->tranche = LWLockNewTrancheId();
		LWLockInitialize(&shared->lock, shared->tranche);
		pg_atomic_init_u64(&shared->refused, 0);
		for (int i = 0; i < idemq_max_queues; i++)
		{
			GroupQueue *queue = &shared->queues[i];

			dlist_init(&queue->waiting);
			dlist_init(&queue->delayed);
			pg_atomic_init_u32(&queue->nwaiting, 0);
			pg_atomic_init_u64(&queue->delayed_until, PG_UINT64_MAX);
			pg_atomic_init_u64(&queue->scan_at, PG_UINT64_MAX);
		}
	}
	LWLockRegisterTranche(shared->tranche, "idemq groups");
	info.keysize = sizeof(GroupKey);
	info.entrysize = sizeof(GroupEntry);
	group_hash = ShmemInitHash("idemq groups", MAX_GROUPS, MAX_GROUPS, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE);
}

/* Makes the key of a group of this database. */
void
idemq_group_key(GroupKey *key, int32 queue_id, const char *name, int length)
{
	memset(key, 0, sizeof(*key));
	key->database = MyDatabaseId;
	key->queue_id = queue_id;
	if (length <= GROUP_NAME)
	{
		key->length = length;
		memcpy(key->name, name, length);
	}
	else
	{
		uint64 hash[2];

		hash[0] = hash_bytes_extended((const unsigned char *) name, length, 0);
		hash[1] = hash_bytes_extended((const unsigned char *) name, length, 1);
		key->length = LONG_NAME;
		memcpy(key->name, hash, sizeof(hash));
	}
}

/* Returns the queue of a slot if it is that one; NULL otherwise.  Lock held. */
static GroupQueue *
queue_of(const QueueSlot *slot, Oid database, int32 queue_id)
{
	GroupQueue *queue = slot == NULL ? NULL : &shared->queues[idemq_slot_index(slot)];

	if (queue == NULL || queue->database != database || queue->queue_id != queue_id)
		return NULL;
	return queue;
}

/* Takes a group out of the list in which it is.  Lock held. */
static void
unlist(GroupQueue *queue, GroupEntry *group)
{
	if (group->place == PLACE_NONE)
		return;
	dlist_delete(&group->node);
	if (group->place == PLACE_WAITING)
		pg_atomic_fetch_sub_u32(&queue->nwaiting, 1);
	else if (dlist_is_empty(&queue->delayed))
		pg_atomic_write_u64(&queue->delayed_until, PG_UINT64_MAX);
	group->place = PLACE_NONE;
}

/* Puts a group into a list.  Lock held. */
static void
enlist(GroupQueue *queue, GroupEntry *group, GroupPlace place)
{
	unlist(queue, group);
	group->place = place;
	dlist_push_tail(place == PLACE_WAITING ? &queue->waiting : &queue->delayed, &group->node);
	if (place == PLACE_WAITING)
		pg_atomic_fetch_add_u32(&queue->nwaiting, 1);
	else if (pg_atomic_read_u64(&queue->delayed_until) == PG_UINT64_MAX)
		pg_atomic_write_u64(&queue->delayed_until, (uint64) (idemq_mono_now() + LEASE_BUSY_RETRY));
}

static void
remove_group(GroupEntry *group)
{
	if (hash_search(group_hash, &group->key, HASH_REMOVE, NULL) != NULL)
		shared->count--;
}

/* Returns a group's entry, entered if need be; NULL when there is no room.  Lock held. */
static GroupEntry *
enter(const GroupKey *key)
{
	GroupEntry *group = hash_search(group_hash, key, HASH_FIND, NULL);

	if (group != NULL || shared->count >= MAX_GROUPS)
		return group;
	group = hash_search(group_hash, key, HASH_ENTER_NULL, NULL);
	if (group == NULL)
		return NULL;
	shared->count++;
	group->owner = NOBODY;
	group->again = false;
	group->place = PLACE_NONE;
	return group;
}

/* Has somebody look at a queue's groups: the worker; without one, who sleeps. */
static void
call_for_a_look(QueueSlot *slot)
{
	if (idemq_worker_present())
		idemq_worker_need_by(0);
	else
		(void) idemq_sleepers_wake(idemq_sleepers_of_queue(slot), 1);
}

/* Returns whether a queue has groups to look at now; without a lock. */
bool
idemq_groups_waiting(const QueueSlot *slot)
{
	return idemq_groups_due_at(slot) <= idemq_mono_now();
}

/* Returns when (mono) a queue's groups are to be looked at; PG_INT64_MAX: there are none. */
int64
idemq_groups_due_at(const QueueSlot *slot)
{
	GroupQueue *queue = &shared->queues[idemq_slot_index(slot)];
	uint64 until;

	if (pg_atomic_read_u32(&queue->nwaiting) > 0)
		return 0;
	until = Min(pg_atomic_read_u64(&queue->delayed_until), pg_atomic_read_u64(&queue->scan_at));
	return until > (uint64) PG_INT64_MAX ? PG_INT64_MAX : (int64) until;
}

/* Returns whether somebody will look at a group, or is about to: for idemq.check(). */
bool
idemq_groups_know(const QueueSlot *slot, const GroupKey *key)
{
	GroupQueue *queue;
	bool known;

	LWLockAcquire(&shared->lock, LW_SHARED);
	queue = queue_of(slot, key->database, key->queue_id);
	known = queue == NULL || pg_atomic_read_u64(&queue->scan_at) != PG_UINT64_MAX ||
			hash_search(group_hash, key, HASH_FIND, NULL) != NULL;
	LWLockRelease(&shared->lock);
	return known;
}

/* Returns whether all groups of a queue are to be looked at now; the caller does it then. */
bool
idemq_groups_take_scan(const QueueSlot *slot, int32 queue_id)
{
	GroupQueue *queue;
	bool wanted;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = queue_of(slot, MyDatabaseId, queue_id);
	wanted = queue != NULL && pg_atomic_read_u64(&queue->scan_at) <= (uint64) idemq_mono_now();
	if (wanted)
		pg_atomic_write_u64(&queue->scan_at, PG_UINT64_MAX);
	LWLockRelease(&shared->lock);
	return wanted;
}

/* Has a queue's groups looked at, at once or later.  Lock held. */
static void
want_scan(GroupQueue *queue, bool later)
{
	uint64 when = later ? (uint64) (idemq_mono_now() + LEASE_BUSY_RETRY) : 0;

	pg_atomic_write_u64(&queue->scan_at, Min(pg_atomic_read_u64(&queue->scan_at), when));
}

/* Has all groups of a queue looked at, at once or when there may be room for their marks. */
void
idemq_groups_want_scan(const QueueSlot *slot, int32 queue_id, bool later)
{
	GroupQueue *queue;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = queue_of(slot, MyDatabaseId, queue_id);
	if (queue != NULL)
		want_scan(queue, later);
	LWLockRelease(&shared->lock);
}

/* Lets the groups wait no longer that were delayed.  Lock held. */
static void
end_delay(GroupQueue *queue)
{
	if (pg_atomic_read_u64(&queue->delayed_until) > (uint64) idemq_mono_now())
		return;
	while (!dlist_is_empty(&queue->delayed))
		enlist(queue, dlist_head_element(GroupEntry, node, &queue->delayed), PLACE_WAITING);
}

/*
 * Takes up to max groups of a queue to look at, and copies their keys: this session
 * owns them until idemq_group_release.  Returns how many.
 */
int
idemq_groups_take(const QueueSlot *slot, int32 queue_id, GroupKey *keys, int max)
{
	GroupQueue *queue;
	int count = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = queue_of(slot, MyDatabaseId, queue_id);
	if (queue != NULL)
		end_delay(queue);
	while (queue != NULL && count < max && !dlist_is_empty(&queue->waiting))
	{
		GroupEntry *group = dlist_head_element(GroupEntry, node, &queue->waiting);

		unlist(queue, group);
		group->owner = IDEMQ_MY_PROC_NUMBER;
		keys[count++] = group->key;
	}
	LWLockRelease(&shared->lock);
	return count;
}

/* Takes one group, marked or not, as idemq_groups_take does; whoever has it looks again. */
GroupOwn
idemq_group_own(const QueueSlot *slot, const GroupKey *key)
{
	GroupOwn own = GROUP_FULL;
	GroupQueue *queue;
	GroupEntry *group;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = queue_of(slot, key->database, key->queue_id);
	group = enter(key);
	if (group != NULL && group->owner != NOBODY)
	{
		own = GROUP_BUSY;
		group->again = true;
	}
	else if (group != NULL)
	{
		own = GROUP_OWNED;
		if (queue != NULL)
			unlist(queue, group);
		group->owner = IDEMQ_MY_PROC_NUMBER;
	}
	LWLockRelease(&shared->lock);
	return own;
}

/* Has a group looked at; after the commit by which it may need a head. */
void
idemq_group_mark(QueueSlot *slot, const GroupKey *key)
{
	GroupQueue *queue;
	GroupEntry *group;

	if (!idemq_slot_is_of(slot, key->queue_id))
		slot = idemq_slot_find(key->database, key->queue_id);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = queue_of(slot, key->database, key->queue_id);
	if (queue != NULL && key->length != LONG_NAME)
		(void) enter(key);
	group = hash_search(group_hash, key, HASH_FIND, NULL);
	if (group != NULL && group->owner != NOBODY)
		group->again = true;
	else if (group != NULL)
		enlist(queue, group, PLACE_WAITING);
	else if (queue != NULL)
	{
		pg_atomic_write_u64(&queue->scan_at, 0);
		if (key->length != LONG_NAME)
			pg_atomic_fetch_add_u64(&shared->refused, 1);
	}
	LWLockRelease(&shared->lock);
	call_for_a_look(slot);
}

/* Gives a group back that this session owns. */
void
idemq_group_release(QueueSlot *slot, const GroupKey *key, GroupRelease how)
{
	GroupQueue *queue;
	GroupEntry *group;
	bool look = false;

	if (!idemq_slot_is_of(slot, key->queue_id))
		slot = idemq_slot_find(key->database, key->queue_id);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = queue_of(slot, key->database, key->queue_id);
	group = hash_search(group_hash, key, HASH_FIND, NULL);
	if (group != NULL && group->owner == IDEMQ_MY_PROC_NUMBER)
	{
		bool again = how == GROUP_AGAIN || group->again;

		look = how != GROUP_PREPARED && (again || how == GROUP_LATER);
		group->again = false;
		group->owner = how == GROUP_PREPARED ? PREPARED : NOBODY;
		if (look && queue != NULL && key->length != LONG_NAME)
			enlist(queue, group, again ? PLACE_WAITING : PLACE_DELAYED);
		else if (how != GROUP_PREPARED)
			remove_group(group);
		if (look && queue != NULL && key->length == LONG_NAME)
			want_scan(queue, !again);
	}
	LWLockRelease(&shared->lock);
	if (look)
		call_for_a_look(slot);
}

/* Removes the groups of a list.  Lock held. */
static void
clear(GroupQueue *queue, dlist_head *list)
{
	while (!dlist_is_empty(list))
	{
		GroupEntry *group = dlist_head_element(GroupEntry, node, list);

		unlist(queue, group);
		remove_group(group);
	}
}

/* Begins the groups of a queue that has got the slot of that index: all are to be looked at. */
void
idemq_groups_reset(int index, Oid database, int32 queue_id)
{
	GroupQueue *queue = &shared->queues[index];

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue->database = database;
	queue->queue_id = queue_id;
	pg_atomic_write_u64(&queue->scan_at, 0);
	LWLockRelease(&shared->lock);
}

/* Ends the groups of a queue that has lost the slot of that index. */
void
idemq_groups_forget(int index)
{
	GroupQueue *queue = &shared->queues[index];

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	clear(queue, &queue->waiting);
	clear(queue, &queue->delayed);
	pg_atomic_write_u64(&queue->scan_at, PG_UINT64_MAX);
	queue->database = InvalidOid;
	LWLockRelease(&shared->lock);
}

/* Has every group of a database looked at: a prepared transaction has ended. */
void
idemq_groups_unset_database(Oid database)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	hash_seq_init(&seq, group_hash);
	while ((group = hash_seq_search(&seq)) != NULL)
	{
		if (group->owner == PREPARED && group->key.database == database)
			remove_group(group);
	}
	for (int i = 0; i < idemq_max_queues; i++)
	{
		if (shared->queues[i].database == database)
			pg_atomic_write_u64(&shared->queues[i].scan_at, 0);
	}
	LWLockRelease(&shared->lock);
}

/* Says how many groups are marked or owned, of how many, and how many marks found no room. */
void
idemq_groups_usage(int *used, int *size, int64 *refused)
{
	LWLockAcquire(&shared->lock, LW_SHARED);
	*used = shared->count;
	LWLockRelease(&shared->lock);
	*size = MAX_GROUPS;
	*refused = (int64) pg_atomic_read_u64(&shared->refused);
}
