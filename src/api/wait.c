/*
 * api/wait.c
 *		Procedures that sleep until there is a job, room, or a result: wait, wait_any,
 *		wait_for_room, wait_result, wait_results; and result, which returns what wait_result
 *		would, without waiting.
 *
 * They sleep between transactions, so they hold nothing that would delay VACUUM, CREATE INDEX
 * CONCURRENTLY or DROP.  Each check for something to do is a transaction of its own.  The order is:
 * set the bit, check, sleep (shared/waiters/wake.c); a signal that comes after the check ends the
 * sleep at once.
 *
 * A wait also ends when another session of the same role asks for that, as if its timeout had
 * passed, so a worker that stops does not have to cancel its wait.
 *
 * In a session with idemq.process, wait and wait_any also end when an attempt of the process is
 * being cancelled, or has been ended by another session (shared/waiters/listeners.c).  If the
 * queue is NULL, wait sleeps only until then: a process without a free slot must not take a signal
 * that is meant for a job.
 *
 * A signal is meant for one waiter.  A waiter that leaves without a check since its signal, even
 * because of an error or a cancel, passes the signal on.
 *		Model: test/model/wake.pml; two waiters, two wakers, one cancel.
 *
 * No commit signals what comes due by time alone, so each check computes when to check again.  A
 * session that finds no background worker, or a stuck one, checks once a second, and does the
 * worker's most urgent work for its queue (do_fallback_maintenance).  A worker that stops counts
 * as moving for another IDEMQ_STUCK_AFTER.  A session that falls asleep during that time is not
 * woken for what comes due by time, nor for a group whose head the worker had been called to
 * promote.  The next claim finds the job, and so does the waiter when its own wait ends.
 *
 * Sessions that free room wake wait_for_room (shared/counts/unfinished.c).  Room may be promised to
 * a session that does not use it.  Only the background worker takes such a promise back, so without
 * a worker, each waiter checks once per second.
 *
 * wait_result works on a standby, too.  What is replayed there wakes no session, so it checks
 * again after an eighth of the time that it has waited, but after STANDBY_SOON at least and
 * CHECK_ALONE at most.  A job that it has never seen may not have been replayed yet, so it waits
 * for the job until the timeout.  A job that it has seen, and that does not exist any more, is
 * gone.  Between two checks there is no snapshot that could conflict with replay.  A promotion
 * needs no special care: the bit is set in any case, and the next check finds that commits wake
 * the session.
 *
 * result is for clients that cannot CALL a procedure that sleeps between transactions, such as a
 * proxy that only calls functions.  It reads the latest version of the job's row, as wait_result
 * does.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "api/api.h"
#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "table/table.h"

/* Interval of checks without a background worker: no session signals what comes due by time. */
#define CHECK_ALONE USECS_PER_SEC
/*
 * A wait ends this long (us) before statement_timeout, or after 9/10 of the rest if that is later.
 */
#define TIMEOUT_MARGIN INT64CONST(100000)
/* Delay (us) before wait_result first checks again on a standby. */
#define STANDBY_SOON INT64CONST(10000)
#define WHY_TOP_LEVEL                                                                              \
	"The procedure sleeps between transactions so that it does not hold a snapshot."

/* A queue or job for which a session waits. */
typedef struct Target
{
	char *queue; /* name of the queue; NULL: the target is a job */
	int64 job_id;
	int32 room;		  /* jobs for which the queue must have room; 0: it waits for ready jobs */
	Waiters *waiters; /* the set in which this session's bit is set; NULL: none yet */
	bool owed;		  /* a signal came, and no check has followed it */
	int64 again;	  /* when (mono) to check again, even without a signal */
} Target;

typedef struct Wait
{
	int64 begun;	/* mono */
	int64 deadline; /* mono */
	bool listens;	/* the end of an attempt also ends it (shared/waiters/listeners.c) */
	bool ended;		/* by another session */
	int count;
	Target *targets;
	MemoryContext check_context; /* reset after each check */
	/* For wait_result: */
	MemoryContext context; /* in which the result is allocated */
	bool found;
	bool seen; /* a check has found the job at some time */
	JobStatus status;
	Datum result;
	bool no_result;
} Wait;

/* The current wait, so that the session's exit finds it; NULL: none. */
static Wait *current_wait = NULL;

/* Passes a signal on to another waiter. */
static void
pass_on(const Target *target)
{
	if (target->room > 0)
		idemq_room_pass_on(idemq_waiters_room_index(target->waiters), target->room);
	else
		(void) idemq_waiters_wake(target->waiters, InvalidOid, 1);
}

