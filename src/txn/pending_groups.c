/*
 * txn/pending_groups.c
 *		What this transaction does to FIFO groups: the groups that its commit marks, because they may
 *		then need a head, and those that it owns until its end.
 *
 * Marks are kept for the whole transaction, even if a savepoint is rolled back, because an
 * unnecessary mark only costs one scan of its group.  An owned group is released at the end of the
 * transaction, when its new head is visible.  After an abort, including a rollback of the savepoint
 * in which the group was taken, the group must be promoted again.
 *
 * Jobs with parents or children (shared/groups/dependencies.c) are marked in the same way as
 * groups, under a name that no group has.  Parents that this transaction ends are among its actions
 * (txn/pending.c).
 *
 * From before the commit is visible until all marks are set, the transaction is in the commit
 * windows of the queues in which it lowers low-water marks (txn/pending_commit_window.c).
 *
 * PREPARE TRANSACTION: the marks are lost; when the transaction ends, all groups are scanned
 * (idemq_groups_unset_database).  A transaction that owns a group cannot be prepared
 * (txn/pending.c).
 *
 * A transaction may mark many groups, so a mark is small, and is only as long as its group's name
 * requires.
 *
 * The functions that txn/at_end.c calls run after the end of the transaction is visible; they
 * neither allocate memory nor raise errors, except idemq_pending_groups_before_commit.  All state
 * belongs to this backend.
 */
#include "postgres.h"

#include "access/htup_details.h" /* varatt.h, which is part of postgres.h before 16 */
#include "access/xact.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "utils/memutils.h"

#include "shared/groups/groups.h"
#include "shared/queue_states/queue_states.h"
#include "txn/txn.h"

#define MIN_INDEX 8

typedef struct Mark
{
	QueueState *qstate;
	int64 id;	  /* as idemq_group_mark takes it: the least */
	GroupKey key; /* only up to the end of its name; the next mark follows */
} Mark;

/* An element of the hash table of marks, whose keys are positions in marks. */
typedef struct MarkIndex
{
	int at; /* where the mark is */
	uint32 hash;
	char status; /* for simplehash.h */
} MarkIndex;

typedef struct Owned
{
	GroupTaken group;		 /* as it was taken */
	GroupLowWater low_water; /* after the commit */
	QueueState *qstate;
	SubTransactionId subid;
} Owned;

/* All in TopTransactionContext; NULL between transactions. */
static uint64 *marks = NULL; /* one behind the other, in the order in which they were noted */
static int end_of_marks = 0;
static int max_marks = 0;
static struct marks_hash *index_of_marks = NULL;
static Owned *owned = NULL;
static int nowned = 0;
static int max_owned = 0;
/* The queue whose groups this session is scanning; 0: none. */
static int32 scanned_queue = 0;
static QueueState *scanned_qstate = NULL;

/* Whether this transaction has paused or resumed a group, perhaps in a savepoint that was rolled back. */
static bool pauses = false;
/* Whether a new mark must enter the commit window of its queue at once: the commit has begun. */
static bool committing = false;

static Mark *
mark_at(int at)
{
	return (Mark *) &marks[at];
}

/* Returns where the mark behind one begins. */
static int
end_of(int at)
{
	Size size = offsetof(Mark, key) + idemq_group_key_size(&mark_at(at)->key);

	return at + (int) ((size + sizeof(uint64) - 1) / sizeof(uint64));
}

static uint32
hash_of(int at)
{
	const GroupKey *key = &mark_at(at)->key;

	return hash_bytes((const unsigned char *) key, (int) idemq_group_key_size(key));
}

static bool
is_same(const GroupKey *a, const GroupKey *b)
{
	Size size = idemq_group_key_size(a);

	return idemq_group_key_size(b) == size && memcmp(a, b, size) == 0;
}

#define SH_PREFIX marks
#define SH_ELEMENT_TYPE MarkIndex
#define SH_KEY_TYPE int
#define SH_KEY at
#define SH_HASH_KEY(table, at) hash_of(at)
#define SH_EQUAL(table, a, b) is_same(&mark_at(a)->key, &mark_at(b)->key)
#define SH_STORE_HASH
#define SH_GET_HASH(table, element) (element)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Enters the commit window of the queue of a mark, if the mark lowers a low-water mark. */
static void
enter_commit_window(Mark *mark)
{
	if (mark->id == GROUP_KEEP_LOW_WATER)
		return;
	mark->qstate = idemq_qstate_current(mark->qstate, mark->key.queue_id);
	idemq_pending_commit_window_enter(mark->qstate, mark->key.database, mark->id);
}

