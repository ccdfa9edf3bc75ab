/*
 * shared/queue_states/scan_start.c
 *		The scan start: where a claim starts in the ready index.
 *
 * For each queue and priority, a key (ready_at, id) below which nothing can be claimed.
 * It is a cache: unset (READY_KEY_MIN) is always right, and slow.
 *
 * Invariant: a row below the scan start
 *	 - is not claimable in its committed version, or
 *	 - has a lease entry, or
 *	 - is being written by a transaction that will lower the scan start to the row's key after
 *	   its commit and after its abort.
 *
 * The race is between a claimer that moves the scan start up and a transaction that makes a row
 * claimable behind it.  The claimer reads sequence and scan start at time r, under the queue
 * state's lock (idemq_scan_start_read), takes its snapshot at s > r, scans from the scan start, and
 * advances at a > s (idemq_scan_start_advance).  A writer lowers after its row is visible
 * (idemq_scan_start_lower), which adds the key to a history of lowerings; the advance is bounded by
 * the least key lowered since r.  Lowerings before r are in the scan start that was read.  So the
 * claimer may pass an entry of the index if the invariant still holds for it at a, or if a lowering
 * after r answers it:
 *
 *	 - It has a lease entry without a finisher: the job is being claimed, or running.
 *	   An abort of the claim drops the entry, then lowers.  An end begins after the check
 *	   of the entry: what becomes claimable by it is written after s, and lowered to.
 *	 - It has a lease entry with a finisher: the snapshot tells, as below.  If it shows the
 *	   job ready, the end has committed, and whoever made the job ready has lowered, perhaps
 *	   before r.  So the entry remembers the key, and its drop lowers to it (passed_by in
 *	   shared/leases/leases.c).
 *	 - The snapshot does not see it: its inserter commits after s, then lowers.
 *	 - It is visible, in a status that cannot be claimed: it gets a new version to become
 *	   claimable, whose writer commits after s, then lowers to the new key.
 *	 - The claimer has claimed it: its own abort lowers.
 *	 - It changed since the snapshot (READ COMMITTED): the writer committed after s, and
 *	   lowers to the old key and the new one.
 *	 - It is running without a lease entry: not claimable, until the search for lost
 *	   leases adopts it.  When an entry that was put in error goes, the scan starts are unset.
 *
 * A claimer stays before a row that another session holds and that has no entry: a DBA's
 * row lock, a foreign key check, a prepared transaction, a claim with a full table.  Such a
 * holder may owe no lowering.  Above READ COMMITTED it also stays before what its own
 * snapshot does not see.
 *
 * The scan start is lowered to the keys of enqueue, replace, fail, release, reap, retry, redrive;
 * of expire, cancel and commit_once, if they abort; of an aborted claim; and of statements
 * that are not idemq's, by a row trigger (hooks/row_triggers.c).  A transaction keeps the
 * least key for each queue and priority (txn/pending_queues.c): too low is only slow.
 *
 * Reading before the snapshot and lowering after visibility are the two halves of the
 * proof: change neither.
 *		Model: test/model/scan_start.pml; two claimers with three calls, an enqueue, a retry, three
 *		jobs under four keys, one abort.
 *
 * The history of a priority is a short list of (seq, key), both growing.  A new lowering
 * removes every entry whose key is not less: for a reader that such an entry would have
 * bounded, the new one is as low, and later.  The first entry after a reader's seq is
 * therefore the least key lowered since.  When the list is full, the older half is merged
 * in pairs, (later seq, lesser key): a reader of long ago is bounded more than need be, and
 * never less.
 *
 * A claim of a few jobs goes through the queue's read-ahead buffer, a copy of the next entries of
 * the index, in place of the index itself (read_ahead.c): each lowering cuts it.
 *
 * The net: a claim that finds nothing scans the index once more from the start, at most
 * once a second and 1 % of the time.  It is for rows changed where no trigger saw it (a
 * DBA's DISABLE TRIGGER), not the repair of a known hole.
 *
 * Locks: see README.md, level 3.  What txn/pending.c calls after commit or abort neither
 * allocates nor raises.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/queue_states/queue_states.h"

/* A verification takes 1/VERIFY_SHARE of the time at most, and comes at most once a second. */
#define VERIFY_SHARE 100
#define VERIFY_INTERVAL USECS_PER_SEC

