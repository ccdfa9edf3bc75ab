/*
 * observe/check_report.c
 *		What the parts of idemq.check() share: findings, waiting until what others have made
 *		visible has reached shared memory, and the second look at suspects.
 *
 * A finding is a fact, never a race.  What changes in more than one step seems
 * broken in between, so each part takes suspects first, and reports those that a
 * second check proves; each part has its proof.  They have one thing in common,
 * idemq_check_settled: a session that had made something visible before it was called, and owed
 * shared memory the rest, has paid when it returns true.  There are two kinds of debtors:
 *
 *   - a transaction, or subtransaction, that has ended for others to see, and whose
 *     callbacks have not run: it still has its locks.  Its lock on its own id is
 *     there while the id is no longer in progress; and its lock on idemq.jobs or
 *     idemq.queues is there while the session shows no virtual transaction
 *     (virtualtransaction n/0 in pg_locks).
 *   - a session in the midst of a change that shared/queue_states/queue_states.c counts
 *     (idemq_qstates_begin_change).
 *
 * When a session stays in that state, stopped by a debugger, a part reports only a
 * warning that says so.
 *
 * Locks: none.  No detail shows a payload, a key or an error text.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/base.h"
#include "observe/observe.h"
#include "shared/queue_states/queue_states.h"

/* Times that a job which seems forgotten is checked, and the microseconds between them. */
#define FORGOTTEN_CHECKS 11
#define FORGOTTEN_PAUSE 100000L

static SqlStatement findings =
	{.text = "SELECT severity, invariant, detail FROM idemq_internal.findings($1, $2)",
	 .types = {TEXTOID, TIMESTAMPTZOID},
	 .few = true}; /* so that what is looked up for each row is looked up by an index */

static SqlStatement ending_locks = {
	.text =
		"SELECT coalesce(transactionid::text::bigint, -pid) FROM pg_catalog.pg_locks WHERE granted "
		"AND "
		"(locktype = 'transactionid' AND mode = 'ExclusiveLock' OR "
		"locktype = 'relation' AND relation IN ($1, $2) AND mode = 'RowExclusiveLock' "
		"AND database = (SELECT oid FROM pg_catalog.pg_database "
		"WHERE datname = pg_catalog.current_database()) "
		"AND virtualtransaction LIKE '%/0') "
		"AND ($3 IS NULL OR coalesce(transactionid::text::bigint, -pid) = ANY ($3))",
	.types = {OIDOID, OIDOID, INT8ARRAYOID}};
static SqlStatement suspects_of = {
	.text = "SELECT * FROM idemq_internal.suspects($1, $2, $3)",
	.types = {TEXTOID, INT8OID, INT8OID},
	.few = true,
	.fields = SUSPECT_FIELDS,
};

/* Adds a row to the answer: use idemq_check_report. */
void
idemq_check_put(CheckCall *call, const char *severity, const char *invariant, const char *detail)
{
	RowBuilder row = {0};

	row_add(&row, CStringGetTextDatum(severity));
	row_add(&row, CStringGetTextDatum(invariant));
	row_add(&row, CStringGetTextDatum(detail));
	tuplestore_putvalues(call->set->setResult, call->set->setDesc, row.values, row.nulls);
}

/* Like idemq_check_findings, but for a given time. */
void
idemq_check_findings_at(CheckCall *call, const char *part, TimestampTz now)
{
	Datum args[] = {CStringGetTextDatum(part), TimestampTzGetDatum(now)};
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	/* One plan for all parts, which runs the part of the argument: to plan it takes 3 ms. */
	idemq_spi_set("plan_cache_mode", "force_generic_plan");
	rows = idemq_spi_query_latest(&findings, args, NULL);
	for (uint64 i = 0; i < rows; i++)
		tuplestore_puttuple(call->set->setResult, SPI_tuptable->vals[i]);
	idemq_spi_end(&scope);
}

/* Adds the findings of one part of the audit in rows and catalogs, under one snapshot, now. */
void
idemq_check_findings(CheckCall *call, const char *part)
{
	idemq_check_findings_at(call, part, idemq_now());
}

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

