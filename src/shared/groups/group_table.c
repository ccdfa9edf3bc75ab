/*
 * shared/groups/group_table.c
 *		The table of FIFO groups in shared memory: a hash of the groups that are marked
 *		or owned, or known to have a floor, and for each queue the lists of those that
 *		are to be checked.  What the words mean stands in shared/groups/groups.c.
 *
 * A group that is here for its floor alone is idle; the one that has been idle for the
 * longest time makes room for another.
 *
 * Locks: see README.md, level 4.  One lock covers the hash and the lists; the atomics of
 * a queue are written under it and read without.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"

/* Groups in the table, of all queues; and beside them marks of jobs with dependencies. */
#define MAX_GROUPS 16384
#define MAX_DEPENDENCY_MARKS 8192

typedef struct GroupsShared
{
	LWLock lock;
	int count;				   /* groups in the hash */
	int dependency_marks;	   /* marks of jobs with dependencies in it */
	int nidle;				   /* of these, idle */
	pg_atomic_uint32 nlimited; /* of these, limited; read without the lock */
	dlist_head idle;		   /* the one that is idle for the longest time first */
	GroupWindow of_databases[GROUP_DATABASE_WINDOWS];
	GroupQueue queues[FLEXIBLE_ARRAY_MEMBER]; /* idemq_max_queues */
} GroupsShared;

static GroupsShared *shared = NULL;
static HTAB *group_hash = NULL;
static const int hash_entries = MAX_GROUPS + MAX_DEPENDENCY_MARKS;

static void
init_window(GroupWindow *window)
{
	SpinLockInit(&window->lock);
	window->least[0] = window->least[1] = GROUP_KEEP_FLOOR;
}

/* Makes the table; its memory is zeros. */
static void
init_groups(int tranche)
{
	LWLockInitialize(&shared->lock, tranche);
	dlist_init(&shared->idle);
	pg_atomic_init_u32(&shared->nlimited, 0);
	for (int i = 0; i < GROUP_DATABASE_WINDOWS; i++)
		init_window(&shared->of_databases[i]);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		GroupQueue *queue = &shared->queues[i];

		dlist_init(&queue->waiting);
		dlist_init(&queue->delayed);
		queue->scan_at = PG_INT64_MAX;
		init_window(&queue->window);
		pg_atomic_init_u32(&queue->round.number, 0);
		ConditionVariableInit(&queue->round.over);
	}
}

const ShmemPart idemq_groups_part = {.area = (void **) &shared,
									 .size = offsetof(GroupsShared, queues),
									 .each = sizeof(GroupQueue),
									 .count = idemq_queue_count,
									 .name = "idemq groups area",
									 .tranche = "idemq groups",
									 .init = init_groups,
									 .hash = &group_hash,
									 .hash_name = "idemq groups",
									 .hash_entries = &hash_entries,
									 .key_size = sizeof(GroupKey),
									 .entry_size = sizeof(GroupEntry)};

/* Takes the lock of the table. */
void
idemq_group_table_lock(LWLockMode mode)
{
	LWLockAcquire(&shared->lock, mode);
}

/* Releases the lock of the table. */
void
idemq_group_table_unlock(void)
{
	LWLockRelease(&shared->lock);
}

/* Returns what is known of the groups of the queue whose slot has that index. */
GroupQueue *
idemq_group_queue_at(int index)
{
	return &shared->queues[index];
}

/* Returns the window of that number: a slot's index, or above those a database's. */
GroupWindow *
idemq_group_window_at(int number)
{
	return number < idemq_max_queues ? &shared->queues[number].window
									 : &shared->of_databases[number - idemq_max_queues];
}

/* Returns the queue of a slot if it is that one; NULL otherwise.  Lock held. */
GroupQueue *
idemq_group_queue(const QueueSlot *slot, Oid database, int32 queue_id)
{
	GroupQueue *queue = slot == NULL ? NULL : &shared->queues[idemq_slot_index(slot)];

	if (queue == NULL || queue->database != database || queue->queue_id != queue_id)
		return NULL;
	return queue;
}

/* Notes when the groups of a queue are to be checked.  Lock held. */
static void
note_due(GroupQueue *queue)
{
	int index = (int) (queue - shared->queues);
	pg_atomic_uint64 *due = &idemq_slot_at(index)->due[DUE_GROUPS];
	int64 when = queue->scan_at;
	int64 known;

	if (!dlist_is_empty(&queue->delayed))
		when = Min(when, queue->delayed_until);
	if (!dlist_is_empty(&queue->waiting))
		when = 0;
	known = (int64) pg_atomic_read_u64(due);
	if (when != known)
		pg_atomic_write_u64(due, (uint64) when);
	if (when < known)
		idemq_worker_mark_slot(index);
}

/* Takes a group out of its list.  queue: the group's, not needed if it is idle.  Lock held. */
void
idemq_group_unlist(GroupQueue *queue, GroupEntry *group)
{
	if (group->list == LIST_NONE)
		return;
	dlist_delete(&group->node);
	if (group->list == LIST_IDLE)
		shared->nidle--;
	else
		note_due(queue);
	group->list = LIST_NONE;
}