/* How long one session may read on for the read-ahead buffer, in microseconds. */
#define FILL_TIME 10000

/* Adds a lowering to a history; see the file's header. */
static void
remember(History *history, uint64 seq, ReadyKey key)
{
	Lowering *entries = history->entries;

	while (history->count > 0 && !ready_key_less(entries[history->count - 1].key, key))
		history->count--;
	if (history->count == HISTORY_LENGTH)
	{
		int merged = HISTORY_LENGTH / 4;

		for (int i = 0; i < merged; i++)
			entries[i] = (Lowering){entries[2 * i + 1].seq, entries[2 * i].key};
		memmove(&entries[merged], &entries[2 * merged],
				(HISTORY_LENGTH - 2 * merged) * sizeof(Lowering));
		history->count -= merged;
	}
	entries[history->count++] = (Lowering){seq, key};
}

/* Lowers one scan start.  The queue state's lock held. */
static void
lower_locked(QueueState *qstate, int priority, ReadyKey to)
{
	qstate->seq++;
	remember(&qstate->history[priority], qstate->seq, to);
	idemq_read_ahead_cut(&qstate->read_ahead, priority, to);
	if (ready_key_less(to, qstate->scan_start[priority]))
		qstate->scan_start[priority] = to;
}

/* Unsets all scan starts.  The queue state's lock held. */
void
idemq_scan_start_unset_locked(QueueState *qstate)
{
	for (int p = 0; p < IDEMQ_PRIORITIES; p++)
		lower_locked(qstate, p, READY_KEY_MIN);
}

/*
 * Reads scan starts and sequence, and returns with the queue state's lock held.  For a queue that
 * has no state any more it returns false, with no lock held and all scan starts unset.
 */
static bool
read_and_lock(QueueState *qstate, int32 queue_id, ScanStart *view)
{
	memset(view, 0, offsetof(ScanStart, read_ahead.entries));
	view->read_ahead.bound = READY_KEY_MIN;
	if (!idemq_qstate_lock(&qstate, queue_id, LW_SHARED))
	{
		for (int p = 0; p < IDEMQ_PRIORITIES; p++)
			view->from[p] = READY_KEY_MIN;
		return false;
	}
	view->qstate = qstate;
	view->seq = qstate->seq;
	view->next_fill = qstate->next_fill;
	memcpy(view->from, qstate->scan_start, sizeof(view->from));
	return true;
}

/*
 * Reads scan starts and sequence, and entries of the read-ahead buffer for so many jobs; to be
 * called before the claim's snapshot is taken.
 */
void
idemq_scan_start_read(QueueState *qstate, int32 queue_id, int wanted, ScanStart *view)
{
	IDEMQ_STOP("idemq_scan_start_read");
	if (!read_and_lock(qstate, queue_id, view))
		return;
	if (wanted > 0)
		idemq_read_ahead_copy(&view->qstate->read_ahead, view->from, wanted, &view->read_ahead);
	LWLockRelease(&view->qstate->lock);
}

/* As idemq_scan_start_read, with the whole read-ahead buffer. */
void
idemq_scan_start_read_whole(QueueState *qstate, int32 queue_id, ScanStart *view,
							ReadAhead *read_ahead)
{
	read_ahead->count = 0;
	if (!read_and_lock(qstate, queue_id, view))
		return;
	*read_ahead = view->qstate->read_ahead;
	LWLockRelease(&view->qstate->lock);
}

/*
 * Returns whether this session is to read on where the read-ahead buffer ends: one session does so
 * at a time, and another takes over when that one has not installed its entries in time.
 */
