/*
 * worker/worker_log.c
 *		What a background worker writes to the server's log.  doc/reference/logs.md has a line for
 *		each message, with its level, its SQLSTATE and how often it may come.
 *
 *		the test clock is on					once per start of the server
 *		an update of the SQL objects waits		once per database and start of the server
 *		the SQL objects do not fit the library	once per start of a worker
 *		the worker has started, or exits		once per life of a worker; if lives are short, the
 *												pauses between them grow
 *												(shared/processes/worker_registry.c)
 *		recovery begins, or is completed		once per life of a worker, if leases were lost
 *		a table in shared memory was full		once per minute and table
 *												(shared/counts/server_counts.c)
 *		a task has failed						TASK_ERRORS per minute, then the number of others
 *		finished jobs could not be announced	once per minute
 *
 * A worker that does not find the extension in its database logs nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "worker/worker.h"

/* Maximum number of task errors logged per minute; a broken trigger may fail in every queue. */
#define TASK_ERRORS 100

static char database_name[NAMEDATALEN];
static const char *ends_why = NULL;

/* The current recovery: when it began (mono; 0: there is none), and the number of its queues. */
static int64 recovery_began = 0;
static int recovery_queues;

/* The current minute with failures of tasks: its beginning (mono), and the number of failures. */
static int64 errors_since = 0;
static int errors = 0;

/* before_shmem_exit: logs that this worker exits, and why. */
static void
log_end(int code, Datum arg)
{
	ereport(LOG, errmsg("idemq background worker for database \"%s\" exited", database_name),
			errdetail("%s.", ends_why != NULL ? ends_why
											  : "It failed with an error, or the server crashed"));
}

/* Logs that this worker has started; from now on, its exit is also logged. */
void
idemq_log_worker_started(void)
{
	MemoryContext context = CurrentMemoryContext;
	char *name;

	idemq_begin_transaction();
	name = get_database_name(MyDatabaseId);
	strlcpy(database_name, name == NULL ? "" : name, sizeof(database_name));
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	ereport(LOG, errmsg("idemq background worker for database \"%s\" started", database_name));
	before_shmem_exit(log_end, (Datum) 0);
}

/* Sets the reason for this worker's exit: a sentence without its period.  Signal handlers may call it. */
void
idemq_log_worker_ends(const char *why)
{
	ends_why = why;
}

/*
 * Logs whether the SQL objects of this database do not fit the library, or can be updated.  waits:
 * their version, if an update is available; otherwise NULL.
 */
void
idemq_log_presence(IdemqPresence presence, const char *waits)
{
	char *name = get_database_name(MyDatabaseId);

	if (name == NULL)
		return;
	if (presence == IDEMQ_OUTDATED)
		ereport(
			LOG, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg(
				"idemq is inactive in database \"%s\": its SQL objects (version %s) are older than "
				"the library (version %s)",
				name, waits, idemq_version),
			errhint("Run ALTER EXTENSION idemq UPDATE in this database."));
	else if (presence == IDEMQ_NEWER)
		ereport(
			LOG, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			errmsg(
				"idemq is inactive in database \"%s\": its SQL objects are newer than the library "
				"(version %s)",
				name, idemq_version),
			errhint(
				"Install the version of the library that matches the SQL objects, and restart the "
				"server."));
	else if (waits != NULL && idemq_worker_tells_of_update())
		ereport(
			LOG,
			errmsg(
				"an update of idemq is available in database \"%s\": its SQL objects have version "
				"%s, and the library has version %s",
				name, waits, idemq_version),
			errhint("Run ALTER EXTENSION idemq UPDATE in this database. Until then, everything "
					"continues to work as before."));
}

/* Logs, when the launcher first starts, that the test clock is on; a restarted launcher does not. */
void
idemq_log_test_clock(void)
{
	int64 ahead = idemq_clock_ahead();

	if (!idemq_test_clock || !idemq_clock_is_news())
		return;
	ereport(WARNING, errmsg("idemq.test_clock is on: this server is for tests only"),
			errdetail("idemq's clock is %.6f s ahead of the server's clock.",
					  (double) ahead / USECS_PER_SEC),
			errhint(
				"Discard this server after the tests. If it has real jobs, set idemq.test_clock to "
				"off, and restart the server."));
}

/* Returns the number of queues in which the search for lost leases is not over. */
static int
queues_recovering(void)
{
	QueueStateView view = {0};
	int count = 0;

	while (idemq_qstate_next(MyDatabaseId, &view))
		count += idemq_due_at(view.qstate, DUE_RECOVERY) != PG_INT64_MAX;
	return count;
}

