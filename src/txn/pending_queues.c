/*
 * txn/pending_queues.c
 *		What this transaction owes each queue: the ready keys that it makes claimable, the rows and
 *		events that it counts, the attempts that it ends, whose permits its claims may take over in a
 *		queue with max_running (job/limits.c), and the room that it has taken in a queue with
 *		max_unfinished (job/room.c).
 *
 * There is one note for each subtransaction and queue, on a stack.  Subtransaction ids increase, so
 * the notes of an open subtransaction are together, above those of its parent.  A rollback removes
 * the top of the stack.  A release merges it into the parent's notes, so a loop of exception blocks
 * leaves only the notes of the block around it.
 *
 * Of the ready keys, the least of each priority is kept, because lowering a scan start too far or
 * too often only costs time.  At the end of the transaction, after a commit as well as an abort,
 * the scan starts are lowered to these keys, and waiting sessions are woken.  After a commit, the
 * worker is also told when the first of the jobs expires.
 *
 * Each written row is counted once, where it is written: by table/jobs_write.c for direct access,
 * and by the row trigger (hooks/row_triggers.c) for SQL, which table/jobs_sql.c and
 * job/new_job_keyed.c also use.  An event is counted by the function that causes it; a DBA's
 * statement is not an event.
 *
 * A transaction may transfer one permit for each attempt that it ends and that is counted as
 * running.  The top of shared/leases/running.c says why workers nevertheless work on at most
 * max_running jobs.
 *
 * A transaction needs room for the unfinished jobs that it adds, less those that it ends.  The
 * gauges in its notes contain this number.  Room that a subtransaction takes is in its own note, so
 * a rollback gives it back.  Without that note, the other notes are as they were when the
 * subtransaction began. shared/counts/unfinished.c proves that the limit holds.
 *
 * A note also says whether the transaction wrote rows before it knew of the queue's
 * group_max_unfinished, so that their groups were not noted (txn/pending_group_room.c).
 *
 * The stack is kept for the next transaction; unused notes are empty.  It grows when something is
 * noted; the functions that txn/at_end.c calls neither allocate memory nor raise errors.
 *
 * PREPARE TRANSACTION: all notes are lost; when the transaction ends, the scan starts and the
 * gauges are unset (idemq_qstates_unset_database).
 *
 * Locks: none; all state belongs to this backend.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "txn/txn.h"

#define MIN_NOTES 4
/* A longer stack is not kept. */
#define MAX_KEPT 64

typedef struct Owed
{
	SubTransactionId subid;
	int32 queue_id;
	QueueState *qstate;		/* its state when noted, as a hint; not cleared */
	uint32 priorities;		/* bits: those that have a key */
	int ready;				/* keys that the commit makes claimable, and that were due when noted */
	TimestampTz later;		/* the earliest of the other keys; DT_NOEND: there is none */
	TimestampTz expires_at; /* the earliest; DT_NOEND: none expires */
	int free;		/* ended attempts with a free permit; below 0: a parent's permit is taken */
	int uncounted;	/* ended attempts that were not counted */
	bool asks;		/* has enqueued into this queue, which has max_unfinished */
	bool misses;	/* has written jobs whose groups were not noted (pending_group_room.c) */
	RoomTaken room; /* room taken in this queue */
	int64 coming;	/* jobs that have room, but whose rows have not been written yet */
	ReadyKey least[IDEMQ_PRIORITIES];
	CounterDelta delta;
} Owed;

static MemoryContext pending_queues_context = NULL;
static Owed **owed = NULL;
static int nowed = 0;
static int max_owed = 0;

static void
pending_queues_reset_note(Owed *note)
{
	note->priorities = 0;
	note->ready = note->free = note->uncounted = 0;
	note->later = note->expires_at = DT_NOEND;
	note->asks = note->misses = false;
	note->room.jobs = note->coming = 0;
	memset(note->delta.gauges, 0, sizeof(note->delta.gauges));
	memset(note->delta.counters, 0, sizeof(note->delta.counters));
	for (int t = 0; t < TIMING_COUNT; t++)
	{
		TimingDelta *timing = &note->delta.timings[t];

		for (int i = timing->first; i <= timing->last; i++)
			timing->buckets[i] = 0;
		timing->first = HISTOGRAM_BUCKETS;
		timing->last = -1;
	}
}

