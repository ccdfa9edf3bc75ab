/*
 * shared/groups/groups.c
 *		Which FIFO groups may need a head, in shared memory; and which session gives it one.
 *
 * A group needs a head when its head has finished, or when its first job is enqueued.
 * The session that finishes or enqueues the job marks the group after its commit.  The
 * session that promotes heads (job/promote.c: the worker, or a claim) takes a marked group,
 * checks its rows under a newer snapshot, and promotes its first job if it has no head.
 *
 * At most one head: one session at a time owns a group, its promoter, from before its check
 * until after the end of the transaction in which it promoted.  It takes its snapshot after the
 * last promoter's promotion became visible, so it sees that head, or that head's end.
 * Two promoters with different snapshots could make two heads.
 *
 * No group is forgotten: a mark that comes while a session owns the group is kept for
 * the time after.  So
 *
 *		a group without a head, whose jobs are committed, has a mark, or a promoter, or its
 *		queue is to be scanned, or a session between its commit and its callback is about
 *		to mark it.
 *
 * A held snapshot keeps an index entry of each former head and of each job that was blocked.  No
 * check goes through these twice: a group that has had a head has a low-water mark, from which a
 * check begins.  The group's promoter moves it up when its promotion has committed: to the
 * promotion's time for heads, since the ready_at of a head is never set to a time that has passed,
 * and to the promoted job's id for blocked jobs.  A job that is blocked later with a lesser id, by
 * a late commit or a retry, lowers it by its mark; a change by hand drops it.  It is only a cache.
 *
 * A low-water mark is never above what a check's snapshot shows.  Call W a writer, which blocks a
 * job or changes one by hand, and P a promoter that checks:
 *
 *		W: enters the commit window (shared/groups/commit_window.c); is visible; sets its marks,
 *			group by group; leaves the commit window.
 *		P: owns the group; takes its snapshot; reads the commit window, then the low-water mark
 *			and what has lowered it; checks; promotes; is visible; stores its low-water mark
 *			and releases the group.
 *
 * If the snapshot shows W, W was in the commit window before.  When P reads the commit window, W
 * may still be there: then the commit window's least id is not above W's.  Or W has left: then its
 * mark was set before P reads the low-water mark.  That mark came
 *	 - since P owns the group: it has lowered what P reads; or
 *	 - while the group had no promoter: it lowered the low-water mark itself; or
 *	 - while an earlier promoter had the group: that one stored no low-water mark above it; or
 *	 - before that earlier promoter had the group: its snapshot showed W.  So it knew W's job
 *	   when it chose its head, whose id is not above that of W's job while this is blocked.
 * A mark that finds no entry finds no low-water mark: a new entry has none, nor has one that comes
 * back.
 *
 * If the snapshot does not show W, the check is right for the rows that it shows: these are as
 * they were before W.  The low-water mark that P stores may be too high for W's job then.  P need
 * not heed the commit window for that: a promoter that checks later, under a snapshot that shows W,
 * finds W in the commit window, or W's mark, which came after P's snapshot, when P owned the group
 * or later.
 *
 * So a check sees the head that its snapshot shows, and no second one is made; and it
 * sees the first of the blocked jobs that are committed, and none of these is passed.
 * What the promoter's own transaction has written is visible to its checks at once, and its
 * marks are not set before its end: a check heeds them as if it were in the commit window.
 *
 *		Model: test/model/groups.pml; three enqueues, the worker and a claim as promoters, one abort.
 *
 * COMMIT PREPARED makes visible what no session knows.  It enters its database's commit window
 * before, and drops all low-water marks of the database after, as a writer by hand does.  A writer
 * whose queue has no state enters the database's commit window instead: the queue may get a state,
 * and its groups low-water marks, before the writer is visible.
 *
 * A group that uses permits (job/permits.c) needs its next job promoted as soon as the one before
 * it is being claimed.  Such a claim marks the group at once, before it is visible: that
 * mark lowers no low-water mark, and the lease entry tells the check what the snapshot does not
 * show.
 *
 * The rows are the truth.  After a start, and whenever a mark may be lost (no room,
 * PREPARE TRANSACTION), the queue is to be scanned: all its groups are checked.
 * The name of a group is kept here only up to GROUP_NAME bytes; of a longer one only
 * the promoter is kept, and to mark such a group is to have its queue scanned.  A queue that gets
 * its state is to be scanned: while it had none, it had no marks.
 *
 * A transaction that owns a group cannot be prepared (txn/pending.c): a promoter is a session.
 *
 * In memory there is a hash of the groups that are marked or owned, or have a low-water mark, and
 * for each queue there are lists of those that are to be checked.  A group that is here for its
 * low-water mark alone is idle; the one that has been idle for the longest time makes room for
 * another.
 *
 * Locks: see README.md, level 4: one lock covers hash and lists.  Functions that are called
 * after commit or abort neither allocate nor raise.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/* Groups in the table, of all queues; and beside them marks of jobs with dependencies. */
