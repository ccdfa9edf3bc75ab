/*
 * worker/launcher.c
 *		The process that keeps a worker in each database with idemq.
 *
 * The launcher is not connected to a database.  When it starts, or when idemq.worker is turned on,
 * it starts a worker in each database, a few at a time; a worker that does not find the extension
 * exits.  Later, sessions request workers (shared/processes/worker_registry.c): when CREATE
 * EXTENSION or CREATE DATABASE commits, and when a session first uses idemq.  If a worker exits, it
 * is started again after half a second, or after a longer time if it keeps exiting.
 *
 * The postmaster starts the launcher when recovery ends.  So a standby has neither a launcher nor
 * workers until it is promoted.  During a binary upgrade there is no launcher.  Template databases
 * are not visited; a template gets a worker when a session uses idemq in it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "base/compat.h"
#include "shared/processes/processes.h"
#include "worker/worker.h"

/* Maximum number of workers that are starting at the same time, when all databases are visited. */
#define MAX_STARTING 2
/* A worker that has not attached to its slot by then has failed to start. */
#define START_PATIENCE (10 * USECS_PER_SEC)
/* Delay before another attempt to start a worker. */
#define START_RETRY USECS_PER_SEC
/* Minimum time between two warnings that all worker processes are in use. */
#define COMPLAIN_INTERVAL USECS_PER_HOUR

/* The last start of a worker, at the index of its worker slot. */
typedef struct Start
{
	BackgroundWorkerHandle *handle;
	int64 asked_at; /* stopwatch time */
} Start;

pg_noreturn PGDLLEXPORT void idemq_launcher_main(Datum arg);

static Start *starts;
static List *to_visit = NIL;	 /* OIDs of databases in which a worker must still be started */
static int64 next_complaint = 0; /* stopwatch time */

/*
 * Returns the OIDs of all databases that accept connections and are not templates.  If only is
 * valid, returns only that database, which may be a template, or an empty list if it does not exist.
 * Scans pg_database instead of using the cache, because the commit of a DROP DATABASE wakes the
 * launcher before it sends its invalidations.
 */
static List *
list_databases(Oid only)
{
	List *databases = NIL;
	MemoryContext context = CurrentMemoryContext;
	Relation rel;
	SysScanDesc scan;
	HeapTuple tuple;

	idemq_begin_transaction();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;

		if (!database->datallowconn || compat_database_is_invalid(database) ||
			(OidIsValid(only) ? database->oid != only : database->datistemplate))
			continue;
		old = MemoryContextSwitchTo(context);
		databases = lappend_oid(databases, database->oid);
		MemoryContextSwitchTo(old);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return databases;
}

/*
 * Asks the postmaster to start the worker of a worker slot.  Notes the start before it looks up the
 * database: a DROP DATABASE that commits after the lookup finds the note, and withdraws it.
 */
static void
start_worker(WorkerSlotCopy *copy)
{
	BackgroundWorker worker = idemq_process_of_ours("idemq_worker_main", "idemq worker");
	Start *start = &starts[copy->index];
	MemoryContext old;
	bool registered;

	if (!idemq_worker_start_noted(copy))
		return;
	if (list_databases(copy->database) == NIL)
	{
		idemq_worker_forget(copy);
		return;
	}
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = Int32GetDatum(copy->index);
	memcpy(worker.bgw_extra, &copy->serial, sizeof(copy->serial));
	start->asked_at = idemq_stopwatch();
	if (start->handle != NULL)
		pfree(start->handle);
	start->handle = NULL;
	old = MemoryContextSwitchTo(TopMemoryContext); /* later calls of start_workers use the handle */
	IDEMQ_STOP("launcher_before_start");
	registered = RegisterDynamicBackgroundWorker(&worker, &start->handle);
	MemoryContextSwitchTo(old);
	if (registered)
		return;
	idemq_worker_start_failed(copy->index, START_RETRY);
	if (start->asked_at < next_complaint)
		return;
	next_complaint = start->asked_at + COMPLAIN_INTERVAL;
	ereport(
		WARNING, errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
		errmsg("idemq cannot start a background worker: all %d worker processes "
			   "(max_worker_processes) are in use",
			   max_worker_processes),
		errdetail(
			"Until a background worker starts, expired leases are reclaimed only when a session "
			"claims jobs, and databases without a worker send no notifications."),
		errhint(
			"Raise max_worker_processes, and restart the server. idemq needs one process for its "
			"launcher and one for each database that has the extension."));
}

/*
 * Starts the workers that are wanted, if their time has come, and requests workers for the next
 * databases to visit.  Returns when (mono) it must be called again.
 */
static int64
start_workers(void)
{
	WorkerSlotCopy *copies = palloc(max_worker_processes * sizeof(WorkerSlotCopy));
	int count = idemq_workers_list(true, copies, max_worker_processes);
	int64 next = PG_INT64_MAX;
	int starting = 0;

	/* A worker may exit before it attaches, or may never start. */
	for (int i = 0; i < count; i++)
	{
		Start *start = &starts[copies[i].index];
		pid_t pid;
		bool ended = start->handle != NULL &&
					 GetBackgroundWorkerPid(start->handle, &pid) == BGWH_STOPPED;

		if (ended || idemq_stopwatch() > start->asked_at + START_PATIENCE)
			idemq_worker_start_failed(copies[i].index, START_RETRY);
		else
			starting++;
	}
	if (starting > 0)
		next = idemq_mono_now() + START_RETRY;
	while (to_visit != NIL && starting < MAX_STARTING)
	{
		if (!idemq_worker_want(linitial_oid(to_visit)))
			break; /* the registry is full until a worker frees its slot */
		to_visit = list_delete_first(to_visit);
		starting++;
	}
	count = idemq_workers_list(false, copies, max_worker_processes);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (copies[i].not_before <= idemq_mono_now())
		{
			start_worker(&copies[i]);
			next = Min(next, idemq_mono_now() + START_RETRY);
		}
		else
			next = Min(next, copies[i].not_before);
	}
	if (to_visit != NIL)
		next = Min(next, idemq_mono_now() + START_RETRY);
	pfree(copies);
	return next;
}

/* Entry point of the launcher process. */
void
idemq_launcher_main(Datum arg)
{
	MemoryContext context;
	bool was_on = false;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, PG_SIG_IGN);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("idemq launcher");
	idemq_log_test_clock();
	idemq_workers_attach_launcher();
	starts = MemoryContextAllocZero(TopMemoryContext, max_worker_processes * sizeof(Start));
	context = AllocSetContextCreate(TopMemoryContext, "idemq launcher", ALLOCSET_DEFAULT_SIZES);
	pgstat_report_activity(STATE_IDLE, "");

	for (;;)
	{
		int64 next = PG_INT64_MAX;

		if (idemq_worker && !was_on)
		{
			MemoryContextSwitchTo(TopMemoryContext);
			list_free(to_visit);
			to_visit = list_databases(InvalidOid);
		}
		was_on = idemq_worker;
		MemoryContextSwitchTo(context);
		if (idemq_worker)
			next = start_workers();
		MemoryContextReset(context);
		idemq_worker_sleep(next, compat_wait_event_launcher());
	}
}

/* Registers the launcher; called once, from _PG_init. */
void
idemq_launcher_install(void)
{
	BackgroundWorker worker = idemq_process_of_ours("idemq_launcher_main", "idemq launcher");

	if (IsBinaryUpgrade)
		return;
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}
