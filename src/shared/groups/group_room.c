/*
 * shared/groups/group_room.c
 *		The room that open transactions have taken in groups of queues with group_max_unfinished.
 *
 * An entry is the number of jobs that open transactions may add to a group, because they have asked
 * for room.  Committed jobs are counted in the rows at each enqueue (job/group_room.c).  The last
 * transaction that gives its room back removes the entry, so a group at rest has no entry.
 *
 * Let U be the number of committed unfinished jobs of a group, and A(T) the number of unfinished
 * jobs that an open transaction T has added to it, less those that it has ended.  The limit holds
 * for U plus every A(T) above 0.  An enqueue by T
 *	 - adds to the entry the room that T lacks, so that T's room is at least A(T) with the new job,
 *	   and reads the sum in the entry, in one step;
 *	 - then takes a snapshot S, and counts U as S shows it, ignoring the changes of T itself;
 *	 - is refused, and gives that room back, if U plus the sum exceeds the limit.
 * T keeps its room until its commit is visible, or until the enqueue that took the room is rolled
 * back.
 *
 * Assume that T is allowed to add a job.  For any other transaction R that has or had room in the
 * group, there are three cases:
 *	 - R has room when T adds to the entry.  Then R's room is in the sum that T reads.
 *	 - R has given its room back before that.  If R has committed, its commit was visible before it
 *	   gave the room back, so S, which is taken later, shows R's jobs.  Otherwise R has rolled back.
 *	 - R adds to the entry later.  Then either R reads T's room in the entry, or R's snapshot shows
 *	   T's jobs.  So of two enqueues for the last place, the later one to add to the entry is
 *	   refused.
 * A job is counted twice, in S and in the sum, only between the commit of its transaction and the
 * callback that follows.  A refused enqueue is in the sum until it has given its room back.  So an
 * enqueue can be refused even though there is room only while another transaction that enqueues
 * into the group is open or has just committed.
 *
 * Jobs that are never refused need no room: once they are committed, S shows them.
 *
 *		Model: test/model/group_room.pml; two enqueues, one of them inside a savepoint, and the
 *		other after a job that was added before the limit was known; one that uses the room of a job
 *		that it ends; and a job that is added without asking.
 *
 * The groups of one queue can use at most half of the table.  If there is no free entry, the caller
 * raises an error, because an enqueue that is not in the table might exceed the limit.
 *
 * An entry is found by 128 bits of a keyed hash of the group's name.  Two groups with the same hash
 * would share their room, but only the server can compute the hash.
 *
 * Locks: see README.md, level 4.  Each partition has a lock for its entries, and no session waits
 * for anything while it holds one, except that idemq.check() takes all of them, in order.
 * Functions that are called after commit and abort neither allocate nor raise.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/processes/processes.h"

#define ROOM_PARTITIONS 16

typedef struct RoomEntry
{
	GroupRoomKey key;
	int32 holder;  /* index of the queue state for which this entry is counted; set once */
	int64 taken;   /* sum of the room of all open transactions; above 0 */
	uint64 serial; /* unique number of the entry; set once */
} RoomEntry;

typedef struct GroupRoomShared
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) LWLockPadded locks[ROOM_PARTITIONS];
	pg_atomic_uint64 next_serial;
	/* Number of entries of each queue state, and then of all.  These limits are exact. */
	pg_atomic_uint32 used[FLEXIBLE_ARRAY_MEMBER];
} GroupRoomShared;

static GroupRoomShared *group_room_shared = NULL;
static HTAB *room_hash = NULL;

static int
used_count(void)
{
	return idemq_max_queues + 1;
}

static void
init_group_room(int tranche)
{
	for (int i = 0; i < ROOM_PARTITIONS; i++)
		LWLockInitialize(&group_room_shared->locks[i].lock, tranche);
	pg_atomic_init_u64(&group_room_shared->next_serial, 1);
	for (int i = 0; i < used_count(); i++)
		pg_atomic_init_u32(&group_room_shared->used[i], 0);
}

const ShmemPart idemq_group_room_part = {.area = (void **) &group_room_shared,
										 .size = offsetof(GroupRoomShared, used),
										 .each = sizeof(pg_atomic_uint32),
										 .count = used_count,
										 .lies_in = AREA_QUEUES,
										 .tranche = "idemq group room",
										 .init = init_group_room,
										 .hash = &room_hash,
										 .hash_name = "idemq group room",
										 .hash_entries = &idemq_max_buckets,
										 .key_size = sizeof(GroupRoomKey),
										 .entry_size = sizeof(RoomEntry),
										 .partitions = ROOM_PARTITIONS};

