/*
 * base/settings.c
 *		The settings idemq.*.  The value of idemq.x is in the variable idemq_x.
 */
#include "postgres.h"

#include "utils/guc.h"

#include "base/base.h"

int idemq_max_queues = 1280;
int idemq_max_leases = 65536;
int idemq_max_leases_per_database = -1;
int idemq_reserved_leases = -1;
int idemq_max_buckets = 4096;
bool idemq_worker = true;
bool idemq_notify = true;
bool idemq_history = true;
bool idemq_test_clock = false;
int idemq_attach_grace = 30000;
int idemq_notify_delay = 10;
int idemq_audit_retention = 129600;
char *idemq_actor = NULL;
char *idemq_process = NULL;
int idemq_purge_interval = 10000;
int idemq_max_handler_workers = 4;
int idemq_max_document = 16384;

/* Only SQL reads these. */
static int max_schedules_per_role = 100;
static char *version;

/* Defines an integer setting.  Its default is the present value of its variable. */
static void
define_int(const char *name, const char *what, const char *more, int *variable, int least, int most,
		   GucContext context, int flags)
{
	DefineCustomIntVariable(name, what, more, variable, *variable, least, most, context, flags,
							NULL, NULL, NULL);
}

/* Defines idemq's settings; called once, from shared_preload_libraries. */
void
idemq_settings_define(void)
{
	/* doc/operations/sizing.md says how much memory the sizes take. */
	define_int(
		"idemq.max_queues", "Sets the maximum number of queues in all databases of the server.",
		"If all entries are in use, idemq.create_queue raises error 53400, as does any call that "
		"uses a restored queue without an entry. The default uses 21 MB of shared memory.",
		&idemq_max_queues, 1, 100000, PGC_POSTMASTER, 0);
	define_int("idemq.max_leases",
			   "Sets the maximum number of running jobs whose leases are kept in shared memory.",
			   "Additional jobs can run, but their leases are kept only in their rows.",
			   &idemq_max_leases, 1, 10000000, PGC_POSTMASTER, 0);
	define_int(
		"idemq.max_leases_per_database",
		"Sets the maximum number of leases in shared memory that one database can use.",
		"-1 means three quarters of idemq.max_leases. Additional jobs can run, but their leases "
		"are kept only in their rows.",
		&idemq_max_leases_per_database, -1, 10000000, PGC_SIGHUP, 0);
	define_int(
		"idemq.reserved_leases",
		"Sets the number of leases in shared memory that are reserved for queues with max_running.",
		"-1 means one eighth of idemq.max_leases. The same fraction of each database's share is "
		"reserved.",
		&idemq_reserved_leases, -1, 10000000, PGC_SIGHUP, 0);
	define_int(
		"idemq.max_buckets",
		"Sets the maximum number of buckets used by idemq.admit and group_rate_limit, and the maximum "
		"number of groups with group_max_unfinished into which open transactions have enqueued.",
		"The groups of one queue, or the names in one database, can use at most half of them. "
		"Names and groups without their own bucket share one bucket and are counted in "
		"idemq.memory. An enqueue into a group with group_max_unfinished raises error 53400 if there "
		"is no entry for the group.",
		&idemq_max_buckets, 1, 10000000, PGC_POSTMASTER, 0);
	/* The scripts compare it with their version (sql/parts/00_guard.sql). */
	DefineCustomStringVariable("idemq.version", "Shows the version of the loaded library.",
							   "The version of a database's SQL objects is in pg_extension.",
							   &version, idemq_version, PGC_INTERNAL, 0, NULL, NULL, NULL);
	define_int(
		"idemq.attach_grace",
		"Sets how long an attached lease remains valid after the server on which it was claimed "
		"has stopped.",
		"This gives the worker time to reconnect after a restart or a promotion. The time never "
		"exceeds the length of the lease.",
		&idemq_attach_grace, 1, 86400000, PGC_SIGHUP, GUC_UNIT_MS);
	DefineCustomBoolVariable(
		"idemq.worker", "Runs a background worker in each database that has idemq.",
		"Without a background worker, expired leases are reclaimed only when a session claims "
		"jobs, and idemq sends no notifications.",
		&idemq_worker, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.notify", "Sends notifications about ready and finished jobs.",
							 NULL, &idemq_notify, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable(
		"idemq.history", "Records statistics about each queue in idemq.history.",
		"One week of history for one queue takes at most 2 MB. Existing rows are kept when the "
		"setting is turned off.",
		&idemq_history, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.test_clock",
							 "Allows idemq.advance_clock to advance idemq's clock.",
							 "Use this only on test servers that are discarded after the tests.",
							 &idemq_test_clock, false, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	define_int("idemq.notify_delay",
			   "Sets the time during which events are collected into one notification.", NULL,
			   &idemq_notify_delay, 0, 60000, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("idemq.audit_retention",
			   "Sets the minimum time for which rows in idemq.audit are kept.",
			   "-1 keeps rows indefinitely.", &idemq_audit_retention, -1, PG_INT32_MAX, PGC_SIGHUP,
			   GUC_UNIT_MIN);
	DefineCustomStringVariable("idemq.actor",
							   "Sets the name of the end user on whose behalf the session acts.",
							   "idemq records the name in idemq.audit, but does not verify it.",
							   &idemq_actor, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable(
		"idemq.process", "Identifies the worker process that uses the session.",
		"If a job that the process has claimed is cancelled or taken back, idemq ends the wait in "
		"which another session of the process and the same role is sleeping.",
		&idemq_process, "", PGC_USERSET, 0, NULL, NULL, NULL);
	define_int("idemq.purge_interval",
			   "Sets the time between searches for jobs whose retention period has passed.",
			   "0 or -1 prevents the background worker from deleting jobs.", &idemq_purge_interval,
			   -1, 86400000, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("idemq.max_schedules_per_role",
			   "Sets the maximum number of schedules that one role can have in a database.",
			   "-1 means no limit. The limit does not apply to superusers or the owner of idemq.",
			   &max_schedules_per_role, -1, PG_INT32_MAX, PGC_SIGHUP, 0);
	define_int(
		"idemq.max_handler_workers",
		"Sets the maximum number of processes that run handlers, in all databases together.",
		"0 means that handlers do not run. These processes count against max_worker_processes.",
		&idemq_max_handler_workers, 0, 262143, PGC_SIGHUP, 0);
	define_int(
		"idemq.max_document",
		"Sets the maximum length of the text form of a payload, headers, checkpoint, result, "
		"details or error.",
		"Longer values raise error 54000. Values that are already stored are not affected.",
		&idemq_max_document, 64, IDEMQ_MAX_DOCUMENT_KB, PGC_SIGHUP, GUC_UNIT_KB);
	MarkGUCPrefixReserved("idemq");
}

/*
 * Returns the number of queue states: ShmemPart.count of arrays with an element for each of them.
 */
int
idemq_queue_count(void)
{
	return idemq_max_queues;
}

/* Returns the number of sessions; the count callback of arrays with one element per session. */
int
idemq_session_count(void)
{
	return MaxBackends;
}