bool
idemq_scan_start_may_fill(const ScanStart *view)
{
	int64 now = idemq_mono_now();
	bool mine;

	if (view->next_fill > now)
		return false;
	LWLockAcquire(&view->qstate->lock, LW_EXCLUSIVE);
	mine = view->qstate->next_fill <= now;
	if (mine)
		view->qstate->next_fill = now + FILL_TIME;
	LWLockRelease(&view->qstate->lock);
	return mine;
}

/* Returns the least key lowered since a view was read.  The queue state's lock held. */
static ReadyKey
lowered_since(const QueueState *qstate, const ScanStart *view, int priority)
{
	const History *history = &qstate->history[priority];

	for (int i = 0; i < history->count; i++)
	{
		if (history->entries[i].seq > view->seq)
			return history->entries[i].key;
	}
	return READY_KEY_MAX;
}

/*
 * Moves a scan start up to a key below which the caller's scan, under a snapshot
 * taken after view, found nothing claimable; not past what was lowered since.
 * fill: entries for the read-ahead buffer, read by that scan; may be empty.
 */
void
idemq_scan_start_advance(const ScanStart *view, int32 queue_id, int priority, ReadyKey to,
						 ReadAhead *fill)
{
	QueueState *qstate = view->qstate;
	ReadyKey lowered;

	IDEMQ_STOP("idemq_scan_start_advance");
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	if (qstate != view->qstate) /* another state's history says nothing about our view */
	{
		LWLockRelease(&qstate->lock);
		return;
	}
	lowered = lowered_since(qstate, view, priority);
	if (ready_key_less(lowered, to))
		to = lowered;
	if (ready_key_less(qstate->scan_start[priority], to))
		qstate->scan_start[priority] = to;
	if (fill->count > 0)
	{
		idemq_read_ahead_cut(fill, priority, lowered);
		idemq_read_ahead_install(&qstate->read_ahead, qstate->scan_start, fill);
		qstate->next_fill = 0;
	}
	LWLockRelease(&qstate->lock);
}

/* Lowers a scan start to a key that has become claimable; to be called after that is visible. */
void
idemq_scan_start_lower(QueueState *qstate, int32 queue_id, int priority, ReadyKey to)
{
	IDEMQ_STOP("idemq_scan_start_lower");
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	lower_locked(qstate, priority, to);
	LWLockRelease(&qstate->lock);
}

/*
 * Returns whether it is time to scan from the start of the index, whatever the
 * scan start says: the net under DML that no trigger and no hook has seen.
 */
bool
idemq_scan_start_verify_due(QueueState *qstate, int32 queue_id)
{
	int64 now = idemq_mono_now();
	bool due;

	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return false;
	due = now >= qstate->next_verify;
	if (due)
		qstate->next_verify = now + VERIFY_INTERVAL;
	LWLockRelease(&qstate->lock);
	return due;
}

/* Defers the next verification after one that took so many microseconds. */
void
idemq_scan_start_verified(QueueState *qstate, int32 queue_id, int64 took)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	qstate->next_verify = idemq_mono_now() + Max(VERIFY_INTERVAL, took * VERIFY_SHARE);
	LWLockRelease(&qstate->lock);
}

void
idemq_scan_start_unset(QueueState *qstate, int32 queue_id)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	idemq_scan_start_unset_locked(qstate);
	LWLockRelease(&qstate->lock);
}

/*
 * Returns whether a scan start may have been lowered to a key, or below it, since view
 * was read.  The answer is also true if the queue has another state now, and may be true if a long
 * history was merged.
 */
bool
idemq_scan_start_lowered_since(const ScanStart *view, int32 queue_id, int priority, ReadyKey key)
{
	QueueState *qstate = view->qstate;
	bool lowered = false;

	if (!idemq_qstate_lock(&qstate, queue_id, LW_SHARED))
		return true;
	if (qstate != view->qstate)
		lowered = true;
	for (int i = 0; i < qstate->history[priority].count && !lowered; i++)
	{
		const Lowering *entry = &qstate->history[priority].entries[i];

		lowered = entry->seq > view->seq && !ready_key_less(key, entry->key);
	}
	LWLockRelease(&qstate->lock);
	return lowered;
}
