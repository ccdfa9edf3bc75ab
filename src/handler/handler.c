/*
 * handler/handler.c
 *		The main loop of a handler process, a background worker that runs the jobs of one queue.
 *		The worker of the database starts it (worker/handle.c), connected as the handler's role.
 *
 *		claim jobs; if there are none, sleep until the queue has some
 *		run the claimed jobs, in transactions of one or more; the last of these claims again
 *		reset the session
 *
 * The session belongs to the role itself.  A superuser's session with SET ROLE would not be safe,
 * because the function could call RESET ROLE.
 *
 * If a transaction that runs several jobs fails, it is rolled back, and each of its jobs runs again
 * in its own transaction, in the same attempt.  A job that is not in its first attempt always runs
 * in its own transaction.
 *
 * The process ends if it finds no job for max_idle, after MAX_JOBS jobs or MAX_AGE, if the handler
 * has changed or may no longer run, and if it is asked to end, so that another handler can run or
 * a command can use the database exclusively.  It then releases the claimed jobs that have not
 * begun.
 *
 * SIGTERM, sent by a shutdown or by pg_terminate_backend, ends the process even while a job runs.
 * Its before_shmem_exit callback rolls back the transaction and releases the job, but the third
 * time in a row that this happens to a job, the job has failed.  A job has also failed if it ends
 * the process in another way: through a FATAL error, or because its function has caught the
 * cancellation by job_timeout.  If the callback cannot write, or the server crashes, the lease
 * ends with the process, because it is attached, and the job is retried (job/reap.c).
 *
 * If the postmaster dies, the process ends where it sleeps, or before its next job.  Until then,
 * the server cannot start again.
 *
 * An error outside of a job, that is, in a claim, ends the process, and delays the start of the
 * next one.  After 40P01, the claim is repeated a few times first.  40001 cannot occur (run.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/pmsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "handler/handler.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "worker/worker.h"

/* After this number of jobs, or this time, a new process takes over. */
#define MAX_JOBS 10000
#define MAX_AGE USECS_PER_HOUR
/* How often a claim is repeated after a deadlock. */
#define MAX_CLAIMS 20

pg_noreturn PGDLLEXPORT void idemq_handler_main(Datum arg);

static SqlStatement forget_crashes =
	{.text = "UPDATE idemq_internal.handler_entries SET crashes = 0, crashed_at = NULL "
			 "WHERE queue_id = (SELECT queue_id FROM idemq_internal.handler_entries "
			 "WHERE queue_id = $1 FOR NO KEY UPDATE SKIP LOCKED)",
	 .types = {INT4OID}};

static MemoryContext loop_context;
/* The set of waiters that this process has joined, or NULL. */
static Waiters *joined = NULL;
static int64 jobs_done = 0;
static int64 started_at; /* mono */
/* The main loop ends before the next job. */
static bool leaving = false;
/* The number of jobs, from claimed->next on, that the open or just failed transaction runs. */
static volatile int running_count = 0;

/*
 * Leaves the set of waiters.  If a commit has signalled this process, and it has claimed no job
 * since, passes the signal on to another waiter.
 */
static void
handler_leave(bool has_claimed)
{
	Waiters *waiters = joined;

	joined = NULL;
	if (waiters != NULL && idemq_waiters_leave(waiters) && !has_claimed)
		(void) idemq_waiters_wake(waiters, InvalidOid, 1);
}

/*
 * Joins the waiters of the queue: from now on, a job that becomes ready sets this process's latch.
 */
static void
handler_join(void)
{
	Waiters *waiters = idemq_waiters_of_queue(idemq_handler.qstate);

	if (joined != waiters)
		handler_leave(false);
	joined = waiters;
	(void) idemq_waiters_join(waiters);
}

/*
 * before_shmem_exit callback: ends the attempts of all claimed jobs.  If the postmaster has died,
 * it does nothing, because the server has crashed, and recovers the jobs when it starts
 * (job/recover.c).
 */
