/*
 * job/finish.c
 *		Ending attempts: the engine of commit, fail and release, and of handlers.
 *
 * The latest version of the job is fetched, its status and token are checked, and exactly that
 * version is written.  If it has changed in between, everything is repeated.
 */
#include "postgres.h"

#include "common/pg_prng.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "table/table.h"

/*
 * Returns the event that ends an attempt, and sets *outcome to the outcome of the call, and now and
 * ready_at of finish->args.  After too many interrupts in a row, finish->kind becomes FINISH_FAIL, which
 * handler/settle.c reads.
 */
static JobEvent
choose_event(Finish *finish, const Attempt *attempt, Outcome *outcome)
{
	const QueueInfo *queue = &attempt->queue;
	int64 delay = finish->delay;

	/*
	 * The job itself may be what ends its processes, or it may take longer than any process lives.
	 */
	if (finish->kind == FINISH_INTERRUPT &&
		job_count(attempt->job.flags, JOB_INTERRUPTED) >= HANDLER_MAX_INTERRUPTS)
		finish->kind = FINISH_FAIL;
	if (finish->kind == FINISH_FAIL && !finish->has_delay)
		delay = idemq_backoff(queue->retry_base, queue->retry_factor, queue->retry_max,
							  queue->retry_jitter, attempt->job.attempt,
							  pg_prng_double(&pg_global_prng_state));
	finish->args.now = idemq_now();
	finish->args.ready_at = finish->args.now + delay;
	switch (finish->kind)
	{
		case FINISH_COMMIT:
			*outcome = OUTCOME_COMMITTED;
			return EVENT_COMMIT;
		case FINISH_FAIL:
			if (finish->permanent || attempt->job.attempt >= attempt->job.max_attempts)
			{
				*outcome = OUTCOME_DEAD;
				return EVENT_DIE;
			}
			*outcome = OUTCOME_RETRYING;
			return EVENT_FAIL;
		case FINISH_RELEASE:
			*outcome = OUTCOME_RELEASED;
			return EVENT_RELEASE;
		case FINISH_INTERRUPT:
			*outcome = OUTCOME_RELEASED;
			return EVENT_INTERRUPT;
	}
	pg_unreachable();
}

/*
 * Ends one attempt through an open table.  Returns the outcome: that of idemq_attempt_find if the
 * token is not current, or OUTCOME_LOCKED if finish->wait forbids a necessary wait.  Raises 40001
 * above READ COMMITTED, and 54000 for a document or text that is too long. *of_others becomes true
 * if the outcome reports a commit of another transaction; then the caller must wait for the
 * standbys before it returns the outcome.
 *
 * A release never competes with a transaction that cancels the job, because that transaction could
 * then end the next attempt instead.  The release ends the lease immediately and returns
 * OUTCOME_CANCELLED; if that transaction aborts, a reaper writes the release (job/reap.c).
 */
Outcome
idemq_finish_in(JobsTable *table, int64 id, int64 token, Finish *finish, Attempt *attempt,
				bool *of_others)
{
	idemq_check_document("result", finish->args.document, 0);
	idemq_check_text("error", PointerGetDatum(finish->args.error));
	idemq_check_document("details", PointerGetDatum(finish->args.details), 0);
	for (;;)
	{
		Outcome outcome = idemq_attempt_find(table, id, token, attempt);
		JobEvent event;
		JobWrite write;

		if (outcome != OUTCOME_CURRENT)
		{
			if (!finish->uncounted)
				idemq_attempt_count(attempt, outcome, finish->kind == FINISH_COMMIT);
			if (outcome != OUTCOME_ALREADY_COMMITTED)
				return outcome;
			/* Only a commit distinguishes a repeated call from a stale one. */
			if (finish->kind != FINISH_COMMIT)
				return OUTCOME_STALE;
			*of_others |= !idemq_jobs_is_own(&attempt->job);
			return outcome;
		}
		if (finish->kind == FINISH_RELEASE && idemq_lease_is_cancelled(id, token))
		{
			idemq_lease_hand_over(id, token, LOSS_RETURNED);
			return OUTCOME_CANCELLED;
		}
		event = choose_event(finish, attempt, &outcome);
		write = idemq_transition(table, &attempt->job, &attempt->queue, event, &finish->args,
								 finish->wait);
		if (write != JOB_CHANGED)
			return write == JOB_LOCKED ? OUTCOME_LOCKED : outcome;
		idemq_jobs_refresh_or_raise(table);
	}
}

/*
 * Ends one attempt.  With raise, an attempt that is not current is an error: IQ001, IQ002 or IQ006.
 * The columns of attempt->job can no longer be read afterwards.
 */
Outcome
idemq_finish_by_token(int64 id, int64 token, Finish *finish, bool raise, Attempt *attempt)
{
	JobsTable table;
	Outcome outcome;
	bool of_others = false;

	idemq_jobs_open(&table);
	outcome = idemq_finish_in(&table, id, token, finish, attempt, &of_others);
	if (of_others)
		idemq_sync_rep_await();
	if (raise)
		idemq_attempt_raise(attempt, outcome);
	idemq_jobs_close(&table);
	return outcome;
}
