/*
 * shared/groups/groups.c
 *		Which FIFO groups may need a head, in shared memory; and which session gives it one.
 *
 * A group needs a head when its head has finished, or when its first job is enqueued.
 * The session that does so marks the group after its commit.  The session that promotes
 * heads (job/promote.c: the worker, or a claim) takes a marked group, checks its rows
 * under a newer snapshot, and promotes its first job if it has no head.
 *
 * At most one head: one session at a time owns a group, from before its check until
 * after the end of the transaction in which it promoted.  Its snapshot is newer than
 * the last owner's promotion became visible, so it sees that head, or that head's end.
 * Two owners with different snapshots could make two heads.
 *
 * No group is forgotten: a mark that comes while a session owns the group is kept for
 * the time after.  So
 *
 *		of a group without a head, whose jobs are committed, there is a mark, or an
 *		owner, or its queue is to be scanned, or a session between its commit and its
 *		callback is about to mark it.
 *
 * A held snapshot keeps an index entry of each former head and of each job that was
 * blocked.  No check goes through these twice: a group that has had a head has a floor,
 * from which a check begins.  Its owner moves it up when its promotion has committed:
 * to the promotion's time for heads, since the ready_at of a head is never set to a time
 * that has passed, and to the promoted job's id for blocked jobs.  A job that is blocked
 * later with a lesser id, by a late commit or a retry, lowers it by its mark; a change
 * by hand drops it.  It is only a cache.
 *
 * A floor is never above what a check's snapshot shows.  Call W a writer, which blocks a
 * job or changes one by hand, and P an owner that checks:
 *
 *		W: enters the window (shared/groups/group_window.c); is visible; sets its marks, group by
 *			group; leaves the window.
 *		P: owns the group; takes its snapshot; reads the window, then the floor and what has
 *			lowered it; checks; promotes; is visible; stores its floor and owns no more.
 *
 * If the snapshot shows W, W was in the window before.  When P reads it, W is still
 * there, and the window's least id is not above W's; or has left, so that its mark was
 * set before P reads the floor.  That mark came either since P owns the group, and then
 * it has lowered what P reads; or while the group had no owner, and then it lowered the
 * floor itself; or while an earlier owner had the group, who stored no floor above it;
 * or before that one owned the group, whose snapshot then showed W: it knew W's job when
 * it chose its head, and the head's id is not above that of W's job while it is blocked.
 * A mark that finds no entry finds no floor: an entry that is new, or comes back, has none.
 *
 * If the snapshot does not show W, the check is right for the rows that it shows: these
 * are as they were before W.  The floor that P stores may be too high for W's job then.
 * So it need not heed the window, since who checks next with a snapshot that shows W
 * finds W there, or W's mark: it came after P's snapshot, when P owned the group or later.
 *
 * So a check sees the head that its snapshot shows, and no second one is made; and it
 * sees the first of the blocked jobs that are committed, and none of these is passed.
 * What the own transaction has written is visible to its checks at once, and its marks
 * are not set before its end: it heeds these as if it were in the window.
 *
 * COMMIT PREPARED makes visible what no session knows.  It enters its database's window
 * before, and drops all floors of the database after, as a writer by hand does.  Who has
 * no slot when it enters a window enters its database's: the queue may get a slot, and
 * its groups floors, before it is visible.
 *
 * A group with places (job/places.c) needs its next job promoted as soon as the one before
 * it is being claimed.  Such a claim marks the group at once, before it is visible: that
 * mark lowers no floor, and the lease entry tells the check what the snapshot does not show.
 *
 * The rows are the truth.  After a start, and whenever a mark may be lost (no room,
 * PREPARE TRANSACTION), the queue is to be scanned: all its groups are checked.
 * The name of a group is kept here only up to GROUP_NAME bytes; of a longer one only
 * an owner is kept, and its mark is that its queue is to be scanned.  A queue that gets its
 * slot is to be scanned: while it had none, it had no marks.
 *
 * A transaction that owns a group cannot be prepared (txn/pending.c): an owner is a session.
 *
 * Locks: shared/groups/group_table.c's.  Functions that are called after commit or abort
 * neither allocate nor raise.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/groups/groups.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"

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

/* Has a queue's groups checked: by the worker or, without one, by a sleeper. */
static void
call_for_check(QueueSlot *slot)
{
	idemq_worker_need_by(0);
	if (slot != NULL && !idemq_worker_present())
		(void) idemq_sleepers_wake(idemq_sleepers_of_queue(slot), 1);
}

/* Ends the delay of a queue's groups, if its time has come.  Lock held. */
static void
end_delay(GroupQueue *queue)
{
	if (dlist_is_empty(&queue->delayed) || queue->delayed_until > idemq_mono_now())
		return;
	while (!dlist_is_empty(&queue->delayed))
		idemq_group_enlist(queue, dlist_head_element(GroupEntry, node, &queue->delayed),
						   LIST_WAITING);
}