/*
 * Sets this session's bit in the set of waiters, and leaves the target's former set.  Notes whether
 * the target was signaled.
 */
static void
wait_join(Target *target, Waiters *waiters)
{
	if (target->waiters == waiters)
	{
		if (idemq_waiters_join(waiters))
			target->owed = true;
		return;
	}
	/* The queue has another state now, so a signal that came here is meant for other sessions. */
	if (target->waiters != NULL && idemq_waiters_leave(target->waiters))
		pass_on(target);
	(void) idemq_waiters_join(waiters);
	target->waiters = waiters;
}

/* Leaves all sets, and passes on the signals that no check has followed. */
static void
wait_leave(void)
{
	for (int i = 0; current_wait != NULL && i < current_wait->count; i++)
	{
		Target *target = &current_wait->targets[i];

		if (target->waiters == NULL)
			continue;
		if (idemq_waiters_leave(target->waiters) || target->owed)
			pass_on(target);
		target->waiters = NULL;
	}
	current_wait = NULL;
}

/*
 * before_shmem_exit: leaves all sets before the transaction is aborted, because the abort frees the
 * targets of a nested CALL.  (PG_ENSURE_ERROR_CLEANUP requires that no code within it registers
 * another callback, but a user's trigger may do so in a check.)
 */
static void
leave_at_exit(int code, Datum arg)
{
	wait_leave();
}

/*
 * Looks up a target's queue.  The bit is set before, so that a session that resumes or changes the
 * queue after it was read here finds the bit.
 */
static void
look_up(Target *target, QueueInfo *queue)
{
	Waiters *waiters = target->waiters;

	if (waiters != NULL)
		wait_join(target, waiters);
	for (;;)
	{
		idemq_queue_by_name(target->queue, target->room > 0 ? PRIVILEGE_ENQUEUE : PRIVILEGE_CLAIM,
							queue);
		idemq_queue_need_qstate(queue);
		waiters = target->room > 0 ? idemq_waiters_for_room(idemq_qstate_index(queue->qstate))
								   : idemq_waiters_of_queue(queue->qstate);
		if (target->waiters == waiters)
			break;
		wait_join(target, waiters);
	}
}

/* Maximum number of heads of groups that one call promotes. */
#define PROMOTE_ALONE 64

/*
 * Does the worker's most urgent work for a queue, if there is no worker or it is stuck: takes back
 * leases, ends pauses of groups, and promotes heads of groups.
 *
 * A lock that delays the worker may also delay this session, whose client is waiting for jobs.  So
 * this waits for a lock no longer than a task of the worker does, and runs in a subtransaction.  If
 * a lock is not granted in time, the subtransaction is rolled back, and the next check tries again.
 * Other errors are raised to the caller, as in a claim.
 */