#define MAX_GROUPS 16384
#define MAX_DEPENDENCY_MARKS 8192

typedef struct GroupsShared
{
	LWLock lock;
	int count;								  /* groups in the hash */
	int dependency_marks;					  /* marks of jobs with dependencies in it */
	int nidle;								  /* of these, idle */
	int nlimited;							  /* of these, limited */
	dlist_head idle;						  /* the one that has been idle the longest is first */
	GroupQueue queues[FLEXIBLE_ARRAY_MEMBER]; /* idemq_max_queues */
} GroupsShared;

static GroupsShared *groups_shared = NULL;
static HTAB *group_hash = NULL;
static const int hash_entries = MAX_GROUPS + MAX_DEPENDENCY_MARKS;

/* Makes the table; its memory is zeros. */
static void
init_groups(int tranche)
{
	LWLockInitialize(&groups_shared->lock, tranche);
	dlist_init(&groups_shared->idle);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		GroupQueue *queue = &groups_shared->queues[i];

		dlist_init(&queue->waiting);
		dlist_init(&queue->delayed);
		queue->scan_at = queue->children_at = PG_INT64_MAX;
		queue->children_from = queue->children_stop = PG_INT64_MIN;
		pg_atomic_init_u32(&queue->pass.number, 0);
		ConditionVariableInit(&queue->pass.over);
	}
}

const ShmemPart idemq_groups_part = {.area = (void **) &groups_shared,
									 .size = offsetof(GroupsShared, queues),
									 .each = sizeof(GroupQueue),
									 .count = idemq_queue_count,
									 .lies_in = AREA_QUEUES,
									 .tranche = "idemq groups",
									 .init = init_groups,
									 .hash = &group_hash,
									 .hash_name = "idemq groups",
									 .hash_entries = &hash_entries,
									 .key_size = sizeof(GroupKey),
									 .entry_size = sizeof(GroupEntry)};

/* Locks what this file and group_scans.c have in shared memory. */
void
idemq_groups_lock(LWLockMode mode)
{
	LWLockAcquire(&groups_shared->lock, mode);
}

void
idemq_groups_unlock(void)
{
	LWLockRelease(&groups_shared->lock);
}

/* Returns the groups of the queue whose state has that index. */
GroupQueue *
idemq_group_queue_at(int index)
{
	return &groups_shared->queues[index];
}

/* Returns the groups of a queue if the queue state is that queue's; NULL otherwise.  Lock held. */
GroupQueue *
idemq_group_queue_of(const QueueState *qstate, Oid database, int32 queue_id)
{
	GroupQueue *queue = qstate == NULL ? NULL : &groups_shared->queues[idemq_qstate_index(qstate)];

	if (queue == NULL || queue->database != database || queue->queue_id != queue_id)
		return NULL;
	return queue;
}

