/*
 * job/attempt.c
 *		A worker's attempt: a job with the token that the worker holds.
 */
#include "postgres.h"

#include "access/xact.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "table/table.h"

/* Fetches a job that is probably running: through the TID hint of its claim, or by its id. */
static bool
fetch_in_flight(JobsTable *table, int64 id, Job *job)
{
	Lease lease;

	return (idemq_lease_get(id, &lease) && idemq_jobs_fetch_at(table, &lease.tid_hint, id, job)) ||
		   idemq_jobs_fetch(table, id, job);
}

/*
 * Fetches a job and compares its token with the worker's.  Returns OUTCOME_CURRENT,
 * OUTCOME_ALREADY_COMMITTED (this token has committed the job), OUTCOME_STALE, or
 * OUTCOME_NOT_FOUND, also for a job in a queue from which the role may not claim.  After
 * OUTCOME_NOT_FOUND, only attempt->id and attempt->token may be read.
 */
Outcome
idemq_attempt_find(JobsTable *table, int64 id, int64 token, Attempt *attempt)
{
	Job *job = &attempt->job;

	attempt->id = id;
	attempt->token = token;
	if (!fetch_in_flight(table, id, job) ||
		!idemq_queue_allows(job->queue_id, PRIVILEGE_CLAIM, &attempt->queue))
		return OUTCOME_NOT_FOUND;
	idemq_queue_need_qstate(&attempt->queue);
	if (job->token == token && job->status == JOB_RUNNING)
		return OUTCOME_CURRENT;
	if (job->token == token && job->status == JOB_COMPLETED)
		return OUTCOME_ALREADY_COMMITTED;
	/* Only a job with a key can have run again after its commit. */
	if (job_has(job, COL_KEY) && idemq_attempt_history_has_commit(id, token))
		return OUTCOME_ALREADY_COMMITTED;
	return OUTCOME_STALE;
}

/*
 * Like idemq_attempt_find, but also locks the row of a current attempt until the end of the
 * transaction.  With FOR SHARE this is like idemq_attempt_hold; FOR NO KEY UPDATE also keeps other
 * transactions from taking a lock for which a write of the row would wait.  Never waits, and raises
 * no error because of other transactions: returns OUTCOME_LOCKED if an open transaction holds the
 * row or cancels the job, or, above READ COMMITTED, if the row has changed since this transaction's
 * snapshot.
 */
Outcome
idemq_attempt_try_lock(JobsTable *table, int64 id, int64 token, LockTupleMode mode,
					   Attempt *attempt)
{
	for (;;)
	{
		Outcome outcome = idemq_attempt_find(table, id, token, attempt);
		JobWrite write;

		if (outcome != OUTCOME_CURRENT)
			return outcome;
		if (idemq_lease_is_cancelled(id, token))
			return OUTCOME_LOCKED;
		write = idemq_jobs_lock(table, &attempt->job, mode, JOB_SKIPS);
		if (write == JOB_WRITTEN)
			return outcome;
		if (write == JOB_LOCKED || IsolationUsesXactSnapshot())
			return OUTCOME_LOCKED;
		idemq_jobs_refresh(table);
	}
}

/*
 * Returns whether an attempt is current for this transaction; does not check the role's privileges.
 */
bool
idemq_attempt_stands(int64 id, int64 token)
{
	JobsTable table;
	Job job;
	bool stands;

	idemq_jobs_open_to_read(&table);
	stands = fetch_in_flight(&table, id, &job) && job_is_attempt(&job, token);
	idemq_jobs_close(&table);
	return stands;
}

/*
 * For OUTCOME_NOT_FOUND: returns whether this transaction itself has committed the attempt, and
 * so has deleted the job, whose queue keeps nothing.
 */
bool
idemq_attempt_is_gone(JobsTable *table, const Attempt *attempt)
{
	QueueInfo queue;
	Job job;

	return idemq_jobs_fetch_deleted(table, attempt->id, &job) && job.token == attempt->token &&
		   job.status == JOB_RUNNING && idemq_queue_allows(job.queue_id, PRIVILEGE_CLAIM, &queue);
}

