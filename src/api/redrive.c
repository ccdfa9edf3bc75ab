/*
 * api/redrive.c
 *		SQL function redrive: dead jobs of a queue run again, all, those of one error, or
 *		those that are named.
 *
 * Which jobs is asked by SQL under the latest snapshot, with the token of the attempt that
 * each died of.  Then each is changed as by retry, in the order of ids, so that two batches
 * never deadlock, by its latest version: if that is dead of another attempt by now, it may
 * be of another error, and stays.
 *
 * The error is compared as idemq.errors shows it, so both are the same SQL functions.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_redrive);

/* A dead job, as it was found; id first, for idemq_compare_int64. */
typedef struct DeadJob
{
	int64 id;
	int64 token;
} DeadJob;

#define FINGERPRINT_LENGTH 16

/* Parameters of the statements. */
enum
{
	PARAM_QUEUE,
	PARAM_MAX,
	PARAM_FINGERPRINT,
	PARAM_PATTERN,
	PARAM_IDS,
	PARAMS
};

#define DEAD_JOBS                                                                                  \
	"SELECT j.id, j.token FROM idemq.jobs j WHERE j.queue_id = $1 AND j.dead_at IS NOT NULL "      \
	"AND j.status = 'dead' "                                                                       \
	"AND ($3 IS NULL OR $3 = idemq.error_fingerprint(idemq.error_sqlstate("                        \
	"(SELECT a.details FROM idemq.attempts a WHERE a.job_id = j.id AND a.token <= j.token "        \
	"AND a.outcome IN ('failed', 'expired') ORDER BY a.token DESC LIMIT 1), "                      \
	"j.last_error), j.last_error)) "                                                               \
	"AND ($4 IS NULL OR j.last_error LIKE $4 OR idemq.error_pattern(j.last_error) LIKE $4) "
#define LONGEST_DEAD_FIRST "ORDER BY j.dead_at, j.id LIMIT $2"

static SqlStatement dead_jobs = {.text = DEAD_JOBS LONGEST_DEAD_FIRST,
								 .nargs = PARAM_IDS,
								 .types = {INT4OID, INT8OID, TEXTOID, TEXTOID}};
static SqlStatement dead_of_ids = {.text = DEAD_JOBS "AND j.id = ANY ($5) " LONGEST_DEAD_FIRST,
								   .nargs = PARAMS,
								   .types = {INT4OID, INT8OID, TEXTOID, TEXTOID, INT8ARRAYOID}};

static bool
decide_redrive(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	const DeadJob *dead = arg;
	bool is_that = job->status == JOB_DEAD && job->token == dead->token;

	*event = idemq_redrive_event(job);
	*outcome = is_that ? OUTCOME_RETRYING : OUTCOME_CURRENT;
	return is_that;
}

/* Finds dead jobs, the longest dead first; returns them in the order of ids. */
static DeadJob *
find_dead(const Datum *values, const char *nulls, uint64 *count)
{
	SqlStatement *statement = nulls[PARAM_IDS] == ' ' ? &dead_of_ids : &dead_jobs;
	MemoryContext caller = CurrentMemoryContext;
	SqlScope scope;
	DeadJob *dead;

	idemq_spi_begin(&scope);
	*count = idemq_spi_query_latest(statement, values, nulls);
	dead = MemoryContextAllocHuge(caller, Max(*count, 1) * sizeof(DeadJob));
	for (uint64 i = 0; i < *count; i++)
	{
		dead[i].id = idemq_spi_int64(i, 1, NULL);
		dead[i].token = idemq_spi_int64(i, 2, NULL);
	}
	idemq_spi_end(&scope);
	qsort(dead, *count, sizeof(DeadJob), idemq_compare_int64);
	return dead;
}

/* Returns whether an error is given by its fingerprint, as idemq.errors has it. */
static bool
is_fingerprint(const char *error)
{
	return strlen(error) == FINGERPRINT_LENGTH &&
		   strspn(error, "0123456789abcdef") == FINGERPRINT_LENGTH;
}

/* Reads what is asked for as parameters; what it says for the audit goes into *entry. */
static void
read_filter(FunctionCallInfo fcinfo, int32 queue_id, Datum *values, char *nulls, AuditEntry *entry)
{
	int members = 0;

	values[PARAM_QUEUE] = Int32GetDatum(queue_id);
	values[PARAM_MAX] = Int64GetDatum(PG_INT64_MAX);
	if (!PG_ARGISNULL(1))
		values[PARAM_MAX] = Int64GetDatum(idemq_arg_int(fcinfo, 1, "max_jobs", 1, PG_INT32_MAX));
	if (!PG_ARGISNULL(2))
	{
		char *error = text_to_cstring(PG_GETARG_TEXT_PP(2));
		int param = is_fingerprint(error) ? PARAM_FINGERPRINT : PARAM_PATTERN;

		values[param] = PG_GETARG_DATUM(2);
		nulls[param] = ' ';
		entry->members[members++] = "error";
		entry->members[members++] = error;
	}
	if (!PG_ARGISNULL(3))
	{
		ArrayArg ids;

		idemq_arg_array(fcinfo, 3, "ids", INT8OID, false, &ids);
		values[PARAM_IDS] = PG_GETARG_DATUM(3);
		nulls[PARAM_IDS] = ' ';
		entry->members[members++] = "ids";
		entry->members[members++] = psprintf("%d", ids.count);
	}
}

/* redrive(queue, max_jobs, error, ids) -> number of jobs; IQ005, 42501, 22004, 22023, 22025, 40001. */
Datum
idemq_sql_v2_redrive(PG_FUNCTION_ARGS)
{
	AuditEntry entry = {.action = "redrive"};
	Datum values[PARAMS] = {0};
	char nulls[] = "  nnn";
	int64 redriven = 0;
	JobsTable table;
	QueueInfo queue;
	uint64 count;
	DeadJob *dead;

	idemq_queue_arg(fcinfo, 0, "queue", PRIVILEGE_ADMIN, &queue);
	read_filter(fcinfo, queue.id, values, nulls, &entry);
	idemq_jobs_open(&table);
	dead = find_dead(values, nulls, &count);
	for (uint64 i = 0; i < count; i++)
	{
		JobChanger redriver = {.decide = decide_redrive,
							   .arg = &dead[i],
							   .privileges = PRIVILEGE_ADMIN};

		CHECK_FOR_INTERRUPTS();
		redriven += idemq_change_job(&table, dead[i].id, &redriver, NULL) == OUTCOME_RETRYING;
	}
	idemq_jobs_close(&table);
	entry.queue = &queue;
	entry.jobs = redriven;
	if (redriven > 0)
		idemq_audit(&entry);
	PG_RETURN_INT64(redriven);
}