/* Puts a group into a list.  Lock held. */
void
idemq_group_enlist(GroupQueue *queue, GroupEntry *group, GroupList list)
{
	idemq_group_unlist(queue, group);
	group->list = list;
	if (list == LIST_IDLE)
	{
		dlist_push_tail(&shared->idle, &group->node);
		shared->nidle++;
		return;
	}
	if (list == LIST_DELAYED && dlist_is_empty(&queue->delayed))
		queue->delayed_until = idemq_mono_now() + LEASE_BUSY_RETRY;
	dlist_push_tail(list == LIST_WAITING ? &queue->waiting : &queue->delayed, &group->node);
	note_due(queue);
}

/* Returns a group's entry; NULL when there is none.  Lock held. */
GroupEntry *
idemq_group_find(const GroupKey *key)
{
	return hash_search(group_hash, key, HASH_FIND, NULL);
}

/* Notes whether all places of a group are taken, and a job waits for one.  Lock held. */
void
idemq_group_set_limited(GroupEntry *group, bool limited)
{
	if (limited && !group->limited)
		pg_atomic_fetch_add_u32(&shared->nlimited, 1);
	else if (!limited && group->limited)
		pg_atomic_fetch_sub_u32(&shared->nlimited, 1);
	group->limited = limited;
}

/*
 * Returns whether an entry is the mark of a job with dependencies
 * (shared/groups/dependencies.c): no group has that name.
 */
static bool
is_dependency_mark(const GroupKey *key)
{
	return key->length > 0 && key->name[0] == '\0';
}

/* Removes an entry that is in no list.  Lock held. */
void
idemq_group_remove(GroupEntry *group)
{
	int *count = is_dependency_mark(&group->key) ? &shared->dependency_marks : &shared->count;

	idemq_group_set_limited(group, false);
	if (hash_search(group_hash, &group->key, HASH_REMOVE, NULL) != NULL)
		(*count)--;
}

/* Removes the group that has been idle for the longest time, if there is one.  Lock held. */
static void
make_room(void)
{
	GroupEntry *group;

	if (dlist_is_empty(&shared->idle))
		return;
	group = dlist_head_element(GroupEntry, node, &shared->idle);
	idemq_group_unlist(NULL, group);
	idemq_group_remove(group);
}

/* Returns a group's entry, entered if need be; NULL when there is no room.  Lock held. */
GroupEntry *
idemq_group_enter(const GroupKey *key)
{
	GroupEntry *group = idemq_group_find(key);
	bool dependency = is_dependency_mark(key);
	int *count = dependency ? &shared->dependency_marks : &shared->count;
	bool found;

	if (group != NULL)
		return group;
	if (shared->count >= MAX_GROUPS && !dependency)
		make_room();
	if (*count >= (dependency ? MAX_DEPENDENCY_MARKS : MAX_GROUPS))
		return NULL;
	group = hash_search(group_hash, key, HASH_ENTER_NULL, &found);
	if (group == NULL)
		return NULL;
	(*count)++;
	group->owner = NOBODY;
	group->again = false;
	group->limited = false;
	group->list = LIST_NONE;
	group->floor = GROUP_NO_FLOOR;
	group->lowered = GROUP_KEEP_FLOOR;
	return group;
}

/*
 * Counts a mark for which there was no room; of many dependencies it is no news
 * (job/dependencies.c).
 */
void
idemq_group_refused(const GroupKey *key)
{
	if (is_dependency_mark(key))
		return;
	(void) idemq_count_full(COUNT_FULL_GROUPS);
}

/* Returns whether a group is being checked, or will be: for idemq.check(). */
bool
idemq_groups_know(const QueueSlot *slot, const GroupKey *key)
{
	const GroupEntry *group;
	GroupQueue *queue;
	bool known;

	LWLockAcquire(&shared->lock, LW_SHARED);
	queue = idemq_group_queue(slot, key->database, key->queue_id);
	group = idemq_group_find(key);
	known = queue == NULL || queue->scan_at != PG_INT64_MAX ||
			(group != NULL && group->list != LIST_IDLE);
	LWLockRelease(&shared->lock);
	return known;
}

/* Returns whether all groups of a queue are to be checked now; then the caller must do it. */
bool
idemq_groups_take_scan(const QueueSlot *slot, int32 queue_id)
{
	GroupQueue *queue;
	bool wanted;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, MyDatabaseId, queue_id);
	wanted = queue != NULL && queue->scan_at <= idemq_mono_now();
	if (wanted)
	{
		queue->scan_at = PG_INT64_MAX;
		note_due(queue);
	}
	LWLockRelease(&shared->lock);
	return wanted;
}

/* Asks for a scan of all groups of a queue, at once or later.  Lock held. */
void
idemq_group_queue_scan(GroupQueue *queue, bool later)
{
	int64 when = later ? idemq_mono_now() + LEASE_BUSY_RETRY : 0;

	queue->scan_at = Min(queue->scan_at, when);
	note_due(queue);
}

