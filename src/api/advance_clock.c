/*
 * api/advance_clock.c
 *		The test clock: procedure advance_clock, and the functions now, clock_timestamp and
 *		test_clock_ahead.
 *
 * If idemq.test_clock is on, advance_clock moves idemq's clocks ahead (base/clock.c), makes every
 * process that sleeps until a certain time read the clock again, and returns when the background
 * worker has done everything that came due (shared/processes/clock_call.c).  On a standby, or if
 * idemq.worker is off, it only moves the clock.
 *
 * Some of this work may be impossible: another transaction may hold a row, a trigger may raise an
 * error, or all worker processes may be in use.  So advance_clock waits for at most PATIENCE, and
 * then warns about the remaining work.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "schedule/schedule.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"

/* Maximum time that it waits, and how often it checks that there still is a worker. */
#define PATIENCE (30 * USECS_PER_SEC)
#define LOOK_AGAIN (USECS_PER_SEC / 2)
/* It tries again after this time if a lease's row was held or there was no worker. */
#define AGAIN_MS 50
#define WHY_TOP_LEVEL "The procedure waits for transactions of other sessions."

/* now() -> when this transaction began, by the test clock. */
SQL_FUNCTION(idemq_sql_now)
{
	PG_RETURN_TIMESTAMPTZ(idemq_transaction_time());
}

/* clock_timestamp() -> the wall clock plus what the test clock is ahead. */
SQL_FUNCTION(idemq_sql_clock_timestamp)
{
	PG_RETURN_TIMESTAMPTZ(idemq_wall_now());
}

/* test_clock_ahead() -> how far the test clock is ahead; NULL if it is off. */
SQL_FUNCTION(idemq_sql_test_clock_ahead)
{
	if (!idemq_test_clock)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(idemq_interval_datum(idemq_clock_ahead()));
}

/* Work that is due and not done. */
typedef struct Left
{
	uint32 tasks;	/* bits of TaskKind */
	int leases;		/* number of expired leases that have not been taken back */
	int32 queue_id; /* of one of these leases */
} Left;

/* Counts leases of this database that expired by target (mono) and were not taken back. */
static void
count_overdue(int64 target, Left *left)
{
	int count;
	Lease *leases = idemq_lease_copy_all(&count);

	for (int i = 0; i < count; i++)
	{
		if (leases[i].claiming || leases[i].deadline > target)
			continue;
		left->queue_id = leases[i].queue_id;
		left->leases++;
	}
	pfree(leases);
}

/* Ends a transaction that has pushed a snapshot. */
static void
commit(void)
{
	PopActiveSnapshot();
	SPI_commit();
}

/* Warns about work that was not done in time. */
static void
advance_clock_warn(const Left *left)
{
	StringInfoData text;
	QueueInfo queue;

	initStringInfo(&text);
	for (int i = 0; i < TASK_KINDS; i++)
	{
		if (left->tasks & (1U << i))
			appendStringInfo(&text, "%smaintenance task \"%s\"", text.len > 0 ? ", " : "",
							 idemq_task_names[i]);
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	if (left->leases > 0)
		appendStringInfo(&text, "%s%d expired lease%s", text.len > 0 ? ", " : "", left->leases,
						 left->leases == 1 ? "" : "s");
	if (left->leases > 0 && idemq_queue_by_id(left->queue_id, &queue))
		appendStringInfo(&text, " (queue \"%s\")", queue.name);
	PopActiveSnapshot();
	if (text.len == 0)
		appendStringInfoString(
			&text, "all work that was due, because the background worker is not responding");
	ereport(WARNING, errmsg("some work that was due was not completed within 30 s"),
			errdetail("The following work remains: %s.", text.data),
			errhint(
				"Check the server's log, idemq.background_worker and idemq.maintenance_tasks."));
}

/*
 * Warns of schedules that were due by a time and have not run.  The call does not wait for them,
 * because a schedule that has failed is tried again later.
 */
static void
warn_of_schedules(TimestampTz by)
{
	char *overdue;

	PushActiveSnapshot(GetTransactionSnapshot());
	overdue = idemq_follows() ? NULL : idemq_tick_overdue(by);
	if (overdue != NULL)
		ereport(WARNING, errmsg("some schedules that were due have not enqueued their jobs"),
				errdetail("Schedules: %s.", overdue),
				errhint(
					"Check last_error in idemq.schedules. idemq will retry each of these schedules "
					"at its next tick, or in one minute if that is earlier."));
	commit();
}

/*
 * Waits briefly for the worker's answer.  Returns true if everything that came due by target (mono)
 * is done; otherwise sets *left.
 */
static bool
is_done(int64 target, ClockCall *call, int64 patience, Left *left, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	bool answered = true;

	*left = (Left){0};
	if (!idemq_clock_holds(call))
	{
		idemq_worker_announce_use();
		*call = idemq_clock_call();
		answered = false;
	}
	else
		answered = idemq_clock_await(call, patience, &left->tasks);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (answered && !idemq_follows())
		count_overdue(target, left);
	commit();
	MemoryContextSwitchTo(old);
	MemoryContextReset(context);
	return answered && left->leases == 0;
}

/* Waits until everything that came due by target (mono) is done, or warns. */
static void
await_done(int64 target)
{
	int64 until = idemq_stopwatch() + PATIENCE;
	MemoryContext context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq test clock", ALLOCSET_DEFAULT_SIZES);
	ClockCall call = idemq_clock_call();
	Left left;

	for (;;)
	{
		int64 patience = Max(Min(until - idemq_stopwatch(), LOOK_AGAIN), 0);

		CHECK_FOR_INTERRUPTS();
		if (is_done(target, &call, patience, &left, context))
			break;
		if (idemq_stopwatch() >= until)
		{
			advance_clock_warn(&left);
			break;
		}
		if (left.leases == 0 && idemq_clock_holds(&call))
			continue;
		/* A lease's row may have been held, or a worker may not have started yet. */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, AGAIN_MS,
						 compat_wait_event_wait());
		ResetLatch(MyLatch);
	}
}

/* advance_clock(by interval); 2D000, 55000, 22004, 22023, 22008. */
SQL_FUNCTION(idemq_sql_advance_clock)
{
	const Interval *by;
	int64 usecs;
	int64 target;
	TimestampTz by_wall;

	if (!idemq_test_clock)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("idemq.test_clock is off"),
				errdetail("The clock can be advanced only on a test server."),
				errhint(
					"If this is a test server, set idemq.test_clock = on in postgresql.conf, and "
					"restart the server."));
	idemq_check_top_level(fcinfo, "advance_clock", WHY_TOP_LEVEL);
	usecs = idemq_arg_interval(fcinfo, 0, "by", 0);
	by = PG_GETARG_INTERVAL_P(0);
	if (by->month != 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("\"by\" must not contain months or years"),
				errdetail("Months and years have no fixed length."),
				errhint("Use days instead, for example '31 days'."));
	/* Leases missing from shared memory last from the server's start, not from the new time. */
	if (!RecoveryInProgress())
		(void) idemq_primary_since();
	idemq_clock_advance(usecs);
	target = idemq_mono_now();
	by_wall = idemq_wall_now();
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	/* The tasks that are due may have to wait until this CALL's snapshot is gone. */
	SPI_commit();
	if (RecoveryInProgress() || !idemq_worker)
		(void) idemq_clock_call();
	else
	{
		await_done(target);
		warn_of_schedules(by_wall);
	}
	SPI_finish();
	PG_RETURN_VOID();
}
