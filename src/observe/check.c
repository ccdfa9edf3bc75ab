/*
 * observe/check.c
 *		SQL function check: the audit of every invariant, while others work; the order
 *		of its parts, and what is small enough to need no part: slots, dead queues, tokens, the
 *		driver of schedules.  What rows and catalogs say by themselves is found by SQL:
 *		idemq_inside.findings.
 *
 * Why no finding is a race stands at the top of observe/check_report.c and of each part.
 *
 * The caller's own transaction must not have changed jobs: its callbacks are yet
 * to come.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "schedule/schedule.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/slots/slots.h"
#include "table/table.h"
#include "txn/txn.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_check);

/* Tokens are below this, for JSON and JavaScript. */
#define TOKEN_END (INT64CONST(1) << 53)

static SqlStatement queue_writers =
	{.text = "SELECT FROM pg_catalog.pg_locks WHERE granted AND locktype = 'relation' "
			 "AND relation = $1 AND mode = 'RowExclusiveLock' "
			 "AND database = (SELECT oid FROM pg_catalog.pg_database "
			 "WHERE datname = pg_catalog.current_database())",
	 .types = {OIDOID}};

/* Those with a token from the future, the greatest first. */
static SqlStatement tokens_from = {.text = "SELECT id, token FROM idemq.jobs WHERE token >= $1 "
										   "AND token < $2 ORDER BY token DESC LIMIT $3",
								   .types = {INT8OID, INT8OID, INT8OID}};

/* Returns whether a queue may be being created or dropped now. */
static bool
queues_are_being_written(void)
{
	Datum queues = ObjectIdGetDatum(idemq_oids()->queues);
	bool written;

	written = idemq_spi_finds(&queue_writers, &queues, NULL);
	return written;
}

/*
 * Checks that no slot is lost to a queue that does not exist.  A session that
 * creates or drops a queue holds a lock on the table from before the slot is given
 * until after it is freed: with none seen, and the queues read after that, a slot
 * without a queue is lost.
 */
static void
check_lost_slots(CheckCall *call, const int32 *slots, int nslots)
{
	bool lost = false;
	SlotStatus status;

	for (int i = 0; i < nslots; i++)
		lost |= !idemq_check_has_queue(call, slots[i]);
	if (!lost || queues_are_being_written())
		return;
	idemq_check_read_queues(call);
	for (int i = 0; i < nslots; i++)
	{
		if (!idemq_check_has_queue(call, slots[i]) && idemq_slot_status(slots[i], &status))
			idemq_check_report(call, CHECK_WARNING, "slots.queue",
							   "a slot belongs to queue %d, which does not exist: one slot fewer "
							   "until the server restarts",
							   slots[i]);
	}
}

/* Reports that the lease table has no room for queues without max_running. */
static void
report_full_leases(CheckCall *call)
{
	TableUsage table = idemq_leases_usage();

	idemq_check_report(call, CHECK_WARNING, "leases.full",
					   "the lease table has no room beside its %d entries, %d of them of this "
					   "database, but for queues with max_running; further claims are known from "
					   "their rows alone: raise idemq.max_leases, which is %d, and restart, or "
					   "idemq.max_leases_per_database",
					   table.used, idemq_leases_usage_mine().used, table.room);
}

/* Reports a background worker that does not move. */
static void
check_worker(CheckCall *call)
{
	WorkerHealth health;

	if (idemq_worker_health(&health) && health.stuck_for > 0)
		idemq_check_report(call, CHECK_WARNING, "worker.stuck",
						   "the background worker, process %d, has not moved for %lld ms; see what "
						   "it waits for in pg_stat_activity and pg_locks",
						   (int) health.pid, (long long) (health.stuck_for / 1000));
}

/* Checks that the slots' hash and array agree, and whether lease entries are used up. */
static void
check_slots(CheckCall *call)
{
	int32 *slots = palloc(Max(idemq_max_queues, 1) * sizeof(int32));
	SlotsAudit audit;
	int nslots = idemq_slots_audit(&audit, slots);

	if (audit.used != audit.taken || audit.hashed != audit.taken || audit.misplaced > 0)
		idemq_check_report(call, CHECK_ERROR, "slots.hash",
						   "%d slots are taken, %d counted, %d in the hash, %d not where the hash "
						   "says: restart the server",
						   audit.taken, audit.used, audit.hashed, audit.misplaced);
	check_lost_slots(call, slots, nslots);
	if (idemq_lease_share_is_full(false))
		report_full_leases(call);
	pfree(slots);
}

