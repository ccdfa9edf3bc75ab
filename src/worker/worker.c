/*
 * worker/worker.c
 *		The background worker of one database, which does maintenance as soon as it comes due.
 *
 * In a loop, it runs the tasks that are due (worker/tasks.c), notes in shared memory until when it
 * will sleep, and sleeps on its latch.  A session that makes something due earlier wakes it;
 * shared/processes/worker_call.c proves that no wake-up is lost.  No promise depends on the worker:
 * without it, claims take back expired leases and find jobs that have come due.
 *
 * The worker exits if the extension has been dropped, if a session needs exclusive access to the
 * database, or if idemq.worker is off.  The launcher starts it again when it is wanted again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "shared/processes/processes.h"
#include "shared/waiters/waiters.h"
#include "worker/worker.h"

/* Maximum time (us) of one sleep. */
#define LONGEST_SLEEP USECS_PER_DAY
/* Pause (us) between two promotion passes, if no session is waiting for the second one. */
#define LINGER INT64CONST(1000)

/*
 * Returns whether this database has SQL objects that the library works with (base/version.c), and
 * logs why not, or that an update is available.  Runs its own transaction.
 */
static bool
has_extension(void)
{
	IdemqPresence presence;

	/* A commit requests this check before it sends its invalidations. */
	InvalidateSystemCaches();
	idemq_begin_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	presence = idemq_presence();
	idemq_log_presence(presence, idemq_update_waits());
	PopActiveSnapshot();
	CommitTransactionCommand();
	return presence == IDEMQ_HERE;
}

/*
 * Returns whether the worker may continue; if not, notes why for the log.  Frees the worker slot if
 * the database does not have the extension.
 */
static bool
may_stay(void)
{
	if (!idemq_worker)
		idemq_log_worker_ends("The setting idemq.worker is off");
	else if (!idemq_worker_is_wanted())
		idemq_log_worker_ends("A session needs exclusive access to the database");
	if (!idemq_worker || !idemq_worker_is_wanted())
		return false;
	while (idemq_worker_is_asked(WORKER_ASKED_RECHECK, true))
	{
		if (!has_extension() && idemq_worker_found_nothing())
		{
			idemq_log_worker_ends("The database has no idemq extension that the worker can serve");
			return false;
		}
	}
	return true;
}

/*
 * Processes interrupts while this process is idle; the launcher and handlers also call it.  If the
 * process was asked to terminate, it exits without a FATAL error, which would be logged at every
 * shutdown.
 */
void
idemq_worker_idle_interrupts(void)
{
	/* A busy process does not notice the postmaster's death, and would block the next start. */
	if (!PostmasterIsAlive())
		proc_exit(1);
	if (ProcDiePending)
		proc_exit(1);
	QueryCancelPending = false; /* no query is running */
	CHECK_FOR_INTERRUPTS();
	/* An idle process must not fall far behind with catalog invalidations. */
	if (catchupInterruptPending)
		ProcessCatchupInterrupt();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Sleeps until a time (mono), or until the latch is set, and then processes interrupts.  The
 * launcher also calls it.
 */
void
idemq_worker_sleep(int64 until, uint32 wait_event)
{
	int64 now = idemq_mono_now();

	if (until > now)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (Min(until - now, LONGEST_SLEEP) + 999) / 1000, wait_event);
	ResetLatch(MyLatch);
	idemq_worker_idle_interrupts();
}

/* SIGTERM: notes for the log why this worker ends.  It may interrupt a statement. */
static void
worker_terminate(SIGNAL_ARGS)
{
	idemq_log_worker_ends("It was asked to stop, for example because the server is shutting down");
	die(COMPAT_SIGNAL_ARGS);
}

/* on_shmem_exit: wakes all waiters, so that they poll from now on. */
static void
wake_waiters(int code, Datum arg)
{
	idemq_wake_database(MyDatabaseId, false);
}

/* Entry point of the worker process; arg: the index of its worker slot. */
void
idemq_worker_main(Datum arg)
{
	/* These override the defaults of the server, the database and the role. */
	static const char *const settings[][2] = {
		{"default_transaction_read_only", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		COMPAT_TRANSACTION_TIMEOUT_OFF{"idle_in_transaction_session_timeout", "0"},
		/* If a task waits for a lock, the other tasks do not wait for long. */
		{"lock_timeout", IDEMQ_LOCK_PATIENCE_TEXT},
		{"session_replication_role", "origin"},
		{"row_security", "on"},
		/* Maintenance work that is lost in a crash is found in the rows and done again. */
		{"synchronous_commit", "off"},
		{"search_path", "pg_catalog, pg_temp"},
	};
	uint64 serial;
	Oid database;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, worker_terminate);
	BackgroundWorkerUnblockSignals();
	memcpy(&serial, MyBgworkerEntry->bgw_extra, sizeof(serial));
	/* Before we attach: callbacks run in reverse order, so the worker slot is free when this one runs. */
	on_shmem_exit(wake_waiters, (Datum) 0);
	/* Before we connect, so that a session that needs exclusive access finds us. */
	if (!idemq_worker_attach(DatumGetInt32(arg), serial, &database) || !idemq_worker_is_wanted())
		proc_exit(0);
	IDEMQ_STOP("worker_before_connect");
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	for (int i = 0; i < (int) lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	pgstat_report_appname("idemq worker");
	if (may_stay())
	{
		idemq_log_worker_started();
		idemq_tasks_prepare();
		for (;;)
		{
			int64 until;

			idemq_worker_awake();
			if (!may_stay())
				break;
			until = idemq_tasks_do();
			idemq_worker_asleep(until);
			/*
			 * Many commits may mark groups during this pause.  Only the first of them sends a
			 * signal, because then the latch is set.
			 */
			if (until - idemq_mono_now() > LINGER && idemq_promote_may_linger())
				(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LINGER / 1000,
								 compat_wait_event_worker());
			idemq_worker_sleep(until, compat_wait_event_worker());
		}
	}
	proc_exit(0);
}