/*
 * Counts an outcome of idemq_attempt_find with which a worker's call is refused.  The count does
 * not wait for the transaction's end.
 */
void
idemq_attempt_count(const Attempt *attempt, Outcome outcome, bool commit)
{
	if (outcome == OUTCOME_STALE)
		idemq_queue_count_refusal(&attempt->queue,
								  commit ? COUNTER_STALE_COMMITS : COUNTER_STALE_CALLS);
	else if (outcome == OUTCOME_ALREADY_COMMITTED)
		idemq_queue_count_refusal(&attempt->queue,
								  commit ? COUNTER_REPEATED_COMMITS : COUNTER_STALE_CALLS);
}

/* Raises IQ001, IQ002 or IQ006 for an outcome of idemq_attempt_find; returns for others. */
void
idemq_attempt_raise(const Attempt *attempt, Outcome outcome)
{
	if (outcome == OUTCOME_NOT_FOUND)
		ereport(ERROR, errcode(ERRCODE_IDEMQ_NO_SUCH_JOB),
				errmsg("job %lld does not exist", (long long) attempt->id),
				errhint(
					"The job was deleted, its queue keeps no finished jobs, or you lack the claim "
					"privilege on its queue."));
	if (outcome == OUTCOME_ALREADY_COMMITTED)
		ereport(ERROR, errcode(ERRCODE_IDEMQ_ALREADY_COMMITTED),
				errmsg("job %lld has already been committed with this token",
					   (long long) attempt->id),
				errhint("The job has taken effect. Roll back, and treat the job as done."));
	if (outcome == OUTCOME_STALE)
		ereport(ERROR, errcode(ERRCODE_IDEMQ_LEASE_LOST),
				errmsg("lease on job %lld has been lost", (long long) attempt->id),
				errdetail("Token %lld is stale: the job is now %s, and its latest attempt is "
						  "number %d.",
						  (long long) attempt->token, idemq_status_name(attempt->job.status),
						  attempt->job.attempt),
				errhint("Roll back, abandon this job, and claim another."));
}

/* Raises IQ001 for an attempt whose job an open transaction cancels; returns for others. */
void
idemq_attempt_raise_cancelled(const Attempt *attempt)
{
	if (idemq_lease_is_cancelled(attempt->id, attempt->token))
		ereport(ERROR, errcode(ERRCODE_IDEMQ_LEASE_LOST),
				errmsg("job %lld is being cancelled", (long long) attempt->id),
				errhint("Roll back, abandon this job, and claim another."));
}

/*
 * Counts and raises an outcome of idemq_attempt_find other than OUTCOME_CURRENT; returns for that
 * one.
 */
void
idemq_attempt_refuse(const Attempt *attempt, Outcome outcome)
{
	idemq_attempt_count(attempt, outcome, false);
	idemq_attempt_raise(attempt, outcome);
}

/* Like idemq_attempt_find, but raises IQ001, IQ002 or IQ006 unless the attempt is current. */
void
idemq_attempt_find_current(JobsTable *table, int64 id, int64 token, Attempt *attempt)
{
	idemq_attempt_refuse(attempt, idemq_attempt_find(table, id, token, attempt));
}

/*
 * Locks the row of a current attempt FOR SHARE until the end of the transaction.  Until then, a
 * call that would end the attempt waits or skips the job.  Returns the id of the job's queue.
 * Raises IQ001, IQ002 or IQ006 if the attempt is not current.  Raises IQ001 without waiting if an open
 * transaction is cancelling the job.  May raise 40001.
 */
int32
idemq_attempt_hold(int64 id, int64 token)
{
	JobsTable table;
	Attempt attempt;

	idemq_jobs_open(&table);
	for (;;)
	{
		idemq_attempt_find_current(&table, id, token, &attempt);
		idemq_attempt_raise_cancelled(&attempt);
		if (idemq_jobs_lock(&table, &attempt.job, LockTupleShare, JOB_WAITS) == JOB_WRITTEN)
			break;
		idemq_jobs_refresh_or_raise(&table);
	}
	idemq_jobs_close(&table);
	return attempt.queue.id;
}
