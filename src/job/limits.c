/*
 * job/limits.c
 *		Whether max_running and rate_limit of a queue allow a claim.
 *
 * max_running limits the number of the queue's lease entries. shared/leases/running.c counts them,
 * and proves that the limit is never exceeded and no wake-up is lost.  If max_running refuses a
 * claim, the queue state's running_refused is set, and a waiter is woken when there is room.
 *
 * rate_limit is a limit of base/rates.c on the queue state's rate; each claim costs one.  The
 * claims before the queue got this state are unknown, so the limit counts as used up at that time
 * (idemq_starts_known_since).  The rate allows the next claim when enough time has passed, so the
 * worker's timer is set to that time.
 *
 * Locks: rate has rate_mutex, a spinlock, held only for arithmetic; running_refused is an atomic.
 * call_rate, and with max_running idemq_limit_view, take the queue state's lock, shared, and
 * release it before anything else.  The queue may get another state after
 * call_rate has read idemq_starts_known_since.  Then this one claim is counted in the new state,
 * and the next call treats the limit of the new state as used up.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "txn/txn.h"

/* While a queue waits for room in the lease table, it is checked this often. */
#define FULL_INTERVAL USECS_PER_SEC
/* The worker's timer is not set to a rate's next claim more often than this. */
#define RATE_INTERVAL INT64CONST(1000)

/* Asks a queue's rate for one claim; with charge, counts the claim if it is allowed. */
static RateAnswer
call_rate(const QueueInfo *queue, bool charge)
{
	QueueState *qstate = queue->qstate;
	RateLimit limit = idemq_rate_limit(queue->rate_limit, queue->rate_period, queue->rate_burst);
	int64 known_since = idemq_starts_known_since(queue);
	int64 now = idemq_mono_now() * NSECS_PER_USEC;
	RateState asked;
	RateAnswer answer;

	SpinLockAcquire(&qstate->rate_mutex);
	idemq_rate_use_up(&limit, &qstate->rate, now, known_since);
	asked = qstate->rate;
	answer = idemq_rate_call(&limit, charge ? &qstate->rate : &asked, now, 1);
	SpinLockRelease(&qstate->rate_mutex);
	return answer;
}

/*
 * Returns whether a queue's rate_limit allows a claim now; with charge, counts the claim if so.  A
 * charge is never given back, not even by a rollback or an error.  If the rate allows none, the
 * worker's timer is set to the time when it will.
 */
bool
idemq_limit_rate(const QueueInfo *queue, bool charge)
{
	RateAnswer answer;

	if (queue->rate_limit == 0)
		return true;
	answer = call_rate(queue, charge);
	if (!answer.allowed)
		idemq_due_by(queue->qstate, DUE_READY,
					 idemq_now() + Max(idemq_rate_retry_after(&answer), RATE_INTERVAL));
	return answer.allowed;
}

/*
 * Returns whether this transaction may claim with the permit of an attempt that it ends.  It may
 * not while more jobs are running than max_running allows, after the limit was lowered.
 */
bool
idemq_limit_may_transfer(const QueueInfo *queue)
{
	int free;

	if (queue->max_running == 0)
		return false;
	free = idemq_transfers_free(queue->id);
	return free > 0 && idemq_running_count(queue->qstate) - free < queue->max_running;
}

/* Checks a queue's limits: first max_running, then rate_limit. */
void
idemq_limit_view(const QueueInfo *queue, LimitView *view)
{
	QueueStateSummary status = {0};
	bool full;

	*view = (LimitView){LIMIT_OPEN, idemq_running_count(queue->qstate), DT_NOEND, false};
	if (queue->max_running > 0)
	{
		full = idemq_lease_share_is_full(true);
		if (!idemq_qstate_summary(queue->id, &status) || status.needs_recovery)
		{
			view->state = LIMIT_RECOVERING;
			view->after_search = status.searches_now && !full && view->running < queue->max_running;
		}
		else if (view->running >= queue->max_running)
			view->state = LIMIT_RUNNING;
		else if (full)
			view->state = LIMIT_TABLE_FULL;
	}
	if ((view->state == LIMIT_OPEN || view->after_search) && queue->rate_limit > 0)
	{
		RateAnswer answer = call_rate(queue, false);

		if (answer.allowed)
			return;
		view->state = LIMIT_RATE;
		view->after_search = false;
		view->until = idemq_now() + idemq_rate_retry_after(&answer);
	}
}

/*
 * Returns whether the queue's limits would allow one more claim.  If not, a waiter will be woken when
 * they do.  *view: as idemq_limit_view.
 */
bool
idemq_limit_has_room(const QueueInfo *queue, LimitView *view)
{
	idemq_limit_view(queue, view);
	if (view->state == LIMIT_OPEN)
		return true;
	if (queue->max_running > 0)
	{
		/* The flag first, then the check that counts. */
		(void) pg_atomic_exchange_u32(&queue->qstate->running_refused, 1);
		idemq_limit_view(queue, view);
	}
	if (view->state == LIMIT_RATE)
		idemq_due_by(queue->qstate, DUE_READY, Max(view->until, idemq_now() + RATE_INTERVAL));
	else if (view->state == LIMIT_TABLE_FULL)
		idemq_due_by(queue->qstate, DUE_READY, idemq_now() + FULL_INTERVAL);
	return view->state == LIMIT_OPEN || view->after_search;
}
