/*
 * job/claim_one.c
 *		Taking a ready job: the lease entry first, then the row.
 *
 * Claimers exclude each other through the entry, not through a row lock: a claimer that finds an
 * entry of another session does not touch the row.  So once the claimer has the entry, only a
 * transaction that does not claim can hold the row (a foreign key check, a DBA, a cancel).  The
 * claimer then skips the job instead of waiting.  If the lease table is full, the row lock alone
 * excludes other claimers.
 *
 * The order is: issue a token, reserve room for the note, add an entry in state CLAIMING, note it.
 * Nothing can fail between the entry and the note.  Then the row is written.  If it has changed
 * meanwhile, or another transaction holds it, the note is undone at once.
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

	/* The first fetch opens what the second one needs, which must neither wait nor end early. */
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

/* What a claim has taken beside the row. */
typedef struct Taken
{
	RateAnswer rate;
	LeaseTake entry;
	PriorLease prior;
	bool has_prior;
} Taken;

/*
 * Takes what a job needs beside its row: a start of the queue's rate, and an entry; or takes
 * nothing.  Returns TAKE_LIMIT when the queue's limits turn the claim away; that is then on record,
 * so that a waiter is woken when they let one in.
 */
static TakeResult
take_entry(const QueueInfo *queue, const LeaseClaim *claim, Taken *taken)
{
	LimitView view;

	taken->entry = LEASE_LIMIT;
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (!idemq_limit_take_rate(queue, claim->transfer, &taken->rate))
			continue;
		taken->entry = idemq_lease_take(claim, &taken->prior, &taken->has_prior);
		/* A lease that is on its row alone is not counted. */
		if (taken->entry == LEASE_TAKEN || (taken->entry == LEASE_FULL && queue->max_running == 0))
			return TAKE_DONE;
		idemq_limit_undo_rate(queue, &taken->rate);
	} while (taken->entry != LEASE_BUSY && idemq_limit_has_room(queue, &view));
	return taken->entry == LEASE_BUSY ? TAKE_BUSY : TAKE_LIMIT;
}

/*
 * Takes a fetched job in status pending or retrying by EVENT_CLAIM or EVENT_COMMIT_ONCE; sets
 * args->token.  In a group with permits the caller has the next job promoted, once it has claimed
 * what it wants (idemq_promote_later).  lease: microseconds, until args->deadline.  flags:
 * JOB_ATTACHED, JOB_HANDLER.  A rollback of the transaction, or savepoint, undoes it.
 */
TakeResult
idemq_claim_one(JobsTable *table, const Job *job, const QueueInfo *queue, JobEvent event,
				EventArgs *args, int64 lease, int16 flags)
{
	LeaseClaim claim = {.job_id = job->id,
						.queue_id = queue->id,
						.qstate = queue->qstate,
						.max_running = queue->max_running,
						.length = lease,
						.timeout = queue->job_timeout,
						.attached = (flags & JOB_ATTACHED) != 0,
						.handler = (flags & JOB_HANDLER) != 0,
						.tid_hint = idemq_jobs_tid_hint(table, job)};
	bool rated = job_has(job, COL_GROUP_KEY) &&
				 idemq_group_has_rate_limit(queue, job_value(job, COL_GROUP_KEY));
	TakeResult result;
	Taken taken;
	JobWrite write = JOB_WRITTEN;
	TransactionId holder; /* not used */
	bool was_held;

	if (idemq_jobs_is_outdated(table, job))
		return TAKE_CHANGED;
	/* Asked first, so that a job that comes too soon takes nothing from the queue's rate. */
	args->ready_at = idemq_group_holds_back(queue, job, &was_held);
	if (rated)
		args->ready_at =
			Max(args->ready_at, idemq_group_rate_limit_next(queue, job_value(job, COL_GROUP_KEY)));
	if (args->ready_at != DT_NOBEGIN)
		return TAKE_EARLY;
	args->token = claim.token = idemq_lease_issue_token(job->token, idemq_token_epoch_base());
	claim.transfer = idemq_limit_may_transfer(queue);
	idemq_pending_reserve_claim(queue->id);
	result = take_entry(queue, &claim, &taken);
	if (result != TAKE_DONE)
		return result;
	idemq_pending_note_claim(&claim, job->priority, job_ready_key(job), taken.entry == LEASE_FULL,
							 event == EVENT_COMMIT_ONCE, taken.has_prior ? &taken.prior : NULL);
	/* A charge is never given back, so it is not made for a row that another transaction has. */
	if (taken.entry == LEASE_FULL || (rated && idemq_jobs_hold(job, &holder) != ROW_FREE))
		write = idemq_jobs_lock(table, job, LockTupleNoKeyExclusive, JOB_SKIPS);
	if (write == JOB_WRITTEN && rated)
		args->ready_at = idemq_group_rate_limit_take(queue, job_value(job, COL_GROUP_KEY));
	if (args->ready_at != DT_NOBEGIN)
	{
		idemq_limit_undo_rate(queue, &taken.rate);
		idemq_pending_undo_last();
		return TAKE_EARLY;
	}
	/* Only an entry knows the session with which an attached lease ends. */
	args->claim_flags = taken.entry == LEASE_FULL ? flags & ~JOB_ATTACHED : flags;
	if (write == JOB_WRITTEN)
		write = idemq_transition(table, job, queue, event, args, JOB_SKIPS_STRANGERS);
	if (write == JOB_WRITTEN)
	{
		if (taken.entry == LEASE_FULL && event == EVENT_CLAIM)
			idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ROW_ONLY));
		idemq_token_epoch_note();
		idemq_holds_note_claim(queue, job, was_held, args->now);
		/* Without an entry only the commit says that the group's next job may be promoted. */
		if (taken.entry == LEASE_FULL && idemq_job_uses_permits(queue, job))
			idemq_pending_groups_note(queue->qstate, queue->id, job_value(job, COL_GROUP_KEY),
									  GROUP_KEEP_LOW_WATER);
		return TAKE_DONE;
	}
	idemq_limit_undo_rate(queue, &taken.rate);
	if (write == JOB_CHANGED)
	{
		undo_changed(queue, job->id);
		return TAKE_CHANGED;
	}
	idemq_pending_undo_last();
	return TAKE_LOCKED;
}

/*
 * Makes blocked a fetched job that is due and has no permit of its group (job/permits.c), so that
 * it waits for one.  Never waits for its row.
 */
JobWrite
idemq_job_defer(JobsTable *table, const Job *job, const QueueInfo *queue)
{
	EventArgs args = {.now = idemq_now()};

	return idemq_transition(table, job, queue, EVENT_DEFER, &args, JOB_SKIPS);
}
