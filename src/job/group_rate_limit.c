/*
 * job/group_rate_limit.c
 *		group_rate_limit of a queue: how many jobs of a group may start per group_rate_period.
 *
 * A group has a bucket (base/rates.c) among those of admission (shared/counts/buckets.c), of a
 * kind of its own: no name that is passed to idemq.admit refers to it.  Every call that starts a
 * job goes through job/claim_one.c: claim, claim_any, claim_job, commit_and_claim, acquire,
 * commit_once.  There the bucket is charged, before the lease entry is taken.  So
 *
 *		of a group at most group_rate_limit jobs are started in any half-open interval of one
 *		group_rate_period,
 *
 * or with group_rate_burst at most that many and rate * t in any time t; whatever made them ready,
 * and when.  As with rate_limit, neither a rollback nor an error gives
 * a start back.  A start that was not made (another session has the job, max_running is reached)
 * is given back, unless another start has been charged since.
 *
 * That is the limit; the rest only saves work.  A job that is promoted becomes ready when its
 * group may start the next one (job/promote_one.c), so a claim does not find it before.  A
 * group has one job in the line at a time, and its next one is promoted after that one was
 * claimed, hence charged: so the time is right, and needs no timer but ready_at.  A claim that
 * finds a job that is ready too soon (a retry, a rate that was lowered, a restart) defers it:
 * ready_at becomes the time when the group may start it, and it keeps its permit.  For a head that
 * waits to be retried the rate is asked when the head is due, not before.
 *
 * A hold of the group (job/holds.c) defers jobs in the same way, and with the same flag.
 *
 * Such a job may be waiting longer than necessary, because group_rate_limit was raised or removed,
 * the start for which the job was deferred was given back, or idemq.resume ended the hold.  A check
 * of a group that has its next job therefore looks at that job again, and makes it due when the
 * group may start it (idemq_group_start_is_sooner).  alter_queue has all groups of its queue
 * checked.  A claim that defers a job, for more than a moment, has its group checked; so does a
 * claim that gives a start back because it did not get the row.  The later one of the two sees the
 * other.
 *
 * A flag of the row says that a job waits for the rate, and for nothing else (JOB_RATE_LIMITED).
 * The head of a group that uses no permits has in run_at the time when it was due.
 *
 * A restart, a failover or a take_over forgets all buckets.  Then it is not known what was
 * started before, nor what a queue did that was restored from a dump.  So the limit of a group
 * counts as used up at the time when this server became the primary, took over, or gave the queue
 * its state, whichever came last.  A queue that was created in this life of its state has started
 * nothing before.  The same holds for the queue's own rate_limit (job/limits.c).
 *
 * Where there is no room for a bucket (idemq.max_buckets), the groups of the queue that have
 * none share one (shared/counts/buckets.c): they wait longer, and none starts too soon.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"

/* Microseconds by which two readings of when a group may start its next job may differ. */
#define CLOSE 1000

/* Returns whether jobs of a group are limited; those of the group without a name are not. */
static bool
is_limited(const QueueInfo *queue, Datum group)
{
	return queue->group_rate_limit > 0 && !idemq_is_no_group(group);
}

/* Returns the name of a group's bucket, with palloc'ed bytes: the queue's id, and the group. */
static BucketName
bucket_name(const QueueInfo *queue, Datum group)
{
	text *value = DatumGetTextPP(group);
	Size length = VARSIZE_ANY_EXHDR(value);
	char *bytes = palloc(sizeof(queue->id) + length);

	memcpy(bytes, &queue->id, sizeof(queue->id));
	memcpy(bytes + sizeof(queue->id), VARDATA_ANY(value), length);
	return (BucketName){BUCKET_GROUP, bytes, (int) (sizeof(queue->id) + length)};
}

/*
 * Returns since when the starts of a queue and its groups are known, in ns of the monotonic clock;
 * 0: all are.  Its created_at says nothing of that: it comes with a dump, and from another
 * server's clock.
 */
int64
idemq_starts_known_since(const QueueInfo *queue)
{
	TimestampTz since = idemq_primary_since();
	TimestampTz taken_over = idemq_taken_over_at();
	int64 mono = 0;

	if (idemq_qstate_known_since(queue->qstate, queue->id, &mono) && mono == 0)
		return 0;
	mono = Max(mono, idemq_primary_since_mono());
	if (taken_over > since)
		mono = Max(mono, idemq_mono_from_timestamp(taken_over));
	return mono * NSECS_PER_USEC;
}

static RateLimit
limit_of(const QueueInfo *queue)
{
	return idemq_rate_limit(queue->group_rate_limit, queue->group_rate_period,
							queue->group_rate_burst);
}

