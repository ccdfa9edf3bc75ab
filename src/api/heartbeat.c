/*
 * api/heartbeat.c
 *		SQL functions about the lease of an attempt that is running: heartbeat and heartbeat_many
 *		renew it, validate shows whether it is valid, checkpoint stores the state of the work, and
 *		assert_current and hold_claimed keep the attempt current until the transaction ends.  reap
 *		takes back leases that have ended.
 *
 * A heartbeat changes the lease's entry and no row, so it takes effect at once, and a rollback does
 * not undo it.  A lease without an entry gets one.  Only if the lease table is full is the row
 * written, and a rollback undoes that.
 *
 * checkpoint and assert_current raise an error if the attempt is no longer current; hold_claimed
 * returns an answer instead.  A client sends hold_claimed in the same message as the COMMIT of
 * commit_and_claim, before it has read which job was claimed, so it has no arguments.  An error
 * would fail the whole message, and the client would not learn that the commit is done.  The client
 * calls assert_current if the answer is not "held".
 *
 * Locks: a heartbeat never waits for a row.  checkpoint and assert_current wait for a transaction
 * that holds the job's row.  For reap, see job/recover.c and job/reap.c.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"
#include "txn/txn.h"

/* Like idemq_lease_beat, but also notes the new deadline, which may be earlier than the old one. */
static LeaseBeat
beat_entry(int32 queue_id, int64 id, int64 token, int64 length)
{
	LeaseBeat answer;

	if (length == 0)
		return idemq_lease_beat(id, token, 0);
	idemq_qstates_begin_change();
	answer = idemq_lease_beat(id, token, length);
	if (answer == LEASE_BEAT_DONE)
		idemq_due_by(idemq_qstate_find(MyDatabaseId, queue_id), DUE_LEASE,
					 idemq_mono_now() + length);
	idemq_qstates_end_change();
	return answer;
}

/*
 * Extends a lease that has no entry: adds an entry, or, if the table is full, writes the deadline
 * into the row.  Never waits: while another transaction holds the row, the attempt remains current
 * until that transaction commits.  begins: the worker is about to begin a job that it has claimed
 * ahead, which it may not do in a queue that is paused or held back.
 */
static Outcome
beat_by_row(int64 id, int64 token, int64 length, bool begins)
{
	LostLeases lost = {.context = CurrentMemoryContext};
	EventArgs args = {0};
	JobsTable table;
	Attempt attempt;
	Outcome outcome;

	idemq_jobs_open(&table);
	outcome = idemq_attempt_find(&table, id, token, &attempt);
	if (outcome == OUTCOME_CURRENT)
		idemq_settings_check_lease(&attempt.queue, length);
	args.now = idemq_now();
	if (outcome == OUTCOME_CURRENT && idemq_row_limit(&attempt.job, &attempt.queue) <= args.now)
		outcome = OUTCOME_EXPIRED;
	if (outcome == OUTCOME_CURRENT && begins && idemq_queue_is_closed(&attempt.queue))
		outcome = OUTCOME_BLOCKED;
	if (outcome == OUTCOME_CURRENT)
	{
		length = length > 0 ? length : idemq_row_lease(&attempt.job);
		/*
		 * Not shortened by job_timeout, as in a claim's row, because the next heartbeat would use
		 * the shorter length.
		 */
		args.deadline = args.now + length;
		switch (idemq_lost_lease_renew(&lost, &attempt.job, &attempt.queue, length))
		{
			case LEASE_FULL:
				(void) idemq_transition(&table, &attempt.job, &attempt.queue, EVENT_EXTEND, &args,
										JOB_SKIPS);
				break;
			case LEASE_BUSY:
				(void) beat_entry(attempt.queue.id, id, token, length);
				break;
			case LEASE_TAKEN:
				(void) idemq_lost_leases_settle(&lost, &table, &attempt.queue);
				outcome = idemq_attempt_find(&table, id, token, &attempt);
				/* The new entry does not contain the key of the worker's process. */
				if (outcome == OUTCOME_CURRENT)
					(void) beat_entry(attempt.queue.id, id, token, length);
				break;
			case LEASE_LIMIT: /* limits are only for claims */
				break;
		}
	}
	idemq_jobs_close(&table);
	idemq_attempt_count(&attempt, outcome, false);
	return outcome == OUTCOME_ALREADY_COMMITTED ? OUTCOME_STALE : outcome;
}

