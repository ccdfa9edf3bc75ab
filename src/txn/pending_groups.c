/*
 * txn/pending_groups.c
 *		What this transaction does to FIFO groups: the groups that its commit marks,
 *		since they may need a head then, and those that it owns until its end.
 *
 * Marks are kept for the whole transaction, a savepoint's rollback or not: one too
 * many costs a look.  An owned group is given back at the end of the transaction,
 * when its new head is visible; at an abort, also of the savepoint in which it was
 * taken, it is to be looked at again.
 *
 * PREPARE TRANSACTION: the marks are lost; when it ends, all groups are looked at
 * (idemq_groups_unset_database).  What it owns nobody may look at until then.
 *
 * The callbacks run after the transaction's end is visible; they neither allocate nor
 * raise.  All state is this backend's.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "txn/growing.h"
#include "txn/pending_groups.h"
#include "shared/group_table.h"
#include "shared/groups.h"

/* Up to so many marks are searched one by one. */
#define FEW_MARKS 8

typedef struct Mark
{
	GroupKey key;
	QueueSlot *slot;
	int64 id; /* as idemq_group_mark takes it: the least */
} Mark;

/* Where the mark of a group is. */
typedef struct MarkPlace
{
	GroupKey key; /* hash key */
	int index;
} MarkPlace;

typedef struct Owned
{
	GroupTaken group; /* as it was taken */
	GroupFloor floor; /* once we have committed */
	QueueSlot *slot;
	SubTransactionId subid;
} Owned;

/* In TopTransactionContext; NULL between transactions. */
static Mark *marks = NULL;
static int nmarks = 0;
static int max_marks = 0;
static HTAB *marked = NULL; /* of MarkPlace, when there are more than FEW_MARKS */
static Owned *owned = NULL;
static int nowned = 0;
static int max_owned = 0;
/* The queue whose groups are being looked through; 0: none. */
static int32 scanned_queue = 0;
static QueueSlot *scanned_slot = NULL;

static void
add_to_marked(int index)
{
	MarkPlace *place = hash_search(marked, &marks[index].key, HASH_ENTER, NULL);

	place->index = index;
}

/* Makes the table of marks, once they are many. */
static void
begin_marked(void)
{
	HASHCTL info = {0};

	info.keysize = sizeof(GroupKey);
	info.entrysize = sizeof(MarkPlace);
	info.hcxt = TopTransactionContext;
	marked = hash_create("idemq marked groups", 256, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	for (int i = 0; i < nmarks; i++)
		add_to_marked(i);
}

/* Returns the mark of a group; NULL when it has none. */
static Mark *
find_mark(const GroupKey *key)
{
	const MarkPlace *place;

	if (marked != NULL)
	{
		place = hash_search(marked, key, HASH_FIND, NULL);
		return place == NULL ? NULL : &marks[place->index];
	}
	for (int i = 0; i < nmarks; i++)
	{
		if (memcmp(&marks[i].key, key, sizeof(*key)) == 0)
			return &marks[i];
	}
	return NULL;
}

/*
 * Notes that a group may need a head when this transaction has committed; name: text,
 * not NULL; id: as idemq_group_mark takes it.
 */
void
idemq_group_note(QueueSlot *slot, int32 queue_id, Datum name, int64 id)
{
	text *value = DatumGetTextPP(name);
	GroupKey key;
	Mark *mark;

	idemq_group_key(&key, queue_id, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	mark = find_mark(&key);
	if (mark != NULL)
	{
		mark->id = Min(mark->id, id);
		return;
	}
	marks = idemq_grow(marks, &max_marks, (int64) nmarks + 1, sizeof(Mark));
	if (marked == NULL && nmarks == FEW_MARKS)
		begin_marked();
	marks[nmarks] = (Mark){key, slot, id};
	if (marked != NULL)
		add_to_marked(nmarks);
	nmarks++;
}

/* Makes room for groups that are to be owned, so that noting them cannot fail. */
void
idemq_group_notes_reserve(int count)
{
	owned = idemq_grow(owned, &max_owned, (int64) nowned + count, sizeof(Owned));
}

/* Notes a group that this session has taken; room was reserved. */
void
idemq_group_note_owned(QueueSlot *slot, const GroupTaken *group)
{
	Assert(nowned < max_owned);
	owned[nowned++] = (Owned){*group, group->floor, slot, GetCurrentSubTransactionId()};
}

/* Returns which of the owned groups this is; -1 for none. */
static int
find_owned(const GroupKey *key)
{
	int i = nowned - 1;

	while (i >= 0 && memcmp(&owned[i].group.key, key, sizeof(*key)) != 0)
		i--;
	return i;
}

/* Notes the floor that an owned group has once this transaction has committed. */
void
idemq_group_note_floor(const GroupTaken *group, GroupFloor floor)
{
	int i = find_owned(&group->key);

	if (i >= 0)
		owned[i].floor = floor;
}

/* Gives a group back at once: this transaction has changed nothing in it. */
void
idemq_group_done(QueueSlot *slot, const GroupTaken *group, GroupRelease how)
{
	int i = find_owned(&group->key);

	if (i >= 0)
	{
		memmove(&owned[i], &owned[i + 1], (nowned - i - 1) * sizeof(Owned));
		nowned--;
	}
	idemq_group_release(slot, group, how);
}

/*
 * Notes that this session looks through all groups of a queue from now on, 0: not any
 * more.  Should an error end it, somebody has to do it again.
 */
void
idemq_group_note_scan(QueueSlot *slot, int32 queue_id)
{
	scanned_slot = slot;
	scanned_queue = queue_id;
}

/* Returns whether this transaction's end changes what groups need. */
bool
idemq_group_notes_any(void)
{
	return nmarks > 0 || nowned > 0;
}

/* Gives back what was taken in a subtransaction, or in a later one. */
static void
release_from(SubTransactionId from, GroupRelease how)
{
	while (nowned > 0 && owned[nowned - 1].subid >= from)
	{
		Owned *last = &owned[--nowned];

		if (how == GROUP_DONE)
			last->group.floor = last->floor;
		idemq_group_release(last->slot, &last->group, how);
	}
}

/* Has a scan done again that did not come to its end. */
static void
end_scan(void)
{
	if (scanned_queue != 0)
		idemq_groups_want_scan(scanned_slot, scanned_queue, false);
	scanned_queue = 0;
}

/* Follows the commit: marks groups, then gives back those that are owned. */
void
idemq_group_notes_apply(void)
{
	for (int i = 0; i < nmarks; i++)
		idemq_group_mark(marks[i].slot, &marks[i].key, marks[i].id);
	release_from(InvalidSubTransactionId, GROUP_DONE);
}

/* Follows the abort of a subtransaction and of later ones. */
void
idemq_group_notes_undo(SubTransactionId from)
{
	end_scan();
	release_from(from, GROUP_AGAIN);
}

/* Follows PREPARE. */
void
idemq_group_notes_prepare(void)
{
	release_from(InvalidSubTransactionId, GROUP_PREPARED);
}

/* Forgets all, at the end of the transaction. */
void
idemq_group_notes_forget(void)
{
	marks = NULL;
	owned = NULL;
	marked = NULL;
	nmarks = max_marks = nowned = max_owned = 0;
}
