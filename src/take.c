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

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "leases.h"
#include "take.h"
#include "tally.h"
#include "wake.h"
#include "xact.h"

/*
 * Undoes a take whose job changed between our look and our entry, which may have
 * turned others away from its new version, wherever in the index that is.  So we
 * look at it once more when the entry is gone, and lower to where it is ready;
 * who makes it ready after that look lowers later still.  Usually another worker
 * has completed it, and nothing is owed: the cursors stay, or each lost race
 * would send every claimer through all that a held snapshot keeps.
 */
static void
undo_changed(const QueueInfo *queue, int64 id)
{
	JobsTable latest;
	Job job;

	/* Opens what the second look needs, since that must neither wait nor end early. */
	idemq_jobs_open_to_read(&latest);
	(void) idemq_jobs_fetch(&latest, id, &job);
	HOLD_INTERRUPTS();
	idemq_slots_begin_change();
	idemq_xact_undo_last();
	PG_TRY();
	{
		idemq_jobs_refresh(&latest);
		if (idemq_jobs_fetch(&latest, id, &job) &&
			idemq_transition_allowed(EVENT_CLAIM, job.status))
		{
			idemq_cursor_lower(queue->slot, job.queue_id, job.priority, job_ready_key(&job));
			idemq_wake_ready(queue->slot, job.queue_id, 1, DT_NOEND);
		}
	}
	PG_CATCH();
	{
		idemq_cursor_unset(queue->slot, queue->id);
		idemq_slots_end_change();
		PG_RE_THROW();
	}
	PG_END_TRY();
	idemq_slots_end_change();
	RESUME_INTERRUPTS();
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
	{
		if (take == LEASE_FULL && event == EVENT_CLAIM)
			idemq_tally_count(queue->id, COUNTER_BIT(COUNTER_ROW_ONLY));
		return TAKE_DONE;
	}
	if (write == JOB_CHANGED)
	{
		undo_changed(queue, job->id);
		return TAKE_CHANGED;
	}
	idemq_slots_begin_change();
	idemq_xact_undo_last();
	idemq_slots_end_change();
	return TAKE_LOCKED;
}
