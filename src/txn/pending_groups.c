/*
 * txn/pending_groups.c
 *		What this transaction does to FIFO groups: the groups that its commit marks,
 *		since they may need a head then, and those that it owns until its end.
 *
 * Marks are kept for the whole transaction, also when a savepoint is rolled back: one
 * mark too many costs a scan of its group.  An owned group is given back at the end of
 * the transaction, when its new head is visible; after an abort, also of the savepoint
 * in which it was taken, it is to be promoted again.
 *
 * From before the commit is visible until all marks are set, the transaction is in the
 * windows of the queues in which it lowers floors (txn/pending_window.c).
 *
 * PREPARE TRANSACTION: the marks are lost; when it ends, all groups are scanned
 * (idemq_groups_unset_database).  One that owns a group is refused (txn/pending.c).
 *
 * A transaction may change very many groups, so a note is small, and keeps as much of
 * its group's name as there is.
 *
 * What txn/at_end.c calls runs after the transaction's end is visible; it neither
 * allocates nor raises.  All state is this backend's.
 */
#include "postgres.h"

#include "access/htup_details.h" /* varatt.h, which is part of postgres.h before 16 */
#include "access/xact.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "utils/memutils.h"

#include "shared/groups/groups.h"
#include "shared/slots/slots.h"
#include "txn/txn.h"

#define MIN_BUCKETS 8

/* Keys of groups, one behind the other, each cut off at the end of its name. */
typedef struct KeyStore
{
	uint64 *units;
	int max; /* units */
} KeyStore;

typedef struct Mark
{
	QueueSlot *slot;
	int64 id;	 /* as idemq_group_mark takes it: the least */
	uint32 hash; /* of the key */
	int next;	 /* mark of the same bucket; -1: none */
	int key;	 /* where it is in mark_keys */
} Mark;

typedef struct Owned
{
	GroupFloor taken; /* as it was taken */
	GroupFloor floor; /* once we have committed */
	QueueSlot *slot;
	SubTransactionId subid;
	int key; /* where it is in owned_keys */
} Owned;

#define MAX_NOTE_SIZE 80 /* bytes, beside the key */

StaticAssertDecl(sizeof(Mark) <= MAX_NOTE_SIZE, "the mark of a group is too large");
StaticAssertDecl(sizeof(Owned) <= MAX_NOTE_SIZE, "the note of an owned group is too large");

/* All in TopTransactionContext; NULL between transactions. */
static Mark *marks = NULL;
static int nmarks = 0;
static int max_marks = 0;
static KeyStore mark_keys = {NULL, 0};
/* The hash table of marks: the first mark of each bucket, -1 for none. */
static int *buckets = NULL;
static int nbuckets = 0; /* a power of 2, or 0 */
static Owned *owned = NULL;
static int nowned = 0;
static int max_owned = 0;
static KeyStore owned_keys = {NULL, 0};
/* The queue whose groups this session is scanning; 0: none. */
static int32 scanned_queue = 0;
static QueueSlot *scanned_slot = NULL;

/* Whether a new mark is to enter the window of its queue at once: the commit has begun. */
static bool committing = false;

/* Returns how many units a key takes. */
static int
units_of(const GroupKey *key)
{
	return (int) ((idemq_group_key_size(key) + sizeof(uint64) - 1) / sizeof(uint64));
}

/* Returns a kept key: only the used bytes of its name are there. */
static const GroupKey *
kept_key(const KeyStore *store, int at)
{
	return (const GroupKey *) &store->units[at];
}

static bool
is_kept_key(const KeyStore *store, int at, const GroupKey *key)
{
	const GroupKey *kept = kept_key(store, at);
	Size size = idemq_group_key_size(key);

	return idemq_group_key_size(kept) == size && memcmp(kept, key, size) == 0;
}

/* Returns where in a store a key ends. */
static int
end_of_key(const KeyStore *store, int at)
{
	return at + units_of(kept_key(store, at));
}

/* Makes a whole key of one that is kept. */
static GroupKey
whole_key(const KeyStore *store, int at)
{
	const GroupKey *kept = kept_key(store, at);
	GroupKey key = {0};

	memcpy(&key, kept, idemq_group_key_size(kept));
	return key;
}

/* Makes room for so many units behind the first ones. */
static void
reserve_units(KeyStore *store, int used, int64 more)
{
	store->units = idemq_grow(store->units, &store->max, used + more, sizeof(uint64));
}