/* Reports queues whose dead jobs go nowhere: job/dead_queue.c refuses theirs. */
static void
check_dead_queues(CheckCall *call)
{
	int count;
	int32 *ids = idemq_queue_ids(0, &count);

	for (int i = 0; i < count; i++)
	{
		QueueInfo queue;
		QueueInfo dead;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(ids[i], &queue) || queue.dead_queue[0] == '\0')
			continue;
		if (!idemq_queue_find(queue.dead_queue, &dead))
			idemq_check_report(call, CHECK_WARNING, "queues.dead_queue",
							   "dead jobs of queue \"%s\" go nowhere else, for its dead_queue "
							   "\"%s\" does not exist: set another with idemq.alter_queue",
							   queue.name, queue.dead_queue);
		else if (!idemq_dead_queue_allowed(&queue, &dead))
			idemq_check_report(call, CHECK_WARNING, "queues.dead_queue",
							   "dead jobs of queue \"%s\" go nowhere else, for role \"%s\", "
							   "which set its dead_queue \"%s\", may not enqueue there: grant it "
							   "that, or set another with idemq.alter_queue",
							   queue.name, NameStr(queue.dead_queue_role), queue.dead_queue);
	}
	pfree(ids);
}

/* Returns a token that none issued so far in this database is greater than. */
static int64
greatest_token(void)
{
	return idemq_token_next(0, idemq_lease_last_token(), idemq_now(), compat_timeline(),
							idemq_generation_latest_base());
}

/*
 * Checks that no token is from the future.  The last one issued is read after the rows: whatever
 * token their snapshot shows had been issued by then.
 */
static void
check_tokens(CheckCall *call)
{
	IdList ahead = {0};
	Datum args[] = {0, Int64GetDatum(TOKEN_END), Int64GetDatum(CHECK_SUSPECTS)};
	int64 greatest;
	SqlScope scope;
	uint64 rows;

	/* A standby issues none, and has not seen what was issued. */
	if (RecoveryInProgress())
		return;
	args[0] = Int64GetDatum(greatest_token());
	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&tokens_from, args, NULL);
	greatest = greatest_token();
	for (uint64 i = 0; i < rows; i++)
	{
		if (idemq_spi_int64(i, 2, NULL) > greatest)
			idemq_id_list_add(&ahead, idemq_spi_int64(i, 1, NULL));
	}
	idemq_spi_end(&scope);
	idemq_check_report_jobs(
		call, CHECK_WARNING, "tokens.issued", &ahead,
		"with a token greater than the last one issued and the clock: written by "
		"hand, or the clock was set back; its next token is greater still");
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
		idemq_check_report(call, CHECK_WARNING, "follows",
						   "this shard has moved to %s, for good: drop this database when nobody "
						   "comes to it any more",
						   following->moved_to);
		return true;
	}
	idemq_check_report(
		call, CHECK_WARNING, "follows",
		"this database follows another%s%s: its workers belong there; for it to take "
		"the publisher's place, idemq.take_over()",
		following->switched_on ? " since " : "",
		following->switched_on ? timestamptz_to_str(following->since) : "");
	return true;
}

/* Checks that idemq.tick() is being called, if there are schedules; a restore brings no driver. */
static void
check_driver(CheckCall *call)
{
	int64 schedules = idemq_schedules_abandoned();

	if (schedules > 0)
		idemq_check_report(call, CHECK_WARNING, "schedules.driver",
						   "nothing has called idemq.tick() for 10 minutes, for which schedules "
						   "wait (%lld): look at pg_cron's job \"idemq-tick\"",
						   (long long) schedules);
}

/* check() -> setof (severity, invariant, detail); 25001. */
Datum
idemq_sql_v2_check(PG_FUNCTION_ARGS)
{
	CheckCall call = {0};

	if (idemq_at_end_is_pending())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg(
					 "idemq.check() cannot run in a transaction that has changed jobs or queues"),
				 errdetail("Shared memory follows a transaction's changes when it has ended."),
				 errhint("Run it in a transaction of its own.")));
	idemq_check_begin(fcinfo, &call);
	idemq_jobs_open_to_read(&call.table);
	idemq_check_read_queues(&call);
	check_slots(&call);
	check_worker(&call);
	check_dead_queues(&call);
	idemq_check_findings(&call, "rows");
	if (check_follows(&call))
		idemq_check_findings(&call, "catalog");
	else
	{
		idemq_check_findings(&call, "tokens");
		check_tokens(&call);
		idemq_check_findings(&call, "steps");
		idemq_check_findings(&call, "catalog");
		if (idemq_jobs_has_index(call.table.rel, INDEX_READY))
			idemq_check_ready(&call);
		idemq_check_leases(&call);
		idemq_check_groups(&call);
		idemq_check_floors(&call);
		idemq_check_dependencies(&call);
		check_driver(&call);
		idemq_check_findings(&call, "others");
		idemq_check_limits(&call);
		idemq_check_gauges(&call);
	}
	idemq_jobs_close(&call.table);
	return (Datum) 0;
}