/* Notes when the groups of a queue are to be checked.  Lock held. */
void
idemq_group_queue_note_due(GroupQueue *queue)
{
	int index = (int) (queue - groups_shared->queues);
	pg_atomic_uint64 *due = &idemq_qstate_at(index)->due[DUE_GROUPS];
	int64 when = Min(queue->scan_at, queue->children_at);
	int64 known;

	if (!dlist_is_empty(&queue->delayed))
		when = Min(when, queue->delayed_until);
	if (!dlist_is_empty(&queue->waiting))
		when = 0;
	known = (int64) pg_atomic_read_u64(due);
	if (when != known)
		pg_atomic_write_u64(due, (uint64) when);
	if (when < known)
		idemq_worker_mark_queue(index);
}

/* Takes a group out of its list.  queue: the group's, not needed if it is idle.  Lock held. */
static void
unlist(GroupQueue *queue, GroupEntry *group)
{
	if (group->list == LIST_NONE)
		return;
	dlist_delete(&group->node);
	if (group->list == LIST_IDLE)
		groups_shared->nidle--;
	else
		idemq_group_queue_note_due(queue);
	group->list = LIST_NONE;
}

/* Puts a group into a list.  Lock held. */
static void
enlist(GroupQueue *queue, GroupEntry *group, GroupList list)
{
	unlist(queue, group);
	group->list = list;
	if (list == LIST_IDLE)
	{
		dlist_push_tail(&groups_shared->idle, &group->node);
		groups_shared->nidle++;
		return;
	}
	if (list == LIST_DELAYED && dlist_is_empty(&queue->delayed))
		queue->delayed_until = idemq_mono_now() + LEASE_BUSY_RETRY;
	dlist_push_tail(list == LIST_WAITING ? &queue->waiting : &queue->delayed, &group->node);
	idemq_group_queue_note_due(queue);
}

/* Returns a group's entry; NULL when there is none.  Lock held. */
static GroupEntry *
groups_find(const GroupKey *key)
{
	return hash_search(group_hash, key, HASH_FIND, NULL);
}

/* Notes whether all permits of a group are taken, and a job waits for one.  Lock held. */
static void
set_limited(GroupEntry *group, bool limited)
{
	groups_shared->nlimited += (int) limited - (int) group->limited;
	group->limited = limited;
}

/* Returns whether an entry is the mark of a job with dependencies (shared/groups/dependencies.c). */
static bool
is_dependency_mark(const GroupKey *key)
{
	return key->kind >= KIND_CHILD;
}

/* Removes an entry that is in no list.  Lock held. */
static void
remove_group(GroupEntry *group)
{
	int *count = is_dependency_mark(&group->key) ? &groups_shared->dependency_marks
												 : &groups_shared->count;

	set_limited(group, false);
	if (hash_search(group_hash, &group->key, HASH_REMOVE, NULL) != NULL)
		(*count)--;
}

/* Returns a group's entry, entered if need be; NULL when there is no room.  Lock held. */
static GroupEntry *
groups_enter(const GroupKey *key)
{
	GroupEntry *group = groups_find(key);
	bool dependency = is_dependency_mark(key);
	int *count = dependency ? &groups_shared->dependency_marks : &groups_shared->count;
	bool found;

	if (group != NULL)
		return group;
	if (groups_shared->count >= MAX_GROUPS && !dependency && !dlist_is_empty(&groups_shared->idle))
	{
		/* The one that has been idle for the longest time makes room. */
		GroupEntry *idle = dlist_head_element(GroupEntry, node, &groups_shared->idle);

		unlist(NULL, idle);
		remove_group(idle);
	}
	if (*count >= (dependency ? MAX_DEPENDENCY_MARKS : MAX_GROUPS))
		return NULL;
	group = hash_search(group_hash, key, HASH_ENTER_NULL, &found);
	if (group == NULL)
		return NULL;
	(*count)++;
	group->promoter = NOBODY;
	group->again = group->limited = false;
	group->list = LIST_NONE;
	group->low_water = GROUP_NO_LOW_WATER;
	group->lowered = GROUP_KEEP_LOW_WATER;
	return group;
}

