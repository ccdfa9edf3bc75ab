/*
 * api/cancel_retry.c
 *		SQL functions that change what becomes of a job: cancel, cancel_by_key,
 *		retry, redrive.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "job/transition.h"
#include "table/jobs.h"
#include "table/jobs_key.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/oids.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_cancel);
PG_FUNCTION_INFO_V1(idemq_sql_cancel_by_key);
PG_FUNCTION_INFO_V1(idemq_sql_retry);
PG_FUNCTION_INFO_V1(idemq_sql_redrive);

/* Who may cancel and retry: producers, and administrators. */
#define PRIVILEGE_CONTROL (PRIVILEGE_ENQUEUE | PRIVILEGE_ADMIN)

/* Decides what is to happen to a fetched job; false when nothing, with the outcome. */
typedef bool (*Decide)(const Job *job, TimestampTz now, JobEvent *event, Outcome *outcome);

static bool
decide_cancel(const Job *job, TimestampTz now, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_CANCEL;
	*outcome = OUTCOME_CANCELLED;
	if (job->status == JOB_COMPLETED)
		*outcome = OUTCOME_COMPLETED;
	else if (job->status == JOB_DEAD)
		*outcome = OUTCOME_DEAD;
	return idemq_transition_allowed(EVENT_CANCEL, job->status);
}

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

/* Applies a decision to the latest version of a job. */
static Outcome
control_job(JobsTable *table, int64 id, int privileges, Decide decide)
{
	for (;;)
	{
		EventArgs args = {0};
		QueueInfo queue;
		JobEvent event;
		Outcome outcome;
		Job job;

		if (!idemq_jobs_fetch(table, id, &job) ||
			!idemq_queue_allows(job.queue_id, privileges, &queue))
			return OUTCOME_NOT_FOUND;
		args.now = args.ready_at = idemq_now();
		if (!decide(&job, args.now, &event, &outcome))
			return outcome;
		if (idemq_transition(table, &job, &queue, event, &args, JOB_WAITS) == JOB_WRITTEN)
			return outcome;
		idemq_jobs_refresh_or_raise(table);
	}
}

static Datum
control_one(FunctionCallInfo fcinfo, Decide decide)
{
	JobsTable table;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_jobs_open(&table);
	outcome = control_job(&table, PG_GETARG_INT64(0), PRIVILEGE_CONTROL, decide);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* cancel(id) -> cancelled | completed | dead | not_found; 22004, 40001. */
Datum
idemq_sql_cancel(PG_FUNCTION_ARGS)
{
	return control_one(fcinfo, decide_cancel);
}

/* cancel_by_key(queue, key) -> as cancel; IQ005, 42501, 22004, 22023, 40001. */
Datum
idemq_sql_cancel_by_key(PG_FUNCTION_ARGS)
{
	char *name = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	Outcome outcome = OUTCOME_NOT_FOUND;
	QueueInfo queue;
	JobsTable table;
	Job job;

	idemq_arg_required(fcinfo, 1, "key");
	idemq_check_key("key", VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(1)));
	idemq_queue_by_name(name, PRIVILEGE_CONTROL, &queue);
	idemq_jobs_open(&table);
	if (idemq_jobs_find_key(&table, queue.id, PointerGetDatum(PG_GETARG_TEXT_PP(1)), &job))
		outcome = control_job(&table, job.id, PRIVILEGE_CONTROL, decide_cancel);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* retry(id) -> retrying | current | locked | blocked | completed | not_found; 22004, 40001. */
Datum
idemq_sql_retry(PG_FUNCTION_ARGS)
{
	return control_one(fcinfo, decide_retry);
}

static bool
decide_redrive(const Job *job, TimestampTz now, JobEvent *event, Outcome *outcome)
{
	*event = redrive_event(job);
	*outcome = job->status == JOB_DEAD ? OUTCOME_RETRYING : OUTCOME_CURRENT;
	return job->status == JOB_DEAD;
}

static SqlStatement dead_jobs =
	{.text = "SELECT id FROM idemq.jobs WHERE queue_id = $1 AND status = 'dead' "
			 "AND finished_at IS NOT NULL ORDER BY finished_at, id LIMIT $2",
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

	idemq_sql_begin(&scope);
	*count = idemq_sql_query_latest(&dead_jobs, values, NULL);
	ids = MemoryContextAllocHuge(caller, Max(*count, 1) * sizeof(int64));
	for (uint64 i = 0; i < *count; i++)
		ids[i] = DatumGetInt64(idemq_sql_value(i, 1, &isnull));
	idemq_sql_end(&scope);
	return ids;
}

static int
compare_ids(const void *a, const void *b)
{
	int64 x = *(const int64 *) a;
	int64 y = *(const int64 *) b;

	return (x > y) - (x < y);
}

/* redrive(queue, max_jobs) -> number of jobs; IQ005, 42501, 22004, 22023, 40001. */
Datum
idemq_sql_redrive(PG_FUNCTION_ARGS)
{
	int64 max = PG_INT64_MAX;
	int64 redriven = 0;
	JobsTable table;
	QueueInfo queue;
	uint64 count;
	int64 *ids;

	idemq_queue_by_name(idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG), PRIVILEGE_ADMIN,
						&queue);
	if (!PG_ARGISNULL(1))
		max = idemq_arg_int(fcinfo, 1, "max_jobs", 1, PG_INT32_MAX);
	idemq_jobs_open(&table);
	ids = find_dead(queue.id, max, &count);
	/* In the order of ids, as every batch: two of them never deadlock. */
	qsort(ids, count, sizeof(int64), compare_ids);
	for (uint64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		redriven += control_job(&table, ids[i], PRIVILEGE_ADMIN, decide_redrive) ==
					OUTCOME_RETRYING;
	}
	idemq_jobs_close(&table);
	PG_RETURN_INT64(redriven);
}
