/*
 * observe/check.c
 *		SQL function check: the audit of every invariant, while others work.
 *
 * A finding is a fact, never a race.  What changes in more than one step looks
 * broken in between, so each part takes suspects first, and reports those that a
 * second look proves; the proofs stand in the parts.  They have one thing in
 * common, idemq_check_settled: whoever had made something visible before it was
 * called, and owed shared memory the rest, has paid when it returns true.  There
 * are two kinds of debtors:
 *
 *   - a transaction, or subtransaction, that has ended for others to see, and whose
 *     callbacks have not run: it still has its locks.  Its lock on its own id is
 *     there while the id is no longer in progress; and its lock on idemq.jobs is
 *     there while the session shows no virtual transaction (virtualtransaction n/0
 *     in pg_locks).
 *   - a session in the midst of a change that shared/slots.c counts
 *     (idemq_slots_begin_change).
 *
 * Where somebody stays in that state, stopped by a debugger, nothing is reported
 * but a warning that says so.
 *
 * The caller's own transaction must not have changed jobs: its callbacks are yet
 * to come.  No detail shows a payload, a key or an error text.
 */
#include "postgres.h"

#include <stdarg.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/builtins.h"

#include "observe/check.h"
#include "observe/check_groups.h"
#include "observe/check_leases.h"
#include "observe/check_limits.h"
#include "observe/check_ready.h"
#include "observe/check_rows.h"
#include "schedule/pg_cron.h"
#include "table/jobs.h"
#include "txn/at_end.h"
#include "shared/lease_table.h"
#include "shared/slots.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/oids.h"
#include "base/settings.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_check);

/* How long one call waits for others' callbacks, in all. */
#define PATIENCE (10 * USECS_PER_SEC)

static SqlStatement all_queues = {.text = "SELECT queue_id FROM idemq.queues ORDER BY queue_id"};

static SqlStatement ending_locks =
	{.text = "SELECT transactionid, pid FROM pg_catalog.pg_locks WHERE granted AND "
			 "(locktype = 'transactionid' AND mode = 'ExclusiveLock' OR "
			 "locktype = 'relation' AND relation IN ($1, $2) AND mode = 'RowExclusiveLock' "
			 "AND database = (SELECT oid FROM pg_catalog.pg_database "
			 "WHERE datname = pg_catalog.current_database()) "
			 "AND virtualtransaction LIKE '%/0')",
	 .nargs = 2,
	 .types = {OIDOID, OIDOID}};

static SqlStatement queue_writers =
	{.text = "SELECT FROM pg_catalog.pg_locks WHERE granted AND locktype = 'relation' "
			 "AND relation = $1 AND mode = 'RowExclusiveLock' "
			 "AND database = (SELECT oid FROM pg_catalog.pg_database "
			 "WHERE datname = pg_catalog.current_database())",
	 .nargs = 1,
	 .types = {OIDOID}};

static SqlStatement lost_dead_queues = {
	.text =
		"SELECT name, dead_queue FROM idemq.queues q WHERE dead_queue IS NOT NULL "
		"AND NOT EXISTS (SELECT FROM idemq.queues d WHERE d.name = q.dead_queue) ORDER BY name"};

/* Adds a row to the answer. */
void
idemq_check_report(CheckCall *call, const char *severity, const char *invariant, const char *format,
				   ...)
{
	StringInfoData detail;
	Datum values[3];
	bool nulls[3] = {false, false, false};

	initStringInfo(&detail);
	for (;;)
	{
		va_list args;
		int needed;

		va_start(args, format);
		needed = appendStringInfoVA(&detail, format, args);
		va_end(args);
		if (needed == 0)
			break;
		enlargeStringInfo(&detail, needed);
	}
	values[0] = CStringGetTextDatum(severity);
	values[1] = CStringGetTextDatum(invariant);
	values[2] = CStringGetTextDatum(detail.data);
	tuplestore_putvalues(call->store, call->desc, values, nulls);
}

/* Adds a job to a list. */
void
idemq_id_list_add(IdList *list, int64 id)
{
	if (list->count < CHECK_NAMED)
		list->ids[list->count] = id;
	list->count++;
}

/* Reports jobs, unless there are none; what: what is wrong with each. */
void
idemq_check_report_jobs(CheckCall *call, const char *severity, const char *invariant,
						const IdList *jobs, const char *what)
{
	StringInfoData ids;
	int named = (int) Min(jobs->count, CHECK_NAMED);

	if (jobs->count == 0)
		return;
	initStringInfo(&ids);
	for (int i = 0; i < named; i++)
		appendStringInfo(&ids, "%s%lld", i > 0 ? ", " : "", (long long) jobs->ids[i]);
	idemq_check_report(call, severity, invariant, "%s: %lld job%s (%s%s)", what,
					   (long long) jobs->count, jobs->count == 1 ? "" : "s", ids.data,
					   jobs->count > named ? ", ..." : "");
}