/* Returns whether a group is being checked, or will be: for idemq.check(). */
bool
idemq_groups_know(const QueueState *qstate, const GroupKey *key)
{
	const GroupEntry *group;
	GroupQueue *queue;
	bool known;

	IDEMQ_STOP("idemq_groups_know");
	LWLockAcquire(&groups_shared->lock, LW_SHARED);
	queue = idemq_group_queue_of(qstate, key->database, key->queue_id);
	group = groups_find(key);
	known = queue == NULL ||
			(is_dependency_mark(key) ? queue->children_at : queue->scan_at) != PG_INT64_MAX ||
			(group != NULL && group->list != LIST_IDLE);
	LWLockRelease(&groups_shared->lock);
	return known;
}

/*
 * Returns whether another session owns a group or a mark.  If not, the transaction of each owner so
 * far is visible, or is this one, and the next owner takes its snapshot after this call.
 */
bool
idemq_group_is_busy(const GroupKey *key)
{
	const GroupEntry *group;
	bool busy;

	LWLockAcquire(&groups_shared->lock, LW_SHARED);
	group = groups_find(key);
	busy = group != NULL && group->promoter != NOBODY && group->promoter != IDEMQ_MY_PROC_NUMBER;
	LWLockRelease(&groups_shared->lock);
	return busy;
}

/* Asks for a scan of all groups of a queue, its children, or both, at once or later.  Lock held. */
void
idemq_group_queue_want_scan(GroupQueue *queue, uint32 what, bool later)
{
	int64 when = later ? idemq_mono_now() + LEASE_BUSY_RETRY : 0;

	if (what & SCAN_GROUPS)
		queue->scan_at = Min(queue->scan_at, when);
	if (what & SCAN_CHILDREN)
	{
		queue->children_at = Min(queue->children_at, when);
		queue->children_again = true;
	}
	idemq_group_queue_note_due(queue);
}

/* Copies up to max groups of a database, for idemq.check(); returns how many. */
int
idemq_groups_copy(Oid database, GroupEntry *copies, int max)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;
	int count = 0;

	LWLockAcquire(&groups_shared->lock, LW_SHARED);
	hash_seq_init(&seq, group_hash);
	while ((group = hash_seq_search(&seq)) != NULL)
	{
		if (count < max && group->key.database == database)
			copies[count++] = *group;
	}
	LWLockRelease(&groups_shared->lock);
	return count;
}

/* Removes the groups of a list.  Lock held. */
static void
groups_clear_list(GroupQueue *queue, dlist_head *list)
{
	while (!dlist_is_empty(list))
	{
		GroupEntry *group = dlist_head_element(GroupEntry, node, list);

		unlist(queue, group);
		remove_group(group);
	}
}

/* Begins the groups of a queue that has got the state of that index: all are to be checked. */
void
idemq_groups_reset(int index, Oid database, int32 queue_id)
{
	GroupQueue *queue = &groups_shared->queues[index];

	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	queue->database = database;
	queue->queue_id = queue_id;
	queue->children_from = queue->children_stop = PG_INT64_MIN;
	idemq_group_queue_want_scan(queue, SCAN_GROUPS | SCAN_CHILDREN, false);
	LWLockRelease(&groups_shared->lock);
	idemq_worker_need_by(0);
}

/* Returns whether a group is of a database, and of a queue unless that is 0. */
static bool
groups_is_of(const GroupEntry *group, Oid database, int32 queue_id)
{
	return group->key.database == database && (queue_id == 0 || group->key.queue_id == queue_id);
}

/* Removes the idle groups of a database's queue, of all its queues with 0.  Lock held. */
static void
clear_idle(Oid database, int32 queue_id)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &groups_shared->idle)
	{
		GroupEntry *group = dlist_container(GroupEntry, node, iter.cur);

		if (!groups_is_of(group, database, queue_id))
			continue;
		unlist(NULL, group);
		remove_group(group);
	}
}