/*
 * Reads the debtors that locks show: a transaction by its id, a session by its process, negated.
 * Sets *debtors to a palloc'ed array of them, and returns their number.  *debtors: the count
 * debtors of the last time, of which those are read that still are debtors; NULL: all are.
 */
static int
read_debtors(int64 **debtors, int count)
{
	Datum args[] = {ObjectIdGetDatum(idemq_oids()->jobs), ObjectIdGetDatum(idemq_oids()->queues),
					*debtors == NULL ? (Datum) 0 : idemq_int8_array(*debtors, count)};
	MemoryContext caller = CurrentMemoryContext;
	int left = 0;
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&ending_locks, args, *debtors == NULL ? "  n" : NULL);
	*debtors = MemoryContextAlloc(caller, Max(rows, 1) * sizeof(int64));
	for (uint64 i = 0; i < rows; i++)
	{
		int64 debtor = idemq_spi_int64(i, 1, NULL);
		TransactionId xid = (TransactionId) debtor;

		if (debtor < 0 ||
			!(TransactionIdIsCurrentTransactionId(xid) || TransactionIdIsInProgress(xid)))
			(*debtors)[left++] = debtor;
	}
	idemq_spi_end(&scope);
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
	int64 *debtors = NULL;
	int count = read_debtors(&debtors, 0);

	for (;;)
	{
		/* At one moment no change was under way; each debtor was seen without debts. */
		counted = counted || (uint32) idemq_qstates_changes() == 0;
		if (counted && count == 0)
			return true;
		if (idemq_stopwatch() > call->patience_ends)
			return false;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(counted ? 1000 : 50);
		if (count > 0)
			count = read_debtors(&debtors, count);
	}
}

/* Returns the suspects of a part of the audit: idemq_internal.suspects. */
Suspect *
idemq_check_suspects(const char *part, int64 token, int *count)
{
	Datum args[] = {CStringGetTextDatum(part), Int64GetDatum(CHECK_SUSPECTS), Int64GetDatum(token)};

	return idemq_spi_rows(&suspects_of, args, sizeof(Suspect), count);
}

/* Returns whether a suspect is found again, as it was. */
static bool
is_unchanged(const Suspect *suspect, const Suspect *now, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (now[i].id == suspect->id && now[i].queue_id == suspect->queue_id &&
			strcmp(now[i].version, suspect->version) == 0)
			return true;
	}
	return false;
}

/*
 * Checks for jobs that are not as they should be; or, with is_known, for jobs that wait for a
 * session to see to them, while none will.  A session that works through many knows of each only
 * when it comes to it: so the latter are checked for a second.
 */
void
idemq_check_suspicion(CheckCall *call, const Suspicion *suspicion)
{
	int count;
	Suspect *suspects = suspicion->find(call, &count);
	int checks = suspicion->is_known == NULL ? 1 : FORGOTTEN_CHECKS;
	IdList jobs = {0};

	if (count > 0 && !idemq_check_settled(call))
	{
		idemq_check_report(call, CHECK_WARNING, suspicion->invariant,
						   "not checked, because a transaction has taken too long to end");
		return;
	}
	for (int round = 0; round < checks && count > 0; round++)
	{
		Suspect *now;
		int found;
		int left = 0;

		if (round > 0)
			pg_usleep(FORGOTTEN_PAUSE);
		for (int i = 0; i < count; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (suspicion->is_known == NULL || !suspicion->is_known(&suspects[i]))
				suspects[left++] = suspects[i];
		}
		count = left;
		if (count == 0)
			break;
		now = suspicion->find(call, &found);
		left = 0;
		for (int i = 0; i < count; i++)
		{
			if (is_unchanged(&suspects[i], now, found))
				suspects[left++] = suspects[i];
		}
		count = left;
	}
	for (int i = 0; i < count; i++)
		idemq_id_list_add(&jobs, suspects[i].id);
	idemq_check_report_jobs(call, suspicion->severity, suspicion->invariant, &jobs,
							suspicion->what);
}