/* A transaction, by its id, or a session, by its process, whose callbacks may be to come. */
typedef struct Debtor
{
	bool is_session;
	uint32 number;
} Debtor;

static bool
is_among(const Debtor *debtors, int count, Debtor wanted)
{
	for (int i = 0; i < count; i++)
	{
		if (debtors[i].is_session == wanted.is_session && debtors[i].number == wanted.number)
			return true;
	}
	return false;
}

/*
 * Reads the debtors that locks show: at first all of them, to an array that is
 * palloc'ed; then, with count from the last time, those who still are.  Returns
 * their number.
 */
static int
read_debtors(Debtor **debtors, int count, bool first)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum relations[] = {ObjectIdGetDatum(idemq_catalog()->jobs),
						 ObjectIdGetDatum(idemq_catalog()->queues)};
	int left = 0;
	SqlScope scope;
	uint64 rows;
	Debtor *found;

	idemq_sql_begin(&scope);
	rows = idemq_sql_query_latest(&ending_locks, relations, NULL);
	found = MemoryContextAlloc(caller, Max(rows, 1) * sizeof(Debtor));
	for (uint64 i = 0; i < rows; i++)
	{
		bool no_xid;
		bool isnull;
		TransactionId xid = DatumGetTransactionId(idemq_sql_value(i, 1, &no_xid));
		Debtor debtor = {no_xid, no_xid ? DatumGetUInt32(idemq_sql_value(i, 2, &isnull)) : xid};

		if (first ? no_xid || !(TransactionIdIsCurrentTransactionId(xid) ||
								TransactionIdIsInProgress(xid))
				  : is_among(*debtors, count, debtor))
			found[left++] = debtor;
	}
	idemq_sql_end(&scope);
	*debtors = found;
	return left;
}

/*
 * Waits until all that was visible at the call has reached shared memory.  Returns
 * false when that took too long.
 */
bool
idemq_check_settled(CheckCall *call)
{
	bool counted = false;
	Debtor *debtors = NULL;
	int count = read_debtors(&debtors, 0, true);

	for (;;)
	{
		/* At one moment no change was under way; each debtor was seen without debts. */
		counted = counted || (uint32) idemq_slots_changes() == 0;
		if (counted && count == 0)
			return true;
		if (idemq_mono_now() > call->patience_ends)
			return false;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(counted ? 1000 : 50);
		if (count > 0)
			count = read_debtors(&debtors, count, false);
	}
}

/* Reads the ids of all queues. */
static void
read_queues(CheckCall *call)
{
	MemoryContext caller = CurrentMemoryContext;
	SqlScope scope;
	bool isnull;

	idemq_sql_begin(&scope);
	call->nqueues = (int) idemq_sql_query_latest(&all_queues, NULL, NULL);
	call->queue_ids = MemoryContextAlloc(caller, Max(call->nqueues, 1) * sizeof(int32));
	for (int i = 0; i < call->nqueues; i++)
		call->queue_ids[i] = DatumGetInt32(idemq_sql_value(i, 1, &isnull));
	idemq_sql_end(&scope);
}

static int
compare_queue_ids(const void *a, const void *b)
{
	int32 x = *(const int32 *) a;
	int32 y = *(const int32 *) b;

	return (x > y) - (x < y);
}

/* Returns whether a queue was there when the queues were read. */
bool
idemq_check_has_queue(const CheckCall *call, int32 queue_id)
{
	return bsearch(&queue_id, call->queue_ids, call->nqueues, sizeof(int32), compare_queue_ids) !=
		   NULL;
}

/* Returns whether a queue may be being created or dropped now. */
static bool
queues_are_being_written(void)
{
	Datum queues = ObjectIdGetDatum(idemq_catalog()->queues);
	SqlScope scope;
	bool written;

	idemq_sql_begin(&scope);
	written = idemq_sql_query_latest(&queue_writers, &queues, NULL) > 0;
	idemq_sql_end(&scope);
	return written;
}

/*
 * Checks that no slot is lost to a queue that does not exist.  Who creates or drops
 * a queue holds a lock on the table from before the slot is given until after it is
 * freed: with none seen, and the queues read after that, a slot too many is one.
 */
