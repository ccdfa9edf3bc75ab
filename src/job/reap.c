/*
 * job/reap.c
 *		Taking back leases that ended.
 *
 * An expired lease is first marked in the lease table; from then on heartbeats are refused.  Then
 * the job's row is written, unless another transaction holds it: an open commit or
 * idemq.assert_current keeps the job.  After the row has been locked, the mark is read again, because
 * the transaction that held the row may have taken the mark over.  A lost lease counts as an attempt.
 *
 * After its first loss, a job is pending and ready at once, because its worker was probably killed.
 * From the second loss in a row on, the job itself may be the cause: it is JOB_RETRYING, and waits
 * according to the queue's retry policy, as after a failure.  Two kinds of jobs wait from the first
 * loss on: a job of a handler, which may have crashed the process, and a job that has run into
 * job_timeout, whose worker was not killed.
 *
 * A worker that ends an attempt without waiting for the transaction that holds the job's row hands
 * the end over (idemq_lease_hand_over).  The reaper writes it here, once the row is free.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"
#include "txn/txn.h"

/* Minimum time between two scans for expired leases of a queue, in microseconds, */
#define REAP_INTERVAL INT64CONST(500)
/* and as a multiple of the duration of the last scan. */
#define REAP_SHARE 10
/* Maximum number of consecutive batches of which no lease was taken back. */
#define MAX_IN_VAIN 16

static const char *const loss_texts[] = {[LOSS_EXPIRED] = "lease expired",
										 [LOSS_SESSION] = "the worker's session ended",
										 [LOSS_TIMEOUT] = "job_timeout reached",
										 [LOSS_RETURNED] = NULL,
										 [LOSS_FAILED] =
											 "failed while the job's row was locked: see the "
											 "server log"};

/*
 * Writes the row of a fetched job whose lease has ended: the job is ready at once, or waits by the
 * queue's retry policy, or is dead (see the top of this file).  Returns false if another transaction
 * holds the row or has changed it.  A handler's job that has ended its process too often in a row
 * stops the queue's handler.
 */
bool
idemq_reap_row(JobsTable *table, const Job *job, const QueueInfo *queue, LeaseLoss loss)
{
	TimestampTz now = idemq_now();
	bool crashed = job_is_handled(job) && loss < LOSS_RETURNED;
	const char *text = crashed ? "the handler process has ended" : loss_texts[loss];
	EventArgs args = {.now = now,
					  .ready_at = now,
					  .worker_lost = loss == LOSS_SESSION,
					  .error = text != NULL ? cstring_to_text(text) : NULL};
	int crashes = job_count(job->flags, JOB_CRASHED) + 1; /* with this one, if it is one */
	JobEvent event = EVENT_REAP;

	if (loss == LOSS_RETURNED)
		event = EVENT_RELEASE;
	else if (job->attempt >= job->max_attempts)
		event = loss == LOSS_FAILED ? EVENT_DIE : EVENT_REAP_DEAD;
	else if (loss == LOSS_FAILED || loss == LOSS_TIMEOUT || crashed || (job->flags & JOB_LOST))
	{
		event = loss == LOSS_FAILED ? EVENT_FAIL : EVENT_REAP_LATER;
		args.ready_at += idemq_backoff(queue->retry_base, queue->retry_factor, queue->retry_max,
									   queue->retry_jitter, job->attempt,
									   pg_prng_double(&pg_global_prng_state));
	}
	if (idemq_transition(table, job, queue, event, &args, JOB_SKIPS) != JOB_WRITTEN)
		return false;
	/* The job ends its processes, whatever else the handler has done meanwhile. */
	if (crashed && crashes >= HANDLER_MAX_CRASHES)
		idemq_handler_crashed(queue->qstate, true);
	return true;
}

/*
 * Takes back one expired lease of the queue; returns whether it did.  Does not take back a lease
 * whose job this transaction itself has written.  The table's snapshot must be younger than the
 * caller's knowledge of the lease, so if the row does not show that attempt, the job has changed
 * since.
 */
