/*
 * job/ready_scan.c
 *		Visiting the due jobs of a queue, from its scan starts.
 *
 * This serves claims, and sessions that only check whether there is a job.  Each due entry of the
 * ready index is passed to scan->consider, priority by priority, and the scan starts move up past
 * the entries that are proved unclaimable (shared/queue_states/scan_start.c says why that is safe).
 * First the sequence number and the scan starts are read, then the snapshot is taken.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * The position of a scan in one priority: first in its copy of the read-ahead buffer, if the buffer
 * serves this scan, then in the index.
 */
typedef struct PriorityScan
{
	int priority;
	bool in_read_ahead;
	int next;		/* in the copy of the read-ahead buffer */
	ReadyKey until; /* READY_KEY_MAX: to the end of the index */
	bool stayed;
	ReadyKey reach; /* where the scan start may go: nothing below is claimable */
} PriorityScan;

/* Begins to scan the index at a key. */
static void
enter_index(ReadyScan *scan, JobsTable *table, PriorityScan *within, ReadyKey from)
{
	const ReadAheadView *read_ahead = &scan->view.read_ahead;
	ReadyKey bound = read_ahead->priority == within->priority ? read_ahead->bound : READY_KEY_MIN;

	within->in_read_ahead = false;
	within->until = idemq_jobs_scan_limit(from, bound);
	idemq_jobs_scan_begin(table, scan->queue.id, within->priority, from, within->until);
}

/*
 * Moves to the next entry; at the end of the read-ahead buffer, or at its bound, continues in the
 * index.  Returns READY_KEY_MAX at the end.
 */
static ReadyKey
next_entry(ReadyScan *scan, JobsTable *table, PriorityScan *within)
{
	const ReadAheadView *read_ahead = &scan->view.read_ahead;
	ReadyKey key;

	scan->entry = NULL;
	if (within->in_read_ahead && within->next < read_ahead->count)
	{
		scan->entry = &read_ahead->entries[within->next++];
		return scan->entry->key;
	}
	if (within->in_read_ahead)
		enter_index(scan, table, within,
					ready_key_after(read_ahead->entries[read_ahead->count - 1].key));
	if (idemq_jobs_scan_next(table, &key))
		return key;
	if (!ready_key_less(within->until, READY_KEY_MAX))
		return READY_KEY_MAX;
	idemq_jobs_scan_end(table);
	enter_index(scan, table, within, within->until);
	return next_entry(scan, table, within);
}

/*
 * Copies due entries from the index, from the scan's position.  Returns whether there was one.
 * Copies either all entries of a key or none.
 */
static bool
read_on(ReadyScan *scan, JobsTable *table, int most, ReadAhead *fill)
{
	ReadyKey key;
	int before = fill->count;
	bool found;

	while (fill->count < most && idemq_jobs_scan_next(table, &key) && key.ready_at <= scan->now)
		fill->entries[fill->count++] = (ReadyEntry){key, idemq_jobs_scan_tid(table)};
	found = fill->count > before;
	if (fill->count == most)
		idemq_read_ahead_drop_last_key(fill);
	return found;
}

/*
 * Called when the scan has stopped at an entry with that key.  Copies entries for the read-ahead
 * buffer, if this session should fill it.  Sets scan->more if there is another entry that a
 * sleeping session could claim.
 */
static void
look_ahead(ReadyScan *scan, JobsTable *table, PriorityScan *within, ReadyKey key, ReadAhead *fill)
{
	const ReadAheadView *read_ahead = &scan->view.read_ahead;
	int left = read_ahead->count - within->next + read_ahead->left;
	bool small = scan->wanted <= READ_AHEAD_MAX_WANTED;
	bool sleeps = idemq_waiters_any(idemq_waiters_of_queue(scan->queue.qstate));

	if (within->in_read_ahead)
	{
		scan->more = sleeps && left > 0;
		if (left >= READ_AHEAD_LOW || !idemq_scan_start_may_fill(&scan->view))
			return;
		enter_index(scan, table, within, read_ahead->end);
		fill->from = read_ahead->end;
		scan->more |= read_on(scan, table, READ_AHEAD_LENGTH, fill) && sleeps;
	}
	else if (ready_key_less(within->until, READY_KEY_MAX))
		scan->more = sleeps;
	else if (small || sleeps)
	{
		fill->from = key;
		fill->entries[fill->count++] = (ReadyEntry){key, idemq_jobs_scan_tid(table)};
		scan->more = read_on(scan, table, small ? READ_AHEAD_LENGTH : 2, fill) && sleeps;
	}
}

/*
 * Returns whether a session is asleep that could claim a due entry of a priority after the one in
 * which the scan has stopped.
 */
