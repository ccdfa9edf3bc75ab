/*
 * handler/handler.c
 *		A process that runs the handler of a queue: the loop of a background worker that the
 *		database's own worker starts (worker/handle.c), connected as the handler's role.
 *
 *		claim, or else sleep until something is ready
 *		run what was claimed, in transactions of batch jobs, the last of which claims again
 *		reset the session
 *
 * The session is the role's own.  A superuser that has SET ROLE would not do: the function could
 * RESET that.
 *
 * If anything raises an error in a batch, nothing of the batch is done; its jobs run again, each
 * in a transaction of its own, with the attempt that they have.  A job that is not at its first
 * attempt always runs alone.
 *
 * The process ends when it has been without a job for max_idle, after MAX_JOBS jobs or MAX_AGE,
 * when the handler is another or may not run any more, and when it is asked to: for another
 * handler, or by a command that needs the database for itself.  It gives back the jobs that it
 * has claimed and not begun.
 *
 * SIGTERM, at a shutdown or from pg_terminate_backend, ends it in the middle of a job, as any
 * session.  On the way out (before_shmem_exit) the transaction is rolled back and the job given
 * back; a job to which that happens three times in a row has failed.  So has a job that ends the
 * process otherwise, by a FATAL error or because it caught the cancel of job_timeout.  If that
 * fails, or the server crashes, the lease, which is attached, ends, and the job is JOB_RETRYING
 * (job/reap.c).
 *
 * If the postmaster dies, the process ends where it waits, or before its next job.  As long as it
 * is there, the server cannot start again.
 *
 * An error outside of a job (a claim that fails) ends the process, and the next one is put
 * off; 40P01 after a few more tries.  40001 does not occur: run.c.
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

/* A process ends after so many jobs, and after so long. */
#define MAX_JOBS 10000
#define MAX_AGE USECS_PER_HOUR
/* A claim that failed because of another transaction is made again so many times. */
#define MAX_CLAIMS 20

pg_noreturn PGDLLEXPORT void idemq_handler_main(Datum arg);

static SqlStatement forget_crashes =
	{.text = "UPDATE idemq_internal.handler_entries SET crashes = 0, crashed_at = NULL "
			 "WHERE queue_id = (SELECT queue_id FROM idemq_internal.handler_entries "
			 "WHERE queue_id = $1 FOR NO KEY UPDATE SKIP LOCKED)",
	 .types = {INT4OID}};

static HandlerRun run;
static MemoryContext loop_context;
/* The set of waiters that this process has joined; NULL: none. */
static Waiters *joined = NULL;
static int64 jobs_done = 0;
static int64 started_at; /* mono */
/* Whether this process is to end. */
static bool leaving = false;
/* How many of the claimed jobs are in the transaction that is open, or has just failed. */
static volatile int at_work = 0;

static HandlerKey
my_key(void)
{
	return (HandlerKey){MyDatabaseId, run.info.queue_id};
}

/* Ends what join began.  A signal that no claim has answered is passed on. */
static void
handler_leave(bool answered)
{
	Waiters *waiters = joined;

	joined = NULL;
	if (waiters != NULL && idemq_waiters_leave(waiters) && !answered)
		(void) idemq_waiters_wake(waiters, InvalidOid, 1);
}

/* Sets this process' bit among the waiters of its queue: what becomes ready wakes it. */
static void
handler_join(void)
{
	Waiters *waiters = idemq_waiters_of_queue(run.qstate);

	if (joined != waiters)
		handler_leave(false);
	joined = waiters;
	(void) idemq_waiters_join(waiters);
}

/*
 * Ends what this process has claimed, on its way out.  If the postmaster has died, it writes nothing:
 * the server has crashed, and the next one takes the jobs back (job/recover.c).
 */