static void
settle_at_exit(int code, Datum arg)
{
	ClaimedJobs *claimed = idemq_handler.claimed;
	const ClaimedJob *current = idemq_handler.current;
	bool terminated = idemq_handler_terminated;
	const char *error = terminated ? "the handler process was asked to stop"
						: idemq_handler_timed_out
							? "job_timeout has passed, but the function did not stop"
							: "the handler process was terminated: see the server log";
	int count = terminated && current == NULL ? 0 : running_count;

	if (!PostmasterIsAlive())
		return;
	handler_leave(false);
	if (claimed->next >= claimed->count)
		return;
	running_count = 0;
	AbortOutOfAnyTransaction();
	/*
	 * The job whose function was running is responsible; if none was, all jobs of the transaction.
	 */
	for (int i = 0; i < count; i++)
	{
		ClaimedJob *job = &claimed->jobs[claimed->next + i];

		if (current == NULL || current == job)
			idemq_handler_end_at_exit(job, terminated, error);
	}
	if (count > 0)
		idemq_handler_note_error(idemq_handler.key, error);
	while (claimed->next < claimed->count)
		idemq_handler_end_at_exit(&claimed->jobs[claimed->next++], terminated, NULL);
}

/* Processes the interrupts that came while a job ran; sets leaving if the process must end. */
static void
between_jobs(void)
{
	idemq_worker_idle_interrupts();
	leaving = leaving || !idemq_worker || idemq_handler_must_leave() || jobs_done >= MAX_JOBS ||
			  idemq_mono_now() - started_at > MAX_AGE;
}

/*
 * Removes what a handler's function may have left in the session: settings, temporary tables,
 * advisory locks, cursors, prepared statements and the state of currval.  (run.c calls UNLISTEN.)
 * DISCARD ALL would also end attached leases, and is slower: this function does not touch the
 * catalogs if there is nothing to remove.  Returns false if the session has become another role's;
 * the process must then end.
 */
static bool
reset_session(void)
{
	Oid namespace;
	Oid toast_namespace;

	PortalHashTableDeleteAll();
	DropAllPreparedStatements();
	ResetSequenceCaches();
	LockReleaseAll(USER_LOCKMETHOD, true);
	ResetAllOptions();
	GetTempNamespaceState(&namespace, &toast_namespace);
	if (OidIsValid(namespace))
	{
		idemq_begin_transaction();
		PushActiveSnapshot(GetTransactionSnapshot());
		ResetTempTableNamespace();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	return GetUserId() == idemq_handler.role && GetSessionUserId() == idemq_handler.role &&
		   GetOuterUserId() == idemq_handler.role;
}

/* Runs the next claimed jobs in one transaction, decides what follows, and resets the session. */
static void
run_next(void)
{
	ClaimedJobs *claimed = idemq_handler.claimed;
	ClaimedJob *jobs = &claimed->jobs[claimed->next];
	int left = claimed->count - claimed->next;
	int count = 1; /* jobs of this transaction */
	bool claim;
	ErrorData *error = NULL;
	RunResult result;

	while (!jobs->alone && count < left && !jobs[count].alone)
		count++;
	/* A job that has failed before may fail again, which would roll back the claim. */
	claim = count == left && !jobs->alone && jobs->repeats == 0 && !leaving &&
			jobs_done + count < MAX_JOBS;
	running_count = count;
	result = idemq_handler_run(jobs, count, claim, &error);
	if (result != RUN_FAILED || count > 1)
		running_count = 0;
	switch (result)
	{
		case RUN_DONE:
			/* After a claim, idemq_handler.claimed is the next claim. */
			if (!claim)
				claimed->next += count;
			break;
		case RUN_FAILED:
			if (count == 1 && idemq_handler_settle_failed(jobs, error))
				claimed->next++;
			/* If there were several jobs, we do not know which one has failed. */
			for (int i = 0; i < count && count > 1; i++)
				jobs[i].alone = true;
			break;
		case RUN_LEAVE:
			leaving = true;
			break;
	}
	running_count = 0;
	if (result == RUN_DONE && idemq_handler.done > 0)
	{
		jobs_done += idemq_handler.done;
		/*
		 * Only crashes in a row count.  If the handler's row is locked, the next job tries again.
		 */
		if (idemq_handler.info.crashes > 0)
		{
			Datum value = Int32GetDatum(idemq_handler.key.queue_id);

			idemq_handler_begin();
			if (idemq_spi_do(&forget_crashes, &value, NULL) > 0)
				idemq_handler.info.crashes = 0;
			idemq_handler_commit();
		}
	}
	if (!reset_session())
		leaving = true;
	(void) pgstat_report_stat(false);
	MemoryContextSwitchTo(loop_context);
	MemoryContextReset(loop_context);
}

/* Claims jobs; returns whether there were any.  If the claim fails, sets leaving. */
static bool
handler_claim(void)
{
	ErrorData *error = NULL;
	RunResult result;
	int tries = 0;

	do
		result = idemq_handler_run(NULL, 0, true, &error);
	while (result == RUN_FAILED && idemq_handler_met_another(error) && tries++ < MAX_CLAIMS);
	if (result == RUN_FAILED)
	{
		/* No job is to blame, so the next process of this handler starts only after a delay. */
		const char *message = error->message != NULL ? error->message : "";

		(void) idemq_handler_refuse(idemq_handler.key,
									error->message != NULL ? message : "unknown error", true);
		ereport(LOG, errcode(error->sqlerrcode),
				errmsg("handler process for queue \"%s\" is exiting: %s", idemq_handler.queue_name,
					   message));
	}
	if (result != RUN_DONE)
	{
		leaving = true;
		return false;
	}
	MemoryContextSwitchTo(loop_context);
	MemoryContextReset(loop_context);
	return idemq_handler.claimed->count > 0;
}

/*
 * Sleeps until a claim returns jobs, at most for max_idle.  Returns false if the process must end.
 * It joins the waiters before each claim, so a job that becomes ready after the claim wakes it
 * (shared/waiters/wake.c).
 */
static bool
await_jobs(void)
{
	int64 until = idemq_mono_now() + idemq_handler.info.max_idle;
	bool has_claimed = false;

	handler_join();
	idemq_handler_idle(idemq_handler.qstate, true);
	while (!leaving && !(has_claimed = handler_claim()) && !leaving)
	{
		int64 left = until - idemq_mono_now();

		if (left <= 0)
			break;
		pgstat_report_activity(STATE_IDLE, "");
		(void) pgstat_report_stat(true);
		/* If the queue has another state now, this process joins its waiters, and claims again. */
		if (joined == idemq_waiters_of_queue(idemq_handler.qstate) && idemq_waiters_waits(joined))
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 (left + 999) / 1000, compat_wait_event_handler());
		ResetLatch(MyLatch);
		between_jobs();
		handler_join();
	}
	handler_leave(has_claimed);
	idemq_handler_idle(idemq_handler.qstate, false);
	return has_claimed;
}

