/*
 * worker/worker.c
 *		The background worker of one database: it makes things prompt.
 *
 * It does what is due (worker/tasks.c), says until when it sleeps, and sleeps on its
 * latch.  Sessions wake it for what is due earlier (shared/processes/worker_call.c says why no
 * wake-up is lost).  Nothing depends on it: without it, claims take back expired leases
 * and find what came due.
 *
 * It ends when the extension is gone, when a session needs the database for
 * itself, and when idemq.worker is off; the launcher starts it again.
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

/* The longest sleep: a day. */
#define LONGEST_SLEEP USECS_PER_DAY
/* Microseconds of a pause before heads are promoted again, if it holds up nobody. */
#define LINGER INT64CONST(1000)

/*
 * Returns whether this database has SQL objects that the library works with (base/version.c), and
 * logs what they lack.  It changes nothing: the update is the DBA's.
 */
static bool
has_extension(void)
{
	IdemqPresence presence;

	/* A commit asks for this check before its invalidations are sent. */
	InvalidateSystemCaches();
	idemq_begin_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	presence = idemq_presence();
	idemq_log_presence(presence, idemq_update_waits());
	PopActiveSnapshot();
	CommitTransactionCommand();
	return presence == IDEMQ_HERE;
}

/* Returns whether to go on; frees the worker slot when there is nothing to do here. */
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
 * Takes what came for this process between two pieces of work; for the launcher and handlers
 * too.  A process that is asked to end does so without a FATAL, which every shutdown would log.
 */
void
idemq_worker_idle_interrupts(void)
{
	/* A process that never waits would not notice, and the server cannot start while it is there. */
	if (!PostmasterIsAlive())
		proc_exit(1);
	if (ProcDiePending)
		proc_exit(1);
	QueryCancelPending = false; /* there is nothing to cancel */
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

/* Sleeps until a time (mono), or until a session has something earlier; for the launcher too. */
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

/* SIGTERM: notes why this worker ends, which may happen in the middle of a statement. */
static void
worker_terminate(SIGNAL_ARGS)
{
	idemq_log_worker_ends("It was asked to stop, for example because the server is shutting down");
	die(COMPAT_SIGNAL_ARGS);
}

/* Wakes the waiters: without this worker they check by themselves from now on. */
static void
wake_waiters(int code, Datum arg)
{
	idemq_wake_database(MyDatabaseId, false);
}

/* Main function of a worker; arg: the index of its worker slot. */
void
idemq_worker_main(Datum arg)
{
	/* What a server's or database's defaults must not change for us. */
	static const char *const settings[][2] = {
		{"default_transaction_read_only", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		COMPAT_TRANSACTION_TIMEOUT_OFF{"idle_in_transaction_session_timeout", "0"},
		/* A lock that a task waits for holds up that task, not the others. */
		{"lock_timeout", IDEMQ_LOCK_PATIENCE_TEXT},
		{"session_replication_role", "origin"},
		{"row_security", "on"},
		/* What is lost in a crash is found in the rows and done again. */
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
	/* Before we connect: a session that needs the database for itself is to find us. */
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
			/* After the first call meanwhile, the others find the latch set, and send no signal. */
			if (until - idemq_mono_now() > LINGER && idemq_promote_may_linger())
				(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LINGER / 1000,
								 compat_wait_event_worker());
			idemq_worker_sleep(until, compat_wait_event_worker());
		}
	}
	proc_exit(0);
}