/* Sets the key of a group; name: text, not NULL. */
void
idemq_group_room_key(GroupRoomKey *key, int32 queue_id, Datum name)
{
	text *value = DatumGetTextPP(name);
	uint64 number = (uint64) (uint32) queue_id << 1;

	key->database = MyDatabaseId;
	key->queue_id = queue_id;
	for (int i = 0; i < (int) lengthof(key->name); i++)
		key->name[i] = idemq_secret_hash(number + i, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
}

static LWLock *
room_lock(uint32 hash)
{
	return &group_room_shared->locks[hash % ROOM_PARTITIONS].lock;
}

/*
 * Enters a group that has no entry; returns NULL if none is free.  The lock must be held
 * exclusively.
 */
static RoomEntry *
room_enter(const GroupRoomKey *key, uint32 hash, int32 holder)
{
	uint32 share = Max((uint32) idemq_max_buckets / 2, 1);
	RoomEntry *entry;
	bool found;

	if (!count_one_within(&group_room_shared->used[holder], share))
		return NULL;
	if (!count_one_within(&group_room_shared->used[idemq_max_queues], (uint32) idemq_max_buckets))
	{
		pg_atomic_fetch_sub_u32(&group_room_shared->used[holder], 1);
		return NULL;
	}
	entry = hash_search_with_hash_value(room_hash, key, hash, HASH_ENTER_NULL, &found);
	if (entry == NULL)
	{
		pg_atomic_fetch_sub_u32(&group_room_shared->used[holder], 1);
		pg_atomic_fetch_sub_u32(&group_room_shared->used[idemq_max_queues], 1);
		return NULL;
	}
	entry->holder = holder;
	entry->taken = 0;
	entry->serial = pg_atomic_fetch_add_u64(&group_room_shared->next_serial, 1);
	return entry;
}

/*
 * Takes room for jobs in a group, regardless of the limit, and sets *sum to the room that all open
 * transactions have there, including this one.  Returns false, and takes no room, if there is no
 * free entry.
 */
bool
idemq_group_room_take(const QueueState *qstate, const GroupRoomKey *key, int64 jobs, int64 *sum)
{
	uint32 hash = get_hash_value(room_hash, key);
	LWLock *lock = room_lock(hash);
	RoomEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = hash_search_with_hash_value(room_hash, key, hash, HASH_FIND, NULL);
	if (entry == NULL)
		entry = room_enter(key, hash, idemq_qstate_index(qstate));
	if (entry != NULL)
	{
		entry->taken += jobs;
		*sum = entry->taken;
	}
	LWLockRelease(lock);
	if (entry == NULL && idemq_count_full(COUNT_FULL_GROUP_ROOM))
		idemq_worker_need_by(0);
	return entry != NULL;
}

/* Gives back room of this transaction. */
void
idemq_group_room_give_back(const GroupRoomKey *key, int64 jobs)
{
	uint32 hash = get_hash_value(room_hash, key);
	LWLock *lock = room_lock(hash);
	RoomEntry *entry;

	if (jobs == 0)
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = hash_search_with_hash_value(room_hash, key, hash, HASH_FIND, NULL);
	if (entry != NULL && (entry->taken -= jobs) <= 0)
	{
		pg_atomic_fetch_sub_u32(&group_room_shared->used[entry->holder], 1);
		pg_atomic_fetch_sub_u32(&group_room_shared->used[idemq_max_queues], 1);
		(void) hash_search_with_hash_value(room_hash, key, hash, HASH_REMOVE, NULL);
	}
	LWLockRelease(lock);
}

/* Copies the serials of up to max entries of this database for idemq.check(); returns how many. */
int
idemq_group_room_copy(uint64 *serials, int max)
{
	HASH_SEQ_STATUS seq;
	RoomEntry *entry;
	int count = 0;

	for (int i = 0; i < ROOM_PARTITIONS; i++)
		LWLockAcquire(&group_room_shared->locks[i].lock, LW_SHARED);
	hash_seq_init(&seq, room_hash);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (count < max && entry->key.database == MyDatabaseId)
			serials[count++] = entry->serial;
	}
	for (int i = ROOM_PARTITIONS - 1; i >= 0; i--)
		LWLockRelease(&group_room_shared->locks[i].lock);
	return count;
}

/* Returns how much of the table is in use. */
TableUsage
idemq_group_room_usage(void)
{
	uint32 used = pg_atomic_read_u32(&group_room_shared->used[idemq_max_queues]);

	return (TableUsage){.used = (int) Min(used, (uint32) idemq_max_buckets),
						.room = idemq_max_buckets,
						.refused = idemq_count_read(COUNT_FULL_GROUP_ROOM)};
}