static void
do_fallback_maintenance(const QueueInfo *queue)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int guc_level;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	guc_level = NewGUCNestLevel();
	if (LockTimeout == 0 || LockTimeout > IDEMQ_LOCK_PATIENCE)
		idemq_spi_set("lock_timeout", IDEMQ_LOCK_PATIENCE_TEXT);
	PG_TRY();
	{
		(void) idemq_reap_some(queue);
		if (idemq_group_pause_is_over(queue))
			(void) idemq_group_pauses_end(queue);
		if (idemq_promote_wanted(queue))
			(void) idemq_promote_some(queue, PROMOTE_ALONE);
		AtEOXact_GUC(true, guc_level);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

/* Returns whether a queue has a job that can be claimed now; sets when to check again. */
static bool
check_queue(Target *target)
{
	QueueInfo queue;
	TimestampTz next_due;
	TimestampTz closed_until;
	bool held;
	bool alone;
	bool ready;

	idemq_following_refuse(); /* the database may have begun to follow another one */
	look_up(target, &queue);
	closed_until = idemq_queue_closed_until(&queue);
	if (closed_until != DT_NOBEGIN)
	{
		if (closed_until < DT_NOEND)
			target->again = Min(target->again, idemq_mono_from_timestamp(closed_until));
		return false;
	}
	alone = !idemq_worker_present();
	if (alone)
	{
		do_fallback_maintenance(&queue);
		target->again = Min(target->again, idemq_mono_now() + CHECK_ALONE);
		if (queue.group_pauses_end < DT_NOEND)
			target->again = Min(target->again, idemq_mono_from_timestamp(queue.group_pauses_end));
	}
	ready = idemq_ready_check(&queue, &next_due, &held);
	if (held)
		target->again = Min(target->again, idemq_mono_now() + LEASE_BUSY_RETRY);
	if (next_due < DT_NOEND)
		target->again = Min(target->again, idemq_mono_from_timestamp(next_due));
	return ready;
}

/* Returns whether a queue has room now; sets when to check again. */
static bool
check_room(Target *target)
{
	QueueInfo queue;

	idemq_following_refuse();
	look_up(target, &queue);
	if (!idemq_worker_present())
		target->again = Min(target->again, idemq_mono_now() + CHECK_ALONE);
	return idemq_room_is_there(&queue, target->room);
}

/* Returns whether a job is finished or does not exist; copies its status and result. */
static bool
check_job(Wait *wait, Target *target)
{
	JobsTable table;
	QueueInfo queue;
	Job job;
	bool standby = RecoveryInProgress();

	idemq_following_refuse_moved();
	wait_join(target, idemq_waiters_of_job(MyDatabaseId, target->job_id));
	if (standby)
	{
		int64 now = idemq_mono_now();
		int64 pause = Max((now - wait->begun) / 8, STANDBY_SOON);

		target->again = Min(target->again, now + Min(pause, CHECK_ALONE));
	}
	/* The apply worker's COMMIT PREPARED bypasses our hook and wakes no waiter. */
	else if (idemq_follows())
		target->again = Min(target->again, idemq_mono_now() + CHECK_ALONE);
	idemq_jobs_open_to_read(&table);
	wait->found = idemq_jobs_fetch(&table, target->job_id, &job) &&
				  idemq_queue_allows(job.queue_id, PRIVILEGE_ALL, &queue);
	if (wait->found)
	{
		wait->seen = true;
		wait->status = job.status;
		wait->result = idemq_job_document(&job, COL_RESULT, &wait->no_result);
		if (!wait->no_result)
		{
			MemoryContext old = MemoryContextSwitchTo(wait->context);

			wait->result = datumCopy(wait->result, false, -1);
			MemoryContextSwitchTo(old);
		}
	}
	idemq_jobs_close(&table);
	if (!wait->found)
		return !standby || wait->seen;
	return job_status_is_finished(job.status);
}

/* Checks a target in its own transaction.  Returns whether the wait is over. */
static bool
wait_check(Wait *wait, Target *target)
{
	MemoryContext old = MemoryContextSwitchTo(wait->check_context);
	bool over;

	target->again = idemq_mono_now() + compat_longest_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (target->room > 0)
		over = check_room(target);
	else
		over = target->queue != NULL ? check_queue(target) : check_job(wait, target);
	PopActiveSnapshot();
	SPI_commit();
	MemoryContextSwitchTo(old);
	MemoryContextReset(wait->check_context);
	/* The signal is used: if there is work, our caller claims it. */
	target->owed = false;
	return over;
}

/*
 * Checks the targets that were signaled or have come due.  Returns whether the wait is over;
 * otherwise sets *again to the time (mono) of the next check.
 */
static bool
check_all(Wait *wait, int64 now, int64 *again)
{
	*again = wait->deadline;
	for (int i = 0; i < wait->count; i++)
	{
		Target *target = &wait->targets[i];

		if (target->waiters == NULL || target->again <= now ||
			!idemq_waiters_waits(target->waiters))
		{
			if (wait_check(wait, target))
				return true;
		}
		*again = Min(*again, target->again);
	}
	return false;
}

/*
 * Sleeps and checks.  Returns true if a check was successful, and false if the deadline has passed
 * or another session has ended this wait.
 */
static bool
sleep_and_check(Wait *wait)
{
	int64 now = idemq_mono_now();
	int64 again;

	while (!check_all(wait, now, &again))
	{
		CHECK_FOR_INTERRUPTS();
		now = idemq_mono_now();
		wait->ended = idemq_end_wait_taken();
		if (wait->listens && idemq_listener_told())
			wait->ended = true;
		if (wait->ended || now >= wait->deadline)
			return false;
		if (again > now)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 (again - now + 999) / 1000, compat_wait_event_wait());
		IDEMQ_STOP("wait_woken");
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		now = idemq_mono_now();
	}
	return true;
}

