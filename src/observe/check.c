/*
 * observe/check.c
 *		SQL function check: audits all invariants, while other sessions work.  This file runs the
 *		parts of the audit in order, and contains the small ones: queue states, dead-letter queues,
 *		tokens and the clock.  Findings that follow from rows and catalogs alone come from SQL
 *		(idemq_internal.findings).
 *
 * No finding may be a race.  The proofs are at the top of observe/check_report.c and of each part.
 *
 * The caller's transaction must not have changed jobs, because shared memory does not reflect its
 * changes yet.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"
#include "txn/txn.h"

/* The total time for which one call waits for other sessions. */
#define PATIENCE (10 * USECS_PER_SEC)

/*
 * Rows with times further in the future were written with a wrong clock.  The clock of a former
 * primary may have been ahead by less than CLOCK_SLACK.  If the test clock has moved, the limit is
 * CLOCK_SLACK_MOVED: with correct clocks, this session would see such a row only if it paused for
 * that long between reading the time and taking its snapshot.
 */
#define CLOCK_SLACK (10 * USECS_PER_MINUTE)
#define CLOCK_SLACK_MOVED USECS_PER_MINUTE

static SqlStatement all_queues = {.text = "SELECT queue_id FROM idemq.queues ORDER BY queue_id",
								  .fields = SQL_SCALAR(int32)};

/* Reads the ids of all queues into call, in ascending order. */
static void
read_queues(CheckCall *call)
{
	call->queue_ids = idemq_spi_rows(&all_queues, NULL, sizeof(int32), &call->nqueues);
}

/* Returns whether a queue existed when read_queues was called last. */
static bool
has_queue(const CheckCall *call, int32 queue_id)
{
	return bsearch(&queue_id, call->queue_ids, call->nqueues, sizeof(int32), idemq_compare_int32) !=
		   NULL;
}

/*
 * Checks that the hash table and the array of queue states agree, that no queue state belongs to a
 * queue that does not exist, and whether the lease table is full.
 *
 * A session that creates or drops a queue locks idemq.queues before the queue gets its state, and
 * until its state has been freed.  Therefore, if there is no such lock, and the queues are read
 * after that, then a queue state without a queue will never be freed.
 */
static void
check_qstates(CheckCall *call)
{
	int32 *qstates = palloc(Max(idemq_max_queues, 1) * sizeof(int32));
	TableUsage table = idemq_leases_usage();
	QueueStatesAudit audit;
	int nqstates = idemq_qstates_audit(&audit, qstates);
	bool has_lost = false;

	if (audit.used != audit.taken || audit.hashed != audit.taken || audit.misplaced > 0)
		idemq_check_report(
			call, CHECK_ERROR, "queue_states.hash",
			"%d queue states are in use, but %d are counted, %d are in the hash table, and %d are "
			"not at the position recorded in the hash table: restart the server",
			audit.taken, audit.used, audit.hashed, audit.misplaced);
	for (int i = 0; i < nqstates; i++)
		has_lost |= !has_queue(call, qstates[i]);
	if (has_lost)
	{
		has_lost = !idemq_check_has_writers(idemq_oids()->queues);
		read_queues(call);
	}
	for (int i = 0; i < nqstates && has_lost; i++)
	{
		QueueStateSummary status;

		if (!has_queue(call, qstates[i]) && idemq_qstate_summary(qstates[i], &status))
			idemq_check_report(
				call, CHECK_WARNING, "queue_states.queue",
				"a queue state belongs to queue %d, which does not exist, so no other queue "
				"can use this state until the server restarts",
				qstates[i]);
	}
	if (idemq_lease_share_is_full(false))
		idemq_check_report(
			call, CHECK_WARNING, "leases.full",
			"the lease table contains %d leases, %d of them from this database, and the remaining "
			"entries are reserved for queues with max_running; the leases of further claims are "
			"kept only in the rows of the jobs: raise idemq.max_leases, which is %d, and restart, "
			"or raise idemq.max_leases_per_database",
			table.used, idemq_leases_usage_mine().used, table.room);
	pfree(qstates);
}

/* Reports queues whose dead jobs are not copied, because job/dead_letter.c cannot use their
 * dead-letter queue. */
