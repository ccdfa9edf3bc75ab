/*
 * observe/check_report.c
 *		Functions shared by the parts of idemq.check(): they report findings, wait until committed
 *		changes have reached shared memory, and check suspects again.
 *
 * A finding must be a fact, never a race.  A change that consists of several steps looks like a
 * violation in between.  Therefore, each part first collects suspects, and reports only those that
 * a second check proves; the proofs are at the tops of the parts.  All proofs rely on
 * idemq_check_settled: if a change was visible before the call, all of its steps are done when the
 * call returns true.  The call waits for two kinds of sessions that may not have done all steps:
 *
 *	- Sessions whose transaction or subtransaction has ended, but whose callbacks may still have to
 *	  run.  Such a session still holds its locks.  A transaction holds the lock on its own id,
 *	  although the id is no longer in progress.  A session without a virtual transaction
 *	  (virtualtransaction n/0 in pg_locks) holds a lock on idemq.jobs or idemq.queues.
 *	- Sessions that are counted as making a change (idemq_qstates_begin_change).
 *
 * If a session stays in such a state, for example in a debugger, a part reports only a warning that
 * it could not check.
 *
 * This code takes no locks.  No finding contains a payload, a key or an error message.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/base.h"
#include "observe/observe.h"
#include "shared/queue_states/queue_states.h"

/* How often a job that seems forgotten is checked, and the pause between two checks: us. */
#define FORGOTTEN_CHECKS 11
#define FORGOTTEN_PAUSE 100000L

static SqlStatement findings =
	{.text = "SELECT severity, invariant, detail FROM idemq_internal.findings($1, $2)",
	 .types = {TEXTOID, TIMESTAMPTZOID},
	 .few = true}; /* makes the lookups for each row use indexes */

/* Sessions that may be ending a transaction: by transaction id, or by the negated PID. */
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
	.types = {OIDOID, OIDOID, INT8ARRAYOID},
	.fields = SQL_SCALAR(int64)};

static SqlStatement suspects_of = {.text = "SELECT * FROM idemq_internal.suspects($1, $2, $3)",
								   .types = {TEXTOID, INT8OID, INT8OID},
								   .few = true,
								   .fields = (const SqlField[]){SQL_FIELD(Suspect, queue_id),
																SQL_FIELD(Suspect, group),
																SQL_FIELD(Suspect, id),
																SQL_FIELD(Suspect, version)}};

/* Adds a row to the result; call it through the macro idemq_check_report. */
void
idemq_check_put(CheckCall *call, const char *severity, const char *invariant, const char *detail)
{
	RowBuilder row = {0};

	row_add(&row, CStringGetTextDatum(severity));
	row_add(&row, CStringGetTextDatum(invariant));
	row_add(&row, CStringGetTextDatum(detail));
	tuplestore_putvalues(call->set->setResult, call->set->setDesc, row.values, row.nulls);
}

/* Adds the findings of a part of idemq_internal.findings at a given time, under one snapshot. */
void
idemq_check_findings_at(CheckCall *call, const char *part, TimestampTz now)
{
	Datum args[] = {CStringGetTextDatum(part), TimestampTzGetDatum(now)};
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	/* All parts share one plan, and use the branch for their argument.  Planning it takes 3 ms. */
	idemq_spi_set("plan_cache_mode", "force_generic_plan");
	rows = idemq_spi_query_latest(&findings, args, NULL);
	for (uint64 i = 0; i < rows; i++)
		tuplestore_puttuple(call->set->setResult, SPI_tuptable->vals[i]);
	idemq_spi_end(&scope);
}

/* Like idemq_check_findings_at, for the current time. */
void
idemq_check_findings(CheckCall *call, const char *part)
{
	idemq_check_findings_at(call, part, idemq_now());
}

/* Adds a job to a list, which keeps the ids of the first CHECK_NAMED jobs. */
void
idemq_id_list_add(IdList *list, int64 id)
{
	if (list->count < CHECK_NAMED)
		list->ids[list->count] = id;
	list->count++;
}