static void
grow(void)
{
	int more = Max(max_owed, MIN_NOTES);
	Owed *notes;

	if (pending_queues_context == NULL)
		pending_queues_context =
			AllocSetContextCreate(TopMemoryContext, "idemq owed to queues", ALLOCSET_SMALL_SIZES);
	notes = MemoryContextAllocHuge(pending_queues_context, more * sizeof(Owed));
	memset(notes, 0, more * sizeof(Owed));
	if (owed == NULL)
		owed = MemoryContextAlloc(pending_queues_context, more * sizeof(Owed *));
	else
		owed = repalloc_huge(owed, (max_owed + more) * sizeof(Owed *));
	for (int i = 0; i < more; i++)
	{
		pending_queues_reset_note(&notes[i]);
		owed[max_owed + i] = &notes[i];
	}
	max_owed += more;
}

/* Returns a queue's note among a subtransaction's notes below top; NULL for none. */
static Owed *
pending_queues_find_below(int top, SubTransactionId subid, int32 queue_id)
{
	for (int i = top - 1; i >= 0 && owed[i]->subid == subid; i--)
	{
		if (owed[i]->queue_id == queue_id)
			return owed[i];
	}
	return NULL;
}

/* Returns what this subtransaction owes a queue. */
static Owed *
owed_to(int32 queue_id)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Owed *note = pending_queues_find_below(nowed, subid, queue_id);

	if (note == NULL)
	{
		if (nowed == max_owed)
			grow();
		note = owed[nowed++];
		note->subid = subid;
		note->queue_id = queue_id;
	}
	return note;
}

/* Keeps the least key of a priority. */
static void
pending_queues_keep(Owed *note, int priority, ReadyKey key)
{
	if ((note->priorities & (1u << priority)) == 0 || ready_key_less(key, note->least[priority]))
		note->least[priority] = key;
	note->priorities |= 1u << priority;
}

/*
 * Notes a key that this transaction removes from the ready index, because an abort makes it
 * claimable again.
 */
void
idemq_pending_ready_note_taken(QueueState *qstate, int32 queue_id, int priority, ReadyKey key)
{
	Owed *note = owed_to(queue_id);

	note->qstate = qstate;
	pending_queues_keep(note, priority, key);
}

/*
 * Notes a key that this transaction makes claimable by its commit, or possibly by its end in either
 * way.  Must be called before the row is written.
 */
void
idemq_pending_ready_note(QueueState *qstate, int32 queue_id, int priority, ReadyKey key)
{
	Owed *note = owed_to(queue_id);

	note->qstate = qstate;
	pending_queues_keep(note, priority, key);
	if (key.ready_at <= idemq_now())
		note->ready++;
	else
		note->later = Min(note->later, key.ready_at);
}

/* Notes when a job expires that this transaction makes ready or blocked. */
void
idemq_pending_ready_note_expiry(QueueState *qstate, int32 queue_id, TimestampTz expires_at)
{
	Owed *note = owed_to(queue_id);

	note->qstate = qstate;
	note->expires_at = Min(note->expires_at, expires_at);
}

/*
 * Lowers a view of the scan starts, and shortens its copy of the read-ahead buffer, to the keys
 * that this transaction itself has made ready, because only its own claims see these jobs before
 * the commit.
 */
void
idemq_pending_ready_view(int32 queue_id, ScanStart *view)
{
	for (int i = 0; i < nowed; i++)
	{
		uint32 left = owed[i]->queue_id == queue_id ? owed[i]->priorities : 0;

		for (; left != 0; left &= left - 1)
		{
			int priority = pg_rightmost_one_pos32(left);
			ReadyKey key = owed[i]->least[priority];

			idemq_read_ahead_view_cut(&view->read_ahead, priority, key);
			if (ready_key_less(key, view->from[priority]))
				view->from[priority] = key;
		}
	}
}

