/*
 * txn/pending_group_room.c
 *		What this transaction does to the groups of queues with group_max_unfinished: how many
 *		unfinished jobs it adds to each, less those that it ends, and the room that it has taken.
 *
 * A transaction needs room for the unfinished jobs that it adds to a group, less those that it ends,
 * so it may use the room of jobs that it ends itself.  shared/groups/group_room.c proves that the
 * limit holds.
 *
 * Each group has a note with the totals.  Each subtransaction that has changed them has a RoomChange
 * on a stack.  Subtransaction ids grow, so the changes of an open subtransaction are next to each
 * other, and above those of its parent.  A rollback removes the top of the stack and gives its room
 * back; the totals are then what they were when the subtransaction began.  A release merges the
 * changes into those of the parent, so that a loop of exception blocks does not make the stack grow.
 *
 * Each written row is noted once: by table/jobs_write.c, or by the row trigger
 * (hooks/row_triggers.c) if SQL writes the row.
 *
 * For queues without the limit, nothing is noted.  A transaction that wrote jobs before it knew of the
 * limit has not noted them; for other transactions, they count from its commit on.  When it asks for
 * room itself, job/group_room.c counts the jobs that it has added in the rows, and the note is corrected
 * here.  A rollback that undoes these rows also undoes the correction, because the rows were written
 * first.  If a rollback undoes only the correction, the next enqueue corrects the note again.
 *
 * A job that has room counts as coming until its row is written, because a trigger on idemq.jobs may
 * enqueue before that.
 *
 * PREPARE TRANSACTION is refused after an enqueue into such a group, because no session would hold
 * the room of the prepared transaction.  Jobs that were added or ended in another way need no room,
 * and are counted in the rows.
 *
 * Locks: none.  All state belongs to this backend, in TopTransactionContext.  Functions that
 * txn/at_end.c calls neither allocate nor raise.
 */
#include "postgres.h"

#include "access/htup_details.h" /* varatt.h, which is part of postgres.h before 16 */
#include "access/xact.h"
#include "fmgr.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "shared/groups/groups.h"
#include "txn/txn.h"

#define MIN_GROUPS 16
#define NO_CHANGE (-1)

typedef struct RoomNote
{
	GroupRoomKey key;
	int64 added;  /* number of unfinished jobs added, less those ended */
	int64 room;	  /* room taken */
	int64 coming; /* jobs that have room, but whose rows have not been written yet */
	int last;	  /* index of the latest change; NO_CHANGE: none */
} RoomNote;

typedef struct RoomChange
{
	RoomNote *note;
	SubTransactionId subid;
	int before; /* index of the previous change of the same group; NO_CHANGE: none */
	int64 added;
	int64 room; /* never below 0 */
	int64 coming;
	bool asks; /* this subtransaction has enqueued */
} RoomChange;

/* NULL between transactions. */
static HTAB *notes = NULL;
static RoomChange *changes = NULL;
static int nchanges = 0;
static int max_changes = 0;

