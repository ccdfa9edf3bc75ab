/*
 * api/retry.c
 *		SQL functions that have a job run again: retry, redrive.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "api/change_job.h"
#include "table/audit_log.h"
#include "table/jobs.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_retry);
PG_FUNCTION_INFO_V1(idemq_sql_v2_redrive);

/* Returns the event that brings a finished job back: one of a group waits for its turn. */
static JobEvent
redrive_event(const Job *job)
{
	return job->row->tts_isnull[COL_GROUP_KEY] ? EVENT_REDRIVE : EVENT_REDRIVE_GROUPED;
}

static bool
decide_retry(const Job *job, TimestampTz now, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_RETRY;
	*outcome = OUTCOME_RETRYING;
	switch (job->status)
	{
		case JOB_DEAD:
		case JOB_CANCELLED:
			*event = redrive_event(job);
			return true;
		case JOB_FAILED:
			return true;
		case JOB_PENDING:
			if (job->ready_at > now)
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
	return idemq_change_one(fcinfo, decide_retry, "retry");
}

static bool
decide_redrive(const Job *job, TimestampTz now, JobEvent *event, Outcome *outcome)
{
	*event = redrive_event(job);
	*outcome = job->status == JOB_DEAD ? OUTCOME_RETRYING : OUTCOME_CURRENT;
	return job->status == JOB_DEAD;
}

static SqlStatement dead_jobs =
	{.text = "SELECT id FROM idemq.jobs WHERE queue_id = $1 AND dead_at IS NOT NULL "
			 "AND status = 'dead' ORDER BY dead_at, id LIMIT $2",
	 .nargs = 2,
	 .types = {INT4OID, INT8OID}};

/* Returns the ids of dead jobs of a queue, the longest dead first. */
static int64 *
find_dead(int32 queue_id, int64 max, uint64 *count)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[] = {Int32GetDatum(queue_id), Int64GetDatum(max)};
	SqlScope scope;
	int64 *ids;
	bool isnull;

	idemq_spi_begin(&scope);
	*count = idemq_spi_query_latest(&dead_jobs, values, NULL);
	ids = MemoryContextAllocHuge(caller, Max(*count, 1) * sizeof(int64));
	for (uint64 i = 0; i < *count; i++)
		ids[i] = DatumGetInt64(idemq_spi_value(i, 1, &isnull));
	idemq_spi_end(&scope);
	return ids;
}

/* redrive(queue, max_jobs) -> number of jobs; IQ005, 42501, 22004, 22023, 40001. */
Datum
idemq_sql_v2_redrive(PG_FUNCTION_ARGS)
{
	int64 max = PG_INT64_MAX;
	int64 redriven = 0;
	JobsTable table;
	QueueInfo queue;
	uint64 count;
	int64 *ids;

	idemq_queue_arg(fcinfo, 0, "queue", PRIVILEGE_ADMIN, &queue);
	if (!PG_ARGISNULL(1))
		max = idemq_arg_int(fcinfo, 1, "max_jobs", 1, PG_INT32_MAX);
	idemq_jobs_open(&table);
	ids = find_dead(queue.id, max, &count);
	/* In the order of ids, as every batch: two of them never deadlock. */
	qsort(ids, count, sizeof(int64), idemq_compare_int64);
	for (uint64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		redriven += idemq_change_job(&table, ids[i], PRIVILEGE_ADMIN, decide_redrive, NULL) ==
					OUTCOME_RETRYING;
	}
	idemq_jobs_close(&table);
	if (redriven > 0)
		idemq_audit(&(AuditEntry){.action = "redrive", .queue = &queue, .jobs = redriven});
	PG_RETURN_INT64(redriven);
}
