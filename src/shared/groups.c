/*
 * shared/groups.c
 *		Which FIFO groups may need a head, in shared memory; and who gives it one.
 *
 * A group needs a head when its head has finished, or when its first job is
 * enqueued.  Whoever does so marks the group after his commit; who promotes heads
 * (job/promote.c: the worker, or a claim) takes a marked group, looks at its rows
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
 * What a held snapshot keeps in the index of groups, of former heads and of jobs that
 * were blocked, no look goes through again: a group that has had a head has a floor,
 * from which a look begins.  Its owner moves it up when his promotion has committed: to
 * the promotion's time for heads, since the ready_at of a head is never set to a time
 * that has passed; and to the promoted job's id for those that are blocked.  A job that
 * is blocked later with a lesser id, a late commit or one that was retried, lowers it by
 * its mark; a change by hand drops it.  It is only a cache.
 *
 * The rows are the truth.  After a start, and whenever a mark may be lost (no room,
 * a prepared transaction), the queue is to be scanned: all its groups are looked at.
 * The name of a group is kept here only up to GROUP_NAME bytes; of a longer one only
 * an owner is kept, and its mark is that its queue is to be scanned.  A queue without
 * a slot has no marks: its claims scan now and then.
 *
 * Locks: one lock covers the hash and the lists; the atomics of a queue are written
 * under it and read without.  It is taken after shared/slots.c's locks.  Functions that are
 * called after commit or abort neither allocate nor raise.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "shared/group_table.h"
#include "shared/groups.h"
#include "shared/slots.h"
#include "shared/wake.h"
#include "shared/worker_board.h"
#include "base/clock.h"
#include "base/compat.h"

/* Bytes that a key has in place of a long name. */
#define LONG_NAME_HASH 16

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
		uint64 hash[LONG_NAME_HASH / sizeof(uint64)];

		hash[0] = hash_bytes_extended((const unsigned char *) name, length, 0);
		hash[1] = hash_bytes_extended((const unsigned char *) name, length, 1);
		key->length = LONG_NAME;
		memcpy(key->name, hash, sizeof(hash));
	}
}

