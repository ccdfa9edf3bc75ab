/*
 * job/claim_by_id.c
 *		Claiming one job by its id, for claim_job, commit_once and acquire.
 *
 * While another session holds the job's lease, the lease table gives the answer, and no row is
 * read.  A claim through the ready index first does several things for the whole queue.  Here they
 * are done for the one job: its lease is taken back if it has ended, adopted if memory has lost it,
 * and the job is promoted if it is blocked and next in its group.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "table/table.h"

/* Returns when a lease ends; for a claim whose transaction is open, if the lease began now. */
static TimestampTz
lease_end(const Lease *lease)
{
	return lease->claiming ? idemq_now() + lease->length
						   : idemq_timestamp_from_mono(lease->deadline);
}

/*
 * Returns whether a session holds the job's lease according to the lease table, and sets
 * retry_after.  Takes a lease back that has ended, and then returns false.
 */
static bool
is_leased(JobCall *call, JobsTable *table)
{
	Lease lease;

	if (!idemq_lease_get(call->id, &lease) || lease.ending.finisher == IDEMQ_MY_PROC_NUMBER)
		return false;
	if (!lease.claiming && lease.deadline <= idemq_mono_now())
	{
		bool reaped;

		/* A snapshot that sees the lease's claim, and then its end. */
		idemq_jobs_refresh(table);
		reaped = idemq_reap_job(table, &call->queue, call->id, lease.token);
		idemq_jobs_refresh(table);
		if (reaped)
			return false;
	}
	call->retry_after = lease_end(&lease);
	return true;
}

/* Does the same for a running job that has no lease entry: adopts its lease first. */
static bool
is_leased_by_row(JobCall *call, JobsTable *table)
{
	LostLeases lost = {.context = CurrentMemoryContext};

	call->retry_after = idemq_row_deadline(&call->job, &call->queue);
	if (idemq_lost_lease_note(&lost, &call->job, &call->queue))
		(void) idemq_lost_leases_settle(&lost, table, &call->queue);
	if (call->retry_after > idemq_now())
		return true;
	if (is_leased(call, table))
		return true;
	idemq_jobs_refresh(table);
	return !idemq_jobs_fetch(table, call->id, &call->job) || call->job.status == JOB_RUNNING;
}

/* Returns the outcome for a finished job.  Waits until synchronous standbys have its end. */
static Outcome
finished_outcome(const JobCall *call)
{
	bool repeated = call->event == EVENT_COMMIT_ONCE && call->job.status == JOB_COMPLETED;

	if (repeated)
		idemq_queue_count_refusal(&call->queue, COUNTER_REPEATED_COMMITS);
	if (!idemq_jobs_is_own(&call->job))
		idemq_sync_rep_await();
	return repeated ? OUTCOME_ALREADY_COMMITTED : idemq_outcome_of_status(call->job.status);
}

/*
 * Promotes a blocked job if it is next in its group, or if its parents are done, and no other
 * session has done so yet.  Then fetches the job again; returns false if it no longer exists.
 */
static bool
unblock(JobCall *call, JobsTable *table)
{
	const QueueInfo *queue = &call->queue;
	bool promoted = true;
	EventArgs args;
	Datum name;
	Job first;

	if (!job_has(&call->job, COL_GROUP_KEY))
	{
		/* Its parents block it; or a DBA has set it to blocked, and then nothing promotes it. */
		if (idemq_dependencies_exist())
			promoted = idemq_promote_child(table, queue, call->id);
	}
	else if (idemq_is_no_group(job_value(&call->job, COL_GROUP_KEY)))
		/* Without ownership of the group, which has permits for all its jobs. */
		(void) idemq_promote_job(table, queue, &call->job, &args);
	else
	{
		name = PointerGetDatum(PG_DETOAST_DATUM_COPY(job_value(&call->job, COL_GROUP_KEY)));
		/* Another job is not promoted by our transaction, which may be a long one. */
		if ((idemq_groups_use_permits(queue)
				 ? idemq_jobs_group_blocked(table, queue->id, name, PG_INT64_MIN, &first)
				 : idemq_jobs_group_first(table, queue->id, name, &first)) &&
			first.id == call->id)
			promoted = idemq_promote_group(queue, name);
	}
	if (!promoted)
		idemq_promote_pass_await(queue->qstate);
	idemq_jobs_refresh(table);
	return idemq_jobs_fetch(table, call->id, &call->job);
}

/*
 * Returns whether a fetched job cannot be claimed because its group is paused; if so, sets
 * retry_after.  A job in the ready index becomes blocked.  Sets *again if the job was written or
 * has changed, so it must be fetched again.  Leaves an expired job to the claim, which cancels it.
 */
static bool
is_paused(JobCall *call, JobsTable *table, bool *again)
{
	const Job *job = &call->job;
	TimestampTz until;
	JobWrite write;

	if (!job_has(job, COL_GROUP_KEY) ||
		!idemq_jobs_group_is_paused(table, &call->queue, job_value(job, COL_GROUP_KEY), &until))
		return false;
	call->retry_after = until;
	if (job->status == JOB_BLOCKED)
		return true;
	if (!idemq_transition_allowed(EVENT_PAUSE, job->status) || job_has_expired(job, idemq_now()))
		return false;
	write = idemq_job_pause(table, job, &call->queue);
	if (write == JOB_WRITTEN)
		idemq_jobs_refresh(table);
	else if (write == JOB_CHANGED)
		idemq_jobs_refresh_or_raise(table);
	*again = write != JOB_LOCKED;
	return true;
}

/*
 * Claims a fetched job in status pending or retrying.  Sets *again if the job has changed, so it
 * must be fetched again.
 */