static void
check_lost_slots(CheckCall *call, const int32 *slots, int nslots)
{
	bool lost = false;
	SlotStatus status;

	for (int i = 0; i < nslots; i++)
		lost |= !idemq_check_has_queue(call, slots[i]);
	if (!lost || queues_are_being_written())
		return;
	read_queues(call);
	for (int i = 0; i < nslots; i++)
	{
		if (!idemq_check_has_queue(call, slots[i]) && idemq_slot_status(slots[i], &status))
			idemq_check_report(call, CHECK_WARNING, "slots.queue",
							   "a slot belongs to queue %d, which does not exist: one slot fewer "
							   "until the server restarts",
							   slots[i]);
	}
}

/* Checks that the slots' hash and array agree, and whether slots and entries are used up. */
static void
check_slots(CheckCall *call)
{
	int32 *slots = palloc(Max(idemq_max_queues, 1) * sizeof(int32));
	int without = 0;
	SlotsAudit audit;
	int nslots = idemq_slots_audit(&audit, slots);

	if (audit.used != audit.taken || audit.hashed != audit.taken || audit.misplaced > 0)
		idemq_check_report(call, CHECK_ERROR, "slots.hash",
						   "%d slots are taken, %d counted, %d in the hash, %d not where the hash "
						   "says: restart the server",
						   audit.taken, audit.used, audit.hashed, audit.misplaced);
	check_lost_slots(call, slots, nslots);
	qsort(slots, nslots, sizeof(int32), compare_queue_ids);
	for (int i = 0; i < call->nqueues; i++)
		without += bsearch(&call->queue_ids[i], slots, nslots, sizeof(int32), compare_queue_ids) ==
				   NULL;
	if (audit.taken >= idemq_max_queues && without > 0)
		idemq_check_report(
			call, CHECK_WARNING, "slots.full",
			"all %d slots are taken, %d queues of this database have none, and their "
			"claims scan from the start: raise idemq.max_queues and restart",
			idemq_max_queues, without);
	if (idemq_lease_table_is_full())
		idemq_check_report(call, CHECK_WARNING, "leases.full",
						   "the lease table has no room beside its %d entries, and further claims "
						   "are known from their rows alone: raise idemq.max_leases and restart",
						   idemq_max_leases);
	pfree(slots);
}

/* Reports queues whose dead_queue is gone, by hand: their dead jobs go nowhere. */
static void
check_dead_queues(CheckCall *call)
{
	SqlScope scope;
	uint64 rows;
	bool isnull;

	idemq_sql_begin(&scope);
	rows = idemq_sql_query_latest(&lost_dead_queues, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
		idemq_check_report(call, CHECK_WARNING, "queues.dead_queue",
						   "dead jobs of queue \"%s\" go nowhere else, for its dead_queue \"%s\" "
						   "does not exist: set another with idemq.alter_queue",
						   TextDatumGetCString(idemq_sql_value(i, 1, &isnull)),
						   TextDatumGetCString(idemq_sql_value(i, 2, &isnull)));
	idemq_sql_end(&scope);
}

/* Checks that somebody calls for the ticks of schedules (a restore brings none with it). */
static void
check_driver(CheckCall *call)
{
	int64 schedules = idemq_driver_abandoned();

	if (schedules > 0)
		idemq_check_report(call, CHECK_WARNING, "schedules.driver",
						   "nothing has called idemq.tick() for 10 minutes, for which schedules "
						   "wait (%lld): look at pg_cron's job \"idemq-tick\"",
						   (long long) schedules);
}

/* check() -> setof (severity, invariant, detail); 25001. */
Datum
idemq_sql_check(PG_FUNCTION_ARGS)
{
	CheckCall call = {0};

	if (idemq_xact_has_notes())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg(
					 "idemq.check() cannot run in a transaction that has changed jobs or queues"),
				 errdetail("Shared memory follows a transaction's changes when it has ended."),
				 errhint("Run it in a transaction of its own.")));
	call.store = idemq_srf_begin(fcinfo, &call.desc);
	call.patience_ends = idemq_mono_now() + PATIENCE;
	idemq_jobs_open_to_read(&call.table);
	read_queues(&call);
	check_slots(&call);
	check_dead_queues(&call);
	idemq_check_rows(&call);
	idemq_check_tokens(&call);
	/* The rest reads the ready index. */
	if (idemq_check_catalog(&call))
		idemq_check_ready(&call);
	idemq_check_leases(&call);
	idemq_check_groups(&call);
	check_driver(&call);
	idemq_check_limits(&call);
	idemq_jobs_close(&call.table);
	return (Datum) 0;
}
