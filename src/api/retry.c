/*
 * api/retry.c
 *		SQL functions that have a job run again: retry, retry_many.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/tuplestore.h"

#include "api/change_job.h"
#include "job/kin.h"
#include "table/audit_log.h"
#include "table/jobs.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/oids.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_retry);
PG_FUNCTION_INFO_V1(idemq_sql_v2_retry_many);

static bool
decide_retry(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_RETRY;
	*outcome = OUTCOME_RETRYING;
	switch (job->status)
	{
		case JOB_DEAD:
		case JOB_CANCELLED:
			*event = idemq_redrive_event(job);
			return true;
		case JOB_FAILED:
			return true;
		case JOB_PENDING:
			if (job->ready_at > args->now)
				return true;
			*outcome = OUTCOME_CURRENT;
			return false;
		case JOB_PROCESSING:
			*outcome = OUTCOME_LOCKED;
			return false;
		case JOB_BLOCKED:
			*outcome = OUTCOME_BLOCKED;
			return false;
		case JOB_COMPLETED:
			*outcome = OUTCOME_COMPLETED;
			return false;
	}
	pg_unreachable();
}

/* retry(id) -> retrying | current | locked | blocked | completed | not_found; 22004, 40001. */
Datum
idemq_sql_v2_retry(PG_FUNCTION_ARGS)
{
	static const JobChanger retrier = {.decide = decide_retry,
									   .privileges = PRIVILEGE_CHANGE,
									   .audit = {.action = "retry"}};

	return idemq_change_one(fcinfo, &retrier);
}

/* How many jobs of a queue were retried together. */
typedef struct QueueCount
{
	int32 queue_id;
	int64 jobs;
} QueueCount;

/* Adds one to a queue's count; a call is about few queues. */
static List *
count_in(List *counts, int32 queue_id)
{
	QueueCount *count;
	ListCell *lc;

	foreach(lc, counts)
	{
		count = lfirst(lc);
		if (count->queue_id == queue_id)
		{
			count->jobs++;
			return counts;
		}
	}
	count = palloc(sizeof(QueueCount));
	*count = (QueueCount){queue_id, 1};
	return lappend(counts, count);
}

/* Writes one row a queue into idemq.audit. */
static void
audit_counts(const List *counts)
{
	const ListCell *lc;

	foreach(lc, counts)
	{
		const QueueCount *count = lfirst(lc);
		QueueInfo queue;

		if (idemq_queue_by_id(count->queue_id, &queue))
			idemq_audit(
				&(AuditEntry){.action = "retry_many", .queue = &queue, .jobs = count->jobs});
	}
}

/* Reads an array of ids, sorted and each once: two batches never deadlock. */
static int64 *
ids_arg(FunctionCallInfo fcinfo, int n, int *count)
{
	ArrayArg ids;
	int64 *sorted;

	idemq_arg_array(fcinfo, n, "ids", INT8OID, false, &ids);
	sorted = palloc(Max(ids.count, 1) * sizeof(int64));
	for (int i = 0; i < ids.count; i++)
		sorted[i] = DatumGetInt64(ids.values[i]);
	qsort(sorted, ids.count, sizeof(int64), idemq_compare_int64);
	*count = (int) qunique(sorted, ids.count, sizeof(int64), idemq_compare_int64);
	return sorted;
}

/* retry_many(ids) -> setof (id, outcome as retry); 22004, 22023, 40001. */
Datum
idemq_sql_v2_retry_many(PG_FUNCTION_ARGS)
{
	static const JobChanger retrier = {.decide = decide_retry, .privileges = PRIVILEGE_CHANGE};
	int count;
	int64 *ids = ids_arg(fcinfo, 0, &count);
	List *counts = NIL;
	Tuplestorestate *store;
	TupleDesc desc;
	JobsTable table;

	store = idemq_srf_begin(fcinfo, &desc);
	idemq_jobs_open(&table);
	for (int i = 0; i < count; i++)
	{
		bool nulls[2] = {false};
		Datum values[2];
		Outcome outcome;
		int32 queue_id;

		CHECK_FOR_INTERRUPTS();
		outcome = idemq_change_job(&table, ids[i], &retrier, &queue_id);
		if (outcome == OUTCOME_RETRYING)
			counts = count_in(counts, queue_id);
		values[0] = Int64GetDatum(ids[i]);
		values[1] = idemq_outcome_datum(outcome);
		tuplestore_putvalues(store, desc, values, nulls);
	}
	idemq_jobs_close(&table);
	audit_counts(counts);
	return (Datum) 0;
}
