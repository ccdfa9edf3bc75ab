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
	define_int("idemq.max_queues", "Queues of all databases of the server.",
			   "Beyond it create_queue raises 53400, and so does the use of a queue that was "
			   "restored. The default costs 16 MB.",
			   &idemq_max_queues, 1, 100000, PGC_POSTMASTER, 0);
	define_int("idemq.max_leases", "Jobs in flight whose lease is kept in shared memory.",
			   "More jobs in flight work, with their leases on the row alone.", &idemq_max_leases,
			   1, 10000000, PGC_POSTMASTER, 0);
	define_int("idemq.max_leases_per_database",
			   "Of idemq.max_leases, how many the jobs of one database may use.",
			   "-1: three quarters. More jobs in flight work, with their leases on the row alone.",
			   &idemq_max_leases_per_database, -1, 10000000, PGC_SIGHUP, 0);
	define_int("idemq.reserved_leases",
			   "Of idemq.max_leases, how many only queues with max_running may use.",
			   "-1: one eighth. The same part of each database's is reserved.",
			   &idemq_reserved_leases, -1, 10000000, PGC_SIGHUP, 0);
	define_int("idemq.max_buckets",
			   "Buckets of idemq.admit and of group_rate_limit that are in use at a time.",
			   "A queue's groups, or a database's names, have half at most; those that find none "
			   "share one, which idemq.memory counts.",
			   &idemq_max_buckets, 1, 10000000, PGC_POSTMASTER, 0);
	/* The guard of the scripts asks for it (sql/parts/00_guard.sql). */
	DefineCustomStringVariable("idemq.version", "The version of the library in memory.",
							   "Of the SQL objects of a database: pg_extension.", &version,
							   idemq_version, PGC_INTERNAL, 0, NULL, NULL, NULL);
	define_int("idemq.attach_grace",
			   "How long an attached lease outlives the server that it was claimed on.",
			   "After a restart or a promotion, so that its worker can connect again; at most the "
			   "length of the lease.",
			   &idemq_attach_grace, 1, 86400000, PGC_SIGHUP, GUC_UNIT_MS);
	DefineCustomBoolVariable("idemq.worker",
							 "Runs a background worker in each database with idemq.",
							 "Without it, claims take back expired leases, and nothing is "
							 "notified.",
							 &idemq_worker, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.notify", "Has the background worker NOTIFY on idemq_<queue>.",
							 NULL, &idemq_notify, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.history", "Has the background worker write idemq.history.",
							 "A queue's week takes 2 MB at most; off, what is written stays.",
							 &idemq_history, true, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.test_clock",
							 "Allows idemq.advance_clock to move idemq's clock ahead.",
							 "Only for test servers, which are discarded after the tests.",
							 &idemq_test_clock, false, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	define_int("idemq.notify_delay", "Time for which events are gathered into one NOTIFY.", NULL,
			   &idemq_notify_delay, 0, 60000, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("idemq.audit_retention", "How long rows of idemq.audit are kept.",
			   "-1 keeps them for ever.", &idemq_audit_retention, -1, PG_INT32_MAX, PGC_SIGHUP,
			   GUC_UNIT_MIN);
	DefineCustomStringVariable("idemq.actor", "For whom the session acts, for idemq.audit.",
							   "What a session says of it is not checked.", &idemq_actor, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	define_int("idemq.purge_interval", "Time between two searches for what is past its retention.",
			   "0 or -1 turns off deleting by the background worker.", &idemq_purge_interval, -1,
			   86400000, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("idemq.max_schedules_per_role", "Schedules that a role may have made in a database.",
			   "-1: no limit. The owner of idemq and superusers have none.",
			   &max_schedules_per_role, -1, PG_INT32_MAX, PGC_SIGHUP, 0);
	define_int("idemq.max_handler_workers",
			   "Processes that run handlers, of all databases together.",
			   "0: none. They come out of max_worker_processes.", &idemq_max_handler_workers, 0,
			   262143, PGC_SIGHUP, 0);
	define_int("idemq.max_document",
			   "How long a payload, headers, checkpoint, result, details or error may be, as text.",
			   "A longer one raises 54000; those that are stored stay as they are.",
			   &idemq_max_document, 64, IDEMQ_MAX_DOCUMENT_KB, PGC_SIGHUP, GUC_UNIT_KB);
	MarkGUCPrefixReserved("idemq");
}

/* Returns the number of queue states, for parts of shared memory with an element for each. */
int
idemq_queue_count(void)
{
	return idemq_max_queues;
}