/* Makes this session a group's owner, and keeps its floor.  Lock held. */
static void
become_owner(GroupQueue *queue, GroupEntry *group, GroupFloor *floor)
{
	idemq_group_unlist(queue, group);
	idemq_group_set_limited(group, false);
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
 * Takes up to max groups of a queue to check: this session owns them until
 * idemq_group_release.  Returns how many.  The snapshot by which they are checked is to
 * be taken after that.
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
 * Takes the group of taken->key, marked or not, as idemq_groups_take does; another
 * session that owns it checks it again.  One that is in a list of its queue is left there,
 * to be checked, if the queue has got another slot meanwhile.
 */
GroupOwn
idemq_group_own(QueueSlot *slot, GroupTaken *taken)
{
	const GroupKey *key = &taken->key;
	GroupOwn own = GROUP_FULL;
	GroupQueue *queue;
	GroupEntry *group;

	slot = idemq_slot_current(slot, key->queue_id);
	idemq_group_table_lock(LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, key->database, key->queue_id);
	group = idemq_group_enter(key);
	if (group != NULL && (group->owner != NOBODY ||
						  (queue == NULL && group->list != LIST_NONE && group->list != LIST_IDLE)))
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
 * Returns where a check of a group may begin, by a snapshot that this session has taken
 * since it owns the group; each newer snapshot needs a newer floor.  own: to which id
 * this transaction will lower the floor itself, as idemq_group_mark takes it.
 */
GroupFloor
idemq_group_floor(QueueSlot *slot, const GroupKey *key, int64 own)
{
	GroupFloor floor = GROUP_NO_FLOOR;
	GroupEntry *group;
	int64 least;

	slot = idemq_slot_current(slot, key->queue_id);
	if (slot == NULL)
		return floor;
	/* In this order: who has left the window has set its marks. */
	least = idemq_group_window_least(slot, key->database);
	idemq_group_table_lock(LW_SHARED);
	group = idemq_group_find(key);
	if (group != NULL && group->owner == IDEMQ_MY_PROC_NUMBER)
		floor = lower(group->floor, Min(Min(group->lowered, least), own));
	idemq_group_table_unlock();
	return floor;
}

/*
 * Marks a group; to be called after the commit by which it may need a head.  id: of a
 * job that is blocked since, for its floor; or GROUP_KEEP_FLOOR, GROUP_DROP_FLOOR.
 */
void
idemq_group_mark(QueueSlot *slot, const GroupKey *key, int64 id)
{
	GroupQueue *queue;
	GroupEntry *group;

	slot = idemq_slot_current(slot, key->queue_id);
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
			idemq_group_enlist(queue, group, LIST_WAITING);
	}
	else if (queue != NULL && key->length != LONG_NAME)
		idemq_group_refused(key);
	if (queue != NULL && (key->length == LONG_NAME || group == NULL))
		idemq_group_queue_scan(queue, false);
	idemq_group_table_unlock();
	call_for_check(slot);
}

/* Enlists a group that has no owner any more.  wanted: it is to be checked.  Lock held. */
static void
put_back(GroupQueue *queue, GroupEntry *group, bool wanted, bool again)
{
	bool is_long = group->key.length == LONG_NAME;

	group->owner = NOBODY;
	if (wanted && queue != NULL && !is_long)
		idemq_group_enlist(queue, group, again ? LIST_WAITING : LIST_DELAYED);
	else if (queue != NULL && (group->limited || group->floor.blocked != PG_INT64_MIN))
		idemq_group_enlist(queue, group, LIST_IDLE);
	else
		idemq_group_remove(group);
	if (wanted && queue != NULL && is_long)
		idemq_group_queue_scan(queue, !again);
}

/*
 * Gives back a group that this session owns.  Its floor becomes taken->floor, or what
 * has lowered it meanwhile.
 */
void
idemq_group_release(QueueSlot *slot, const GroupTaken *taken, GroupRelease how)
{
	const GroupKey *key = &taken->key;
	GroupQueue *queue;
	GroupEntry *group;
	bool wanted = false;

	slot = idemq_slot_current(slot, key->queue_id);
	idemq_group_table_lock(LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, key->database, key->queue_id);
	group = idemq_group_find(key);
	if (group != NULL && group->owner == IDEMQ_MY_PROC_NUMBER)
	{
		bool again = how == GROUP_AGAIN || group->again;

		wanted = again || how == GROUP_LATER;
		group->again = false;
		group->floor = lower(taken->floor, group->lowered);
		idemq_group_set_limited(group, how == GROUP_LIMITED);
		put_back(queue, group, wanted, again);
	}
	idemq_group_table_unlock();
	if (wanted)
		call_for_check(slot);
}