/* Main function of a handler process. */
void
idemq_handler_main(Datum arg)
{
	HandlerTicket ticket;
	HandlerTarget target;
	QueueInfo queue;
	bool may_run;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&ticket, MyBgworkerEntry->bgw_extra, sizeof(ticket));
	if (!idemq_handler_attach(&ticket))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(ticket.key.database, ticket.role, 0);
	/* The role may have a default role.  Set this way, RESET ROLE in the function restores none. */
	SetConfigOption("role", "none", PGC_USERSET, PGC_S_OVERRIDE);
	idemq_handler.key = ticket.key;
	idemq_handler.role = ticket.role;
	idemq_handler.errors =
		AllocSetContextCreate(TopMemoryContext, "idemq handler error", ALLOCSET_DEFAULT_SIZES);
	loop_context = AllocSetContextCreate(TopMemoryContext, "idemq handler", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(loop_context);
	SetConfigOption("application_name", IDEMQ_HANDLER_WORKER, PGC_BACKEND, PGC_S_CLIENT);
	idemq_handler_limits_begin();
	before_shmem_exit(settle_at_exit, (Datum) 0);
	/* This fixes the time before which a claim counts as made by a former server. */
	(void) idemq_primary_since();
	idemq_handler_begin();
	idemq_handler_prepare();
	idemq_handler.version = idemq_version_of_queue(ticket.key.queue_id);
	may_run = idemq_presence() == IDEMQ_HERE &&
			  idemq_handler_read(ticket.key.queue_id, &idemq_handler.info) &&
			  !idemq_handler.info.stopped && idemq_handler_check(&target, &queue) == RUN_DONE;
	idemq_handler_commit();
	if (may_run)
	{
		idemq_handler_ready(idemq_handler.qstate);
		started_at = idemq_mono_now();
		while (!leaving)
		{
			ClaimedJobs *claimed = idemq_handler.claimed;

			between_jobs();
			if (leaving)
				break;
			pgstat_report_activity(STATE_RUNNING, idemq_handler.queue_name);
			if (claimed->next < claimed->count)
				run_next();
			else if (!handler_claim() && !leaving && !await_jobs())
				break;
		}
	}
	proc_exit(0);
}