/*
 * Writes a mark after the last one, without moving end_of_marks: the caller adds it, or only
 * compares with it.
 */
static void
put_behind(QueueState *qstate, const GroupKey *key, int64 id)
{
	Mark *mark;

	marks = idemq_grow(marks, &max_marks, end_of_marks + (int64) (sizeof(Mark) / sizeof(uint64)),
					   sizeof(uint64));
	mark = mark_at(end_of_marks);
	mark->qstate = qstate;
	mark->id = id;
	memcpy(&mark->key, key, idemq_group_key_size(key));
}

static void
pending_groups_note(QueueState *qstate, const GroupKey *key, int64 id)
{
	MarkIndex *found;
	bool is_known;

	put_behind(qstate, key, id);
	if (index_of_marks == NULL)
		index_of_marks = marks_create(TopTransactionContext, MIN_INDEX, NULL);
	found = marks_insert(index_of_marks, end_of_marks, &is_known);
	if (!is_known)
		end_of_marks = end_of(end_of_marks);
	mark_at(found->at)->id = Min(mark_at(found->at)->id, id);
	if (committing)
		enter_commit_window(mark_at(found->at));
}

/*
 * Notes that a group may need a head after the commit. name: text, not NULL; id: as for
 * idemq_group_mark.
 */
void
idemq_pending_groups_note(QueueState *qstate, int32 queue_id, Datum name, int64 id)
{
	text *value = DatumGetTextPP(name);
	GroupKey key;

	idemq_group_key(&key, queue_id, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	pending_groups_note(qstate, &key, id);
}

/* Notes that a job with parents or children must be marked after the commit. */
void
idemq_pending_dependency_note(QueueState *qstate, int32 queue_id, DependencyMark mark, int64 job_id)
{
	GroupKey key;

	idemq_dependency_key(&key, queue_id, mark, job_id);
	pending_groups_note(qstate, &key, GROUP_KEEP_LOW_WATER);
}

/* Notes that a child is blocked by its parents, and must be looked at after the commit. */
void
idemq_pending_dependency_note_blocked(QueueState *qstate, int32 queue_id, int64 job_id)
{
	idemq_pending_dependency_note(qstate, queue_id, DEPENDENCY_CHILD, job_id);
	idemq_pending_dependency_note(qstate, queue_id, DEPENDENCY_FAILURE, job_id);
}

/* Notes that a group will be paused or resumed when this transaction commits. */
void
idemq_pending_groups_note_pause(QueueState *qstate, int32 queue_id, Datum name)
{
	idemq_pending_groups_note(qstate, queue_id, name, GROUP_KEEP_LOW_WATER);
	pauses = true;
}

/* Returns whether this transaction itself may have paused a group that its snapshot shows as paused. */
bool
idemq_pending_groups_pauses(void)
{
	return pauses;
}

/*
 * Returns the low-water mark at which a check of an owned group may begin, by a snapshot that was
 * taken after this transaction got the group.  Must be called again for each newer snapshot.
 */
GroupLowWater
idemq_pending_groups_low_water(QueueState *qstate, const GroupKey *key)
{
	int64 lowered = GROUP_KEEP_LOW_WATER;

	if (index_of_marks != NULL)
	{
		MarkIndex *found;

		put_behind(qstate, key, lowered);
		found = marks_lookup(index_of_marks, end_of_marks);
		lowered = found == NULL ? lowered : mark_at(found->at)->id;
	}
	return idemq_group_low_water(qstate, key, lowered);
}

/*
 * Enters the commit windows of all marks, at the beginning of the commit.  Marks that other
 * callbacks note later enter immediately.
 */
void
idemq_pending_groups_before_commit(void)
{
	for (int at = 0; at < end_of_marks; at = end_of(at))
		enter_commit_window(mark_at(at));
	committing = true;
}

/* Makes room for notes of owned groups, so that noting them cannot fail. */
void
idemq_pending_groups_reserve(int count)
{
	owned = idemq_grow(owned, &max_owned, (int64) nowned + count, sizeof(Owned));
}

/* Notes a group that this session has taken; room was reserved. */
void
idemq_pending_groups_note_owned(QueueState *qstate, const GroupTaken *group)
{
	Assert(nowned < max_owned);
	owned[nowned++] = (Owned){*group, group->low_water, qstate, GetCurrentSubTransactionId()};
}

/* Returns the note of an owned group; NULL for none. */
static Owned *
find_owned(const GroupKey *key)
{
	for (int i = nowned - 1; i >= 0; i--)
	{
		if (is_same(&owned[i].group.key, key))
			return &owned[i];
	}
	return NULL;
}

/*
 * Returns whether this subtransaction itself has taken a group.  If this subtransaction is rolled
 * back, a group that an outer one took keeps its promoter and its low-water mark.
 */
bool
idemq_pending_groups_owns(const GroupKey *key)
{
	const Owned *note = find_owned(key);

	return note != NULL && note->subid == GetCurrentSubTransactionId();
}

/* Notes the low-water mark that an owned group will have after the commit. */
void
idemq_pending_groups_note_low_water(const GroupTaken *group, GroupLowWater low_water)
{
	Owned *note = find_owned(&group->key);

	if (note != NULL)
		note->low_water = low_water;
}

/*
 * Returns the greatest ready_at of an owned group's jobs with a permit, which this transaction
 * alone knows: until it commits, the low-water mark knows only what others wrote.  DT_NOBEGIN for a
 * group that it does not own.
 */
TimestampTz
idemq_pending_groups_last(const GroupKey *key)
{
	const Owned *note = find_owned(key);

	return note == NULL ? DT_NOBEGIN : note->low_water.last;
}

/* Gives a group back before the end of the transaction, which has changed nothing in it. */
void
idemq_pending_groups_done(QueueState *qstate, const GroupTaken *group, GroupRelease how)
{
	Owned *note = find_owned(&group->key);

	if (note != NULL)
		memmove(note, note + 1, (&owned[--nowned] - note) * sizeof(Owned));
	idemq_group_release(qstate, group, how);
}

/*
 * Notes that this session is scanning groups or children of a queue; 0: no longer.  If an error
 * ends the scan, another one is requested.
 */
void
idemq_pending_groups_note_scan(QueueState *qstate, int32 queue_id)
{
	scanned_qstate = qstate;
	scanned_queue = queue_id;
}

/* Returns whether this transaction owns groups, because it has promoted. */
bool
idemq_pending_groups_owns_any(void)
{
	return nowned > 0;
}

/* Returns whether the end of this transaction changes shared memory for groups. */
bool
idemq_pending_groups_any(void)
{
	return end_of_marks > 0 || nowned > 0;
}

/* Gives back the groups that were taken in a subtransaction or in a later one. */
static void
release_from(SubTransactionId from, GroupRelease how)
{
	while (nowned > 0 && owned[nowned - 1].subid >= from)
	{
		Owned *last = &owned[--nowned];

		if (how == GROUP_DONE)
			last->group.low_water = last->low_water;
		idemq_group_release(last->qstate, &last->group, how);
	}
}

/* After the commit: marks groups, leaves commit windows, then gives back the owned groups. */
void
idemq_pending_groups_apply(void)
{
	IDEMQ_STOP("idemq_pending_groups_apply");
	for (int at = 0; at < end_of_marks; at = end_of(at))
	{
		GroupKey key = {0};

		memcpy(&key, &mark_at(at)->key, idemq_group_key_size(&mark_at(at)->key));
		(void) idemq_group_mark(mark_at(at)->qstate, &key, mark_at(at)->id);
	}
	idemq_pending_commit_window_leave();
	release_from(InvalidSubTransactionId, GROUP_DONE);
}

/*
 * After the abort of a subtransaction and of later ones: gives groups back, and requests the scan
 * again that was interrupted, if any.
 */
void
idemq_pending_groups_undo(SubTransactionId from)
{
	if (scanned_queue != 0)
		idemq_groups_want_scan(scanned_qstate, scanned_queue, SCAN_GROUPS | SCAN_CHILDREN, false);
	scanned_queue = 0;
	release_from(from, GROUP_AGAIN);
}

/* Forgets all, at the end of the transaction. */
void
idemq_pending_groups_forget(void)
{
	idemq_pending_commit_window_leave();
	committing = pauses = false;
	marks = NULL;
	owned = NULL;
	index_of_marks = NULL;
	end_of_marks = max_marks = nowned = max_owned = 0;
}
