/*
 * job/recover.c
 *		Finding leases that memory has lost: running jobs without a lease entry.
 *
 * Such a job exists after a restart of the server, if the lease table was full, or if a transaction
 * that ended its attempt was prepared and rolled back.  Its row has the deadline.  But the lease
 * lasts at least its full length from the start of this server, or from the time when the database
 * took over from its publisher, so that neither takes a lease from a worker that sends heartbeats.
 *
 * The length is that of the claim, deadline - claimed_at, and also applies to later heartbeats.  If
 * a heartbeat found the lease table full, it moved the row's deadline, and noted the time
 * (JOB_EXTENDED): then the length is deadline - renewed_at, and the lease lasts at least until that
 * deadline.  An attached lease, whose session ended with the former server, lasts as long as a
 * worker may take to connect again: at most idemq.attach_grace (JOB_ATTACHED).  A handler's job
 * (JOB_HANDLER) is taken back immediately, because its process ended with the former server; the
 * handler is told so (worker/handle.c).
 *
 * A scan that finds such a job adopts it: it adds an entry, and then fetches the row again by a
 * newer snapshot.  If the job is still running, the transaction that ends it will remove the entry.
 * If not, the scan removes the entry, and unsets the queue's scan starts, because claimers may have
 * passed the job while it had the entry.  In between, interrupts are held: a session that ended there
 * would leave the entry, and no session could claim the job before its deadline.
 *
 * Taking back ended leases (job/reap.c) and this search are combined wherever a session does both:
 * before a claim (idemq_reap_some), and in idemq.reap() (idemq_reap_all).
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"
#include "txn/txn.h"

/* Number of index entries that a claim and the worker scan for lost leases in one step. */
#define RECOVERY_STEP 1000
#define WORKER_STEP 20000

typedef struct LostLease
{
	int64 job_id;
	int64 token;
	bool adopted; /* we put its entry */
} LostLease;

/* Returns whether a job was running in a handler process of a former server, which has ended. */
static bool
is_interrupted(const Job *job)
{
	return job_is_handled(job) && job->claimed_at < idemq_primary_since();
}

/*
 * Returns the length of a running job's lease according to its row: each heartbeat extends the
 * lease to this time from then.
 */
int64
idemq_row_lease(const Job *job)
{
	bool renewed = (job->flags & JOB_EXTENDED) && job_has(job, COL_RENEWED_AT);

	return job->deadline - (renewed ? job_time(job, COL_RENEWED_AT) : job->claimed_at);
}

/* Returns the time when job_timeout ends an attempt; DT_NOEND if there is none. */
TimestampTz
idemq_row_limit(const Job *job, const QueueInfo *queue)
{
	return queue->job_timeout > 0 ? job->claimed_at + queue->job_timeout : DT_NOEND;
}

/* Returns the deadline of a running job that has no lease entry. */
TimestampTz
idemq_row_deadline(const Job *job, const QueueInfo *queue)
{
	TimestampTz since = Max(idemq_primary_since(), idemq_taken_over_at());
	int64 length = idemq_row_lease(job);
	TimestampTz deadline;
	/* A claim in the future was made by a clock that was ahead. */
	bool is_ours = job->claimed_at > since && job->claimed_at <= idemq_now();

	if (is_interrupted(job))
		return since;
	if (is_ours)
		since = job->claimed_at;
	if (job->flags & JOB_ATTACHED)
		length = Min(length, idemq_attach_grace * INT64CONST(1000));
	deadline = since + length;
	if (job->flags & JOB_EXTENDED)
		deadline = is_ours ? job->deadline : Max(job->deadline, deadline);
	return Min(deadline, idemq_row_limit(job, queue));
}

/*
 * Returns whether a job was claimed before this server started, or took over from its publisher.
 * Its worker may have died before that, so unless a heartbeat comes, the end of its lease is not
 * called the end of job_timeout, although the lease lasts no longer than that.
 */
