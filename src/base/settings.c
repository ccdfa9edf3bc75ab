/*
 * base/settings.c
 *		Settings.  idemq.x is the variable idemq_x.
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
int idemq_purge_interval = 10000;
int idemq_max_handler_workers = 4;
int idemq_max_document = 16384;

/* Read by SQL alone. */
static int max_schedules_per_role = 100;
static char *version;

/* Defines a setting, whose variable has its default. */
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
	/* Sizes in shared memory, and shares of them. */
	/* The default is the largest round number that costs 16 MB: doc/operations/sizing.md. */
	define_int(
		"idemq.max_queues", "Maximum number of queues in all databases of the server.",
		"When the table is full, create_queue raises 53400, and so does any use of a restored "
		"queue that has no entry. The default uses 16 MB.",
		&idemq_max_queues, 1, 100000, PGC_POSTMASTER, 0);
	define_int("idemq.max_leases",
			   "Maximum number of running jobs whose leases are kept in shared memory.",
			   "Further jobs can run, but their leases are kept only in the row.",
			   &idemq_max_leases, 1, 10000000, PGC_POSTMASTER, 0);
	define_int(
		"idemq.max_leases_per_database",
		"Maximum number of leases, out of idemq.max_leases, that one database may use.",
		"-1 means three quarters. Further jobs can run, but their leases are kept only in the row.",
		&idemq_max_leases_per_database, -1, 10000000, PGC_SIGHUP, 0);
	define_int(
		"idemq.reserved_leases",
		"Number of leases, out of idemq.max_leases, that are reserved for queues with max_running.",
		"-1 means one eighth. The same fraction of each database's share is reserved.",
		&idemq_reserved_leases, -1, 10000000, PGC_SIGHUP, 0);
	define_int(
		"idemq.max_buckets",
		"Maximum number of buckets in use by idemq.admit and group_rate_limit.",
		"The groups of one queue, or the names of one database, use at most half. Names and groups "
		"without a bucket of their own share one, and idemq.memory counts them.",
		&idemq_max_buckets, 1, 10000000, PGC_POSTMASTER, 0);
	/* The guard of the scripts asks for it (sql/parts/00_guard.sql). */
	DefineCustomStringVariable("idemq.version", "Shows the version of the loaded library.",
							   "The version of a database's SQL objects is in pg_extension.",
							   &version, idemq_version, PGC_INTERNAL, 0, NULL, NULL, NULL);
	define_int(
		"idemq.attach_grace",
		"Sets how long an attached lease remains valid after the server it was claimed on has "
		"ended.",
		"This gives the worker time to reconnect after a restart or a promotion. The limit is the "
		"length of the lease.",
		&idemq_attach_grace, 1, 86400000, PGC_SIGHUP, GUC_UNIT_MS);
	DefineCustomBoolVariable(
		"idemq.worker", "Runs a background worker in each database that has idemq.",
		"Without a background worker, claims take back expired leases, and idemq sends no "
		"notifications.",
		&idemq_worker, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.notify", "Sends notifications on channel idemq_<queue>.", NULL,
							 &idemq_notify, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable(
		"idemq.history", "Records figures about each queue in idemq.history.",
		"One week of one queue takes at most 2 MB. Switching the setting off keeps the existing "
		"rows.",
		&idemq_history, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.test_clock",
							 "Allows idemq.advance_clock to move idemq's clock ahead.",
							 "Use this only on test servers that are discarded after the tests.",
							 &idemq_test_clock, false, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	define_int("idemq.notify_delay",
			   "Sets the time during which events are collected into one notification.", NULL,
			   &idemq_notify_delay, 0, 60000, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("idemq.audit_retention",
			   "Sets the minimum time for which rows of idemq.audit are kept.",
			   "-1 keeps rows indefinitely.", &idemq_audit_retention, -1, PG_INT32_MAX, PGC_SIGHUP,
			   GUC_UNIT_MIN);
	DefineCustomStringVariable(
		"idemq.actor",
		"Names the end user for whom the session acts. The name is recorded in idemq.audit.",
		"idemq does not verify the name.", &idemq_actor, "", PGC_USERSET, 0, NULL, NULL, NULL);
	define_int(
		"idemq.purge_interval",
		"Sets the time between two searches for jobs that have passed their retention period.",
		"0 or -1 prevents the background worker from deleting jobs.", &idemq_purge_interval, -1,
		86400000, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("idemq.max_schedules_per_role",
			   "Maximum number of schedules that one role may have in a database.",
			   "-1 means no limit. The owner of idemq and superusers have no limit.",
			   &max_schedules_per_role, -1, PG_INT32_MAX, PGC_SIGHUP, 0);
	define_int("idemq.max_handler_workers",
			   "Maximum number of processes that run handlers in all databases.",
			   "0 means none. These processes count against max_worker_processes.",
			   &idemq_max_handler_workers, 0, 262143, PGC_SIGHUP, 0);
	define_int(
		"idemq.max_document",
		"Maximum length of a payload, headers, checkpoint, result, details or error, as text.",
		"A longer value raises 54000. Values that are already stored are not affected.",
		&idemq_max_document, 64, IDEMQ_MAX_DOCUMENT_KB, PGC_SIGHUP, GUC_UNIT_KB);
	MarkGUCPrefixReserved("idemq");
}

/* Returns the number of queue states, for parts of shared memory with an element for each. */
int
idemq_queue_count(void)
{
	return idemq_max_queues;
}