static bool
more_behind(ReadyScan *scan, JobsTable *table, int stopped_at)
{
	bool more = false;

	if (!idemq_waiters_any(idemq_waiters_of_queue(scan->queue.qstate)))
		return false;
	for (int p = stopped_at + 1; p < IDEMQ_PRIORITIES && !more; p++)
	{
		PriorityScan within = {.priority = p};
		ReadyKey key;

		if (scan->view.from[p].ready_at > scan->now)
			continue;
		enter_index(scan, table, &within, scan->view.from[p]);
		more = idemq_jobs_scan_next(table, &key) && key.ready_at <= scan->now;
		idemq_jobs_scan_end(table);
	}
	return more;
}

/*
 * Visits one priority.  Its scan start moves to the first entry that was not passed: the one after
 * the last, one whose row is held, one that is not due yet, or the end of the index.
 */
static void
scan_priority(ReadyScan *scan, JobsTable *table, int priority)
{
	const ReadAheadView *read_ahead = &scan->view.read_ahead;
	ReadyKey from = scan->view.from[priority];
	ReadAhead fill;
	PriorityScan within = {.priority = priority, .until = READY_KEY_MAX, .reach = from};

	fill.priority = priority;
	fill.file = compat_file_number(table->rel);
	fill.count = 0;
	within.in_read_ahead = read_ahead->count > 0 && read_ahead->priority == priority;
	if (!within.in_read_ahead)
		enter_index(scan, table, &within, from);
	for (;;)
	{
		ReadyKey key = next_entry(scan, table, &within);
		MemoryContext old;
		ScanStep step;

		CHECK_FOR_INTERRUPTS();
		if (key.ready_at > scan->now)
		{
			within.reach = within.stayed ? within.reach : key;
			scan->next_due = Min(scan->next_due, key.ready_at);
			break;
		}
		MemoryContextReset(scan->row_context);
		old = MemoryContextSwitchTo(scan->row_context);
		step = scan->consider(scan, table, priority, key);
		MemoryContextSwitchTo(old);
		if (!within.stayed)
			within.reach = step == STEP_STAY ? key : ready_key_after(key);
		within.stayed |= step == STEP_STAY;
		if (step == STEP_STOP)
			scan->stopped = true;
		if (scan->stopped)
		{
			look_ahead(scan, table, &within, key, &fill);
			break;
		}
	}
	if (!within.in_read_ahead)
		idemq_jobs_scan_end(table);
	idemq_scan_start_advance(&scan->view, scan->queue.id, priority, within.reach, &fill);
}

/*
 * Visits the queue's due entries until scan->consider returns STEP_STOP or sets scan->stopped: from
 * the scan starts, or from the start of the index. table must not be open; it stays open, and the
 * caller closes it.
 */
void
idemq_ready_scan(ReadyScan *scan, JobsTable *table, bool from_start)
{
	scan->stopped = scan->more = scan->held = false;
	scan->next_due = DT_NOEND;
	/* Where to begin, before the snapshot is taken: see shared/queue_states/scan_start.c. */
	idemq_scan_start_read(scan->queue.qstate, scan->queue.id, scan->wanted, &scan->view);
	idemq_pending_ready_view(scan->queue.id, &scan->view);
	if (from_start || IsolationUsesXactSnapshot())
		scan->view.read_ahead.count = 0;
	for (int p = 0; p < IDEMQ_PRIORITIES && from_start; p++)
		scan->view.from[p] = READY_KEY_MIN;
	idemq_jitter();
	IDEMQ_STOP("claim_before_snapshot");
	if (scan->reads)
		idemq_jobs_open_to_read(table);
	else
		idemq_jobs_open(table);
	if (scan->view.read_ahead.file != compat_file_number(table->rel))
		scan->view.read_ahead.count = 0;
	scan->now = idemq_now();
	for (int p = 0; p < IDEMQ_PRIORITIES && !scan->stopped; p++)
	{
		if (scan->view.from[p].ready_at <= scan->now)
			scan_priority(scan, table, p);
		else
			scan->next_due = Min(scan->next_due, scan->view.from[p].ready_at);
		if (scan->stopped && !scan->more)
			scan->more = more_behind(scan, table, p);
	}
}

/*
 * Fetches the job of the current entry.  Returns false if it cannot be claimed according to its
 * lease entry and the snapshot; then the scan start may pass it.  Must be called by scan->consider.
 *
 * If the attempt of the job is ending, the row is also read.  Usually the job is not ready, and the
 * transaction that makes it ready commits after our snapshot and lowers the scan start.  Otherwise
 * the snapshot shows the end of the attempt, but memory does not know it yet.  Then that end lowers
 * the scan start for us, and the next claimers visit everything that we passed.
 */