/* Reports the jobs of a list in one finding, if there are any; what: what is wrong with each. */
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
 * Returns the number of sessions and transactions that have ended a transaction and still hold its
 * locks, and sets *ending to a palloc'ed array of them: transaction ids, and negated PIDs.  If
 * *ending is not NULL, only its count elements are considered.
 */
static int
read_ending(int64 **ending, int count)
{
	Datum args[] = {ObjectIdGetDatum(idemq_oids()->jobs), ObjectIdGetDatum(idemq_oids()->queues),
					*ending == NULL ? (Datum) 0 : idemq_int8_array(*ending, count)};
	int found = 0;
	int nrows;

	*ending = idemq_spi_rows(&ending_locks, args, sizeof(int64), &nrows);
	for (int i = 0; i < nrows; i++)
	{
		int64 id = (*ending)[i];
		TransactionId xid = (TransactionId) id;

		if (id < 0 || !(TransactionIdIsCurrentTransactionId(xid) || TransactionIdIsInProgress(xid)))
			(*ending)[found++] = id;
	}
	return found;
}

/*
 * Waits until every change that was visible when it was called has reached shared memory.  Returns
 * false if call->patience_ends has passed before that.
 */
bool
idemq_check_settled(CheckCall *call)
{
	bool counted = false;
	int64 *ending = NULL;
	int count = read_ending(&ending, 0);

	for (;;)
	{
		/* It is enough that at one moment since the call, no session was making a change. */
		counted = counted || (uint32) idemq_qstates_changes() == 0;
		if (counted && count == 0)
			return true;
		if (idemq_stopwatch() > call->patience_ends)
			return false;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(counted ? 1000 : 50);
		if (count > 0)
			count = read_ending(&ending, count);
	}
}

/*
 * Returns whether another transaction of this database holds a lock on a table with which it may
 * write rows.
 */
bool
idemq_check_has_writers(Oid table)
{
	LOCKTAG tag;
	int count;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
	/* ShareLock conflicts with RowExclusiveLock, and with stronger locks that writers take. */
	pfree(GetLockConflicts(&tag, ShareLock, &count));
	return count > 0;
}

/*
 * Returns the suspects that idemq_internal.suspects finds for a part of the audit; token: for
 * "tokens".
 */
Suspect *
idemq_check_suspects(const char *part, int64 token, int *count)
{
	Datum args[] = {CStringGetTextDatum(part), Int64GetDatum(CHECK_SUSPECTS), Int64GetDatum(token)};

	return idemq_spi_rows(&suspects_of, args, sizeof(Suspect), count);
}

/* Returns whether a suspect is among those found later, with the same version. */
static bool
is_unchanged(const Suspect *suspect, const Suspect *later, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (later[i].id == suspect->id && later[i].queue_id == suspect->queue_id &&
			strcmp(later[i].version, suspect->version) == 0)
			return true;
	}
	return false;
}

/*
 * Reports the jobs that violate an invariant before and after idemq_check_settled, in the same
 * version.  If the suspicion has is_known, the job is waiting for a session, and is reported only
 * if no session knows of it.  A session that works through many jobs learns of each one only when
 * it reaches it.  Therefore, such jobs are checked repeatedly for a second.
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
	for (int check = 0; check < checks && count > 0; check++)
	{
		Suspect *later;
		int nlater;
		int left = 0;

		if (check > 0)
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
		later = suspicion->find(call, &nlater);
		left = 0;
		for (int i = 0; i < count; i++)
		{
			if (is_unchanged(&suspects[i], later, nlater))
				suspects[left++] = suspects[i];
		}
		count = left;
	}
	for (int i = 0; i < count; i++)
		idemq_id_list_add(&jobs, suspects[i].id);
	idemq_check_report_jobs(call, suspicion->severity, suspicion->invariant, &jobs,
							suspicion->what);
}