/*
 * Counts a written row in the gauges: from and to are its status before and after, NO_ROW for none.
 * A new row uses up room that was taken for it.  Also notes if the row's group was not counted,
 * because this session does not know of a group_max_unfinished.  May allocate memory.
 */
void
idemq_pending_counts_row(int32 queue_id, int from, int to)
{
	Owed *note;

	if (from == to)
		return;
	note = owed_to(queue_id);
	if (from != NO_ROW)
		note->delta.gauges[from]--;
	else if (unlikely(note->coming > 0))
		note->coming--;
	if (to != NO_ROW)
		note->delta.gauges[to]++;
	note->misses |= !idemq_queue_limits_groups(queue_id);
}

/* Notes that a row was written before this transaction knew of the queue's group_max_unfinished. */
void
idemq_pending_group_room_miss(int32 queue_id)
{
	owed_to(queue_id)->misses = true;
}

/* Returns whether this transaction has written jobs of a queue without noting their groups. */
bool
idemq_pending_group_room_misses(int32 queue_id)
{
	for (int i = 0; i < nowed; i++)
	{
		if (owed[i]->queue_id == queue_id && owed[i]->misses)
			return true;
	}
	return false;
}

/* Notes an event for each of those counters, as COUNTER_BITs. */
void
idemq_pending_counts_event(int32 queue_id, uint32 counters)
{
	CounterDelta *delta;

	if (counters == 0)
		return;
	delta = &owed_to(queue_id)->delta;
	for (; counters != 0; counters &= counters - 1)
		delta->counters[pg_rightmost_one_pos32(counters)]++;
}

static void
add_to_bucket(TimingDelta *timing, int bucket, uint32 count)
{
	timing->buckets[bucket] += count;
	timing->first = Min(timing->first, bucket);
	timing->last = Max(timing->last, bucket);
}

/* Notes a duration, at most HISTOGRAM_LIMIT. */
void
idemq_pending_counts_timing(int32 queue_id, Timing which, TimestampTz from, TimestampTz to)
{
	int64 usecs = to - Max(from, to - HISTOGRAM_LIMIT);

	add_to_bucket(&owed_to(queue_id)->delta.timings[which], idemq_histogram_bucket(usecs), 1);
}

/*
 * Makes room to count transferred permits in a queue, so that idemq_transfer_note_end cannot fail.
 */
void
idemq_transfer_reserve(int32 queue_id)
{
	(void) owed_to(queue_id);
}

/*
 * Notes that one attempt more (count 1) or less (-1) is ended. frees: the attempt was counted.  A
 * claim that takes over the permit of such an attempt counts as one less.
 */
void
idemq_transfer_note_end(int32 queue_id, bool frees, int count)
{
	Owed *note = pending_queues_find_below(nowed, GetCurrentSubTransactionId(), queue_id);

	if (note != NULL && frees)
		note->free += count;
	else if (note != NULL)
		note->uncounted += count;
}

/*
 * Returns the number of attempts that this transaction ends and whose permits have not been taken
 * over.
 */
int
idemq_transfers_free(int32 queue_id)
{
	int count = 0;

	for (int i = 0; i < nowed; i++)
		count += owed[i]->queue_id == queue_id ? owed[i]->free : 0;
	return count;
}

/*
 * Returns whether this transaction ends an attempt that was not counted, because it had no entry.
 * This transaction's own search does not see that attempt, other sessions' searches do.
 */
bool
idemq_transfer_uncounted(int32 queue_id)
{
	for (int i = 0; i < nowed; i++)
	{
		if (owed[i]->queue_id == queue_id && owed[i]->uncounted > 0)
			return true;
	}
	return false;
}

/* Returns the number of unfinished jobs added according to a note, less those ended. */
static int64
unfinished_added(const Owed *note)
{
	const int64 *gauges = note->delta.gauges;

	return gauges[JOB_BLOCKED] + gauges[JOB_PENDING] + gauges[JOB_RUNNING] + gauges[JOB_RETRYING];
}

