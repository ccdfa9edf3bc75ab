/*
 * shared/queue_states/scan_start.c
 *		The scan start: where a claim starts reading the ready index.
 *
 * For each queue and priority, the scan start is a key (ready_at, id) below which no job can be
 * claimed.  It is a cache: if it is unset (READY_KEY_MIN), claims are correct, but slow.
 *
 * Invariant: a row below the scan start
 *	 - cannot be claimed in its committed version, or
 *	 - has a lease entry, or
 *	 - is being written by a transaction that will lower the scan start to the row's key after its
 *	   commit or its abort.
 *
 * The race is between a claim that advances the scan start and a transaction that makes a row below
 * it claimable.  The claim reads the sequence number and the scan start at time r, under the queue
 * state's lock (idemq_scan_start_read).  It takes its snapshot at s > r, scans from the scan start,
 * and advances it at a > s (idemq_scan_start_advance).  A writer lowers the scan start after its
 * row is visible (idemq_scan_start_lower), and adds the key to a history of lowerings.  The advance
 * is limited to the least key lowered since r.  Lowerings before r are included in the scan start
 * that was read.  So the claim may pass an index entry if the invariant still holds for it at time
 * a, or if a lowering after r answers it:
 *
 *	 - The job has a lease entry without a finisher: it is being claimed, or it is running.  If the
 *	   claim aborts, the entry is removed, and then the scan start is lowered.  If the attempt ends,
 *	   its end begins after the entry was checked, so whatever becomes claimable is written after s,
 *	   and the scan start is lowered to it.
 *	 - The job has a lease entry with a finisher: the snapshot decides, as below.  If it shows the
 *	   job as ready, the finisher has committed, and the session that made the job ready has lowered
 *	   the scan start, perhaps before r.  So the entry records the key, and when the entry is
 *	   removed, the scan start is lowered to it (passed_by in shared/leases/leases.c).
 *	 - The snapshot does not see the row: its inserter commits after s, and then lowers.
 *	 - The row is visible with a status that cannot be claimed: a new version makes it claimable,
 *	   whose writer commits after s, and then lowers to the new key.
 *	 - This claim has claimed the job: its own abort lowers.
 *	 - The row has changed since the snapshot (READ COMMITTED): the writer commits after s, and
 *	   lowers to the old and the new key.
 *	 - The job is running without a lease entry: it cannot be claimed before the search for lost
 *	   leases adopts it.  If an entry was added in error, the scan starts are unset when it is
 *	   removed.
 *
 * A claim does not pass a row that has no lease entry and is held by another session: because of a
 * DBA's row lock, a check of a foreign key, a prepared transaction, or a claim with a full lease
 * table.  Such a holder may not lower the scan start afterwards.  Above READ COMMITTED, a claim
 * also does not pass a row that its own snapshot does not see.
 *
 * The scan start is lowered to the keys of enqueue, replace, fail, release, reap, retry and
 * redrive; of expire, cancel and commit_once if they abort; of aborted claims; and of statements
 * that are not idemq's, through a row trigger (hooks/row_triggers.c).  A transaction remembers the
 * least key for each queue and priority (txn/pending_queues.c), because a scan start that is too
 * low is merely slow.
 *
 * Reading the scan start before the snapshot, and lowering it after the commit is visible, are the
 * two halves of the proof.  Change neither.
 *		Model: test/model/scan_start.pml; two sessions with three claims, an enqueue, a retry, three
 *		jobs under four keys, one abort.
 *
 * The history of a priority is a short list of (sequence number, key), in ascending order of both.
 * A new lowering removes every entry whose key is not smaller, because a reader that such an entry
 * would have limited is limited at least as much by the new one, which is later.  Therefore, the
 * first entry after a reader's sequence number has the least key lowered since then.  If the list
 * is full, the entries of the older half are merged in pairs (the later number, the smaller key).
 * A reader that began long ago may then be limited more than necessary, but never less.
 *
 * A claim of a few jobs reads the queue's read-ahead buffer, a copy of the next entries of the
 * index, instead of the index (read_ahead.c).  Each lowering truncates it.
 *
 * Safety net: a claim that finds nothing scans the index from its start, but at most once per
 * second, and at most for 1 % of the time.  This finds rows that changed without any trigger (after
 * a DBA's DISABLE TRIGGER); it does not repair a known gap.
 *
 * Locks: see src/shared/README.md, level 3.  Functions that txn/pending.c calls after commit or
 * abort neither allocate nor raise errors.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/queue_states/queue_states.h"

/* Verifications take at most 1/VERIFY_SHARE of the time, and begin at most once per second. */
#define VERIFY_SHARE 100
#define VERIFY_INTERVAL USECS_PER_SEC

/* Time after which another session may fill the read-ahead buffer, in microseconds. */
#define FILL_TIME 10000

/* Adds a lowering to a history; see the top of this file. */
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

/* Lowers one scan start.  The queue state's lock must be held. */
static void
lower_locked(QueueState *qstate, int priority, ReadyKey to)
{
	qstate->seq++;
	remember(&qstate->history[priority], qstate->seq, to);
	idemq_read_ahead_cut(&qstate->read_ahead, priority, to);
	if (ready_key_less(to, qstate->scan_start[priority]))
		qstate->scan_start[priority] = to;
}

/* Unsets all scan starts.  The queue state's lock must be held. */
void
idemq_scan_start_unset_locked(QueueState *qstate)
{
	for (int p = 0; p < IDEMQ_PRIORITIES; p++)
		lower_locked(qstate, p, READY_KEY_MIN);
}

/*
 * Reads the scan starts and the sequence number, and returns with the queue state's lock held.  If
 * the queue has no state any more, returns false, with no lock held, and all scan starts unset.
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
 * Reads the scan starts and the sequence number, and, for a claim of wanted jobs, the next entries
 * of the read-ahead buffer.  Must be called before the snapshot of the claim is taken.
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

/* Like idemq_scan_start_read, but copies the whole read-ahead buffer. */
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
 * Returns whether this session must fill the read-ahead buffer from where it ends.  One session
 * does so at a time; another one takes over if it has not installed its entries within FILL_TIME.
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

/* Returns the least key lowered since a view was read.  The queue state's lock must be held. */
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
 * Advances a scan start to a key below which the caller's scan found no job that can be claimed,
 * but not beyond what has been lowered since view was read.  The scan's snapshot was taken after
 * view was read.  fill: entries that the scan has read for the read-ahead buffer; may be empty.
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

/*
 * Lowers a scan start to the key of a job that can be claimed now; must be called after that is
 * visible.
 */
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
 * Returns whether a claim that finds nothing must scan from the start of the index now; see "Safety
 * net" above.
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

/* Postpones the next verification, after one that took took microseconds. */
void
idemq_scan_start_verified(QueueState *qstate, int32 queue_id, int64 took)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	qstate->next_verify = idemq_mono_now() + Max(VERIFY_INTERVAL, took * VERIFY_SHARE);
	LWLockRelease(&qstate->lock);
}

/* Unsets all scan starts of a queue. */
void
idemq_scan_start_unset(QueueState *qstate, int32 queue_id)
{
	if (!idemq_qstate_lock(&qstate, queue_id, LW_EXCLUSIVE))
		return;
	idemq_scan_start_unset_locked(qstate);
	LWLockRelease(&qstate->lock);
}

/*
 * Returns whether a scan start may have been lowered to a key, or below it, since view was read.
 * Also returns true if the queue has another state now, and perhaps if the history was merged.
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