/* Ends the groups of a queue that has lost the state of that index. */
void
idemq_groups_forget(int index)
{
	GroupQueue *queue = &groups_shared->queues[index];

	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	groups_clear_list(queue, &queue->waiting);
	groups_clear_list(queue, &queue->delayed);
	clear_idle(queue->database, queue->queue_id);
	queue->scan_at = queue->children_at = PG_INT64_MAX;
	idemq_group_queue_note_due(queue);
	queue->database = InvalidOid;
	LWLockRelease(&groups_shared->lock);
}

/* Drops the low-water marks of a database's queue; of all its queues with 0.  Lock held. */
static void
drop_low_water(Oid database, int32 queue_id)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;

	clear_idle(database, queue_id);
	hash_seq_init(&seq, group_hash);
	while ((group = hash_seq_search(&seq)) != NULL)
	{
		if (!groups_is_of(group, database, queue_id))
			continue;
		group->low_water = GROUP_NO_LOW_WATER;
		group->lowered = GROUP_DROP_LOW_WATER;
	}
}

/* Asks for a check of every group of a database: a prepared transaction has ended. */
void
idemq_groups_unset_database(Oid database)
{
	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	drop_low_water(database, 0);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		if (groups_shared->queues[i].database == database)
			idemq_group_queue_want_scan(&groups_shared->queues[i], SCAN_GROUPS | SCAN_CHILDREN,
										false);
	}
	LWLockRelease(&groups_shared->lock);
}

/*
 * Drops the low-water marks of a queue, and has all its groups checked: its settings of groups have
 * changed.
 */
void
idemq_groups_drop_low_water_marks(const QueueState *qstate, int32 queue_id)
{
	GroupQueue *queue;

	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	drop_low_water(MyDatabaseId, queue_id);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	if (queue != NULL)
		idemq_group_queue_want_scan(queue, SCAN_GROUPS, false);
	LWLockRelease(&groups_shared->lock);
	idemq_worker_need_by(0);
}

/*
 * Returns how many groups of a queue have a job that waits while all permits of the group are
 * taken, as far as memory knows.
 */
int64
idemq_groups_limited(Oid database, int32 queue_id)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;
	int64 count = 0;

	LWLockAcquire(&groups_shared->lock, LW_SHARED);
	if (groups_shared->nlimited > 0)
	{
		hash_seq_init(&seq, group_hash);
		while ((group = hash_seq_search(&seq)) != NULL)
			count += group->limited && groups_is_of(group, database, queue_id);
	}
	LWLockRelease(&groups_shared->lock);
	return count;
}

/* Returns what is used of the table by groups that are marked or owned. */
TableUsage
idemq_groups_usage(void)
{
	TableUsage usage = {.room = MAX_GROUPS, .refused = idemq_count_read(COUNT_FULL_GROUPS)};

	LWLockAcquire(&groups_shared->lock, LW_SHARED);
	usage.used = groups_shared->count - groups_shared->nidle;
	LWLockRelease(&groups_shared->lock);
	return usage;
}

/* Returns how many entries there are of groups and jobs that are marked or owned. */
int
idemq_groups_marked(void)
{
	int marked;

	LWLockAcquire(&groups_shared->lock, LW_SHARED);
	marked = groups_shared->count - groups_shared->nidle + groups_shared->dependency_marks;
	LWLockRelease(&groups_shared->lock);
	return marked;
}

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
		key->kind = KIND_GROUP;
		key->length = (int16) length;
		memcpy(key->name, name, length);
	}
	else
	{
		uint64 hash[LONG_NAME_HASH / sizeof(uint64)];

		hash[0] = hash_bytes_extended((const unsigned char *) name, length, 0);
		hash[1] = hash_bytes_extended((const unsigned char *) name, length, 1);
		key->kind = KIND_LONG_NAME;
		key->length = LONG_NAME_HASH;
		memcpy(key->name, hash, sizeof(hash));
	}
}

/* Returns the bytes of a key up to the end of its name; what follows them is zero. */
Size
idemq_group_key_size(const GroupKey *key)
{
	return offsetof(GroupKey, name) + key->length;
}