/*
 * Returns how much room this transaction lacks to add jobs to a queue with max_unfinished, and notes
 * that it has asked.  The transaction may use room that it has already taken, and that of jobs that it
 * has ended itself, but not the room of jobs whose rows have not been written yet, because a trigger on
 * idemq.jobs may enqueue before that.
 */
int64
idemq_pending_room_lacks(const QueueInfo *queue, int64 jobs)
{
	int64 lacks = jobs;

	owed_to(queue->id)->asks = true;
	for (int i = 0; i < nowed; i++)
	{
		if (owed[i]->queue_id == queue->id)
			lacks += unfinished_added(owed[i]) + owed[i]->coming - owed[i]->room.jobs;
	}
	return Max(lacks, 0);
}

/* Like idemq_room_take, but also notes the room.  Must be called after idemq_pending_room_lacks. */
RoomAnswer
idemq_pending_room_take(const QueueInfo *queue, int64 jobs)
{
	Owed *note = owed_to(queue->id);

	note->qstate = queue->qstate;
	return idemq_room_take(queue->qstate, queue->id, jobs, queue->max_unfinished, &note->room);
}

/* Notes that this subtransaction will write the rows of jobs that have room. */
void
idemq_pending_room_expect(const QueueInfo *queue, int64 jobs)
{
	owed_to(queue->id)->coming += jobs;
}

/*
 * Notes that a job that has room will not be written, and gives back the room that this
 * subtransaction has just taken for it.
 */
void
idemq_pending_room_give_back(const QueueInfo *queue, int64 taken)
{
	Owed *note = owed_to(queue->id);

	note->coming -= Min(note->coming, 1);
	idemq_room_give_back(&note->room, taken);
}

/*
 * To be called before the commit: takes room for the jobs that were added without asking, so that
 * their room is taken when they become visible.
 */
void
idemq_pending_room_before_commit(void)
{
	for (int i = 0; i < nowed; i++)
	{
		Owed *note = owed[i];
		int64 lacks = unfinished_added(note) - note->room.jobs;

		if (lacks <= 0)
			continue;
		note->qstate = idemq_qstate_current(note->qstate, note->queue_id);
		if (note->qstate != NULL)
			idemq_room_take_unasked(note->qstate, note->queue_id, lacks, &note->room);
	}
}

/*
 * Returns whether this transaction has enqueued into a queue with max_unfinished, or has added jobs
 * there in another way, so that it cannot be prepared.
 */
bool
idemq_pending_room_any(void)
{
	QueueInfo queue;

	for (int i = 0; i < nowed; i++)
	{
		if (owed[i]->asks ||
			(unfinished_added(owed[i]) > 0 && idemq_queue_by_id(owed[i]->queue_id, &queue) &&
			 queue.max_unfinished > 0))
			return true;
	}
	return false;
}

static void
merge(Owed *to, const Owed *from)
{
	for (uint32 left = from->priorities; left != 0; left &= left - 1)
		pending_queues_keep(to, pg_rightmost_one_pos32(left),
							from->least[pg_rightmost_one_pos32(left)]);
	to->ready += from->ready;
	to->later = Min(to->later, from->later);
	to->expires_at = Min(to->expires_at, from->expires_at);
	to->free += from->free;
	to->uncounted += from->uncounted;
	to->asks |= from->asks;
	to->misses |= from->misses;
	to->coming += from->coming;
	if (to->room.jobs == 0 || (from->room.jobs != 0 && from->room.life != to->room.life))
		to->room = from->room;
	else
		to->room.jobs += from->room.jobs;
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		to->delta.gauges[i] += from->delta.gauges[i];
	for (int i = 0; i < COUNTER_COUNT; i++)
		to->delta.counters[i] += from->delta.counters[i];
	for (int t = 0; t < TIMING_COUNT; t++)
	{
		const TimingDelta *timing = &from->delta.timings[t];

		for (int i = timing->first; i <= timing->last; i++)
		{
			if (timing->buckets[i] != 0)
				add_to_bucket(&to->delta.timings[t], i, timing->buckets[i]);
		}
	}
}