static void
check_dead_letter_queues(CheckCall *call)
{
	for (int i = 0; i < call->nqueues; i++)
	{
		QueueInfo queue;
		QueueInfo dead;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(call->queue_ids[i], &queue) || queue.dead_letter_queue[0] == '\0')
			continue;
		if (!idemq_queue_find(queue.dead_letter_queue, &dead))
			idemq_check_report(
				call, CHECK_WARNING, "queues.dead_letter_queue",
				"dead jobs of queue \"%s\" are not added to any other queue, because "
				"dead_letter_queue \"%s\" does not exist: set another with idemq.alter_queue",
				queue.name, queue.dead_letter_queue);
		else if (!idemq_dead_letter_allowed(&queue, &dead))
			idemq_check_report(
				call, CHECK_WARNING, "queues.dead_letter_queue",
				"dead jobs of queue \"%s\" are not added to any other queue, because role \"%s\", "
				"which set dead_letter_queue \"%s\", may not enqueue there: grant the privilege to "
				"that role, or set another queue with idemq.alter_queue",
				queue.name, NameStr(queue.dead_letter_role), queue.dead_letter_queue);
	}
}

/*
 * Returns the jobs whose token is greater than every token issued so far.  The last token is read
 * before the snapshot is taken, so a new claim may be found once.  A job that is found twice with
 * the same token is wrong, because its token had been issued before the last token was read again.
 */
static Suspect *
find_tokens(const CheckCall *call, int *count)
{
	int64 greatest = idemq_token_next(0, idemq_lease_last_token(), idemq_now(),
									  GetWALInsertionTimeLine(), idemq_token_epoch_latest_base());

	return idemq_check_suspects("tokens", greatest + 1, count);
}

/*
 * Reports that this database follows another one; returns whether it does.  If so, shared memory
 * is not maintained (job/follow.c), and tokens come from another server.
 */
static bool
check_follows(CheckCall *call)
{
	const Following *following = idemq_following();

	if (!idemq_follows())
		return false;
	if (following->moved_to != NULL)
	{
		idemq_check_report(
			call, CHECK_WARNING, "follows",
			"this shard has moved to %s permanently: drop this database once clients no longer "
			"connect to it",
			following->moved_to);
		return true;
	}
	idemq_check_report(
		call, CHECK_WARNING, "follows",
		"this database %s%s, so run your workers on the publisher; to make this database take over "
		"from the publisher, call idemq.take_over()",
		following->switched_on ? "has been following another database since "
							   : "follows another database",
		following->switched_on ? timestamptz_to_str(following->since) : "");
	return true;
}

/* check() -> setof (severity, invariant, detail); 25001. */
SQL_FUNCTION(idemq_sql_check)
{
	static const Suspicion tokens =
		{find_tokens, NULL, CHECK_WARNING, "tokens.issued",
		 "has a token greater than both the last token issued and the clock: the token was written "
		 "by hand, or the clock was set back; the job's next token will be greater still"};
	CheckCall call = {0};

	if (idemq_at_end_is_pending())
		ereport(ERROR, errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				errmsg("idemq.check() cannot run in a transaction that has changed jobs or queues"),
				errdetail(
					"Shared memory reflects a transaction's changes only after the transaction has "
					"ended."),
				errhint("Run idemq.check() in a separate transaction."));
	call.set = idemq_srf_begin(fcinfo);
	call.patience_ends = idemq_stopwatch() + PATIENCE;
	idemq_jobs_open_to_read(&call.table);
	read_queues(&call);
	check_qstates(&call);
	check_dead_letter_queues(&call);
	idemq_check_findings(&call, "rows");
	/*
	 * Rows with future times.  A test server has none unless its clock went back, because
	 * idemq_now includes what the test clock has added.  But a standby's test clock may be behind
	 * its primary's.
	 */
	if (!idemq_test_clock || !RecoveryInProgress())
		idemq_check_findings_at(&call, "clock",
								idemq_now() + (idemq_clock_known_ahead() > 0 ? CLOCK_SLACK_MOVED
																			 : CLOCK_SLACK));
	if (check_follows(&call))
		idemq_check_findings(&call, "catalog");
	else
	{
		idemq_check_findings(&call, "tokens");
		/* A standby does not know which tokens the primary has issued. */
		if (!RecoveryInProgress())
			idemq_check_suspicion(&call, &tokens);
		idemq_check_findings(&call, "steps");
		idemq_check_findings(&call, "catalog");
		if (OidIsValid(idemq_jobs_index(call.table.rel, INDEX_READY, true)))
			idemq_check_ready(&call);
		idemq_check_leases(&call);
		idemq_check_groups(&call);
		idemq_check_dependencies(&call);
		/* For example, a restore does not create pg_cron's job. */
		if (!idemq_worker_comes())
			idemq_check_findings(&call, "driver");
		idemq_check_findings(&call, "others");
		idemq_check_limits(&call);
		idemq_check_gauges(&call);
	}
	idemq_jobs_close(&call.table);
	return (Datum) 0;
}