/*
 * Charges a group's bucket with a start, or asks it about one, by act.  Returns when to try again
 * if that is refused, DT_NOBEGIN otherwise.
 */
static TimestampTz
charge_bucket(const QueueInfo *queue, Datum group, BucketCharge *charge,
			  void (*act)(const BucketName *, const RateLimit *, BucketCharge *))
{
	RateLimit limit = limit_of(queue);
	const QueueState *qstate = idemq_qstate_current(queue->qstate, queue->id);
	BucketName name = bucket_name(queue, group);

	charge->used_up_at = idemq_starts_known_since(queue);
	/* If the queue has just lost its state, this may charge another queue that has it now. */
	charge->qstate_index = idemq_qstate_index(qstate == NULL ? queue->qstate : qstate);
	act(&name, &limit, charge);
	pfree(unconstify(char *, name.name));
	return charge->answer.allowed ? DT_NOBEGIN
								  : idemq_now() + idemq_rate_retry_after(&charge->answer);
}

/*
 * Takes a start from the rate of a job's group, if that has a rate; false when no start is left,
 * and then charge->next is when to try again.
 */
bool
idemq_group_rate_limit_take(const QueueInfo *queue, const Job *job, GroupCharge *charge)
{
	charge->charged = false;
	charge->next = DT_NOBEGIN;
	if (queue->group_rate_limit == 0 || !job_has(job, COL_GROUP_KEY) ||
		!is_limited(queue, job_value(job, COL_GROUP_KEY)))
		return true;
	charge->next =
		charge_bucket(queue, job_value(job, COL_GROUP_KEY), &charge->bucket, idemq_bucket_charge);
	charge->charged = charge->bucket.answer.allowed;
	return charge->charged;
}

/* Gives back what idemq_group_rate_limit_take took: the start was not made. */
void
idemq_group_rate_limit_undo(const QueueInfo *queue, const Job *job, const GroupCharge *charge)
{
	RateLimit limit = limit_of(queue);
	BucketName name;

	if (!charge->charged)
		return;
	name = bucket_name(queue, job_value(job, COL_GROUP_KEY));
	idemq_bucket_undo(&name, &limit, &charge->bucket);
	pfree(unconstify(char *, name.name));
}

/*
 * Returns whether a fetched job waits longer than necessary for its group's rate or for the end of
 * a hold.  If so, sets *until to the time until which it must wait.
 */
bool
idemq_group_start_is_sooner(const QueueInfo *queue, const Job *job, TimestampTz *until)
{
	TimestampTz now = idemq_now();
	Datum name;

	if (!job->is_ready || job->ready_at <= now + CLOSE || !job_has(job, COL_GROUP_KEY))
		return false;
	name = job_value(job, COL_GROUP_KEY);
	/* It must have its permit as well. */
	if (idemq_is_no_group(name) || (job->flags & JOB_RATE_LIMITED) == 0 ||
		(idemq_groups_use_permits(queue) && !idemq_job_has_permit(job)))
		return false;
	*until = Max(Max(idemq_group_next_start(queue, name), now), job_time(job, COL_RUN_AT));
	return *until < job->ready_at - CLOSE;
}

/* Returns when the rate of a group allows its next job to start; DT_NOBEGIN means now. */
TimestampTz
idemq_group_rate_limit_next(const QueueInfo *queue, Datum name)
{
	BucketCharge charge;

	if (!is_limited(queue, name))
		return DT_NOBEGIN;
	return charge_bucket(queue, name, &charge, idemq_bucket_ask);
}

/* Returns when the rate and hold of a group allow its next job to start; DT_NOBEGIN means now. */
TimestampTz
idemq_group_next_start(const QueueInfo *queue, Datum name)
{
	return Max(idemq_group_rate_limit_next(queue, name), idemq_group_held_until(queue, name));
}

/*
 * Makes a fetched job wait until the time when its group may start it; that may be sooner
 * than the time for which it waits.  It keeps its permit, or its position in its group.  Never
 * waits for its row.
 */
JobWrite
idemq_job_defer_until(JobsTable *table, const Job *job, const QueueInfo *queue, TimestampTz until)
{
	TimestampTz now = idemq_now();
	EventArgs args = {.now = now,
					  .ready_at = until,
					  .priority = job->priority,
					  .takes_permit = idemq_job_has_permit(job),
					  .due = Min(job->ready_at, now)};

	return idemq_transition(table, job, queue,
							job->status == JOB_RETRYING ? EVENT_RESCHEDULE_RETRYING
														: EVENT_RESCHEDULE,
							&args, JOB_SKIPS);
}