bool
idemq_ready_job(ReadyScan *scan, JobsTable *table, int priority, ReadyKey key, Job *job)
{
	LeaseHold hold = idemq_lease_hold(key.id);
	bool is_seen;

	if (hold == LEASE_HOLDS)
		return false;
	if (scan->entry == NULL)
		is_seen = idemq_jobs_scan_row(table, job);
	else
	{
		TidHint tid_hint = {scan->entry->tid, scan->view.read_ahead.file};

		is_seen = idemq_jobs_fetch_at(table, &tid_hint, key.id, job) &&
				  job->ready_at == key.ready_at && job->priority == priority &&
				  job->queue_id == scan->queue.id;
	}
	if (!is_seen || !idemq_transition_allowed(EVENT_CLAIM, job->status))
		return false;
	if (hold == LEASE_HOLDS_NOT)
		return true;
	/*
	 * Not above READ COMMITTED, where a change that our own snapshot does not show also makes it
	 * outdated.
	 */
	if (table->crosscheck == InvalidSnapshot && idemq_jobs_is_outdated(table, job))
		return false;
	return !idemq_lease_turns_away(key.id, priority, key);
}

/* Stops at an entry that can be claimed, unless its row is held. */
static ScanStep
stop_at_claimable(ReadyScan *scan, JobsTable *table, int priority, ReadyKey key)
{
	TransactionId holder;
	Job job;

	if (!idemq_ready_job(scan, table, priority, key, &job))
		return STEP_PASS;
	if (idemq_jobs_hold(&job, &holder) == ROW_FREE)
		scan->stopped = true;
	else
		scan->held = true;
	return STEP_STAY;
}

/*
 * Returns whether a queue has a job that can be claimed, and its limits allow that.  If not,
 * *next_due is the time when the next job becomes due (DT_NOEND: none will). *held, unless held is
 * NULL, says whether a transaction holds the row of a claimable job, because the end of that
 * transaction may wake no waiter.  At most once a second, a queue that seems empty is scanned from
 * the start of the index, in case a change has not lowered a scan start.
 */
bool
idemq_ready_check(const QueueInfo *queue, TimestampTz *next_due, bool *held)
{
	ReadyScan scan = {.queue = *queue, .consider = stop_at_claimable, .reads = true, .wanted = 1};
	LimitView view;
	JobsTable table;

	scan.row_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq look", ALLOCSET_SMALL_SIZES);
	idemq_ready_scan(&scan, &table, false);
	idemq_jobs_close(&table);
	if (!scan.stopped && idemq_scan_start_verify_due(queue->qstate, queue->id))
	{
		int64 started = idemq_stopwatch();

		idemq_ready_scan(&scan, &table, true);
		idemq_jobs_close(&table);
		idemq_scan_start_verified(queue->qstate, queue->id, idemq_stopwatch() - started);
	}
	MemoryContextDelete(scan.row_context);
	*next_due = scan.next_due;
	if (held != NULL)
		*held = scan.held;
	if (!scan.stopped || idemq_limit_has_room(queue, &view))
		return scan.stopped;
	/* The worker wakes a waiter when the rate allows a claim; without it, each wakes by itself. */
	if (!idemq_worker_present())
		*next_due = Min(*next_due, view.until);
	return false;
}

/* Returns when the next job of the queue becomes due; DT_NOEND if none will. */
TimestampTz
idemq_ready_next_due(const QueueInfo *queue)
{
	TimestampTz next = DT_NOEND;
	ReadyKey from = {idemq_now() + 1, PG_INT64_MIN};
	JobsTable table;
	ReadyKey key;

	idemq_jobs_open_to_read(&table);
	for (int p = 0; p < IDEMQ_PRIORITIES; p++)
	{
		idemq_jobs_scan_begin(&table, queue->id, p, from, READY_KEY_MAX);
		if (idemq_jobs_scan_next(&table, &key))
			next = Min(next, key.ready_at);
		idemq_jobs_scan_end(&table);
	}
	idemq_jobs_close(&table);
	return next;
}

/* Returns the time since which a queue has had a job that can be claimed; now if it has none. */
TimestampTz
idemq_ready_oldest(const QueueInfo *queue, TimestampTz now)
{
	TimestampTz oldest = now;
	ScanStart view;
	JobsTable table;

	/* Read before the snapshot, so nothing below them is claimable in it. */
	idemq_scan_start_read(queue->qstate, queue->id, 0, &view);
	idemq_jobs_open_to_read(&table);
	for (int p = 0; p < IDEMQ_PRIORITIES; p++)
	{
		ReadyKey key;
		Job job;

		if (view.from[p].ready_at >= oldest)
			continue;
		idemq_jobs_scan_begin(&table, queue->id, p, view.from[p], READY_KEY_MAX);
		while (idemq_jobs_scan_next(&table, &key) && key.ready_at < oldest)
		{
			CHECK_FOR_INTERRUPTS();
			if (idemq_lease_hold(key.id) == LEASE_HOLDS_NOT && idemq_jobs_scan_row(&table, &job) &&
				idemq_transition_allowed(EVENT_CLAIM, job.status) &&
				!(job.attempt == 0 && job.expires_at <= now))
				oldest = key.ready_at;
		}
		idemq_jobs_scan_end(&table);
	}
	idemq_jobs_close(&table);
	return oldest;
}
