/*
 * job/group_rate_limit.c
 *		group_rate_limit of a queue: how many jobs of a group may start per group_rate_period.
 *
 * A group has a bucket (base/rates.c) among those of admission (shared/counts/buckets.c), of a
 * kind of its own: no name that is passed to idemq.admit refers to it.  Every call that starts a
 * job goes through job/claim_one.c: claim, claim_any, claim_job, commit_and_claim, acquire,
 * commit_once.  There the bucket is charged, before the row is written.  So
 *
 *		of a group at most group_rate_limit jobs are started in any half-open interval of one
 *		group_rate_period,
 *
 * or with group_rate_burst at most that many and rate * t in any time t, whatever made them ready,
 * and when.  A charge is never given back, not even by a rollback or an error.  It is made last,
 * when this session has the lease entry and no other transaction holds the row.  So a claim that does
 * not get the job, for example because max_running is reached, is not charged, unless a transaction
 * that does not claim locks the row between this check and the write.
 * A claim that is refused a start does not defer a job that has an entry, because the start may have
 * been charged for that job.
 *
 * That is the limit; the rest only saves work.  A promoted job becomes ready when its group may
 * start the next one (job/promote_one.c), so no claim finds it earlier.  A group has one job in the
 * ready index at a time, and its next job is promoted after that one was claimed, and therefore
 * charged.  So this time is right, and ready_at is the only timer that is needed.  A claim that finds
 * a job that is ready too early (a retry, a rate that was lowered, a restart) defers it: ready_at
 * becomes the time when the group may start it, and it keeps its permit.  For a head that waits for
 * its retry, the rate is asked when the head is due, not before.
 *
 * A hold of the group (job/holds.c) defers jobs in the same way, and with the same flag.
 *
 * Such a job waits longer than necessary once group_rate_limit was raised or removed, or
 * idemq.resume has ended the hold.  So alter_queue makes these jobs of its queue due, and idemq.resume
 * does so for the groups whose hold it ends (idemq_group_waits_end).  A claim
 * defers them again if they are still too soon.  A job that another transaction is deferring at that
 * time, by the former rate or hold, keeps its time: it starts later than it could.  Another call of
 * alter_queue or resume makes it due.
 *
 * A flag of the row says that a job waits for the rate, and for nothing else (JOB_RATE_LIMITED).
 * The head of a group that uses no permits has in run_at the time when it was due.
 *
 * A restart, a failover or a take_over forgets all buckets.  Then the earlier starts are unknown, as
 * they are for a queue that was restored from a dump.  So the limit of a group counts as used up at
 * the time when this server became the primary, took over, or gave the queue its state, whichever
 * came last.  A queue that was created in this life of its state has no earlier starts.  The same
 * applies to the queue's own rate_limit (job/limits.c).
 *
 * If there is no room for more buckets (idemq.max_buckets), the groups of the queue that have none
 * share one (shared/counts/buckets.c): their jobs may start later, but never too early.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"

/*
 * Returns the time since which all starts of a queue and its groups are known, in ns of the
 * monotonic clock; 0 if all are.  The queue's created_at cannot be used, because it is part of a
 * dump, and may be from another server's clock.
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

/*
 * Returns when the rate of a group allows its next job to start, DT_NOBEGIN for now; with charge,
 * counts a start if that is now.  A charge is never given back.  The group without a name, and group
 * 0, have no rate.
 */
TimestampTz
idemq_group_rate_limit(const QueueInfo *queue, Datum group, bool charge)
{
	const QueueState *qstate;
	BucketCharge call;
	BucketName name;
	RateLimit limit;
	text *value;
	char *bytes;
	Size length;

	if (queue->group_rate_limit == 0 || group == (Datum) 0 || idemq_is_no_group(group))
		return DT_NOBEGIN;
	limit = idemq_rate_limit(queue->group_rate_limit, queue->group_rate_period,
							 queue->group_rate_burst);
	qstate = idemq_qstate_current(queue->qstate, queue->id);
	/* The bucket's name is the queue's id and the group. */
	value = DatumGetTextPP(group);
	length = VARSIZE_ANY_EXHDR(value);
	bytes = palloc(sizeof(queue->id) + length);
	memcpy(bytes, &queue->id, sizeof(queue->id));
	memcpy(bytes + sizeof(queue->id), VARDATA_ANY(value), length);
	name = (BucketName){BUCKET_GROUP, bytes, (int) (sizeof(queue->id) + length)};
	call.used_up_at = idemq_starts_known_since(queue);
	/* If the queue has just lost its state, this may charge another queue that has it now. */
	call.qstate_index = idemq_qstate_index(qstate == NULL ? queue->qstate : qstate);
	if (charge)
		idemq_bucket_charge(&name, &limit, &call);
	else
		idemq_bucket_ask(&name, &limit, &call);
	pfree(bytes);
	return call.answer.allowed ? DT_NOBEGIN : idemq_now() + idemq_rate_retry_after(&call.answer);
}