bool
idemq_reap_job(JobsTable *table, const QueueInfo *queue, int64 job_id, int64 token)
{
	LeaseLoss loss = LOSS_EXPIRED;
	Lease lease;
	Job job;

	idemq_pending_reserve();
	if (!idemq_lease_begin_reap(job_id, token, &loss))
		return false;
	idemq_pending_note_end(queue->qstate, queue->id, job_id, token, NOT_ANNOUNCED, true);
	if (!idemq_jobs_fetch(table, job_id, &job))
		return false; /* the entry of a job that is gone goes too */
	if (job.queue_id != queue->id)
	{
		/* Moved by hand: the entry is removed, and its new queue searches for the job. */
		idemq_pending_note(ACTION_RECOVER, NULL, job.queue_id);
		return false;
	}
	if (!job_is_attempt(&job, token))
	{
		if (job.is_ready)
			idemq_pending_ready_note(queue->qstate, queue->id, job.priority, job_ready_key(&job));
		return false;
	}
	/*
	 * The mark is read again once the row is locked.  It may no longer be ours, if another session has
	 * had the row since, ended the attempt, and rolled that back: then a heartbeat may have been
	 * answered meanwhile.
	 */
	if (!idemq_jobs_is_mine(&job) &&
		idemq_jobs_lock(table, &job, LockTupleNoKeyExclusive, JOB_SKIPS) == JOB_WRITTEN &&
		idemq_lease_get(job_id, &lease) && lease.token == token && lease.ending.reaping &&
		lease.ending.finisher == IDEMQ_MY_PROC_NUMBER && idemq_reap_row(table, &job, queue, loss))
		return true;
	idemq_pending_undo_last();
	idemq_due_by(idemq_qstate_current(queue->qstate, queue->id), DUE_LEASE,
				 idemq_mono_now() + LEASE_BUSY_RETRY);
	return false;
}

/*
 * Takes back up to REAP_BATCH expired leases of a queue: at least one, and more until the slice is
 * over.  Sets *more if the batch was full or was cut short.  Returns how many leases were taken
 * back.
 *
 * Leases that were collected but not reached have not changed.  They are due again immediately,
 * after what is already due in other queues.  If an error interrupts the batch, the queue is
 * scanned again soon.
 */
static int64
reap_batch(const QueueInfo *queue, const Slice *slice, bool *more)
{
	ExpiredLease *leases = palloc(REAP_BATCH * sizeof(ExpiredLease));
	QueueState *qstate;
	JobsTable table;
	int64 started;
	int64 took;
	int64 now;
	int64 next;
	int64 reaped = 0;
	int found;
	int visited = 0;

	idemq_jobs_open(&table);
	idemq_qstates_begin_change();
	qstate = idemq_qstate_current(queue->qstate, queue->id);
	if (qstate != NULL)
		(void) idemq_due_take(qstate, DUE_LEASE);
	started = idemq_stopwatch();
	found = idemq_lease_collect_expired(queue->id, leases, REAP_BATCH, &next);
	took = idemq_stopwatch() - started;
	now = idemq_mono_now();
	if (found > 0)
		next = Min(next, now + LEASE_BUSY_RETRY);
	next = Max(next, now + Max(REAP_INTERVAL, REAP_SHARE * took));
	idemq_due_by(qstate, DUE_LEASE, next);
	idemq_qstates_end_change();
	idemq_jitter();
	/* The snapshot must show every claim whose lease was collected. */
	if (found > 0)
		idemq_jobs_refresh(&table);
	while (visited < found && (visited == 0 || !idemq_slice_is_over(slice)))
	{
		CHECK_FOR_INTERRUPTS();
		reaped += idemq_reap_job(&table, queue, leases[visited].job_id, leases[visited].token);
		visited++;
	}
	if (visited < found)
		idemq_due_by(idemq_qstate_current(queue->qstate, queue->id), DUE_LEASE, idemq_mono_now());
	idemq_jobs_close(&table);
	pfree(leases);
	*more = visited < found || found == REAP_BATCH;
	return reaped;
}

/* Takes back expired leases of a queue until the slice is over; returns how many. */
int64
idemq_reap_in(const QueueInfo *queue, const Slice *slice)
{
	int64 reaped = 0;
	int in_vain = 0;
	bool more;

	do
	{
		int64 last = reap_batch(queue, slice, &more);

		reaped += last;
		in_vain = last > 0 ? 0 : in_vain + 1;
	} while (more && in_vain < MAX_IN_VAIN && !idemq_slice_is_over(slice));
	return reaped;
}

/* Takes back expired leases of a queue, for one slice of the worker. */
void
idemq_reap_expired(const QueueInfo *queue)
{
	Slice slice;
	bool more;

	idemq_slice_begin(&slice, SLICE_OF_TASK);
	(void) reap_batch(queue, &slice, &more);
}