static void
settle_at_exit(int code, Datum arg)
{
	ClaimedJobs *claimed = idemq_claimed_now();
	const ClaimedJob *job = idemq_handler_job();
	bool told = idemq_handler_terminated();
	const char *error = told ? "the handler process was asked to stop"
						: idemq_handler_timed_out()
							? "job_timeout has passed, but the function did not stop"
							: "the handler process was terminated: see the server log";
	int count = told && job == NULL ? 0 : at_work;
	int failed = 0;

	if (!PostmasterIsAlive())
		return;
	handler_leave(false);
	if (claimed->next >= claimed->count)
		return;
	at_work = 0;
	AbortOutOfAnyTransaction();
	/* The job whose function was running; without one, all jobs of the transaction. */
	for (int i = 0; i < count; i++)
	{
		ClaimedJob *each = &claimed->jobs[claimed->next + i];

		if (job == NULL || job == each)
			failed += idemq_handler_end_at_exit(each, told, error);
	}
	if (count > 0)
		idemq_handler_note(my_key(), 0, failed, error);
	while (claimed->next < claimed->count)
		(void) idemq_handler_end_at_exit(&claimed->jobs[claimed->next++], told, NULL);
}

/* Takes what came for this process between two jobs. */
static void
between_jobs(void)
{
	idemq_worker_idle_interrupts();
	leaving = leaving || !idemq_worker || idemq_handler_must_leave() || jobs_done >= MAX_JOBS ||
			  idemq_mono_now() - started_at > MAX_AGE;
}

/*
 * Takes away what a handler's function has left behind in its session: settings, temporary tables,
 * advisory locks, cursors, prepared statements, what currval knows.  (What it LISTENs to: run.c.)
 * Not by DISCARD ALL, which ends attached leases, and is slower: this does nothing in the
 * catalogs when there is nothing to take away.  Returns false when the session is another role's
 * now: then its process is to end.
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
	return GetUserId() == run.role && GetSessionUserId() == run.role &&
		   GetOuterUserId() == run.role;
}

/* Counts what was run, and resets the session. */
static void
after(int done)
{
	jobs_done += done;
	if (done > 0)
	{
		idemq_handler_note(my_key(), done, 0, NULL);
		/* The crashes in a row are over; the next job says so if the handler's row is held now. */
		if (run.info.crashes > 0)
		{
			Datum value = Int32GetDatum(run.info.queue_id);

			idemq_handler_begin();
			if (idemq_spi_do(&forget_crashes, &value, NULL) > 0)
				run.info.crashes = 0;
			idemq_handler_commit();
		}
	}
	if (!reset_session())
		leaving = true;
	(void) pgstat_report_stat(false);
	MemoryContextSwitchTo(loop_context);
	MemoryContextReset(loop_context);
}

/* Runs the next of the claimed jobs. */
static void
run_next(void)
{
	ClaimedJobs *claimed = idemq_claimed_now();
	ClaimedJob *jobs = &claimed->jobs[claimed->next];
	int left = claimed->count - claimed->next;
	int count = 1; /* jobs of this transaction */
	bool claim;
	ErrorData *error = NULL;
	RunResult result;

	while (!jobs->alone && count < left && !jobs[count].alone)
		count++;
	/* A job that was run again, or is not at its first attempt, may fail: no claim with it. */
	claim = count == left && !jobs->alone && jobs->repeats == 0 && !leaving &&
			jobs_done + count < MAX_JOBS;
	at_work = count;
	result = idemq_handler_run(&run, jobs, count, claim, &error);
	if (result != RUN_FAILED || count > 1)
		at_work = 0;
	if (result == RUN_LEAVE)
		leaving = true;
	else if (result == RUN_DONE && !claim)
		claimed->next += count;
	else if (result == RUN_FAILED && count > 1)
	{
		for (int i = 0; i < count; i++)
			jobs[i].alone = true;
	}
	else if (result == RUN_FAILED && idemq_handler_settle_failed(&run, jobs, error))
		claimed->next++;
	at_work = 0;
	after(result == RUN_DONE ? run.done : 0);
}

