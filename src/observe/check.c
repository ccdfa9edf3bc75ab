/*
 * observe/check.c
 *		SQL function check: the audit of every invariant, while others work.  Here are the
 *		order of its parts, and what is too small for a part: queue states, dead-letter queues,
 *		tokens.  What rows and catalogs say by themselves is found by SQL: idemq_internal.findings.
 *
 * The tops of observe/check_report.c and of each part say why no finding is a race.
 *
 * The caller's own transaction must not have changed jobs: its callbacks have not run.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lock.h"
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

/* How long one call waits for the callbacks of others, in all. */
#define PATIENCE (10 * USECS_PER_SEC)

/*
 * Rows further in the future than this were written by a clock that was wrong; the clock of a former
 * primary may have been ahead by less.  Where a test clock has moved, the limit is smaller: without
 * a wrong clock, only a session that pauses for that long between reading the time and taking its
 * snapshot would see such a row.
 */
#define CLOCK_SLACK (10 * USECS_PER_MINUTE)
#define CLOCK_SLACK_MOVED USECS_PER_MINUTE

static SqlStatement all_queues = {.text = "SELECT queue_id FROM idemq.queues ORDER BY queue_id",
								  .fields = (const SqlField[]){{0, sizeof(int32), NULL}}};

/* Reads the ids of all queues into call. */
static void
read_queues(CheckCall *call)
{
	call->queue_ids = idemq_spi_rows(&all_queues, NULL, sizeof(int32), &call->nqueues);
}

/* Returns whether a queue was there when the queues were read. */
static bool
has_queue(const CheckCall *call, int32 queue_id)
{
	return bsearch(&queue_id, call->queue_ids, call->nqueues, sizeof(int32), idemq_compare_int32) !=
		   NULL;
}

/*
 * Checks that the hash and the array of queue states agree, whether lease entries are used up, and
 * that no queue state is held by a queue that does not exist.  A session that creates or drops a
 * queue holds a lock on the table from before the queue gets its state until after the state is
 * freed.  So if no such lock is seen, and the queues are read after that, a queue state without a
 * queue has leaked.
 */
static void
check_qstates(CheckCall *call)
{
	int32 *qstates = palloc(Max(idemq_max_queues, 1) * sizeof(int32));
	TableUsage table = idemq_leases_usage();
	QueueStatesAudit audit;
	int nqstates = idemq_qstates_audit(&audit, qstates);
	bool lost = false;
	int writers = 0;

	if (audit.used != audit.taken || audit.hashed != audit.taken || audit.misplaced > 0)
		idemq_check_report(
			call, CHECK_ERROR, "queue_states.hash",
			"%d queue states are in use, but %d are counted, %d are in the hash table, and %d are "
			"not at the position recorded in the hash table: restart the server",
			audit.taken, audit.used, audit.hashed, audit.misplaced);
	for (int i = 0; i < nqstates; i++)
		lost |= !has_queue(call, qstates[i]);
	if (lost)
	{
		LOCKTAG tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, idemq_oids()->queues);
		/* ShareLock conflicts with RowExclusiveLock and what writers take above it. */
		pfree(GetLockConflicts(&tag, ShareLock, &writers));
		read_queues(call);
	}
	for (int i = 0; i < nqstates && lost && writers == 0; i++)
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

/* Reports queues whose dead jobs go nowhere: job/dead_letter.c refuses their dead_letter_queue. */
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
 * Reports rows from the future.  The time contains what the test clock has added, so a test server
 * has none unless its clock went back; but a standby's test clock may be behind its primary's.
 */
static void
check_clock(CheckCall *call)
{
	int64 slack = idemq_clock_known_ahead() > 0 ? CLOCK_SLACK_MOVED : CLOCK_SLACK;

	if (!idemq_test_clock || !RecoveryInProgress())
		idemq_check_findings_at(call, "clock", idemq_now() + slack);
}

/*
 * Returns the jobs with a token from the future.  A job that is found twice was there before the
 * last token issued was read for the second time; and whatever token a snapshot shows had been
 * issued by then.
 */
static Suspect *
find_tokens(const CheckCall *call, int *count)
{
	/* No token issued so far in this database is greater. */
	int64 greatest = idemq_token_next(0, idemq_lease_last_token(), idemq_now(),
									  GetWALInsertionTimeLine(), idemq_token_epoch_latest_base());

	return idemq_check_suspects("tokens", greatest + 1, count);
}

/*
 * Says that this database follows another; returns whether it does.  Then what memory
 * knows is of no use, and out of date (job/follow.c), and tokens are by another clock.
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
	check_clock(&call);
	if (check_follows(&call))
		idemq_check_findings(&call, "catalog");
	else
	{
		idemq_check_findings(&call, "tokens");
		/* A standby issues none, and has not seen what was issued. */
		if (!RecoveryInProgress())
			idemq_check_suspicion(&call, &tokens);
		idemq_check_findings(&call, "steps");
		idemq_check_findings(&call, "catalog");
		if (OidIsValid(idemq_jobs_index(call.table.rel, INDEX_READY, true)))
			idemq_check_ready(&call);
		idemq_check_leases(&call);
		idemq_check_groups(&call);
		idemq_check_dependencies(&call);
		/* A restore brings no driver of schedules. */
		if (!idemq_worker_comes())
			idemq_check_findings(&call, "driver");
		idemq_check_findings(&call, "others");
		idemq_check_limits(&call);
		idemq_check_gauges(&call);
	}
	idemq_jobs_close(&call.table);
	return (Datum) 0;
}