static bool
is_restored(const Job *job)
{
	return job->claimed_at < Max(idemq_primary_since(), idemq_taken_over_at());
}

static void
add_lost(LostLeases *lost, const Job *job, bool adopted)
{
	MemoryContext old = MemoryContextSwitchTo(lost->context);
	LostLease *lease = palloc(sizeof(LostLease));

	*lease = (LostLease){job->id, job->token, adopted};
	lost->found = lappend(lost->found, lease);
	MemoryContextSwitchTo(old);
}

/*
 * Adds the entry of a lost lease, for idemq_lost_leases_settle. deadline: of the monotonic clock;
 * beat: the worker has sent a heartbeat.  Returns as idemq_lease_adopt.
 */
static LeaseTake
adopt(LostLeases *lost, const Job *job, const QueueInfo *queue, int64 deadline, int64 length,
	  bool beat)
{
	AdoptingQueue adopting = {job->queue_id, queue->max_running > 0};
	TimestampTz limit = idemq_row_limit(job, queue);
	AdoptedLease adopted = {deadline, length,
							limit < DT_NOEND ? idemq_mono_from_timestamp(limit) : PG_INT64_MAX,
							job_is_handled(job), !beat && is_restored(job)};
	LeaseTake take;

	idemq_qstates_begin_change();
	take = idemq_lease_adopt(job->id, job->token, &adopting, &adopted);
	if (take == LEASE_TAKEN && !lost->unsettled)
	{
		/* A session that ended now would leave the entry of a job that may not be running any more. */
		HOLD_INTERRUPTS();
		lost->unsettled = true;
	}
	deadline = Min(deadline, adopted.limit);
	/* Scheduled before anything can fail: if an error follows, the entry expires and is reaped. */
	idemq_due_by(idemq_qstate_find(MyDatabaseId, job->queue_id), DUE_LEASE, deadline);
	idemq_qstates_end_change();
	if (take == LEASE_TAKEN)
		add_lost(lost, job, true);
	return take;
}

/*
 * Adopts a running job whose lease has no entry, for idemq_lost_leases_settle.  Returns false if
 * that is not possible now, because another transaction holds the row, and may be ending the job,
 * or this transaction itself has written it.
 */
bool
idemq_lost_lease_note(LostLeases *lost, const Job *job, const QueueInfo *queue)
{
	TimestampTz deadline = idemq_row_deadline(job, queue);

	/* Our own version is not committed: a rollback would leave the entry behind. */
	if (!idemq_jobs_is_free(job) || idemq_jobs_is_own(job))
		return false;
	if (is_interrupted(job))
		idemq_handler_crashed(queue->qstate, false);
	if (adopt(lost, job, queue, idemq_mono_from_timestamp(deadline), idemq_row_lease(job), false) ==
			LEASE_FULL &&
		deadline <= idemq_now())
		add_lost(lost, job, false);
	return true;
}

/*
 * Like idemq_lost_lease_note, for a heartbeat: the lease starts again now.  Returns LEASE_FULL if
 * the row must be extended instead, and LEASE_BUSY if there is an entry, or the row is held.
 */
LeaseTake
idemq_lost_lease_renew(LostLeases *lost, const Job *job, const QueueInfo *queue, int64 length)
{
	if (!idemq_jobs_is_free(job) || idemq_jobs_is_own(job))
		return LEASE_BUSY;
	return adopt(lost, job, queue, idemq_mono_now() + length, length, true);
}

/*
 * Fetches one of the jobs again, by the new snapshot.  If the job is still running without an
 * entry, reaps it; returns whether it did.  If an adopted job is no longer running, drops its
 * entry, unsets the queue's scan starts, and requests another search.
 */