/* Waits for the targets.  Returns whether one of them is ready. */
static bool
wait_for_targets(Wait *wait, int64 timeout)
{
	static bool registered = false;
	bool came;

	wait->context = CurrentMemoryContext;
	wait->begun = idemq_mono_now();
	if (get_timeout_active(STATEMENT_TIMEOUT))
	{
		int64 left = get_timeout_finish_time(STATEMENT_TIMEOUT) - GetCurrentTimestamp();

		timeout = Min(timeout, left - Min(TIMEOUT_MARGIN, left / 10));
	}
	wait->deadline = timeout < PG_INT64_MAX - wait->begun ? wait->begun + timeout : PG_INT64_MAX;
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	wait->check_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq wait", ALLOCSET_DEFAULT_SIZES);
	if (!registered)
		before_shmem_exit(leave_at_exit, (Datum) 0);
	registered = true;
	current_wait = wait;
	/*
	 * Without targets, no check ends the CALL's transaction, whose snapshot would hold back VACUUM.
	 */
	if (wait->count == 0)
		SPI_commit();
	PG_TRY();
	{
		came = sleep_and_check(wait);
	}
	PG_FINALLY();
	{
		wait_leave();
	}
	PG_END_TRY();
	SPI_finish();
	return came;
}

/*
 * Waits for one of several queues, and returns the row with ready.  Without a queue, only the end
 * of an attempt or the timeout ends the wait.
 */
static Datum
wait_for_queues(FunctionCallInfo fcinfo, Wait *wait, int timeout_arg)
{
	int64 timeout = idemq_arg_interval(fcinfo, timeout_arg, "timeout", 0);
	Datum ready;

	idemq_jobs_check_writable();
	ready = BoolGetDatum(wait_for_targets(wait, timeout));
	return idemq_value_row_datum(fcinfo, ready);
}

/* wait(queue text, timeout interval, INOUT ready bool); 2D000, IQ005, 42501, 22004, 22023. */
SQL_FUNCTION(idemq_sql_wait)
{
	Target target = {0};
	Wait wait = {.count = 1, .targets = &target};

	idemq_check_top_level(fcinfo, "wait", WHY_TOP_LEVEL);
	wait.listens = idemq_listener_begin();
	if (wait.listens && PG_ARGISNULL(0))
		wait.count = 0;
	else
		target.queue = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	return wait_for_queues(fcinfo, &wait, 1);
}

/*
 * wait_for_room(queue text, jobs int, timeout interval, INOUT ready bool); 2D000, IQ005, IQ007,
 * 42501, 22004, 22023, 25006, 53400, 55000.
 */
SQL_FUNCTION(idemq_sql_wait_for_room)
{
	Target target = {0};
	Wait wait = {.count = 1, .targets = &target};

	idemq_check_top_level(fcinfo, "wait_for_room", WHY_TOP_LEVEL);
	target.queue = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	target.room = idemq_arg_int(fcinfo, 1, "jobs", 1, PG_INT32_MAX);
	idemq_waiters_want_room((uint32) target.room);
	return wait_for_queues(fcinfo, &wait, 2);
}

/* wait_any(queues text[], timeout interval, INOUT ready bool); as wait. */
SQL_FUNCTION(idemq_sql_wait_any)
{
	ArrayArg queues;
	Wait wait = {0};

	idemq_check_top_level(fcinfo, "wait_any", WHY_TOP_LEVEL);
	idemq_arg_array(fcinfo, 0, "queues", TEXTOID, false, &queues);
	if (queues.count == 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("queues must not be empty"),
				errhint("Pass the name of at least one queue."));
	wait.listens = idemq_listener_begin();
	wait.count = queues.count;
	wait.targets = palloc0(queues.count * sizeof(Target));
	for (int i = 0; i < queues.count; i++)
		wait.targets[i].queue = TextDatumGetCString(queues.values[i]);
	return wait_for_queues(fcinfo, &wait, 1);
}

/*
 * Ends at once the waits of the sessions whose process ids are in the argument end_waits, if these
 * sessions have the same login role.  A rollback does not undo this.  22004, 22023.
 */
void
idemq_end_waits_arg(FunctionCallInfo fcinfo, int arg)
{
	ArrayArg pids;

	idemq_arg_array(fcinfo, arg, "end_waits", INT4OID, false, &pids);
	/* Each request searches the sessions of the server. */
	if (pids.count > MaxBackends)
		ereport(
			ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("end_waits has %d elements, which is more than the maximum number of sessions",
				   pids.count),
			errhint("Pass only the sessions of this worker."));
	for (int i = 0; i < pids.count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		idemq_end_wait_of(DatumGetInt32(pids.values[i]));
	}
}

/* Raises IQ002 for wait_result and wait_results. */
static void
refuse_job(Wait *wait, int64 job_id)
{
	bool on_its_way = RecoveryInProgress() && !wait->seen;

	ereport(
		ERROR, errcode(ERRCODE_IDEMQ_NO_SUCH_JOB),
		errmsg("job %lld does not exist%s", (long long) job_id,
			   on_its_way ? " on this standby" : ""),
		on_its_way
			? errhint(
				  "The job may not have been replicated yet. Make the call on the primary, or try "
				  "again later.")
			: errhint("A queue with retention '0' deletes finished jobs immediately. To wait for "
					  "results, set a longer retention."));
}

