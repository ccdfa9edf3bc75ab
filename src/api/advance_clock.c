/*
 * api/advance_clock.c
 *		The test clock: procedure advance_clock, and the functions now and clock_timestamp.
 *
 * With idemq.test_clock, advance_clock moves idemq's clocks ahead (base/clock.c), has everything
 * that sleeps until a time look at the new one, and returns when what came due is done: by the
 * background worker (shared/sleepers/clock_call.c), or, where idemq.worker is off, by this session,
 * as far as it can.  A standby only moves its own clock.
 *
 * What is due is not always done: a row that another transaction holds is tried again, a trigger
 * raises an error, there is no room for a worker.  So it waits for PATIENCE at most, and then warns
 * of what is left.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "schedule/schedule.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/sleepers/sleepers.h"
#include "worker/worker.h"

/* It waits for so long at most, and calls the worker again so often while something is left. */
#define PATIENCE (30 * USECS_PER_SEC)
#define CALL_AGAIN USECS_PER_SEC
/* Leases that are looked at once more soon after the worker has answered. */
#define LOOK_AGAIN_MS 10
/* Heads of groups that are promoted in one transaction. */
#define PROMOTE_BATCH 256
#define WHY_TOP_LEVEL "It waits for the transactions of others."

/* now() -> when this transaction began, ahead by the test clock. */
SQL_FUNCTION(idemq_sql_v2_now)
{
	PG_RETURN_TIMESTAMPTZ(idemq_transaction_time());
}

/* clock_timestamp() -> the wall clock, ahead by the test clock. */
SQL_FUNCTION(idemq_sql_v2_clock_timestamp)
{
	PG_RETURN_TIMESTAMPTZ(idemq_wall_now());
}

/* Returns how many leases of this database have ended by a time (mono) and are not taken back. */
static int
count_overdue(int64 target, int32 *queue_id)
{
	int overdue = 0;
	int count;
	Lease *leases = idemq_lease_copy_all(&count);

	for (int i = 0; i < count; i++)
	{
		if (leases[i].claiming || leases[i].deadline > target)
			continue;
		*queue_id = leases[i].queue_id;
		overdue++;
	}
	pfree(leases);
	return overdue;
}

/* Ends a transaction for which a snapshot was pushed. */
static void
commit(void)
{
	PopActiveSnapshot();
	SPI_commit();
}

/* Does what is due for one queue. */
static void
do_queue(int32 queue_id)
{
	QueueInfo queue;

	PushActiveSnapshot(GetTransactionSnapshot());
	if (idemq_queue_by_id(queue_id, &queue))
	{
		idemq_queue_need_slot(&queue);
		(void) idemq_reap_all(&queue);
		idemq_expire_all(&queue);
	}
	commit();
	PushActiveSnapshot(GetTransactionSnapshot());
	/* Heads of what became pending above. */
	if (idemq_queue_by_id(queue_id, &queue) && queue.slot != NULL)
	{
		int promoted = PROMOTE_BATCH;

		while (promoted >= PROMOTE_BATCH && idemq_promote_wanted(&queue))
			promoted = idemq_promote_some(&queue, PROMOTE_BATCH);
	}
	commit();
}

/* Does in this session what the worker would do; not NOTIFY, handlers and idemq.history. */
static void
do_here(void)
{
	int32 *ids;
	int count;

	PushActiveSnapshot(GetTransactionSnapshot());
	idemq_tick_all();
	ids = idemq_queue_ids(0, &count);
	commit();
	for (int i = 0; i < count; i++)
		do_queue(ids[i]);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (idemq_purge_interval > 0)
		(void) idemq_retention_apply(PG_INT32_MAX);
	commit();
}

/* Warns of what has not been done in time. */
static void
warn(uint32 kinds, int overdue, int32 queue_id)
{
	StringInfoData left;
	QueueInfo queue;

	initStringInfo(&left);
	for (int i = 0; i < CHORE_KINDS; i++)
	{
		if (kinds & (1U << i))
			appendStringInfo(&left, "%schore \"%s\"", left.len > 0 ? ", " : "",
							 idemq_chore_names[i]);
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	if (overdue > 0)
	{
		appendStringInfo(&left, "%s%d expired lease%s", left.len > 0 ? ", " : "", overdue,
						 overdue == 1 ? "" : "s");
		if (idemq_queue_by_id(queue_id, &queue))
			appendStringInfo(&left, " (queue \"%s\")", queue.name);
	}
	PopActiveSnapshot();
	if (left.len == 0)
		appendStringInfoString(&left, "the background worker does not answer");
	ereport(WARNING, errcode(ERRCODE_WARNING),
			errmsg("not everything that is due has been done within 30 s"),
			errdetail("Left: %s.", left.data),
			errhint("See the server's log, idemq.background_worker and idemq.worker_chores."));
}

/* Waits until all that came due by a time (mono) is done. */
static void
await_done(int64 target)
{
	int64 until = idemq_stopwatch() + PATIENCE;
	uint64 call = idemq_clock_call();

	for (;;)
	{
		int64 left_time = until - idemq_stopwatch();
		bool done = true;
		uint32 kinds = 0;
		int32 queue_id = 0;
		int overdue;

		CHECK_FOR_INTERRUPTS();
		if (idemq_worker)
		{
			done = call > 0 && idemq_clock_await(call, Max(Min(left_time, CALL_AGAIN), 0), &kinds);
			if (!done)
				idemq_worker_announce_use();
		}
		/* The worker has put off a row that is held. */
		overdue = idemq_follows() ? 0 : count_overdue(target, &queue_id);
		if (done && overdue == 0)
			break;
		if (left_time <= 0)
		{
			warn(kinds, overdue, queue_id);
			break;
		}
		if (call == 0 || done)
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 LOOK_AGAIN_MS, compat_wait_event_wait());
			ResetLatch(MyLatch);
			if (!idemq_worker)
				do_here();
			else
				call = idemq_clock_call();
		}
	}
}

/* advance_clock(by interval); 2D000, 55000, 22004, 22023, 22008. */
SQL_FUNCTION(idemq_sql_v2_advance_clock)
{
	const Interval *by;
	int64 usecs;
	int64 target;

	if (!idemq_test_clock)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("idemq.test_clock is off"),
				errdetail("Only a server that is for tests has a clock that can be moved."),
				errhint("On such a server, put idemq.test_clock = on into postgresql.conf and "
						"restart."));
	idemq_check_top_level(fcinfo, "advance_clock", WHY_TOP_LEVEL);
	usecs = idemq_arg_interval(fcinfo, 0, "by", 0);
	by = PG_GETARG_INTERVAL_P(0);
	if (by->month != 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("by must not contain months or years"),
				errdetail("They have no fixed length."), errhint("Pass days, such as '31 days'."));
	idemq_clock_advance(usecs);
	target = idemq_mono_now();
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	/* What is due may wait for the snapshot of this CALL. */
	SPI_commit();
	if (RecoveryInProgress())
		(void) idemq_clock_call();
	else
	{
		if (!idemq_worker && !idemq_follows())
			do_here();
		await_done(target);
	}
	SPI_finish();
	PG_RETURN_VOID();
}