static bool
recover_recheck_adopted(LostLeases *lost, const LostLease *lease, JobsTable *table,
						const QueueInfo *queue)
{
	Lease dropped;
	Job job;
	TimestampTz limit;
	bool there = idemq_jobs_fetch(table, lease->job_id, &job) &&
				 job_is_attempt(&job, lease->token) && idemq_jobs_is_free(&job);

	if (there && !lease->adopted)
	{
		limit = idemq_row_limit(&job, queue);
		/* After a restart, only a heartbeat that wrote the row shows that its worker was alive. */
		return idemq_reap_row(table, &job, queue,
							  limit <= idemq_row_deadline(&job, queue) &&
									  (!is_restored(&job) || (job.flags & JOB_EXTENDED))
								  ? LOSS_TIMEOUT
								  : LOSS_EXPIRED);
	}
	if (!there && lease->adopted)
	{
		idemq_qstates_begin_change();
		/* If the row is only held, the job may still be running: search again. */
		idemq_qstate_need_recovery(queue->qstate, queue->id);
		lost->dropped = true;
		(void) idemq_lease_drop(lease->job_id, lease->token, &dropped);
		/* Other sessions may have passed the job because of the entry, at any key. */
		idemq_scan_start_unset(queue->qstate, queue->id);
		idemq_qstates_end_change();
	}
	return false;
}

/*
 * Completes what idemq_lost_lease_note began, when no scan of the table is open: takes a new
 * snapshot, and keeps, drops or reaps each lease.  Returns how many were reaped.
 */
int64
idemq_lost_leases_settle(LostLeases *lost, JobsTable *table, const QueueInfo *queue)
{
	int64 reaped = 0;
	ListCell *lc;

	if (lost->found == NIL)
		return 0;
	idemq_jobs_refresh(table);
	foreach(lc, lost->found)
	{
		const LostLease *lease = lfirst(lc);

		if (lease->adopted)
			(void) recover_recheck_adopted(lost, lease, table, queue);
	}
	if (lost->unsettled)
		RESUME_INTERRUPTS();
	lost->unsettled = false;
	/* A reap may wait and do more work. */
	foreach(lc, lost->found)
	{
		const LostLease *lease = lfirst(lc);

		if (!lease->adopted)
			reaped += recover_recheck_adopted(lost, lease, table, queue);
	}
	list_free_deep(lost->found);
	lost->found = NIL;
	return reaped;
}

/*
 * Adopts the running jobs of the ready index, from point to the end of its priority, or for *budget
 * entries.  Moves point, and lowers *budget.  Stops only between two keys, because a row whose
 * update was not HOT has several entries with the same key.
 */
static void
recover_priority(JobsTable *table, const QueueInfo *queue, RecoveryPoint *point, int *budget,
				 LostLeases *lost)
{
	ReadyKey key;
	bool found;
	Job job;

	idemq_jobs_scan_begin(table, queue->id, point->priority, point->from, READY_KEY_MAX);
	while ((found = idemq_jobs_scan_next(table, &key)) &&
		   (*budget > 0 || ready_key_less(key, point->from)))
	{
		CHECK_FOR_INTERRUPTS();
		if (idemq_lease_hold(key.id) == LEASE_HOLDS_NOT &&
			(idemq_jobs_scan_row(table, &job) && job.status == JOB_RUNNING) &&
			!idemq_lost_lease_note(lost, &job, queue))
			point->incomplete = true;
		point->from = ready_key_after(key);
		/* An interrupt waits only until the adopted jobs are settled. */
		*budget = lost->unsettled && InterruptPending ? 0 : *budget - 1;
	}
	idemq_jobs_scan_end(table);
	if (!found)
	{
		point->priority++;
		point->from = READY_KEY_MIN;
	}
}

/*
 * Does one step of a search from point, for that many index entries, and moves point.  When the
 * search has ended, every running job is counted.  Returns how many jobs were reaped.
 */