/* Has a queue's groups checked: by the worker or, without one, by a waiter. */
static void
call_for_check(QueueState *qstate)
{
	idemq_worker_need_by(0);
	if (qstate != NULL && !idemq_worker_present())
		(void) idemq_waiters_wake(idemq_waiters_of_queue(qstate), 1);
}

/* Ends the delay of a queue's groups, if its time has come.  Lock held. */
static void
end_delay(GroupQueue *queue)
{
	if (dlist_is_empty(&queue->delayed) || queue->delayed_until > idemq_mono_now())
		return;
	while (!dlist_is_empty(&queue->delayed))
		enlist(queue, dlist_head_element(GroupEntry, node, &queue->delayed), LIST_WAITING);
}

/* Makes this session a group's promoter, and sets *low_water to the group's.  Lock held. */
static void
become_promoter(GroupQueue *queue, GroupEntry *group, GroupLowWater *low_water)
{
	unlist(queue, group);
	set_limited(group, false);
	group->promoter = IDEMQ_MY_PROC_NUMBER;
	group->lowered = GROUP_KEEP_LOW_WATER;
	*low_water = group->low_water;
}

/* Returns a low-water mark, lowered to the id of a job that may be blocked. */
static GroupLowWater
groups_lower(GroupLowWater low_water, int64 id)
{
	if (id == GROUP_DROP_LOW_WATER)
		return GROUP_NO_LOW_WATER;
	low_water.blocked = Min(low_water.blocked, id);
	return low_water;
}

/*
 * Takes up to max groups of a queue to check: this session owns them until
 * idemq_group_release.  Returns how many.  The snapshot by which they are checked is to
 * be taken after that.
 */
int
idemq_groups_take(const QueueState *qstate, int32 queue_id, GroupTaken *taken, int max)
{
	GroupQueue *queue;
	int count = 0;

	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	if (queue != NULL)
		end_delay(queue);
	while (queue != NULL && count < max && !dlist_is_empty(&queue->waiting))
	{
		GroupEntry *group = dlist_head_element(GroupEntry, node, &queue->waiting);

		taken[count].key = group->key;
		become_promoter(queue, group, &taken[count++].low_water);
	}
	LWLockRelease(&groups_shared->lock);
	return count;
}

/*
 * Takes the group of taken->key, marked or not, as idemq_groups_take does.  GROUP_BUSY:
 * another session owns it, and will have it checked again; or its queue has got another state
 * meanwhile, and the group is left in the queue's list, to be checked.
 */
GroupOwn
idemq_group_own(QueueState *qstate, GroupTaken *taken)
{
	const GroupKey *key = &taken->key;
	GroupOwn own = GROUP_FULL;
	GroupQueue *queue;
	GroupEntry *group;

	qstate = idemq_qstate_current(qstate, key->queue_id);
	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, key->database, key->queue_id);
	group = groups_enter(key);
	if (group != NULL && (group->promoter != NOBODY ||
						  (queue == NULL && group->list != LIST_NONE && group->list != LIST_IDLE)))
	{
		own = GROUP_BUSY;
		group->again = true;
	}
	else if (group != NULL)
	{
		own = GROUP_OWNED;
		become_promoter(queue, group, &taken->low_water);
	}
	LWLockRelease(&groups_shared->lock);
	return own;
}

/*
 * Returns where a check of a group may begin, by a snapshot that this session took after it got the
 * group; for each newer snapshot, call this again.  own: the id to which this transaction itself
 * will lower the low-water mark, as idemq_group_mark takes it.
 */
