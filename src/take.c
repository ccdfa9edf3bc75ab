/*
 * take.c
 *		Taking a ready job: the lease entry first, then the row.
 *
 * The entry makes idemq's claimers exclusive among themselves with no row
 * locked: whoever finds another's does not touch the row.  With the entry ours,
 * the row can be held only by somebody who is not a claimer (a foreign key
 * check, a DBA, a cancel); then it is skipped, not waited for.  When the lease
 * table is full, the row lock alone decides.
 */
#include "postgres.h"

#include "leases.h"
#include "take.h"
#include "xact.h"

/*
 * Lets others see a job again that changed between our look and our entry: the
 * entry may have turned them away from its new version, wherever in the index
 * that is.  To be called when the entry is gone: who makes the job claimable
 * after the look here lowers the cursor later still.  The usual case is a job
 * that another worker has claimed and completed meanwhile, which owes nothing;
 * so the cursors are not unset for it.
 */
static void
lower_to_latest(const QueueInfo *queue, int64 id)
{
	JobsTable latest;
	Job job;

	idemq_jobs_open_to_read(&latest);
	if (idemq_jobs_fetch(&latest, id, &job) && idemq_transition_allowed(EVENT_CLAIM, job.status))
		idemq_cursor_lower(queue->slot, queue->id, job.priority, job_ready_key(&job));
	idemq_jobs_close(&latest);
}

/*
 * Takes a fetched job in status pending or failed by EVENT_CLAIM or
 * EVENT_COMMIT_ONCE; sets args->token.  lease: microseconds.  Undone by the
 * transaction's, or savepoint's, rollback.
 */
TakeResult
idemq_take(JobsTable *table, const Job *job, const QueueInfo *queue, JobEvent event,
		   EventArgs *args, int64 lease, bool attach)
{
	Lease prior;
	bool has_prior;
	LeaseTake take;
	JobWrite write = JOB_WRITTEN;

	if (idemq_jobs_is_outdated(table, job))
		return TAKE_CHANGED;
	args->token = idemq_lease_issue_token(job->token);
	idemq_xact_reserve();
	take = idemq_lease_take(job->id, args->token, queue->id, lease, attach, &prior, &has_prior);
	if (take == LEASE_BUSY)
		return TAKE_BUSY;
	idemq_xact_note_claim(queue->slot, queue->id, job->priority, job_ready_key(job), args->token,
						  take == LEASE_FULL, attach, has_prior ? &prior : NULL);
	if (take == LEASE_FULL)
		write = idemq_jobs_lock(table, job, LockTupleNoKeyExclusive, JOB_SKIPS);
	if (write == JOB_WRITTEN)
		write = idemq_transition(table, job, queue, event, args, JOB_SKIPS_STRANGERS);
	if (write == JOB_WRITTEN)
		return TAKE_DONE;
	idemq_xact_undo_last();
	if (write == JOB_LOCKED)
		return TAKE_LOCKED;
	lower_to_latest(queue, job->id);
	return TAKE_CHANGED;
}
