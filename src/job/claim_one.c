/*
 * job/claim_one.c
 *		Claiming one ready job: the lease entry first, then the row.
 *
 * Claimers exclude each other through the entry, not through a row lock: a claimer that finds an
 * entry of another session does not touch the row.  So once a claimer has the entry, only a
 * transaction that does not claim can hold the row (a foreign key check, a DBA, a cancel).  The
 * claimer then skips the job instead of waiting.  If the lease table is full, the row lock alone
 * excludes other claimers.
 *
 * The order is: issue a token, reserve memory for the note, add an entry in state CLAIMING, note
 * it.  Nothing can fail between the entry and the note.  Then the row is written.  If it has
 * changed meanwhile, or another transaction holds it, the note is undone immediately.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * Undoes a claim whose job changed between the fetch and the entry.  While the entry was there,
 * other claimers may have passed the job's new version, which can be anywhere in the index.  So the
 * job is fetched once more after the entry has been removed, and the scan start is lowered to its
 * key if it is ready.  A transaction that makes the job ready after this fetch lowers the scan start
 * itself.  Usually another worker has completed the job; then the scan start stays, because otherwise
 * every lost race would make all claimers scan the index entries that a held snapshot keeps.
 */
static void
undo_changed(const QueueInfo *queue, int64 id)
{
	JobsTable latest;
	Job job;

	/*
	 * The first fetch opens the files that the second one needs, because that one must neither wait
	 * nor fail.
	 */
	idemq_jobs_open_to_read(&latest);
	(void) idemq_jobs_fetch(&latest, id, &job);
	HOLD_INTERRUPTS();
	idemq_qstates_begin_change();
	idemq_pending_undo_last();
	PG_TRY();
	{
		idemq_jobs_refresh(&latest);
		if (idemq_jobs_fetch(&latest, id, &job) &&
			idemq_transition_allowed(EVENT_CLAIM, job.status))
		{
			idemq_scan_start_lower(queue->qstate, job.queue_id, job.priority, job_ready_key(&job));
			idemq_wake_ready(queue->qstate, job.queue_id, 1, DT_NOEND);
		}
	}
	PG_CATCH();
	{
		idemq_scan_start_unset(queue->qstate, queue->id);
		idemq_qstates_end_change();
		PG_RE_THROW();
	}
	PG_END_TRY();
	idemq_qstates_end_change();
	RESUME_INTERRUPTS();
	idemq_jobs_close(&latest);
}

/*
 * Takes a lease entry, if the queue's rate and max_running allow it; *rowonly: the lease table is full,
 * so the lease is only in the row.  *prior: the entry that was taken over, if *has_prior.  Returns
 * TAKE_LIMIT if a limit refuses the claim; then a waiter will be woken when the limits allow one.
 */
static TakeResult
take_entry(const QueueInfo *queue, const LeaseClaim *claim, bool *rowonly, PriorLease *prior,
		   bool *has_prior)
{
	LimitView view;

	do
	{
		LeaseTake entry;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_limit_rate(queue, false))
			return TAKE_LIMIT;
		entry = idemq_lease_take(claim, prior, has_prior);
		if (entry == LEASE_BUSY)
			return TAKE_BUSY;
		*rowonly = entry == LEASE_FULL;
		/* A lease that is only in its row is not counted as running. */
		if (entry == LEASE_TAKEN || (*rowonly && queue->max_running == 0))
			return TAKE_DONE;
	} while (idemq_limit_has_room(queue, &view));
	return TAKE_LIMIT;
}

/*
 * Takes a fetched job in status pending or retrying by EVENT_CLAIM or EVENT_COMMIT_ONCE, with a lease
 * from args->now until args->deadline; sets args->token.  For TAKE_EARLY, args->ready_at is set.  In a
 * group with permits the caller has the next job promoted, once it has claimed what it wants
 * (idemq_promote_later).  flags: JOB_ATTACHED, JOB_HANDLER.  A rollback of the transaction, or
 * savepoint, undoes it.
 */