GroupLowWater
idemq_group_low_water(QueueState *qstate, const GroupKey *key, int64 own)
{
	GroupLowWater low_water = GROUP_NO_LOW_WATER;
	GroupEntry *group;
	int64 least;

	qstate = idemq_qstate_current(qstate, key->queue_id);
	if (qstate == NULL)
		return low_water;
	/* In this order: a writer that has left the commit window has set its marks. */
	least = idemq_commit_window_least(qstate, key->database);
	LWLockAcquire(&groups_shared->lock, LW_SHARED);
	group = groups_find(key);
	if (group != NULL && group->promoter == IDEMQ_MY_PROC_NUMBER)
		low_water = groups_lower(group->low_water, Min(Min(group->lowered, least), own));
	LWLockRelease(&groups_shared->lock);
	return low_water;
}

/*
 * Marks a group; to be called after the commit by which it may need a head.  id: of a
 * job that the commit has blocked, for its low-water mark; or GROUP_KEEP_LOW_WATER,
 * GROUP_DROP_LOW_WATER.  Returns false if there was no room for the mark: then its queue is to be
 * scanned instead, if it has a state.
 */
bool
idemq_group_mark(QueueState *qstate, const GroupKey *key, int64 id)
{
	GroupQueue *queue;
	GroupEntry *group;
	bool kept;

	IDEMQ_STOP("idemq_group_mark");
	qstate = idemq_qstate_current(qstate, key->queue_id);
	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, key->database, key->queue_id);
	if (queue != NULL && key->kind != KIND_LONG_NAME)
		group = groups_enter(key);
	else
		group = groups_find(key);
	if (group != NULL && group->promoter != NOBODY)
	{
		group->again = true;
		group->lowered = Min(group->lowered, id);
	}
	else if (group != NULL)
	{
		group->low_water = groups_lower(group->low_water, id);
		if (queue != NULL && key->kind != KIND_LONG_NAME)
			enlist(queue, group, LIST_WAITING);
	}
	else if (queue != NULL && key->kind != KIND_LONG_NAME && !is_dependency_mark(key))
		(void) idemq_count_full(COUNT_FULL_GROUPS); /* of many dependencies it is no news */
	if (queue != NULL && (key->kind == KIND_LONG_NAME || group == NULL))
		idemq_group_queue_want_scan(queue, is_dependency_mark(key) ? SCAN_CHILDREN : SCAN_GROUPS,
									false);
	kept = group != NULL;
	LWLockRelease(&groups_shared->lock);
	call_for_check(qstate);
	return kept;
}

/* Lists a group that has no promoter any more.  wanted: it is to be checked.  Lock held. */
static void
put_back(GroupQueue *queue, GroupEntry *group, bool wanted, bool again)
{
	bool is_long = group->key.kind == KIND_LONG_NAME;

	group->promoter = NOBODY;
	if (wanted && queue != NULL && !is_long)
		enlist(queue, group, again ? LIST_WAITING : LIST_DELAYED);
	else if (queue != NULL && (group->limited || group->low_water.blocked != PG_INT64_MIN))
		enlist(queue, group, LIST_IDLE);
	else
		remove_group(group);
	if (wanted && queue != NULL && is_long)
		idemq_group_queue_want_scan(queue, SCAN_GROUPS, !again);
}

/*
 * Releases a group that this session owns.  Its low-water mark becomes taken->low_water, lowered by
 * the marks that came meanwhile.
 */
void
idemq_group_release(QueueState *qstate, const GroupTaken *taken, GroupRelease how)
{
	const GroupKey *key = &taken->key;
	GroupQueue *queue;
	GroupEntry *group;
	bool wanted = false;

	qstate = idemq_qstate_current(qstate, key->queue_id);
	LWLockAcquire(&groups_shared->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, key->database, key->queue_id);
	group = groups_find(key);
	if (group != NULL && group->promoter == IDEMQ_MY_PROC_NUMBER)
	{
		bool again = how == GROUP_AGAIN || group->again;

		wanted = again || how == GROUP_LATER;
		group->again = false;
		group->low_water = groups_lower(taken->low_water, group->lowered);
		set_limited(group, how == GROUP_LIMITED);
		put_back(queue, group, wanted, again);
	}
	LWLockRelease(&groups_shared->lock);
	if (wanted)
		call_for_check(qstate);
}