/* Keeps a key; room was reserved. */
static void
keep_key(KeyStore *store, int at, const GroupKey *key)
{
	Assert(at + units_of(key) <= store->max);
	memcpy(&store->units[at], key, idemq_group_key_size(key));
}

static void
add_to_bucket(int index)
{
	int *bucket = &buckets[marks[index].hash & (nbuckets - 1)];

	marks[index].next = *bucket;
	*bucket = index;
}

/* Makes room for one more mark in the hash table, which has no fewer buckets than marks. */
static void
grow_buckets(void)
{
	int more = Max(2 * nbuckets, MIN_BUCKETS);
	int *larger;

	if (nmarks < nbuckets)
		return;
	larger = MemoryContextAllocHuge(TopTransactionContext, more * sizeof(int));
	if (buckets != NULL)
		pfree(buckets);
	buckets = larger;
	nbuckets = more;
	for (int i = 0; i < nbuckets; i++)
		buckets[i] = -1;
	for (int i = 0; i < nmarks; i++)
		add_to_bucket(i);
}

/* Returns the mark of a group; NULL when it has none. */
static Mark *
find_mark(const GroupKey *key, uint32 hash)
{
	int i = nbuckets == 0 ? -1 : buckets[hash & (nbuckets - 1)];

	while (i >= 0 && (marks[i].hash != hash || !is_kept_key(&mark_keys, marks[i].key, key)))
		i = marks[i].next;
	return i < 0 ? NULL : &marks[i];
}

/* Enters the window of a mark's queue if the mark lowers a floor. */
static void
enter_window(Mark *mark)
{
	const GroupKey *key = kept_key(&mark_keys, mark->key);

	if (mark->id == GROUP_KEEP_FLOOR)
		return;
	mark->slot = idemq_slot_current(mark->slot, key->queue_id);
	idemq_pending_window_enter(mark->slot, key->database, mark->id);
}

/*
 * Notes that a group may need a head when this transaction has committed; name: text,
 * not NULL; id: as idemq_group_mark takes it.
 */
void
idemq_pending_groups_note(QueueSlot *slot, int32 queue_id, Datum name, int64 id)
{
	text *value = DatumGetTextPP(name);
	GroupKey key;
	uint32 hash;
	Mark *mark;
	int at = nmarks == 0 ? 0 : end_of_key(&mark_keys, marks[nmarks - 1].key);

	idemq_group_key(&key, queue_id, VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value));
	hash = hash_bytes((const unsigned char *) &key, (int) idemq_group_key_size(&key));
	mark = find_mark(&key, hash);
	if (mark != NULL)
		mark->id = Min(mark->id, id);
	else
	{
		marks = idemq_grow(marks, &max_marks, (int64) nmarks + 1, sizeof(Mark));
		reserve_units(&mark_keys, at, units_of(&key));
		grow_buckets();
		keep_key(&mark_keys, at, &key);
		mark = &marks[nmarks];
		*mark = (Mark){slot, id, hash, -1, at};
		add_to_bucket(nmarks++);
	}
	if (committing)
		enter_window(mark);
}

/*
 * Returns where a check of an owned group may begin, by a snapshot that was taken since
 * it is owned; each newer snapshot needs a newer floor.
 */
GroupFloor
idemq_pending_groups_floor(QueueSlot *slot, const GroupKey *key)
{
	Mark *mark = NULL;

	if (nmarks > 0)
		mark = find_mark(key,
						 hash_bytes((const unsigned char *) key, (int) idemq_group_key_size(key)));
	return idemq_group_floor(slot, key, mark == NULL ? GROUP_KEEP_FLOOR : mark->id);
}

/* Follows the begin of the commit: what is noted from here on, by others' callbacks, too. */
void
idemq_pending_groups_before_commit(void)
{
	for (int i = 0; i < nmarks; i++)
		enter_window(&marks[i]);
	committing = true;
}

/* Returns where in owned_keys there is no key. */
static int
end_of_owned_keys(void)
{
	return nowned == 0 ? 0 : end_of_key(&owned_keys, owned[nowned - 1].key);
}

/* Makes room for groups that are to be owned, so that noting them cannot fail. */
void
idemq_pending_groups_reserve(int count)
{
	int64 units = (int64) count * (sizeof(GroupKey) / sizeof(uint64));

	owned = idemq_grow(owned, &max_owned, (int64) nowned + count, sizeof(Owned));
	reserve_units(&owned_keys, end_of_owned_keys(), units);
}

