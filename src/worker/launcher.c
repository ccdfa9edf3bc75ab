/*
 * worker/launcher.c
 *		The process that keeps a worker in each database with idemq.
 *
 * It belongs to no database.  When it starts, or idemq.worker is set on, it has each
 * database visited, a few at a time, by a worker, which stays if it finds the extension.
 * From then on sessions say where a worker is wanted (shared/processes/worker_registry.c): at the
 * commit of CREATE EXTENSION and CREATE DATABASE, and at the first use of idemq in a session.
 * A worker that ended is started again after half a second, later if it keeps ending.
 *
 * The postmaster starts it when recovery is over: a standby has none until its
 * promotion, and so no worker.  Binary upgrade has none.  Template databases are not
 * visited; one whose idemq is used gets its worker like any other.
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

/* Databases visited at a time. */
#define MAX_STARTING 2
/* A worker that has not attached by then has failed, or never came. */
#define START_PATIENCE (10 * USECS_PER_SEC)
/* After that, a worker that could not be started is tried again. */
#define START_RETRY USECS_PER_SEC
/* A complaint is repeated that often. */
#define COMPLAIN_INTERVAL USECS_PER_HOUR

/* A worker that was asked for and has not attached yet; at the index of its worker slot. */
typedef struct Start
{
	BackgroundWorkerHandle *handle;
	int64 asked_at; /* idemq_stopwatch() */
} Start;

pg_noreturn PGDLLEXPORT void idemq_launcher_main(Datum arg);

static Start *starts;
static List *to_visit = NIL;	 /* of database OIDs */
static int64 next_complaint = 0; /* likewise */

/*
 * Lists the databases in which a worker could find the extension, without templates; or only the
 * given one, which may be a template.  It scans pg_database instead of using the cache, because the
 * commit of a DROP DATABASE wakes the launcher before it sends its invalidations.
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
 * Asks the postmaster for a worker for a worker slot.  The start is noted first, and
 * the database is looked up after that: a later DROP DATABASE takes the note back.
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
	old = MemoryContextSwitchTo(TopMemoryContext); /* the handle is for later passes */
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
 * Starts the workers that are wanted and due, and has the next database visited.
 * Returns when (mono) there is something to do again.
 */
static int64
start_workers(void)
{
	WorkerSlotCopy *copies = palloc(max_worker_processes * sizeof(WorkerSlotCopy));
	int count = idemq_workers_list(true, copies, max_worker_processes);
	int64 next = PG_INT64_MAX;
	int starting = 0;

	/* A worker that ended before it attached, or never came, is not waited for. */
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
			break; /* the registry is full until a worker finds nothing and frees its slot */
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

		/* Has all databases visited. */
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