/* Asks for a scan of all groups of a queue, at once or when their marks may find room. */
void
idemq_groups_want_scan(const QueueSlot *slot, int32 queue_id, bool later)
{
	GroupQueue *queue;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue(slot, MyDatabaseId, queue_id);
	if (queue != NULL)
		idemq_group_queue_scan(queue, later);
	LWLockRelease(&shared->lock);
	idemq_worker_need_by(later ? idemq_mono_now() + LEASE_BUSY_RETRY : 0);
}

/* Copies up to max groups of a database, for idemq.check(); returns how many. */
int
idemq_groups_copy(Oid database, GroupEntry *copies, int max)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;
	int count = 0;

	LWLockAcquire(&shared->lock, LW_SHARED);
	hash_seq_init(&seq, group_hash);
	while ((group = hash_seq_search(&seq)) != NULL)
	{
		if (count < max && group->key.database == database)
			copies[count++] = *group;
	}
	LWLockRelease(&shared->lock);
	return count;
}

/* Removes the groups of a list.  Lock held. */
static void
clear(GroupQueue *queue, dlist_head *list)
{
	while (!dlist_is_empty(list))
	{
		GroupEntry *group = dlist_head_element(GroupEntry, node, list);

		idemq_group_unlist(queue, group);
		idemq_group_remove(group);
	}
}

/* Begins the groups of a queue that has got the slot of that index: all are to be checked. */
void
idemq_groups_reset(int index, Oid database, int32 queue_id)
{
	GroupQueue *queue = &shared->queues[index];

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	queue->database = database;
	queue->queue_id = queue_id;
	idemq_group_queue_scan(queue, false);
	LWLockRelease(&shared->lock);
	idemq_worker_need_by(0);
}

/* Returns whether a group is of a database, and of a queue unless that is 0. */
static bool
is_of(const GroupEntry *group, Oid database, int32 queue_id)
{
	return group->key.database == database && (queue_id == 0 || group->key.queue_id == queue_id);
}

/* Removes the idle groups of a database's queue, of all its queues with 0.  Lock held. */
static void
clear_idle(Oid database, int32 queue_id)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &shared->idle)
	{
		GroupEntry *group = dlist_container(GroupEntry, node, iter.cur);

		if (!is_of(group, database, queue_id))
			continue;
		idemq_group_unlist(NULL, group);
		idemq_group_remove(group);
	}
}

/* Ends the groups of a queue that has lost the slot of that index. */
void
idemq_groups_forget(int index)
{
	GroupQueue *queue = &shared->queues[index];

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	clear(queue, &queue->waiting);
	clear(queue, &queue->delayed);
	clear_idle(queue->database, queue->queue_id);
	queue->scan_at = PG_INT64_MAX;
	note_due(queue);
	queue->database = InvalidOid;
	LWLockRelease(&shared->lock);
}

/* Drops the floors of a database's queue, of all its queues with 0.  Lock held. */
static void
drop_floors(Oid database, int32 queue_id)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;

	clear_idle(database, queue_id);
	hash_seq_init(&seq, group_hash);
	while ((group = hash_seq_search(&seq)) != NULL)
	{
		if (!is_of(group, database, queue_id))
			continue;
		group->floor = GROUP_NO_FLOOR;
		group->lowered = GROUP_DROP_FLOOR;
	}
}

/* Asks for a check of every group of a database: a prepared transaction has ended. */
void
idemq_groups_unset_database(Oid database)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	drop_floors(database, 0);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		if (shared->queues[i].database == database)
			idemq_group_queue_scan(&shared->queues[i], false);
	}
	LWLockRelease(&shared->lock);
}

/* Has all groups of a queue checked, without floors: its settings of groups have changed. */
void
idemq_groups_drop_floors(const QueueSlot *slot, int32 queue_id)
{
	GroupQueue *queue;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	drop_floors(MyDatabaseId, queue_id);
	queue = idemq_group_queue(slot, MyDatabaseId, queue_id);
	if (queue != NULL)
		idemq_group_queue_scan(queue, false);
	LWLockRelease(&shared->lock);
	idemq_worker_need_by(0);
}

/*
 * Returns of how many groups of a queue all places are taken, and a job waits for one, as
 * far as memory knows.
 */
int64
idemq_groups_limited(Oid database, int32 queue_id)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;
	int64 count = 0;

	if (pg_atomic_read_u32(&shared->nlimited) == 0)
		return 0;
	LWLockAcquire(&shared->lock, LW_SHARED);
	hash_seq_init(&seq, group_hash);
	while ((group = hash_seq_search(&seq)) != NULL)
	{
		if (group->limited && is_of(group, database, queue_id))
			count++;
	}
	LWLockRelease(&shared->lock);
	return count;
}

/* Returns what is used of the table by groups that are marked or owned. */
TableUsage
idemq_groups_usage(void)
{
	TableUsage usage = {.room = MAX_GROUPS, .refused = idemq_count_read(COUNT_FULL_GROUPS)};

	LWLockAcquire(&shared->lock, LW_SHARED);
	usage.used = shared->count - shared->nidle;
	LWLockRelease(&shared->lock);
	return usage;
}