/*
 * Gives a subtransaction's notes to its parent.  If the parent has no note for a queue, the
 * subtransaction's note becomes the parent's, above its others.
 */
void
idemq_pending_queues_release(SubTransactionId subid, SubTransactionId parent)
{
	int bottom = nowed;
	int kept;

	while (bottom > 0 && owed[bottom - 1]->subid >= subid)
		bottom--;
	kept = bottom;
	for (int i = bottom; i < nowed; i++)
	{
		Owed *note = owed[i];
		Owed *known = pending_queues_find_below(bottom, parent, note->queue_id);

		if (known != NULL)
			merge(known, note);
		else
		{
			owed[i] = owed[kept];
			owed[kept++] = note;
			note->subid = parent;
		}
	}
	while (nowed > kept)
		pending_queues_reset_note(owed[--nowed]);
}

/* After the commit: adds the counts to the queues' counters. */
void
idemq_pending_counts_apply(void)
{
	uint64 xid = U64FromFullTransactionId(GetTopFullTransactionIdIfAny());

	for (int i = 0; i < nowed; i++)
	{
		Owed *note = owed[i];
		int64 added = unfinished_added(note);

		note->qstate = idemq_qstate_current(note->qstate, note->queue_id);
		if (note->qstate == NULL)
			continue;
		idemq_counters_add(idemq_qstate_index(note->qstate), note->queue_id, xid, &note->delta);
		/* After idemq_counters_add, whose lock is a barrier between the commit and is_counted. */
		if (note->room.jobs != 0 || (added != 0 && idemq_unfinished_is_counted(note->qstate)))
			idemq_unfinished_apply(note->qstate, note->queue_id, xid, added, &note->room);
	}
	if (nowed > 0)
		idemq_worker_note_counts();
}

static void
pending_queues_lower(const Owed *note)
{
	for (uint32 left = note->priorities; left != 0; left &= left - 1)
	{
		int priority = pg_rightmost_one_pos32(left);

		idemq_scan_start_lower(note->qstate, note->queue_id, priority, note->least[priority]);
	}
}

/* After the commit: lowers scan starts, and wakes waiting sessions. */
void
idemq_pending_ready_apply(void)
{
	for (int i = 0; i < nowed; i++)
	{
		const Owed *note = owed[i];

		pending_queues_lower(note);
		if (note->expires_at < DT_NOEND)
			idemq_due_by(idemq_qstate_current(note->qstate, note->queue_id), DUE_EXPIRY,
						 note->expires_at);
		if (note->priorities != 0)
			idemq_wake_ready(note->qstate, note->queue_id, note->ready, note->later);
	}
}

/*
 * After the abort of a subtransaction and of later ones: removes the notes, lowers scan starts, and
 * wakes waiting sessions, because the jobs may be ready as they were before.
 */
void
idemq_pending_queues_undo(SubTransactionId from)
{
	while (nowed > 0 && owed[nowed - 1]->subid >= from)
	{
		Owed *note = owed[--nowed];

		pending_queues_lower(note);
		idemq_room_give_back(&note->room, note->room.jobs);
		if (note->priorities != 0)
			idemq_wake_if_ready(note->qstate, note->queue_id, Max(note->ready, 1));
		pending_queues_reset_note(note);
	}
}

/* Returns whether any key is noted. */
bool
idemq_pending_ready_any(void)
{
	for (int i = 0; i < nowed; i++)
	{
		if (owed[i]->priorities != 0)
			return true;
	}
	return false;
}

/* Forgets all, at the end of the transaction. */
void
idemq_pending_queues_forget(void)
{
	while (nowed > 0)
		pending_queues_reset_note(owed[--nowed]);
	if (max_owed <= MAX_KEPT)
		return;
	MemoryContextReset(pending_queues_context);
	owed = NULL;
	max_owed = 0;
}
