/*
 * job/permits.c
 *		The concurrency permits of a group: with group_max_running above 1, that many of its jobs
 *		may be running at once.
 *
 * A job gets a permit when it is promoted (job/promote.c), and keeps it while it is pending and
 * running, until the end of its attempt has committed: finished, failed, released or reaped.  Only
 * the row of a job says whether it has one:
 *
 *		running							has a permit
 *		pending, with JOB_PERMIT		has a permit: it may be claimed, now or later
 *		pending without it, retrying	has none: it waits for its time
 *		blocked, finished				has none
 *
 * A job gets a permit only if it is due when it is promoted, and every other event that sets its
 * ready_at takes the permit away (job/transition.c).  This also happens with a group_max_running of
 * 1, where permits are not used, so the rows are right when group_max_running becomes more than 1.  A
 * claim that finds a due job without a permit, for example one written by hand, does not claim it, but
 * makes it blocked (EVENT_DEFER).  The job then waits for a permit like the others, ahead of those
 * that were enqueued later.
 *
 * There are never more permits than group_max_running.  A session that owns the group counts the
 * permits, by a snapshot that is younger than its ownership.  So the snapshot shows all permits that
 * earlier promoters gave; it may also show permits that have been given back since.  The session gives
 * one more only if it counts fewer than group_max_running.  A rollback of the promotion, or a crash,
 * also removes the permit, which is in the row; after a rollback of the claim, or of the attempt's
 * end, the job still has its permit.
 *
 * Fair (round-robin) order.  A group has at most one job that waits to be claimed, whatever its
 * group_max_running, and that job's position in the ready index is the time of its promotion.  So
 * within each priority the index is the queue in which groups wait.  Let g and h be two groups that
 * have a waiting job during all of an interval, and let one session claim h twice in it.  The
 * second of these jobs was promoted after the first one was claimed, hence later than the job of g
 * that waited then.  If g was not claimed in between, that job came before it in the index, and the
 * session would have taken it.  So between two claims of h lies one of g, and their counts differ
 * by at most one.  A session that claims alongside others may use a snapshot that is older by one
 * claim of each of them: then the counts differ by at most the number of these sessions.  (Two
 * times are the same only if a promotion becomes visible, and the next claim is made, within one
 * microsecond.)
 *
 * The next job is promoted as soon as the one before it is claimed, not when that claim commits,
 * because a worker may claim, work and commit in one transaction.  A pending job that has a lease
 * entry is being claimed, and counts as taken.  The call that claims it promotes the next one itself,
 * or marks the group, before it returns; a claim without an entry, because the lease table is full,
 * marks the group when it commits.  If the claim is rolled back, the group may have two waiting jobs,
 * and may be served once more in that round, but it never has an extra permit.
 *
 * A job that is enqueued without a group, in a queue whose groups have permits, is in the group
 * without a name, which no user can give: '' in the row, NULL for the worker.  That group is served
 * in the same order as the others, and has any number of permits, even after group_max_running
 * became 1.  Since these need no count, its low-water mark is the time of its last promotion: if a
 * job waits below that, after a claim that was rolled back, the group is served once more.
 * claim_job and the like promote the job that they ask for, without being the group's promoter.
 *
 * Where to look: the ready_at of a job with a permit was the time of its promotion or, if that is
 * later, the time from which its group may start the next one (group_rate_limit,
 * job/group_rate_limit.c).  A low-water mark (shared/groups/groups.c) has two bounds here.  No job
 * with a permit has a ready_at below the low-water mark; and none has a ready_at that is in the
 * future and later than GroupLowWater.last.  So jobs that wait for their time are not read; there
 * may be many.  A session that gives a job with a permit another time drops the low-water mark.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "job/job.h"
#include "shared/leases/leases.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * Completes a change that sets ready_at, for a job in a group with permits; takes: the job gets or
 * keeps a permit.  A job without one has the time for which it waits in run_at, and its group is
 * checked after the commit, because the permit that the job had, if any, is free.
 */
void
idemq_permit_follow(JobChange *change, const Job *job, const QueueInfo *queue, bool takes,
					TimestampTz ready_at)
{
	if (takes)
		job_set_null(change, COL_RUN_AT);
	else
		job_set(change, COL_RUN_AT, TimestampTzGetDatum(ready_at));
	/*
	 * The time of a job that keeps its permit may be later than any that the low-water mark knows.
	 */
	if (!takes || job->status != JOB_BLOCKED)
		idemq_pending_groups_note(queue->qstate, queue->id, job_value(job, COL_GROUP_KEY),
								  takes ? GROUP_DROP_LOW_WATER : GROUP_KEEP_LOW_WATER);
}

/*
 * Counts the permits of a group by the table's snapshot, among the jobs with a ready_at between
 * from and until.  Stops as soon as it is known that no job may be promoted.
 */
void
idemq_permits_count(JobsTable *table, const QueueInfo *queue, Datum name, TimestampTz from,
					TimestampTz until, GroupPermits *permits)
{
	int limit = idemq_group_permits(queue, name);
	Job job;

	*permits = (GroupPermits){0, 0, DT_NOEND, DT_NOBEGIN};
	idemq_jobs_group_scan_begin(table, queue->id, name, from, until);
	while (permits->next == 0 && permits->taken < limit && idemq_jobs_group_scan_next(table, &job))
	{
		if (!idemq_job_has_permit(&job))
			continue;
		permits->first = Min(permits->first, job.ready_at);
		permits->last = Max(permits->last, job.ready_at);
		if (job.status == JOB_RUNNING || idemq_lease_hold(job.id) != LEASE_HOLDS_NOT)
			permits->taken++;
		else
			permits->next = job.id;
	}
	idemq_jobs_scan_end(table);
}