/*
 * wait_result(id bigint, timeout interval, INOUT status, INOUT result); 2D000,
 * IQ002, 22004, 22023.  After timeout, the status that the job has.
 */
SQL_FUNCTION(idemq_sql_wait_result)
{
	int64 timeout;
	Target target = {0};
	Wait wait = {.count = 1, .targets = &target};
	Datum values[2];
	bool nulls[2];

	idemq_check_top_level(fcinfo, "wait_result", WHY_TOP_LEVEL);
	idemq_arg_required(fcinfo, 0, "id");
	target.job_id = PG_GETARG_INT64(0);
	timeout = idemq_arg_interval(fcinfo, 1, "timeout", 0);
	(void) wait_for_targets(&wait, timeout);
	if (!wait.found)
		refuse_job(&wait, target.job_id);
	values[0] = ObjectIdGetDatum(idemq_oids()->status[wait.status]);
	nulls[0] = false;
	values[1] = wait.result;
	nulls[1] = wait.no_result;
	return idemq_row_datum(fcinfo, values, nulls);
}

/*
 * wait_results(ids bigint[], timeout interval, INOUT statuses, INOUT results); as
 * wait_result, for all of them: one after the other, since the last one decides.
 */
SQL_FUNCTION(idemq_sql_wait_results)
{
	ArrayArg ids;
	int64 timeout;
	int64 until;
	Datum *columns;
	bool *no_result;
	Datum values[2];
	bool nulls[2] = {false, false};
	int bound = 1;

	idemq_check_top_level(fcinfo, "wait_results", WHY_TOP_LEVEL);
	idemq_arg_array(fcinfo, 0, "ids", INT8OID, false, &ids);
	timeout = idemq_arg_interval(fcinfo, 1, "timeout", 0);
	until = idemq_mono_now();
	until = timeout < PG_INT64_MAX - until ? until + timeout : PG_INT64_MAX;
	columns = palloc(Max(2 * ids.count, 1) * sizeof(Datum));
	no_result = palloc0(Max(ids.count, 1) * sizeof(bool));
	for (int i = 0; i < ids.count; i++)
	{
		Target target = {.job_id = DatumGetInt64(ids.values[i])};
		Wait wait = {.count = 1, .targets = &target};

		(void) wait_for_targets(&wait, Max(until - idemq_mono_now(), 0));
		if (wait.ended)
			until = 0; /* the other jobs are checked only once */
		if (!wait.found)
			refuse_job(&wait, target.job_id);
		columns[i] = ObjectIdGetDatum(idemq_oids()->status[wait.status]);
		columns[ids.count + i] = wait.result;
		no_result[i] = wait.no_result;
	}
	values[0] = PointerGetDatum(construct_array(columns, ids.count, idemq_oids()->status_type,
												sizeof(Oid), true, TYPALIGN_INT));
	values[1] = PointerGetDatum(construct_md_array(columns + ids.count, no_result, 1, &ids.count,
												   &bound, JSONBOID, -1, false, TYPALIGN_INT));
	return idemq_row_datum(fcinfo, values, nulls);
}

/* result(id) -> (status, result); IQ002, 22004, 55000.  Needs any privilege on the job's queue. */
SQL_FUNCTION(idemq_sql_result)
{
	Datum values[2];
	bool nulls[2] = {false, false};
	JobsTable table;
	QueueInfo queue;
	Datum row;
	Job job;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_following_refuse_moved();
	idemq_jobs_open_to_read(&table);
	if (!idemq_jobs_fetch(&table, PG_GETARG_INT64(0), &job) ||
		!idemq_queue_allows(job.queue_id, PRIVILEGE_ALL, &queue))
		ereport(
			ERROR, errcode(ERRCODE_IDEMQ_NO_SUCH_JOB),
			errmsg("job %lld does not exist", (long long) PG_GETARG_INT64(0)),
			errhint(
				"A queue with retention '0' deletes finished jobs immediately. To read results, "
				"set a longer retention."));
	values[0] = ObjectIdGetDatum(idemq_oids()->status[job.status]);
	values[1] = idemq_job_document(&job, COL_RESULT, &nulls[1]);
	row = idemq_row_datum(fcinfo, values, nulls);
	idemq_jobs_close(&table);
	return row;
}