TakeResult
idemq_claim_one(JobsTable *table, const Job *job, const QueueInfo *queue, JobEvent event,
				EventArgs *args, int16 flags)
{
	LeaseClaim claim = {.job_id = job->id,
						.queue_id = queue->id,
						.qstate = queue->qstate,
						.max_running = queue->max_running,
						.length = args->deadline - args->now,
						.timeout = queue->job_timeout,
						.attached = (flags & JOB_ATTACHED) != 0,
						.handler = (flags & JOB_HANDLER) != 0,
						.tid_hint = idemq_jobs_tid_hint(table, job)};
	Datum group = job_has(job, COL_GROUP_KEY) ? job_value(job, COL_GROUP_KEY) : (Datum) 0;
	bool is_rated = queue->rate_limit > 0 || (queue->group_rate_limit > 0 && group != (Datum) 0);
	TimestampTz held_until;
	TimestampTz rated_until;
	TakeResult result;
	PriorLease prior;
	bool has_prior;
	bool rowonly;
	JobWrite write = JOB_WRITTEN;
	TransactionId holder; /* not used */
	bool was_held;

	IDEMQ_STOP("idemq_claim_one");
	if (idemq_jobs_is_outdated(table, job))
		return TAKE_CHANGED;
	/* Asked first, so that a job that comes too soon takes no entry. */
	held_until = idemq_group_held_until(queue, group, &was_held);
	rated_until = idemq_group_rate_limit(queue, group, false);
	args->ready_at = Max(held_until, rated_until);
	/*
	 * The start that this claim was refused may have been charged for this very job: the other claim
	 * adds its entry before its charge.  If the job were deferred now, that claim would lose it.
	 */
	if (args->ready_at != DT_NOBEGIN)
		return idemq_lease_hold(job->id) == LEASE_HOLDS ? TAKE_BUSY : TAKE_EARLY;

	args->token = claim.token = idemq_lease_issue_token(job->token, idemq_token_epoch_base());
	claim.transfer = idemq_limit_may_transfer(queue);
	idemq_pending_reserve_claim(queue->id);
	result = take_entry(queue, &claim, &rowonly, &prior, &has_prior);
	if (result != TAKE_DONE)
		return result;
	idemq_pending_note_claim(&claim, job->priority, job_ready_key(job), rowonly,
							 event == EVENT_COMMIT_ONCE, has_prior ? &prior : NULL);

	/* A charge is never given back, so it is not made for a row that another transaction has. */
	if (rowonly || (is_rated && idemq_jobs_hold(job, &holder) != ROW_FREE))
		write = idemq_jobs_lock(table, job, LockTupleNoKeyExclusive, JOB_SKIPS);
	if (write == JOB_WRITTEN && is_rated)
	{
		bool has_start = idemq_limit_rate(queue, true);

		if (has_start)
			args->ready_at = idemq_group_rate_limit(queue, group, true);
		if (!has_start || args->ready_at != DT_NOBEGIN)
		{
			idemq_pending_undo_last();
			return has_start ? TAKE_EARLY : TAKE_LIMIT;
		}
	}

	/* Only an entry knows the session with which an attached lease ends. */
	args->claim_flags = rowonly ? flags & ~JOB_ATTACHED : flags;
	if (write == JOB_WRITTEN)
		write = idemq_transition(table, job, queue, event, args, JOB_SKIPS_STRANGERS);
	if (write == JOB_CHANGED)
	{
		undo_changed(queue, job->id);
		return TAKE_CHANGED;
	}
	if (write == JOB_LOCKED)
	{
		idemq_pending_undo_last();
		return TAKE_LOCKED;
	}
	if (rowonly && event == EVENT_CLAIM)
		idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ROW_ONLY));
	idemq_token_epoch_note();
	idemq_holds_note_claim(queue, job, was_held, args->now);
	/*
	 * Without an entry, no session sees the claim before it commits, so the commit marks the group.
	 */
	if (rowonly && idemq_job_uses_permits(queue, job))
		idemq_pending_groups_note(queue->qstate, queue->id, group, GROUP_KEEP_LOW_WATER);
	return TAKE_DONE;
}

/*
 * Makes a fetched job that is due wait: until a time when its group may start it, or, if until is
 * DT_NOBEGIN, blocked, for a permit of its group (job/permits.c).  A job that waits for a time keeps its
 * permit, or its position in its group.  Never waits for the job's row.
 */
JobWrite
idemq_job_defer(JobsTable *table, const Job *job, const QueueInfo *queue, TimestampTz until)
{
	EventArgs args = {.now = idemq_now(),
					  .ready_at = until,
					  .priority = job->priority,
					  .takes_permit = idemq_job_has_permit(job),
					  .due = job->ready_at};
	JobEvent event = job->status == JOB_RETRYING ? EVENT_RESCHEDULE_RETRYING : EVENT_RESCHEDULE;

	if (until == DT_NOBEGIN)
	{
		args = (EventArgs){.now = args.now};
		event = EVENT_DEFER;
	}
	return idemq_transition(table, job, queue, event, &args, JOB_SKIPS);
}
