/*
 * shared/groups/groups.c
 *		Which FIFO groups may need a head, and which session gives each of them one.
 *
 * A group needs a head when its first job is enqueued, and when its head has finished.  The session
 * that enqueues or finishes the job marks the group after its commit.  A session that promotes jobs
 * (job/promote.c: the worker, or a claim) takes a marked group, checks its rows under a newer
 * snapshot, and promotes its first job if it has no head.
 *
 * A group has at most one head.  One session at a time owns the group, and is its promoter, from
 * before it checks the rows until its transaction has ended.  It takes its snapshot after the last
 * promoter's promotion became visible, so it sees that head, or that it has finished.  Two
 * promoters with different snapshots could promote two heads.
 *
 * No group is forgotten.  A mark that is set while a session owns the group remains set
 * afterwards.  So if a group has committed jobs but no head, then it has a mark, or it has a
 * promoter, or its queue must be scanned, or a session that has committed is about to mark it in
 * its callback.
 *
 * While another session holds a snapshot, there is an index entry for each former head, and for
 * each job that was blocked.  No check reads these twice, because a group that has had a head has a
 * low-water mark, from which a check begins.  The promoter raises it when its promotion has
 * committed: for heads, to the time of the promotion, because the ready_at of a head is never set
 * to a time in the past; for blocked jobs, to the id of the promoted job.  If a job with a smaller
 * id is blocked later, by a late commit or a retry, its mark lowers the low-water mark.  If a
 * row is changed by hand, the low-water mark is dropped.  It is only a cache.
 *
 * A low-water mark is never above what the snapshot of a check shows.  Let W be a writer, which
 * blocks a job or changes one by hand, and P a promoter that checks:
 *
 *		W: enters the commit window (commit_window.c); is visible; sets its marks, group by group;
 *		leaves
 *			the commit window.
 *		P: owns the group; takes its snapshot; reads the commit window, then the low-water mark and
 *		what has
 *			lowered it; checks; promotes; is visible; stores its low-water mark and releases the
 *			group.
 *
 * If the snapshot shows W, W had entered the commit window before.  When P reads the commit window,
 * W may still be in it; then the least id in the commit window is not above W's.  Or W has left it;
 * then W's mark was set before P reads the low-water mark.  That mark was set
 *	 - while P owns the group: it has lowered what P reads; or
 *	 - while the group had no promoter: it has lowered the low-water mark itself; or
 *	 - while an earlier promoter owned the group: that promoter stored no low-water mark above it;
 *	   or
 *	 - before an earlier promoter owned the group: the snapshot of that promoter showed W.  So it
 *	   knew W's job when it chose a head, whose id is not above the id of W's job as long as that
 *	   job is blocked.
 * If W's mark found no entry for the group, there was no low-water mark to lower: an entry begins
 * without one, even if it was removed before and is added again.
 *
 * If the snapshot does not show W, the check is right for the rows that it shows, which are as they
 * were before W.  The low-water mark that P stores may then be too high for W's job, and P need not
 * respect the commit window for that: a later promoter whose snapshot shows W finds W in the commit
 * window, or finds W's mark, which was set after P's snapshot, while P owned the group or later.
 *
 * So a check sees the head that its snapshot shows, and promotes no second one; and it sees the
 * first of the committed jobs that are blocked, and passes none of them.  What the promoter's own
 * transaction has written is visible to its checks at once, although its marks are set only when it
 * ends.  Therefore a check respects these marks as if they were in the commit window.
 *
 *		Model: test/model/groups.pml; three enqueues, the worker and a claim as promoters, one
 *		abort.
 *
 * COMMIT PREPARED makes changes visible that no session knows.  It enters the commit window of its
 * database before, and drops all low-water marks of the database afterwards, like a change made by
 * hand.  A writer whose queue has no state also enters the commit window of the database, because
 * the queue may get a state, and its groups low-water marks, before the writer is visible.
 *
 * A group that uses permits (job/permits.c) needs its next job promoted as soon as the job before
 * it is being claimed.  Such a claim marks the group at once, before it is visible.  That mark
 * lowers no low-water mark, and the lease entry tells the check what the snapshot does not show.
 *
 * The rows are the source of truth.  After a start, and whenever a mark may be lost (there is no
 * room, or after PREPARE TRANSACTION), the queue must be scanned, that is, all its groups are
 * checked.  A group's name is stored here only if it has at most GROUP_NAME bytes.  For a longer
 * name, only the promoter is stored, and to mark the group, its queue is scanned.  A queue that
 * gets its state must be scanned, because it had no marks before.
 *
 * A transaction that owns a group cannot be prepared (txn/pending.c), because a promoter is a
 * session.
 *
 * The hash table contains the groups that are marked or owned, or have a low-water mark.  For each
 * queue, there are lists of the groups that must be checked.  A group that is in the table only
 * because of its low-water mark is idle; the group that has been idle for the longest time makes
 * room for another one.
 *
 * Locks: see src/shared/README.md, level 4.  One lock protects the hash table and the lists.
 * Functions that are called after commit or abort neither allocate nor raise errors.
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
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/* Maximum number of groups in the table; and, in addition, of marks of jobs with dependencies. */
#define MAX_GROUPS 16384
#define MAX_DEPENDENCY_MARKS 8192