/* Logs that the search for lost leases begins, if any queue needs it. */
void
idemq_log_recovery_begins(void)
{
	recovery_queues = queues_recovering();
	if (recovery_queues == 0)
		return;
	recovery_began = idemq_mono_now();
	ereport(
		LOG,
		errmsg("idemq is starting recovery of database \"%s\": %d queues", database_name,
			   recovery_queues),
		errdetail(
			"idemq searches for running jobs whose leases are missing from shared memory, usually "
			"because the server has been restarted."));
}

/* Logs that a table was full, if it was and this worker must log it (idemq_count_take_full). */
static void
log_full(ServerCount table, const char *what, TableUsage usage, const char *detail,
		 const char *hint)
{
	if (idemq_count_take_full(table))
		ereport(WARNING, errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				errmsg("idemq's shared memory is full: %d of %d %s are in use", usage.used,
					   usage.room, what),
				errdetail("%s Requests refused since the server started: %lld.", detail,
						  (long long) usage.refused),
				errhint("%s", hint));
}

/* Logs which tables in shared memory were full (log_full). */
static void
log_full_tables(void)
{
	TableUsage leases = idemq_leases_usage();
	TableUsage mine = idemq_leases_usage_mine();
	/* The database's own share may be full while the table is not. */
	bool own = mine.room - mine.used < leases.room - leases.used;

	log_full(COUNT_FULL_LEASES, own ? "leases of this database" : "leases", own ? mine : leases,
			 "The leases of further claims are kept only in the rows of the jobs, which is slower. "
			 "Queues with max_running have to wait.",
			 "Check idemq.running_jobs for a worker that holds many jobs. If there is none, raise "
			 "idemq.max_leases and restart the server, or raise idemq.max_leases_per_database.");
	log_full(
		COUNT_FULL_BUCKETS, "buckets", idemq_buckets_usage(),
		"Names passed to idemq.admit and groups with group_rate_limit share one bucket if they "
		"have none of their own, and therefore wait longer than necessary.",
		"Raise idemq.max_buckets, and restart the server.");
	log_full(COUNT_FULL_GROUPS, "groups", idemq_groups_usage(),
			 "idemq searches all groups of each affected queue for jobs to promote.",
			 "No job is lost. If this happens often, check in idemq.background_worker whether the "
			 "background worker is keeping up.");
	log_full(
		COUNT_FULL_GROUP_ROOM, "entries for group_max_unfinished", idemq_group_room_usage(),
		"Open transactions have enqueued into many groups of queues with group_max_unfinished. "
		"Enqueues into further groups raise error 53400.",
		"Enqueue into fewer groups in one transaction, or raise idemq.max_buckets and restart "
		"the server.");
	log_full(
		COUNT_FULL_QUEUES, "queues", idemq_qstates_usage(),
		"Calls for a queue without an entry raise error 53400. The jobs of such a queue are not "
		"affected.",
		"Raise idemq.max_queues, and restart the server.");
}

/*
 * Logs the current error, with which a task has failed.  After TASK_ERRORS in a minute, only counts
 * it.  Call it in error recovery.
 */
void
idemq_log_task_error(void)
{
	if (errors == 0)
		errors_since = idemq_mono_now();
	if (errors++ < TASK_ERRORS)
		EmitErrorReport();
}

/*
 * Logs the current error, with which a task that is not postponed (Task.drops) has failed, at most
 * once per minute.  Call it in error recovery.
 */
void
idemq_log_refusal(void)
{
	static int64 logged_at = 0; /* mono; 0: never */
	int64 now = idemq_mono_now();

	if (logged_at != 0 && now - logged_at < USECS_PER_MINUTE)
		return;
	logged_at = now;
	EmitErrorReport();
}

/*
 * Called between two passes of the tasks: logs that recovery is complete, which tables were full,
 * and how many errors of the last minute were only counted.
 */
void
idemq_log_news(void)
{
	int64 now = idemq_mono_now();

	if (recovery_began > 0 && queues_recovering() == 0)
	{
		ereport(
			LOG,
			errmsg(
				"idemq completed recovery of database \"%s\": %d queues, %d running jobs, %lld ms",
				database_name, recovery_queues, idemq_leases_usage_mine().used,
				(long long) ((now - recovery_began) / 1000)));
		recovery_began = 0;
	}
	log_full_tables();
	if (errors == 0 || now - errors_since < USECS_PER_MINUTE)
		return;
	if (errors > TASK_ERRORS)
		ereport(LOG,
				errmsg("idemq background worker for database \"%s\" encountered %d more errors",
					   database_name, errors - TASK_ERRORS),
				errdetail("At most %d errors per minute are logged.", TASK_ERRORS));
	errors = 0;
}