/* What a heartbeat says about a job that its worker has claimed ahead. */
typedef enum Ahead
{
	AHEAD_NOT_SAID,
	AHEAD_WAITS, /* it waits for a free place */
	AHEAD_BEGINS /* the worker is about to begin it */
} Ahead;

/* Restarts a lease from now; see the SQL function heartbeat. */
static Outcome
heartbeat_beat(int64 id, int64 token, int64 length, Ahead ahead)
{
	Lease lease;
	QueueInfo queue;

	if (idemq_lease_get(id, &lease))
	{
		if (!idemq_queue_allows(lease.queue_id, PRIVILEGE_CLAIM, &queue))
			return OUTCOME_NOT_FOUND;
		idemq_settings_check_lease(&queue, length);
		if (ahead == AHEAD_BEGINS && idemq_queue_is_closed(&queue))
			return OUTCOME_BLOCKED;
		if (ahead == AHEAD_BEGINS)
			idemq_lease_set_ahead(id, token, false, queue.job_timeout);
		switch (beat_entry(lease.queue_id, id, token, length))
		{
			case LEASE_BEAT_DONE:
				if (ahead == AHEAD_WAITS)
					idemq_lease_set_ahead(id, token, true, 0);
				return OUTCOME_CURRENT;
			case LEASE_BEAT_STALE:
				idemq_queue_count_refusal(&queue, COUNTER_STALE_CALLS);
				return OUTCOME_STALE;
			case LEASE_BEAT_CANCELLED:
				return OUTCOME_CANCELLED;
			case LEASE_BEAT_OVER:
				return OUTCOME_EXPIRED;
			case LEASE_BEAT_UNKNOWN:
				break;
		}
	}
	return beat_by_row(id, token, length, ahead == AHEAD_BEGINS);
}

/*
 * heartbeat(id, token, lease) -> current | cancelled | expired | stale | not_found; 22004,
 *		22023.
 */
SQL_FUNCTION(idemq_sql_heartbeat)
{
	int64 length = PG_ARGISNULL(2) ? 0 : idemq_arg_interval(fcinfo, 2, "lease", 1);

	idemq_arg_attempt(fcinfo);
	idemq_following_refuse();
	return idemq_outcome_datum(
		heartbeat_beat(PG_GETARG_INT64(0), PG_GETARG_INT64(1), length, AHEAD_NOT_SAID));
}

/*
 * heartbeat_many(ids, tokens, lease, end_waits, ahead) -> setof (id, token, outcome as heartbeat, or
 * blocked); 22004, 22023, 53400.  Leases that have entries are extended first, so that an error at
 * the row of another job, such as 53400 for a queue without a state, does not prevent this.
 */
