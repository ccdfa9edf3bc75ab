/*
 * job/promote_one.c
 *		Promoting one group that this session owns: its head, or its next job with a permit.
 *
 * job/promote.c says why a group has at most one head, and why no group is forgotten. job/permits.c
 * says why there are never more permits than group_max_running.
 *
 * A FIFO group is not treated as a group with one permit.  Its head is any job with a ready_at,
 * whatever the flags of its row say: a job that was written by hand, or that waits for a retry, has
 * no permit, and is nevertheless the head.  And one lookup finds the head, whereas counting permits
 * reads all jobs of the group that have a ready_at, and their lease entries.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

/* Maximum number of looks at a group whose first job changes each time. */
#define MAX_LOOKS 10
/* Maximum number of jobs that one visit of a group skips because they are not due, or held. */
#define MAX_PASSED 100
/* Maximum number of jobs of a paused group that one visit makes blocked. */
#define MAX_BLOCKED 256

/*
 * Makes a blocked job its group's head, or gives it a permit: the job is due at once, at its run_at, or
 * when group_rate_limit and any hold allow its group to start it; sets *args.  In a group with permits,
 * a job that waits for its run_at takes no permit, and the rate is asked when it is due.  From here on
 * no head has an earlier ready_at than args->now, and no blocked job has a lesser id.
 */
JobWrite
idemq_promote_job(JobsTable *table, const QueueInfo *queue, const Job *job, EventArgs *args)
{
	Datum name = job_value(job, COL_GROUP_KEY);

	*args = (EventArgs){.now = idemq_now()};
	args->ready_at = args->now;
	if (job_has(job, COL_RUN_AT))
		args->ready_at = Max(args->now, job_time(job, COL_RUN_AT));
	args->takes_permit = args->ready_at == args->now;
	if (args->takes_permit || !idemq_group_uses_permits(queue, name))
	{
		bool was_held;
		TimestampTz held_until = idemq_group_held_until(queue, name, &was_held);
		TimestampTz rated_until = idemq_group_rate_limit(queue, name, false);
		TimestampTz next = Max(held_until, rated_until);

		if (next > args->ready_at)
			args->due = args->ready_at;
		args->ready_at = Max(args->ready_at, next);
	}
	return idemq_transition(table, job, queue, EVENT_PROMOTE, args, JOB_SKIPS);
}

/*
 * Returns what a group needs according to the table's snapshot: PROMOTED if *job must be promoted; then
 * *low_water is the group's low-water mark after that, for a group with permits.  Jobs with an id below
 * passed are skipped.
 */
static Promotion
find_next(JobsTable *table, const QueueInfo *queue, const GroupKey *key, Datum name, int64 passed,
		  GroupLowWater *low_water, Job *job)
{
	bool uses_permits = idemq_group_uses_permits(queue, name);
	GroupLowWater from = idemq_pending_groups_low_water(queue->qstate, key);
	/* Read after the snapshot: if the snapshot shows a time above this, it is in the future. */
	TimestampTz now = idemq_now();
	GroupPermits permits = {0};

	if (uses_permits)
	{
		bool is_known = from.heads != GROUP_NO_LOW_WATER.heads;

		/* Includes jobs that this transaction has promoted earlier, for a time in the future. */
		from.last = Max(from.last, idemq_pending_groups_last(key));
		idemq_permits_count(table, queue, name, from.heads,
							is_known ? Max(now, from.last) : DT_NOEND, &permits);
		*low_water = (GroupLowWater){idemq_is_no_group(name) ? now : Min(permits.first, now),
									 from.blocked, permits.last};
	}
	if (uses_permits ? permits.next != 0
					 : idemq_jobs_group_head(table, queue->id, name, from.heads, job))
		return HAS_HEAD;
	/* Skipped jobs are above the low-water mark until this visit ends. */
	if (!idemq_jobs_group_blocked(table, queue->id, name, Max(from.blocked, passed), job) ||
		job->status != JOB_BLOCKED) /* written by hand, without a ready_at */
		return HAS_HEAD;
	return uses_permits && permits.taken >= idemq_group_permits(queue, name) ? AT_LIMIT : PROMOTED;
}

/*
 * Promotes the next job of a group that this session owns, by a snapshot that is younger than its
 * ownership: makes it the head, or gives it a permit.  Sets *low_water to what it is then.  In a group
 * with permits, jobs before it that are not due are promoted without a permit.  Jobs without a group
 * have no order to keep: one whose row is held, for example by a producer that replaces it, is skipped,
 * and looked at again a moment later.  In a paused group nothing is promoted; its jobs that can still
 * be claimed become blocked.
 */
Promotion
idemq_promote_one(JobsTable *table, const QueueInfo *queue, const GroupKey *key, Datum name,
				  GroupLowWater *low_water)
{
	bool uses_permits = idemq_group_uses_permits(queue, name);
	Promotion promotion = NOT_FOR_US;
	int64 passed = PG_INT64_MIN;
	int64 held = PG_INT64_MAX; /* the first job that was skipped because its row is held */
	bool any_early = false;	   /* a job was promoted without a permit */
	int looks = 0;
	int passes = 0;

	if (idemq_jobs_group_is_paused(table, queue, name, NULL))
	{
		GroupLowWater from = idemq_pending_groups_low_water(queue->qstate, key);

		promotion = idemq_group_pause_block(table, queue, name, from.heads, MAX_BLOCKED);
		/*
		 * If this transaction itself may have paused the group, the group stays owned until the
		 * transaction ends, so that a rollback, even to a savepoint, has it checked again.
		 */
		return idemq_pending_groups_pauses() ? PROMOTED_FOR_LATER : promotion;
	}
	/* Each repetition takes a new snapshot, and find_next reads the low-water marks after it. */
	while (looks < MAX_LOOKS && passes < MAX_PASSED)
	{
		GroupLowWater next_low_water = {0};
		TimestampTz now;
		EventArgs args;
		bool expired;
		JobWrite write;
		Job job;

		promotion = find_next(table, queue, key, name, passed, &next_low_water, &job);
		if (promotion != PROMOTED)
			break;
		promotion = NOT_FOR_US;
		now = idemq_now();
		expired = job_has_expired(&job, now);
		write = expired ? idemq_job_expire(table, &job, queue, now)
						: idemq_promote_job(table, queue, &job, &args);
		if (write == JOB_CHANGED)
		{
			if (table->crosscheck != InvalidSnapshot)
				break;
			looks++;
		}
		else if (write == JOB_LOCKED)
		{
			promotion = HELD;
			if (!idemq_is_no_group(name))
				break;
			held = Min(held, job.id);
		}
		else if (!expired)
		{
			*low_water = uses_permits ? (GroupLowWater){next_low_water.heads, Min(job.id, held),
														Max(next_low_water.last, args.ready_at)}
									  : (GroupLowWater){args.now, job.id, DT_NOBEGIN};
			if (!uses_permits || args.takes_permit)
				return args.ready_at > args.now ? PROMOTED_FOR_LATER : PROMOTED;
			any_early = true;
		}
		if (write == JOB_LOCKED || (write == JOB_WRITTEN && !expired))
		{
			passed = job.id + 1;
			passes++;
		}
		idemq_jobs_refresh(table);
	}
	if (held != PG_INT64_MAX)
		promotion = HELD;
	if (!any_early)
		return promotion;
	/* We own the group until we commit, so the commit marks it for its other jobs. */
	if (promotion != HAS_HEAD)
		idemq_pending_groups_note(queue->qstate, queue->id, name, GROUP_KEEP_LOW_WATER);
	return PROMOTED_FOR_LATER;
}