static int64
recover_step(const QueueInfo *queue, RecoveryPoint *point, int budget)
{
	LostLeases lost = {.context = CurrentMemoryContext};
	JobsTable table;
	int64 reaped;

	idemq_jobs_open(&table);
	while (budget > 0 && point->priority < IDEMQ_PRIORITIES)
		recover_priority(&table, queue, point, &budget, &lost);
	reaped = idemq_lost_leases_settle(&lost, &table, queue);
	idemq_jobs_close(&table);
	if (lost.dropped || idemq_lease_share_is_full(queue->max_running > 0))
		point->incomplete = true;
	idemq_qstate_recovered_to(queue->qstate, queue->id, point);
	/* Wakes a session that waits for the end of the search. */
	if (point->priority == IDEMQ_PRIORITIES)
		idemq_running_wake_refused(queue->qstate, queue->id);
	return reaped;
}

/* Does a step of the search for lost leases, if one is under way. */
void
idemq_recover_some(const QueueInfo *queue)
{
	RecoveryPoint point;

	if (idemq_qstate_recovery_point(queue->qstate, queue->id, false, &point))
		(void) recover_step(queue, &point,
							idemq_worker_self() != NULL ? WORKER_STEP : RECOVERY_STEP);
}

/*
 * Searches a queue from its start to its end, if a search is needed; adds to *reaped.  A search that is
 * requested meanwhile, perhaps again and again by COMMIT PREPARED, does not start this one again.
 * Returns whether every job is counted that was running before.
 */
static bool
search_whole(const QueueInfo *queue, int64 *reaped)
{
	RecoveryPoint point;

	if (!idemq_qstate_recovery_point(queue->qstate, queue->id, true, &point))
		return false;
	do
		*reaped += recover_step(queue, &point, RECOVERY_STEP);
	while (point.priority < IDEMQ_PRIORITIES);
	return !point.incomplete;
}

/*
 * Returns whether the limits of a queue can be kept, because every running job is counted.  If that is
 * not known, searches the whole queue.  If not, a waiter will be woken when the search has ended.
 */
bool
idemq_recover_for_limits(const QueueInfo *queue)
{
	QueueStateSummary status;
	RecoveryPoint point;
	LimitView view;
	int64 reaped = 0;

	if (queue->max_running == 0)
		return true;
	/*
	 * A job whose attempt this transaction has ended, and that was not counted, is still running for
	 * others, but this session's search does not see it so.
	 */
	if (!idemq_transfer_uncounted(queue->id) &&
		idemq_qstate_recovery_point(queue->qstate, queue->id, false, &point) &&
		search_whole(queue, &reaped))
		return true;
	if (idemq_qstate_summary(queue->id, &status) && !status.needs_recovery)
		return true;
	(void) idemq_limit_has_room(queue, &view);
	return false;
}

/*
 * Takes back expired leases of a queue, for one slice of a call, and does a step of the search for
 * lost leases, if one is under way; with max_running, the whole search.  Returns false if
 * max_running cannot be enforced, because not every running job is counted.  Costs almost nothing
 * if there is nothing to do.
 */
bool
idemq_reap_some(const QueueInfo *queue)
{
	QueueState *qstate;
	bool counted = true;
	Slice slice;

	IDEMQ_STOP("idemq_reap_some");
	if (queue->max_running > 0)
		counted = idemq_recover_for_limits(queue);
	else
		idemq_recover_some(queue);
	qstate = idemq_qstate_current(queue->qstate, queue->id);
	if (qstate != NULL && idemq_due_at(qstate, DUE_LEASE) <= idemq_mono_now())
	{
		idemq_slice_begin(&slice, SLICE_OF_CALL);
		(void) idemq_reap_in(queue, &slice);
	}
	return counted;
}

/* Takes back every expired lease of a queue, including lost leases. */
int64
idemq_reap_all(const QueueInfo *queue)
{
	int64 reaped = 0;
	Slice slice;

	(void) search_whole(queue, &reaped);
	idemq_slice_begin(&slice, PG_INT64_MAX);
	return reaped + idemq_reap_in(queue, &slice);
}