static Outcome
take_job(JobCall *call, JobsTable *table, bool *again)
{
	TimestampTz until;
	LimitView view;

	call->args.now = idemq_now();
	if (job_has_expired(&call->job, call->args.now))
	{
		JobWrite write = idemq_job_expire(table, &call->job, &call->queue, call->args.now);

		*again = write == JOB_CHANGED;
		return write == JOB_WRITTEN ? OUTCOME_CANCELLED : OUTCOME_LOCKED;
	}
	call->args.deadline = call->args.now + idemq_settings_lease(&call->queue, call->lease);
	until = Max(idemq_queue_closed_until(&call->queue), call->job.ready_at);
	if (until > call->args.now)
	{
		call->retry_after = until;
		return OUTCOME_NOT_DUE;
	}
	if (!idemq_recover_for_limits(&call->queue))
		return OUTCOME_NOT_DUE;
	switch (idemq_claim_one(table, &call->job, &call->queue, call->event, &call->args, call->flags))
	{
		case TAKE_CHANGED:
			*again = true;
			break;
		case TAKE_LIMIT:
			idemq_limit_view(&call->queue, &view);
			call->retry_after = view.until;
			return OUTCOME_NOT_DUE;
		case TAKE_EARLY:
			call->retry_after = call->args.ready_at;
			return OUTCOME_NOT_DUE;
		case TAKE_DONE:
			if (call->event == EVENT_COMMIT_ONCE)
				return OUTCOME_COMMITTED;
			if (idemq_job_uses_permits(&call->queue, &call->job))
				idemq_promote_later(&call->queue, job_value(&call->job, COL_GROUP_KEY));
			return call->job.attempt > 0 ? OUTCOME_CLAIMED_AGAIN : OUTCOME_CLAIMED;
		default:
			break;
	}
	return OUTCOME_LOCKED;
}

/*
 * Claims the job if it can be claimed, and returns the outcome.  The table is open for writing.
 * Raises 40001 above READ COMMITTED for a job that has changed since the snapshot, and 22023 for a
 * lease longer than the queue allows.
 */
Outcome
idemq_claim_by_id(JobCall *call, JobsTable *table)
{
	for (;;)
	{
		bool again = false;
		JobWrite write;
		Outcome outcome;

		/* The row first: a role without the privilege learns and changes nothing. */
		if ((!call->fetched && !idemq_jobs_fetch(table, call->id, &call->job)) ||
			!idemq_queue_allows(call->job.queue_id, PRIVILEGE_CLAIM, &call->queue))
			return OUTCOME_NOT_FOUND;
		idemq_queue_need_qstate(&call->queue);
		idemq_qstate_note_claim(call->queue.qstate);
		idemq_settings_check_lease(&call->queue, call->lease);
		call->fetched = false;
		/* A finished job is finished, even if its lease entry goes a moment later. */
		if (job_status_is_finished(call->job.status))
			return finished_outcome(call);
		if (is_leased(call, table))
			return OUTCOME_LOCKED;
		/* Reaped just now, or changed while we asked. */
		if (!idemq_jobs_fetch(table, call->id, &call->job))
			return OUTCOME_NOT_FOUND;
		if (call->job.status == JOB_RUNNING && is_leased_by_row(call, table))
			return OUTCOME_LOCKED;
		if (is_paused(call, table, &again))
		{
			if (again)
				continue;
			return OUTCOME_NOT_DUE;
		}
		if (call->job.status == JOB_BLOCKED && !unblock(call, table))
			return OUTCOME_NOT_FOUND;
		call->retry_after = DT_NOEND;
		if (job_status_is_finished(call->job.status))
			return finished_outcome(call);
		if (!idemq_transition_allowed(call->event, call->job.status))
			return idemq_outcome_of_status(call->job.status);
		/* Without a permit, the job becomes blocked and waits for one. */
		if (call->job.ready_at <= idemq_now() && idemq_lacks_permit(&call->queue, &call->job))
		{
			write = idemq_job_defer(table, &call->job, &call->queue, DT_NOBEGIN);
			if (write == JOB_LOCKED)
				return OUTCOME_LOCKED;
			if (write == JOB_WRITTEN)
				idemq_jobs_refresh(table);
			else
				idemq_jobs_refresh_or_raise(table);
			continue;
		}
		outcome = take_job(call, table, &again);
		if (!again)
			return outcome;
		idemq_jobs_refresh_or_raise(table);
	}
}

/*
 * Returns whether no session can claim a fetched job now, because it is finished or its lease has
 * not ended.
 */
bool
idemq_job_is_settled(const JobCall *call)
{
	Lease lease;

	return job_status_is_finished(call->job.status) ||
		   (idemq_lease_get(call->id, &lease) && lease.ending.finisher != IDEMQ_MY_PROC_NUMBER &&
			(lease.claiming || lease.deadline > idemq_mono_now()));
}

/*
 * Like idemq_claim_by_id, but claims nothing, because another session is about to claim the job:
 * returns OUTCOME_LOCKED unless the job is finished.  If the job has no lease, retry_after does not
 * change.
 */
Outcome
idemq_claim_by_id_check(JobCall *call, JobsTable *table)
{
	Lease lease;

	if ((!call->fetched && !idemq_jobs_fetch(table, call->id, &call->job)) ||
		!idemq_queue_allows(call->job.queue_id, PRIVILEGE_CLAIM, &call->queue))
		return OUTCOME_NOT_FOUND;
	if (job_status_is_finished(call->job.status))
		return finished_outcome(call);
	if (idemq_lease_get(call->id, &lease))
		call->retry_after = lease_end(&lease);
	return OUTCOME_LOCKED;
}