/* Returns this subtransaction's change of a group. */
static RoomChange *
change_of(const GroupRoomKey *key)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	RoomNote *note;
	bool found;

	if (notes == NULL)
	{
		HASHCTL info = {.keysize = sizeof(GroupRoomKey),
						.entrysize = sizeof(RoomNote),
						.hcxt = TopTransactionContext};

		notes = hash_create("idemq group room", MIN_GROUPS, &info,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	changes = idemq_grow(changes, &max_changes, (int64) nchanges + 1, sizeof(RoomChange));
	note = hash_search(notes, key, HASH_ENTER, &found);
	if (!found)
	{
		note->added = note->room = note->coming = 0;
		note->last = NO_CHANGE;
	}
	if (note->last == NO_CHANGE || changes[note->last].subid != subid)
	{
		changes[nchanges] = (RoomChange){.note = note, .subid = subid, .before = note->last};
		note->last = nchanges++;
	}
	return &changes[note->last];
}

/*
 * Notes unfinished jobs that this transaction adds to a group of a queue with the limit, or ends there
 * if count is negative.  is_new: the row was inserted.  name: text, not NULL; a group whose name is
 * empty has no limit.
 */
void
idemq_pending_group_room_row(int32 queue_id, Datum name, int count, bool is_new)
{
	GroupRoomKey key;
	RoomChange *change;

	if (VARSIZE_ANY_EXHDR(DatumGetTextPP(name)) == 0)
		return;
	idemq_group_room_key(&key, queue_id, name);
	change = change_of(&key);
	change->added += count;
	change->note->added += count;
	if (unlikely(is_new && change->coming > 0))
	{
		change->coming--;
		change->note->coming--;
	}
}

/* Notes that this subtransaction will write the rows of jobs that have room. */
void
idemq_pending_group_room_expect(const GroupRoomKey *key, int64 jobs)
{
	RoomChange *change = change_of(key);

	change->coming += jobs;
	change->note->coming += jobs;
}

/*
 * Corrects the number of unfinished jobs that this transaction has added to a group, because not all of
 * them were noted.
 */
void
idemq_pending_group_room_correct(const GroupRoomKey *key, int64 added)
{
	RoomChange *change = change_of(key);

	change->added += added - change->note->added;
	change->note->added = added;
}

/*
 * Returns how much room this transaction lacks to add jobs to a group, and notes that it has asked.
 * The transaction may use room that it has already taken, and that of jobs that it has ended itself,
 * but not the room of jobs that are coming.
 */
int64
idemq_pending_group_room_lacks(const GroupRoomKey *key, int64 jobs)
{
	RoomChange *change = change_of(key);

	change->asks = true;
	return Max(jobs + change->note->added + change->note->coming - change->note->room, 0);
}

/* Like idemq_group_room_take, but also notes the room for this transaction. */
bool
idemq_pending_group_room_take(const QueueState *qstate, const GroupRoomKey *key, int64 jobs,
							  int64 *sum)
{
	RoomChange *change = change_of(key);

	if (!idemq_group_room_take(qstate, key, jobs, sum))
		return false;
	change->room += jobs;
	change->note->room += jobs;
	return true;
}

/*
 * Gives back room that this subtransaction has just taken for jobs that will not be added.  Keeps what
 * the transaction needs: a trigger on idemq.jobs may have enqueued meanwhile, and used that room.
 */
void
idemq_pending_group_room_give_back(const GroupRoomKey *key, int64 jobs)
{
	RoomChange *change = change_of(key);
	const RoomNote *note = change->note;

	jobs = Min(jobs, Max(note->room - note->added - note->coming, 0));
	change->room -= jobs;
	change->note->room -= jobs;
	idemq_group_room_give_back(key, jobs);
}

/* Returns whether this transaction has enqueued into such a group, so that it cannot be prepared. */
bool
idemq_pending_group_room_any(void)
{
	for (int i = 0; i < nchanges; i++)
	{
		if (changes[i].asks)
			return true;
	}
	return false;
}

/* Gives back all room, after the commit. */
void
idemq_pending_group_room_apply(void)
{
	IDEMQ_STOP("idemq_pending_group_room_apply");
	for (int i = 0; i < nchanges; i++)
		idemq_group_room_give_back(&changes[i].note->key, changes[i].room);
}

/* Passes a subtransaction's changes on to its parent. */
void
idemq_pending_group_room_release(SubTransactionId subid, SubTransactionId parent)
{
	int bottom = nchanges;
	int kept;

	while (bottom > 0 && changes[bottom - 1].subid >= subid)
		bottom--;
	kept = bottom;
	for (int i = bottom; i < nchanges; i++)
	{
		RoomChange change = changes[i];
		RoomChange *known = change.before == NO_CHANGE ? NULL : &changes[change.before];

		if (known != NULL && known->subid == parent)
		{
			known->added += change.added;
			known->room += change.room;
			known->coming += change.coming;
			known->asks |= change.asks;
			change.note->last = change.before;
		}
		else
		{
			change.subid = parent;
			change.note->last = kept;
			changes[kept++] = change;
		}
	}
	nchanges = kept;
}

/* Undoes the changes of a subtransaction and of all later ones. */
void
idemq_pending_group_room_undo(SubTransactionId from)
{
	while (nchanges > 0 && changes[nchanges - 1].subid >= from)
	{
		RoomChange *change = &changes[--nchanges];

		change->note->added -= change->added;
		change->note->room -= change->room;
		change->note->coming -= change->coming;
		change->note->last = change->before;
		idemq_group_room_give_back(&change->note->key, change->room);
	}
}

/* Forgets all, at the end of the transaction. */
void
idemq_pending_group_room_forget(void)
{
	notes = NULL;
	changes = NULL;
	nchanges = max_changes = 0;
}