/* Claims; returns whether it got something. */
static bool
handler_claim(void)
{
	ErrorData *error = NULL;
	RunResult result;
	int tries = 0;

	do
		result = idemq_handler_run(&run, NULL, 0, true, &error);
	while (result == RUN_FAILED && idemq_handler_met_another(error) && tries++ < MAX_CLAIMS);
	if (result == RUN_FAILED)
	{
		/* The error was no job's: the next process is deferred. */
		const char *message = error->message != NULL ? error->message : "";

		idemq_handler_defer_start(my_key(), error->message != NULL ? message : "unknown error");
		ereport(LOG, errcode(error->sqlerrcode),
				errmsg("handler process for queue \"%s\" is exiting: %s", idemq_handler_queue(),
					   message));
	}
	if (result != RUN_DONE)
	{
		leaving = true;
		return false;
	}
	MemoryContextSwitchTo(loop_context);
	MemoryContextReset(loop_context);
	return idemq_claimed_now()->count > 0;
}

/*
 * Sleeps until it has claimed something; false when it is to end.  The bit comes before the
 * claim: what becomes ready after that wakes it (shared/waiters/wake.c).
 */
static bool
await_jobs(void)
{
	int64 until = idemq_mono_now() + run.info.max_idle;
	bool got = false;

	handler_join();
	idemq_handler_idle(run.qstate, true);
	while (!leaving && !(got = handler_claim()) && !leaving)
	{
		int64 left = until - idemq_mono_now();

		if (left <= 0)
			break;
		pgstat_report_activity(STATE_IDLE, "");
		(void) pgstat_report_stat(true);
		/*
		 * The queue may have another state by now: then this joins its waiters, and claims again.
		 */
		if (joined == idemq_waiters_of_queue(run.qstate) && idemq_waiters_waits(joined))
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 (left + 999) / 1000, compat_wait_event_handler());
		ResetLatch(MyLatch);
		between_jobs();
		handler_join();
	}
	handler_leave(got);
	idemq_handler_idle(run.qstate, false);
	return got;
}

/* Main function of a process that runs a handler. */
void
idemq_handler_main(Datum arg)
{
	HandlerTicket ticket;
	HandlerTarget target;
	QueueInfo queue;
	bool wanted;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&ticket, MyBgworkerEntry->bgw_extra, sizeof(ticket));
	if (!idemq_handler_attach(&ticket))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(ticket.key.database, ticket.role, 0);
	/* Against ALTER ROLE ... SET role, too: a RESET in the function would bring that back. */
	SetConfigOption("role", "none", PGC_USERSET, PGC_S_OVERRIDE);
	run.role = ticket.role;
	run.errors =
		AllocSetContextCreate(TopMemoryContext, "idemq handler error", ALLOCSET_DEFAULT_SIZES);
	loop_context = AllocSetContextCreate(TopMemoryContext, "idemq handler", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(loop_context);
	SetConfigOption("application_name", IDEMQ_HANDLER_WORKER, PGC_BACKEND, PGC_S_CLIENT);
	idemq_handler_limits_begin();
	before_shmem_exit(settle_at_exit, (Datum) 0);
	/* Before the first claim: what was claimed earlier is a former server's. */
	(void) idemq_primary_since();
	/* The handler is read in a transaction; there may be nothing to run as this role. */
	idemq_handler_begin();
	idemq_claimed_begin();
	run.version = idemq_version_of_queue(ticket.key.queue_id);
	wanted = idemq_presence() == IDEMQ_HERE && idemq_handler_read(ticket.key.queue_id, &run.info) &&
			 !run.info.stopped && idemq_handler_check(&run, &target, &queue) == RUN_DONE;
	idemq_handler_commit();
	if (wanted)
	{
		idemq_handler_ready();
		started_at = idemq_mono_now();
		while (!leaving)
		{
			ClaimedJobs *claimed = idemq_claimed_now();

			between_jobs();
			if (leaving)
				break;
			pgstat_report_activity(STATE_RUNNING, idemq_handler_queue());
			if (claimed->next < claimed->count)
				run_next();
			else if (!handler_claim() && !leaving && !await_jobs())
				break;
		}
	}
	proc_exit(0);
}
