/*
 * job/group_pause.c
 *		Paused groups: their jobs wait, while the jobs of all other groups continue.
 *
 * A group is paused while idemq.paused_groups has a row for it whose paused_until, if any, has not
 * passed.  This row is the only record of the pause.  It may be written by idemq.pause and
 * idemq.resume (sql/parts/30_queues.sql), by a DBA or by logical replication; it is included in
 * dumps, and a restart loses nothing.  The row may be older than the group's first job.
 *
 * No claim takes a job of a paused group.  Let P be a transaction that writes the row, and C a
 * claim that begins after P has returned:
 *
 *		P: is visible; moves the version of the queue's settings; marks the group; returns.
 *		C: looks the queue up; takes its snapshot; for each job with a group, if the queue may
 *			have paused groups, looks for the row by that snapshot; takes the job, or leaves it.
 *
 * C looks the queue up after the version has moved, so it reads the queue's settings again, by a
 * snapshot that shows P (shared/queue_states/settings_version.c).  So it knows that the queue has a
 * paused group, and its own snapshot, which is younger still, shows the row.  It is always the latest
 * one, whatever the isolation level of C's transaction and however long ago it began.  A queue
 * without paused groups pays for one comparison.  If C's own transaction wrote the row, its cached
 * settings have been discarded and its snapshot shows its own writes; a rollback, even to a
 * savepoint, discards the settings again (queue/queue_cache.c).  COMMIT PREPARED moves all versions
 * before it returns.
 *
 * A paused group stays out of the ready index.  P makes the group's waiting jobs blocked
 * (EVENT_PAUSE); if their time is still to come, run_at stores it.  A promotion leaves the group
 * alone.  Whatever else would put a job of the group into the index (a failure, a release, a lost
 * lease, a retry, another time) makes the job blocked instead (job/transition.c).  A row that
 * another transaction W holds is not waited for:
 *
 *	 - W is a promoter.  P's mark makes W, or another session, check the group again once W is visible,
 *	   by a snapshot that shows P.  That check makes the job blocked.  It finds that the version has
 *	   moved, since P moves it before it sets the mark.
 *	 - W is a claim whose transaction is open, and is rolled back; or it puts the job into the index
 *	   by a snapshot that does not show P.  Then the job stays there until a claim or the next
 *	   check of its group finds it.  Both make it blocked.
 *
 * So while a group is paused, claims encounter each of its jobs at most once: even with ten
 * thousand paused groups, the index looks as if they did not exist.
 *
 * The end.  Once the row has been deleted, or its time has passed, the group is like any other that
 * has blocked jobs and no head.  The mark set by P, or by the session that deletes the row, has it
 * promoted: its next job goes to the end of the ready index, so the group goes to the back of the
 * line once, and its rate and permits apply as at every promotion.  Its jobs still run in the order
 * of ids.  When paused_until comes, the worker's task "due" deletes the row (its time is in the
 * queue's settings); where there is no worker, a claim or a waiter does, as far as it waits for no
 * lock.  Nothing else depends on the deletion: a group whose time has passed is not paused, even if
 * its row still exists.
 *
 * Order with other writers.  P locks its row of idemq.paused_groups, then rows of idemq.jobs, and
 * waits for none of the latter.  No session that holds a row of idemq.jobs waits for a row of
 * idemq.paused_groups, except one that pauses or resumes groups itself.  So a pause never makes a
 * session wait for a job, and causes no deadlock unless transactions pause several groups in
 * different orders.  A pause or resume may itself wait: where there is no worker, for a claim
 * whose open transaction has deleted the row of a pause that had ended.
 *
 * A rollback of P leaves the row as it was, and the jobs in the index.  Their keys were noted, so
 * scan starts are lowered to them, and waiters wake.  If P's own transaction checked the group and
 * found it paused, the check is repeated, because P owns the group until its end.  A crash has the
 * same effect as a rollback.
 *
 *		Model: test/model/group_pause.pml; a pause, an enqueue, a promoter and two claims.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/leases/leases.h"
#include "table/table.h"

/*
 * Makes a fetched job in status pending or retrying blocked, because its group is paused.  The job
 * keeps the time it is waiting for, but no permit.  Never waits for the job's row.
 */
JobWrite
idemq_job_pause(JobsTable *table, const Job *job, const QueueInfo *queue)
{
	EventArgs args = {.now = idemq_now(), .ready_at = job->ready_at};

	/* It was due; run_at says since when, or is NULL. */
	if (job->flags & JOB_RATE_LIMITED)
		args.ready_at = job_time(job, COL_RUN_AT);
	return idemq_transition(table, job, queue, EVENT_PAUSE, &args, JOB_SKIPS);
}

/*
 * Makes up to "most" claimable jobs of a paused group blocked, among those whose ready_at is "from"
 * or later.  Returns HAS_MORE if there may be more, HELD if a row is held or has changed, and
 * HAS_HEAD if none is left but those that are being claimed, or running.
 */
Promotion
idemq_group_pause_block(JobsTable *table, const QueueInfo *queue, Datum name, TimestampTz from,
						int most)
{
	MemoryContext context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq pause", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Promotion left = HAS_HEAD;
	int written = 0;
	Job job;

	idemq_jobs_group_scan_begin(table, queue->id, name, from, DT_NOEND);
	while (written < most && idemq_jobs_group_scan_next(table, &job))
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(context);
		/*
		 * Leave out a job that is being claimed: the claim may wait for a session that locks its
		 * row.
		 */
		if (!idemq_transition_allowed(EVENT_PAUSE, job.status) ||
			idemq_lease_hold(job.id) == LEASE_HOLDS)
			continue;
		if (idemq_job_pause(table, &job, queue) == JOB_WRITTEN)
			written++;
		else
			left = HELD;
	}
	idemq_jobs_scan_end(table);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return written == most ? HAS_MORE : left;
}