/* Notes a group that this session has taken; room was reserved. */
void
idemq_pending_groups_note_owned(QueueSlot *slot, const GroupTaken *group)
{
	int at = end_of_owned_keys();

	Assert(nowned < max_owned);
	keep_key(&owned_keys, at, &group->key);
	owned[nowned++] = (Owned){group->floor, group->floor, slot, GetCurrentSubTransactionId(), at};
}

/* Returns which of the owned groups this is; -1 for none. */
static int
find_owned(const GroupKey *key)
{
	int i = nowned - 1;

	while (i >= 0 && !is_kept_key(&owned_keys, owned[i].key, key))
		i--;
	return i;
}

/*
 * Returns whether this transaction owns a group since this subtransaction: one that an outer
 * one took is not given back, nor its floor, when this one is rolled back.
 */
bool
idemq_pending_groups_owns(const GroupKey *key)
{
	int i = find_owned(key);

	return i >= 0 && owned[i].subid == GetCurrentSubTransactionId();
}

/* Notes the floor that an owned group has once this transaction has committed. */
void
idemq_pending_groups_note_floor(const GroupTaken *group, GroupFloor floor)
{
	int i = find_owned(&group->key);

	if (i >= 0)
		owned[i].floor = floor;
}

/*
 * Returns the greatest ready_at of a group's jobs with a place that this transaction knows of
 * and others do not yet: of an owned group the floor is theirs until it commits.
 */
TimestampTz
idemq_pending_groups_last(const GroupKey *key)
{
	int i = find_owned(key);

	return i < 0 ? DT_NOBEGIN : owned[i].floor.last;
}

/* Forgets an owned group, wherever in the list. */
static void
remove_owned(int i)
{
	int at = owned[i].key;
	int size = units_of(kept_key(&owned_keys, at));
	int behind = end_of_owned_keys() - at - size;

	memmove(&owned_keys.units[at], &owned_keys.units[at + size], behind * sizeof(uint64));
	memmove(&owned[i], &owned[i + 1], (nowned - i - 1) * sizeof(Owned));
	nowned--;
	for (; i < nowned; i++)
		owned[i].key -= size;
}

/* Gives a group back at once: this transaction has changed nothing in it. */
void
idemq_pending_groups_done(QueueSlot *slot, const GroupTaken *group, GroupRelease how)
{
	int i = find_owned(&group->key);

	if (i >= 0)
		remove_owned(i);
	idemq_group_release(slot, group, how);
}

/*
 * Notes that this session scans all groups of a queue from now on, 0: not any more.
 * Should an error end the scan, it has to be done again.
 */
void
idemq_pending_groups_note_scan(QueueSlot *slot, int32 queue_id)
{
	scanned_slot = slot;
	scanned_queue = queue_id;
}

/* Returns whether this transaction has promoted. */
bool
idemq_pending_groups_owns_any(void)
{
	return nowned > 0;
}

/* Returns whether this transaction's end changes what groups need. */
bool
idemq_pending_groups_any(void)
{
	return nmarks > 0 || nowned > 0;
}

/* Gives back what was taken in a subtransaction, or in a later one. */
static void
release_from(SubTransactionId from, GroupRelease how)
{
	while (nowned > 0 && owned[nowned - 1].subid >= from)
	{
		const Owned *last = &owned[--nowned];
		GroupTaken group = {whole_key(&owned_keys, last->key),
							how == GROUP_DONE ? last->floor : last->taken};

		idemq_group_release(last->slot, &group, how);
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

/* Follows the commit: marks groups, leaves windows, then gives back the owned groups. */
void
idemq_pending_groups_apply(void)
{
	for (int i = 0; i < nmarks; i++)
	{
		GroupKey key = whole_key(&mark_keys, marks[i].key);

		idemq_group_mark(marks[i].slot, &key, marks[i].id);
	}
	idemq_pending_window_leave();
	release_from(InvalidSubTransactionId, GROUP_DONE);
}

/* Follows the abort of a subtransaction and of later ones. */
void
idemq_pending_groups_undo(SubTransactionId from)
{
	end_scan();
	release_from(from, GROUP_AGAIN);
}

/* Forgets all, at the end of the transaction. */
void
idemq_pending_groups_forget(void)
{
	idemq_pending_window_leave();
	committing = false;
	marks = NULL;
	owned = NULL;
	buckets = NULL;
	nmarks = max_marks = nbuckets = nowned = max_owned = 0;
	mark_keys = owned_keys = (KeyStore){NULL, 0};
}