GroupsShared *idemq_groups = NULL;
static HTAB *group_hash = NULL;
static const int hash_entries = MAX_GROUPS + MAX_DEPENDENCY_MARKS;

static void
init_groups(int tranche)
{
	LWLockInitialize(&idemq_groups->lock, tranche);
	dlist_init(&idemq_groups->idle);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		GroupQueue *queue = &idemq_groups->queues[i];

		dlist_init(&queue->waiting);
		dlist_init(&queue->delayed);
		queue->scan_at = queue->children_at = PG_INT64_MAX;
		queue->children_from = queue->children_stop = PG_INT64_MIN;
		pg_atomic_init_u32(&queue->pass.number, 0);
		ConditionVariableInit(&queue->pass.over);
	}
}

const ShmemPart idemq_groups_part = {.area = (void **) &idemq_groups,
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

/* Returns the groups of a queue; NULL if qstate does not belong to that queue.  Lock held. */
GroupQueue *
idemq_group_queue_of(const QueueState *qstate, Oid database, int32 queue_id)
{
	GroupQueue *queue = qstate == NULL ? NULL : &idemq_groups->queues[idemq_qstate_index(qstate)];

	if (queue == NULL || queue->database != database || queue->queue_id != queue_id)
		return NULL;
	return queue;
}

/* Sets DUE_GROUPS to when the groups of a queue must be checked.  Lock held. */
void
idemq_group_queue_note_due(GroupQueue *queue)
{
	int index = (int) (queue - idemq_groups->queues);
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

/* Removes a group from its list.  queue: its queue, or NULL if it is idle.  Lock held. */
static void
unlist(GroupQueue *queue, GroupEntry *group)
{
	if (group->list == LIST_NONE)
		return;
	dlist_delete(&group->node);
	if (group->list == LIST_IDLE)
		idemq_groups->nidle--;
	else
		idemq_group_queue_note_due(queue);
	group->list = LIST_NONE;
}

/* Moves a group to a list.  Lock held. */
static void
enlist(GroupQueue *queue, GroupEntry *group, GroupList list)
{
	unlist(queue, group);
	group->list = list;
	if (list == LIST_IDLE)
	{
		dlist_push_tail(&idemq_groups->idle, &group->node);
		idemq_groups->nidle++;
		return;
	}
	if (list == LIST_DELAYED && dlist_is_empty(&queue->delayed))
		queue->delayed_until = idemq_mono_now() + LEASE_BUSY_RETRY;
	dlist_push_tail(list == LIST_WAITING ? &queue->waiting : &queue->delayed, &group->node);
	idemq_group_queue_note_due(queue);
}

/* Returns the entry of a group, or NULL.  Lock held. */
static GroupEntry *
groups_find(const GroupKey *key)
{
	return hash_search(group_hash, key, HASH_FIND, NULL);
}

/* Notes whether all permits of a group are taken while a job waits for one.  Lock held. */
static void
set_limited(GroupEntry *group, bool limited)
{
	idemq_groups->nlimited += (int) limited - (int) group->limited;
	group->limited = limited;
}

/*
 * Returns whether an entry is the mark of a job with dependencies (shared/groups/dependencies.c).
 */
static bool
is_dependency_mark(const GroupKey *key)
{
	return key->kind >= KIND_CHILD;
}

/* Removes an entry that is in no list.  Lock held. */
static void
remove_group(GroupEntry *group)
{
	int *count = is_dependency_mark(&group->key) ? &idemq_groups->dependency_marks
												 : &idemq_groups->count;

	set_limited(group, false);
	if (hash_search(group_hash, &group->key, HASH_REMOVE, NULL) != NULL)
		(*count)--;
}

/* Returns the entry of a group; adds it if necessary; NULL if there is no room.  Lock held. */
static GroupEntry *
groups_enter(const GroupKey *key)
{
	GroupEntry *group = groups_find(key);
	bool dependency = is_dependency_mark(key);
	int *count = dependency ? &idemq_groups->dependency_marks : &idemq_groups->count;
	bool found;

	if (group != NULL)
		return group;
	if (idemq_groups->count >= MAX_GROUPS && !dependency && !dlist_is_empty(&idemq_groups->idle))
	{
		GroupEntry *idle = dlist_head_element(GroupEntry, node, &idemq_groups->idle);

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

/* Returns whether a group is being checked, or will be checked; for idemq.check(). */
bool
idemq_groups_know(const QueueState *qstate, const GroupKey *key)
{
	const GroupEntry *group;
	GroupQueue *queue;
	bool known;

	IDEMQ_STOP("idemq_groups_know");
	LWLockAcquire(&idemq_groups->lock, LW_SHARED);
	queue = idemq_group_queue_of(qstate, key->database, key->queue_id);
	group = groups_find(key);
	known = queue == NULL ||
			(is_dependency_mark(key) ? queue->children_at : queue->scan_at) != PG_INT64_MAX ||
			(group != NULL && group->list != LIST_IDLE);
	LWLockRelease(&idemq_groups->lock);
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

	LWLockAcquire(&idemq_groups->lock, LW_SHARED);
	group = groups_find(key);
	busy = group != NULL && group->promoter != NOBODY && group->promoter != IDEMQ_MY_PROC_NUMBER;
	LWLockRelease(&idemq_groups->lock);
	return busy;
}

/*
 * Requests a scan of all groups of a queue, of its children, or both, at once or later.  Lock held.
 */
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

/* Copies up to max groups of a database, for idemq.check(); returns their number. */
int
idemq_groups_copy(Oid database, GroupEntry *copies, int max)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;
	int count = 0;

	LWLockAcquire(&idemq_groups->lock, LW_SHARED);
	hash_seq_init(&seq, group_hash);
	while ((group = hash_seq_search(&seq)) != NULL)
	{
		if (count < max && group->key.database == database)
			copies[count++] = *group;
	}
	LWLockRelease(&idemq_groups->lock);
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

/* Begins the groups of a queue that has got the state with that index; all must be checked. */
void
idemq_groups_reset(int index, Oid database, int32 queue_id)
{
	GroupQueue *queue = &idemq_groups->queues[index];

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	queue->database = database;
	queue->queue_id = queue_id;
	queue->children_from = queue->children_stop = PG_INT64_MIN;
	idemq_group_queue_want_scan(queue, SCAN_GROUPS | SCAN_CHILDREN, false);
	LWLockRelease(&idemq_groups->lock);
	idemq_worker_need_by(0);
}

/* Returns whether a group belongs to a database and a queue (0: any queue). */
static bool
groups_is_of(const GroupEntry *group, Oid database, int32 queue_id)
{
	return group->key.database == database && (queue_id == 0 || group->key.queue_id == queue_id);
}

/* Removes the idle groups of a queue (0: of all queues) of a database.  Lock held. */
static void
clear_idle(Oid database, int32 queue_id)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &idemq_groups->idle)
	{
		GroupEntry *group = dlist_container(GroupEntry, node, iter.cur);

		if (!groups_is_of(group, database, queue_id))
			continue;
		unlist(NULL, group);
		remove_group(group);
	}
}

/* Ends the groups of a queue that has lost the state with that index. */
void
idemq_groups_forget(int index)
{
	GroupQueue *queue = &idemq_groups->queues[index];

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	groups_clear_list(queue, &queue->waiting);
	groups_clear_list(queue, &queue->delayed);
	clear_idle(queue->database, queue->queue_id);
	queue->scan_at = queue->children_at = PG_INT64_MAX;
	idemq_group_queue_note_due(queue);
	queue->database = InvalidOid;
	LWLockRelease(&idemq_groups->lock);
}

/* Drops the low-water marks of a queue (0: of all queues) of a database.  Lock held. */
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

/* Requests a check of all groups of a database, because a prepared transaction has ended. */
void
idemq_groups_unset_database(Oid database)
{
	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	drop_low_water(database, 0);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		if (idemq_groups->queues[i].database == database)
			idemq_group_queue_want_scan(&idemq_groups->queues[i], SCAN_GROUPS | SCAN_CHILDREN,
										false);
	}
	LWLockRelease(&idemq_groups->lock);
}

/*
 * Drops the low-water marks of a queue, and requests a check of all groups; its settings have
 * changed.
 */
void
idemq_groups_drop_low_water_marks(const QueueState *qstate, int32 queue_id)
{
	GroupQueue *queue;

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	drop_low_water(MyDatabaseId, queue_id);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	if (queue != NULL)
		idemq_group_queue_want_scan(queue, SCAN_GROUPS, false);
	LWLockRelease(&idemq_groups->lock);
	idemq_worker_need_by(0);
}

/* Returns the number of groups of a queue that are known to be limited. */
int64
idemq_groups_limited(Oid database, int32 queue_id)
{
	HASH_SEQ_STATUS seq;
	GroupEntry *group;
	int64 count = 0;

	LWLockAcquire(&idemq_groups->lock, LW_SHARED);
	if (idemq_groups->nlimited > 0)
	{
		hash_seq_init(&seq, group_hash);
		while ((group = hash_seq_search(&seq)) != NULL)
			count += group->limited && groups_is_of(group, database, queue_id);
	}
	LWLockRelease(&idemq_groups->lock);
	return count;
}

/* Returns how much of the table is in use by groups that are marked or owned. */
TableUsage
idemq_groups_usage(void)
{
	TableUsage usage = {.room = MAX_GROUPS, .refused = idemq_count_read(COUNT_FULL_GROUPS)};

	LWLockAcquire(&idemq_groups->lock, LW_SHARED);
	usage.used = idemq_groups->count - idemq_groups->nidle;
	LWLockRelease(&idemq_groups->lock);
	return usage;
}

/* Returns the number of groups and jobs that are marked or owned. */
int
idemq_groups_marked(void)
{
	int marked;

	LWLockAcquire(&idemq_groups->lock, LW_SHARED);
	marked = idemq_groups->count - idemq_groups->nidle + idemq_groups->dependency_marks;
	LWLockRelease(&idemq_groups->lock);
	return marked;
}

/* Bytes of the hash in the key of a group with a long name. */
#define LONG_NAME_HASH 16

/* Sets the key of a group of this database. */
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

/* Returns the length of a key in bytes, up to the end of its name; the rest of the key is zero. */
Size
idemq_group_key_size(const GroupKey *key)
{
	return offsetof(GroupKey, name) + key->length;
}

/* Wakes the worker, or without a worker a waiter, to check the groups of a queue. */
static void
call_for_check(QueueState *qstate)
{
	idemq_worker_need_by(0);
	if (qstate != NULL && !idemq_worker_present())
		(void) idemq_waiters_wake(idemq_waiters_of_queue(qstate), InvalidOid, 1);
}

/* Makes this session the promoter of a group, and sets *low_water.  Lock held. */
static void
become_promoter(GroupQueue *queue, GroupEntry *group, GroupLowWater *low_water)
{
	unlist(queue, group);
	set_limited(group, false);
	group->promoter = IDEMQ_MY_PROC_NUMBER;
	group->lowered = GROUP_KEEP_LOW_WATER;
	*low_water = group->low_water;
}

/* Returns a low-water mark lowered to an id, GROUP_KEEP_LOW_WATER or GROUP_DROP_LOW_WATER. */
static GroupLowWater
groups_lower(GroupLowWater low_water, int64 id)
{
	if (id == GROUP_DROP_LOW_WATER)
		return GROUP_NO_LOW_WATER;
	low_water.blocked = Min(low_water.blocked, id);
	return low_water;
}

/*
 * Takes up to max groups of a queue, and returns their number.  This session owns them until
 * idemq_group_release.  The caller must take the snapshot for their check afterwards.
 */
int
idemq_groups_take(const QueueState *qstate, int32 queue_id, GroupTaken *taken, int max)
{
	GroupQueue *queue;
	int count = 0;

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	if (queue != NULL && !dlist_is_empty(&queue->delayed) &&
		queue->delayed_until <= idemq_mono_now())
	{
		while (!dlist_is_empty(&queue->delayed))
			enlist(queue, dlist_head_element(GroupEntry, node, &queue->delayed), LIST_WAITING);
	}
	while (queue != NULL && count < max && !dlist_is_empty(&queue->waiting))
	{
		GroupEntry *group = dlist_head_element(GroupEntry, node, &queue->waiting);

		taken[count].key = group->key;
		become_promoter(queue, group, &taken[count++].low_water);
	}
	LWLockRelease(&idemq_groups->lock);
	return count;
}

/*
 * Like idemq_groups_take, for the group taken->key, whether it is marked or not.  Returns
 * GROUP_BUSY if another session owns it, in which case it will be checked again; or if its queue
 * has got another state in the meantime, in which case it stays in the list of the queue.
 */
GroupOwn
idemq_group_own(QueueState *qstate, GroupTaken *taken)
{
	const GroupKey *key = &taken->key;
	GroupOwn own = GROUP_FULL;
	GroupQueue *queue;
	GroupEntry *group;

	qstate = idemq_qstate_current(qstate, key->queue_id);
	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
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
	LWLockRelease(&idemq_groups->lock);
	return own;
}

/*
 * Returns where a check of a group may begin.  The check must use a snapshot that this session took
 * after it got the group, and before this call.  own: the id to which this transaction will lower
 * the low-water mark itself, as for idemq_group_mark.
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
	LWLockAcquire(&idemq_groups->lock, LW_SHARED);
	group = groups_find(key);
	if (group != NULL && group->promoter == IDEMQ_MY_PROC_NUMBER)
		low_water = groups_lower(group->low_water, Min(Min(group->lowered, least), own));
	LWLockRelease(&idemq_groups->lock);
	return low_water;
}

/*
 * Marks a group, after a commit as a result of which it may need a head.  id: the least id of the
 * jobs that the commit has blocked, GROUP_KEEP_LOW_WATER or GROUP_DROP_LOW_WATER.  Returns false if
 * there was no room for the mark; then the queue will be scanned instead, if it has a state.
 */
bool
idemq_group_mark(QueueState *qstate, const GroupKey *key, int64 id)
{
	GroupQueue *queue;
	GroupEntry *group;
	bool kept;

	IDEMQ_STOP("idemq_group_mark");
	qstate = idemq_qstate_current(qstate, key->queue_id);
	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
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
		(void) idemq_count_full(COUNT_FULL_GROUPS); /* many dependencies are not worth a log line */
	if (queue != NULL && (key->kind == KIND_LONG_NAME || group == NULL))
		idemq_group_queue_want_scan(queue, is_dependency_mark(key) ? SCAN_CHILDREN : SCAN_GROUPS,
									false);
	kept = group != NULL;
	LWLockRelease(&idemq_groups->lock);
	call_for_check(qstate);
	return kept;
}

/*
 * Releases a group that this session owns.  Its low-water mark becomes taken->low_water, lowered by
 * the marks that were set in the meantime.
 */
void
idemq_group_release(QueueState *qstate, const GroupTaken *taken, GroupRelease how)
{
	const GroupKey *key = &taken->key;
	bool is_long = key->kind == KIND_LONG_NAME;
	GroupQueue *queue;
	GroupEntry *group;
	bool wanted = false;

	qstate = idemq_qstate_current(qstate, key->queue_id);
	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, key->database, key->queue_id);
	group = groups_find(key);
	if (group != NULL && group->promoter == IDEMQ_MY_PROC_NUMBER)
	{
		bool again = how == GROUP_AGAIN || group->again;

		wanted = again || how == GROUP_LATER;
		group->promoter = NOBODY;
		group->again = false;
		group->low_water = groups_lower(taken->low_water, group->lowered);
		set_limited(group, how == GROUP_LIMITED);
		if (queue != NULL && wanted && !is_long)
			enlist(queue, group, again ? LIST_WAITING : LIST_DELAYED);
		else if (queue != NULL && (group->limited || group->low_water.blocked != PG_INT64_MIN))
			enlist(queue, group, LIST_IDLE);
		else
			remove_group(group);
		if (queue != NULL && wanted && is_long)
			idemq_group_queue_want_scan(queue, SCAN_GROUPS, !again);
	}
	LWLockRelease(&idemq_groups->lock);
	if (wanted)
		call_for_check(qstate);
}