/* Returns the bytes of a key up to the end of its name; what follows them is zero. */
Size
idemq_group_key_size(const GroupKey *key)
{
	Size name = key->length == LONG_NAME ? LONG_NAME_HASH : (Size) key->length;

	return offsetof(GroupKey, name) + name;
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

/* Lets the groups wait no longer that were delayed.  Lock held. */
static void
end_delay(GroupQueue *queue)
{
	if (pg_atomic_read_u64(&queue->delayed_until) > (uint64) idemq_mono_now())
		return;
	while (!dlist_is_empty(&queue->delayed))
		idemq_group_enlist(queue, dlist_head_element(GroupEntry, node, &queue->delayed),
						   PLACE_WAITING);
}

/* Makes this session a group's owner, and reads its floor.  Lock held. */
static void
become_owner(GroupQueue *queue, GroupEntry *group, GroupFloor *floor)
{
	idemq_group_unlist(queue, group);
	group->owner = IDEMQ_MY_PROC_NUMBER;
	group->lowered = GROUP_KEEP_FLOOR;
	*floor = group->floor;
}

/* Returns a floor when jobs with that id, and above, may be blocked. */
static GroupFloor
lower(GroupFloor floor, int64 id)
{
	if (id == GROUP_DROP_FLOOR)
		return GROUP_NO_FLOOR;
	floor.blocked = Min(floor.blocked, id);
	return floor;
}

/*
 * Takes up to max groups of a queue to look at: this session owns them until
 * idemq_group_release.  Returns how many.  A snapshot that is taken after that sees
 * all jobs that could become the head from the floor on.
 */
int
idemq_groups_take(const QueueSlot *slot, int32 queue_id, GroupTaken *taken, int max)
{
	GroupQueue *queue;
	int count = 0;

	idemq_group_table_lock(LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, MyDatabaseId, queue_id);
	if (queue != NULL)
		end_delay(queue);
	while (queue != NULL && count < max && !dlist_is_empty(&queue->waiting))
	{
		GroupEntry *group = dlist_head_element(GroupEntry, node, &queue->waiting);

		taken[count].key = group->key;
		become_owner(queue, group, &taken[count++].floor);
	}
	idemq_group_table_unlock();
	return count;
}

/*
 * Takes the group of taken->key, marked or not, as idemq_groups_take does; whoever has
 * it looks again.
 */
GroupOwn
idemq_group_own(const QueueSlot *slot, GroupTaken *taken)
{
	const GroupKey *key = &taken->key;
	GroupOwn own = GROUP_FULL;
	GroupQueue *queue;
	GroupEntry *group;

	idemq_group_table_lock(LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, key->database, key->queue_id);
	group = idemq_group_enter(key);
	if (group != NULL && group->owner != NOBODY)
	{
		own = GROUP_BUSY;
		group->again = true;
	}
	else if (group != NULL)
	{
		own = GROUP_OWNED;
		become_owner(queue, group, &taken->floor);
	}
	idemq_group_table_unlock();
	return own;
}

/*
 * Has a group looked at; after the commit by which it may need a head.  id: of a job
 * that is blocked since, for its floor; or GROUP_KEEP_FLOOR, GROUP_DROP_FLOOR.
 */
void
idemq_group_mark(QueueSlot *slot, const GroupKey *key, int64 id)
{
	GroupQueue *queue;
	GroupEntry *group;

	if (!idemq_slot_is_of(slot, key->queue_id))
		slot = idemq_slot_find(key->database, key->queue_id);
	idemq_group_table_lock(LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, key->database, key->queue_id);
	if (queue != NULL && key->length != LONG_NAME)
		group = idemq_group_enter(key);
	else
		group = idemq_group_find(key);
	if (group != NULL && group->owner != NOBODY)
	{
		group->again = true;
		group->lowered = Min(group->lowered, id);
	}
	else if (group != NULL)
	{
		group->floor = lower(group->floor, id);
		if (queue != NULL && key->length != LONG_NAME)
			idemq_group_enlist(queue, group, PLACE_WAITING);
	}
	else if (queue != NULL && key->length != LONG_NAME)
		idemq_group_refused();
	if (queue != NULL && (key->length == LONG_NAME || group == NULL))
		idemq_group_queue_scan(queue, false);
	idemq_group_table_unlock();
	call_for_a_look(slot);
}

/* Puts a group where it belongs that nobody owns any more; look: it needs one.  Lock held. */
static void
put_back(GroupQueue *queue, GroupEntry *group, bool look, bool again)
{
	bool is_long = group->key.length == LONG_NAME;

	group->owner = NOBODY;
	if (look && queue != NULL && !is_long)
		idemq_group_enlist(queue, group, again ? PLACE_WAITING : PLACE_DELAYED);
	else if (queue != NULL && group->floor.blocked != PG_INT64_MIN)
		idemq_group_enlist(queue, group, PLACE_IDLE);
	else
		idemq_group_remove(group);
	if (look && queue != NULL && is_long)
		idemq_group_queue_scan(queue, !again);
}

/*
 * Gives a group back that this session owns.  Its floor is taken->floor then, save for
 * what has lowered it meanwhile.
 */
void
idemq_group_release(QueueSlot *slot, const GroupTaken *taken, GroupRelease how)
{
	const GroupKey *key = &taken->key;
	GroupQueue *queue;
	GroupEntry *group;
	bool look = false;

	if (!idemq_slot_is_of(slot, key->queue_id))
		slot = idemq_slot_find(key->database, key->queue_id);
	idemq_group_table_lock(LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, key->database, key->queue_id);
	group = idemq_group_find(key);
	if (group != NULL && group->owner == IDEMQ_MY_PROC_NUMBER)
	{
		bool again = how == GROUP_AGAIN || group->again;

		look = how != GROUP_PREPARED && (again || how == GROUP_LATER);
		group->again = false;
		group->floor = lower(taken->floor, group->lowered);
		if (how == GROUP_PREPARED)
			group->owner = PREPARED;
		else
			put_back(queue, group, look, again);
	}
	idemq_group_table_unlock();
	if (look)
		call_for_a_look(slot);
}