SQL_FUNCTION(idemq_sql_heartbeat_many)
{
	int64 length = PG_ARGISNULL(2) ? 0 : idemq_arg_interval(fcinfo, 2, "lease", 1);
	Ahead ahead = PG_ARGISNULL(4) ? AHEAD_NOT_SAID : PG_GETARG_BOOL(4) ? AHEAD_WAITS : AHEAD_BEGINS;
	ArrayArg ids;
	ArrayArg tokens;
	ReturnSetInfo *set;
	Datum *outcomes; /* 0: not known yet */

	idemq_arg_attempts(fcinfo, &ids, &tokens);
	idemq_end_waits_arg(fcinfo, 3);
	idemq_following_refuse();
	set = idemq_srf_begin(fcinfo);
	outcomes = palloc0((ids.count + 1) * sizeof(Datum));
	for (int pass = 0; pass < 2; pass++)
	{
		for (int i = 0; i < ids.count; i++)
		{
			Lease lease;

			CHECK_FOR_INTERRUPTS();
			if (outcomes[i] != 0 ||
				(pass == 0 && !idemq_lease_get(DatumGetInt64(ids.values[i]), &lease)))
				continue;
			outcomes[i] =
				idemq_outcome_datum(heartbeat_beat(DatumGetInt64(ids.values[i]),
												   DatumGetInt64(tokens.values[i]), length, ahead));
		}
	}
	for (int i = 0; i < ids.count; i++)
	{
		Datum values[3] = {ids.values[i], tokens.values[i], outcomes[i]};
		bool nulls[3] = {false};

		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* Returns whether the lease of a current attempt has passed its deadline. */
static bool
is_past_deadline(const Attempt *attempt)
{
	Lease lease;

	if (idemq_lease_get(attempt->id, &lease) && lease.token == attempt->token)
		return lease.deadline <= idemq_mono_now();
	return idemq_row_deadline(&attempt->job, &attempt->queue) <= idemq_now();
}

/* validate(id, token) -> current | cancelled | expired | stale | not_found; 22004. */
SQL_FUNCTION(idemq_sql_validate)
{
	JobsTable table;
	Attempt attempt;
	Outcome outcome;

	idemq_arg_attempt(fcinfo);
	idemq_following_refuse_moved();
	idemq_jobs_open_to_read(&table);
	outcome = idemq_attempt_find(&table, PG_GETARG_INT64(0), PG_GETARG_INT64(1), &attempt);
	if (outcome == OUTCOME_ALREADY_COMMITTED)
		outcome = OUTCOME_STALE;
	else if (outcome == OUTCOME_CURRENT && idemq_lease_is_cancelled(attempt.id, attempt.token))
		outcome = OUTCOME_CANCELLED;
	else if (outcome == OUTCOME_CURRENT && is_past_deadline(&attempt))
		outcome = OUTCOME_EXPIRED;
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* checkpoint(id, token, state) -> void; IQ001, IQ002, IQ006, 22004, 40001, 54000. */
SQL_FUNCTION(idemq_sql_checkpoint)
{
	JobsTable table;
	Attempt attempt;
	EventArgs args = {0};

	idemq_arg_attempt(fcinfo);
	idemq_arg_required(fcinfo, 2, "state");
	args.document = idemq_arg_document(fcinfo, 2, "state");
	idemq_jobs_open(&table);
	for (;;)
	{
		idemq_attempt_find_current(&table, PG_GETARG_INT64(0), PG_GETARG_INT64(1), &attempt);
		if (idemq_transition(&table, &attempt.job, &attempt.queue, EVENT_CHECKPOINT, &args,
							 JOB_WAITS) == JOB_WRITTEN)
			break;
		idemq_jobs_refresh_or_raise(&table);
	}
	idemq_jobs_close(&table);
	PG_RETURN_VOID();
}

/*
 * assert_current(id, token) -> void; IQ001, IQ002, IQ006, 22004, 40001.
 * See idemq_attempt_hold.
 */
SQL_FUNCTION(idemq_sql_assert_current)
{
	idemq_arg_attempt(fcinfo);
	(void) idemq_attempt_hold(PG_GETARG_INT64(0), PG_GETARG_INT64(1));
	PG_RETURN_VOID();
}

/*
 * hold_claimed() -> held, busy or gone: like assert_current, for the only job that this session's
 * last transaction claimed; never waits for another transaction.
 */
SQL_FUNCTION(idemq_sql_hold_claimed)
{
	int64 id;
	int64 token;
	const char *answer = "gone";

	if (idemq_pending_claimed(&id, &token))
	{
		JobsTable table;
		Attempt attempt;
		Outcome outcome;

		idemq_jobs_open(&table);
		outcome = idemq_attempt_try_lock(&table, id, token, LockTupleShare, &attempt);
		idemq_jobs_close(&table);
		if (outcome == OUTCOME_CURRENT)
			answer = "held";
		else if (outcome == OUTCOME_LOCKED)
			answer = "busy";
	}
	PG_RETURN_TEXT_P(cstring_to_text(answer));
}

/* reap(queue) -> number of leases taken back; IQ005, 42501, 53400. */
SQL_FUNCTION(idemq_sql_reap)
{
	QueueInfo queue;
	int64 reaped = 0;
	int32 *ids;
	int count;

	idemq_jobs_check_writable();
	if (!PG_ARGISNULL(0))
	{
		idemq_queue_arg(fcinfo, 0, "queue", PRIVILEGE_CLAIM, &queue);
		idemq_queue_need_qstate(&queue);
		PG_RETURN_INT64(idemq_reap_all(&queue));
	}
	ids = idemq_queue_ids(PRIVILEGE_CLAIM, &count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (idemq_queue_by_id(ids[i], &queue) && queue.qstate != NULL)
			reaped += idemq_reap_all(&queue);
	}
	PG_RETURN_INT64(reaped);
}
