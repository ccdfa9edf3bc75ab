/*
 * api/cancel.c
 *		SQL functions that end jobs without running them: cancel, cancel_by_key, cancel_many,
 *		cancel_matching.
 *
 * The calls for many jobs never wait for a row.  A job whose row another transaction holds is
 * answered as locked, and left to the next call.  So neither a worker with a long transaction
 * nor another such call holds them up, and no two of them deadlock.  They go by id, as all
 * batches do.
 *
 * cancel_matching asks by SQL, under the latest snapshot, which jobs match, and then decides
 * by the latest version of each: a request may have given it another kind since
 * (on_duplicate).  Queue, group and key of an unfinished job that matched stay what they are.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* Arguments of cancel_matching, and parameters of its statements. */
enum
{
	MATCH_QUEUE,
	MATCH_KIND,
	MATCH_GROUP,
	MATCH_PREFIX,
	MATCH_MAX_JOBS,
	MATCH_BEHIND = MATCH_MAX_JOBS, /* what comes behind all keys with the prefix */
	MATCH_PARAMS
};

/* Sorted when they are found: the planner would read all jobs, of all queues, in the order of ids. */
#define UNFINISHED                                                                                 \
	"SELECT id FROM (SELECT id FROM idemq.jobs WHERE queue_id = $1 AND finished_at IS NULL "       \
	"AND ($2 IS NULL OR kind = $2) AND ($3 IS NULL OR group_key = $3) "                            \
	"AND ($4 IS NULL OR starts_with(key, $4)) "
#define BY_ID "OFFSET 0) j ORDER BY id"
#define TYPES                                                                                      \
	{                                                                                              \
		INT4OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID                                                \
	}

#define IDS                                                                                        \
	(const SqlField[])                                                                             \
	{                                                                                              \
		{                                                                                          \
			0, sizeof(int64), NULL                                                                 \
		}                                                                                          \
	}

static SqlStatement of_group = {.few = true,
								.fields = IDS,
								.text = UNFINISHED "AND group_key = $3 " BY_ID,
								.types = TYPES};
static SqlStatement of_keys = {.few = true,
							   .fields = IDS,
							   .text = UNFINISHED
							   "AND key >= $4 AND ($5 IS NULL OR key < $5) " BY_ID,
							   .types = TYPES};
static SqlStatement of_queue = {.fields = IDS, .text = UNFINISHED BY_ID, .types = TYPES};

static bool
decide_cancel(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	bool allowed = idemq_transition_allowed(EVENT_CANCEL, job->status);

	*event = EVENT_CANCEL;
	*outcome = allowed ? OUTCOME_CANCELLED : idemq_outcome_of_status(job->status);
	return allowed;
}

static const JobChanger canceller = {.decide = decide_cancel,
									 .privileges = PRIVILEGE_CHANGE,
									 .audit = {.action = "cancel"}};

/* cancel(id) -> cancelled | completed | dead | not_found; 22004, 40001. */
SQL_FUNCTION(idemq_sql_cancel)
{
	return idemq_change_one(fcinfo, &canceller);
}

/* cancel_by_key(queue, key) -> as cancel; IQ005, 42501, 22004, 22023, 40001. */
SQL_FUNCTION(idemq_sql_cancel_by_key)
{
	char *name = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	Outcome outcome = OUTCOME_NOT_FOUND;
	QueueInfo queue;
	JobsTable table;
	Job job;

	idemq_arg_required(fcinfo, 1, "key");
	idemq_check_key("key", VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(1)));
	idemq_queue_by_name(name, PRIVILEGE_CHANGE, &queue);
	idemq_jobs_open(&table);
	if (idemq_jobs_find_key(&table, queue.id, PointerGetDatum(PG_GETARG_TEXT_PP(1)), &job))
		outcome = idemq_change_job(&table, job.id, &canceller, NULL);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}

/* cancel_many(ids) -> setof (id, outcome as cancel, or locked); 22004, 22023, 40001. */
SQL_FUNCTION(idemq_sql_cancel_many)
{
	static const JobChanger skipper = {.decide = decide_cancel,
									   .privileges = PRIVILEGE_CHANGE,
									   .wait = JOB_SKIPS};

	return idemq_change_many(fcinfo, &skipper, "cancel_many");
}

/* As decide_cancel, if the job is still of the kind *arg; 0 stands for any. */
static bool
decide_cancel_kind(const Job *job, const void *arg, EventArgs *args, JobEvent *event,
				   Outcome *outcome)
{
	Datum kind = *(const Datum *) arg;
	const TupleTableSlot *row = job->row;

	*outcome = OUTCOME_CURRENT;
	if (kind != 0 && (row->tts_isnull[COL_KIND] ||
					  !DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, kind,
															row->tts_values[COL_KIND]))))
		return false;
	return decide_cancel(job, NULL, args, event, outcome);
}

/*
 * Returns the least text, byte by byte, that is greater than all with a prefix; 0 when there
 * is none.  It may be invalid in the encoding, and is compared under the collation "C" alone.
 */
static Datum
behind_prefix(Datum prefix)
{
	text *behind = DatumGetTextPCopy(prefix);
	int bytes = VARSIZE(behind) - VARHDRSZ;

	while (bytes > 0 && (unsigned char) VARDATA(behind)[bytes - 1] == 0xFF)
		bytes--;
	if (bytes == 0)
		return (Datum) 0;
	VARDATA(behind)[bytes - 1]++;
	SET_VARSIZE(behind, VARHDRSZ + bytes);
	return PointerGetDatum(behind);
}

/* Reads the arguments that say which jobs are meant into values, and for the audit into *entry. */
static void
read_match(FunctionCallInfo fcinfo, Datum *values, AuditEntry *entry)
{
	static const char *const names[] =
		{[MATCH_KIND] = "kind", [MATCH_GROUP] = "group_key", [MATCH_PREFIX] = "key_prefix"};
	int members = 0;

	for (int arg = MATCH_KIND; arg <= MATCH_PREFIX; arg++)
	{
		int bytes;

		if (PG_ARGISNULL(arg))
			continue;
		values[arg] = PointerGetDatum(PG_GETARG_TEXT_PP(arg));
		bytes = VARSIZE_ANY_EXHDR(DatumGetPointer(values[arg]));
		if (arg == MATCH_KIND)
			idemq_check_kind(bytes);
		else
			idemq_check_key(names[arg], bytes);
		entry->members[members++] = names[arg];
		entry->members[members++] = TextDatumGetCString(values[arg]);
	}
	if (members == 0)
		ereport(ERROR, errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("kind, group_key and key_prefix must not all be NULL"),
				errhint("Pass at least one of the three arguments to select jobs."));
	if (values[MATCH_PREFIX] != 0)
		values[MATCH_BEHIND] = behind_prefix(values[MATCH_PREFIX]);
}

/*
 * cancel_matching(queue, kind, group_key, key_prefix, max_jobs) -> (cancelled, locked);
 * IQ005, 42501, 22004 when no job is described, 22023, 40001.
 */
SQL_FUNCTION(idemq_sql_cancel_matching)
{
	AuditEntry entry = {.action = "cancel_matching"};
	Datum values[MATCH_PARAMS] = {0};
	SqlStatement *statement = &of_queue;
	int64 max_jobs = PG_INT64_MAX;
	int64 jobs[] = {0, 0};
	JobChanger canceller_of = {.decide = decide_cancel_kind,
							   .arg = &values[MATCH_KIND],
							   .privileges = PRIVILEGE_CHANGE,
							   .wait = JOB_SKIPS};
	Datum answer[2];
	bool isnull[2] = {false};
	JobsTable table;
	QueueInfo queue;
	int64 *ids;
	int count;

	idemq_queue_arg(fcinfo, MATCH_QUEUE, "queue", PRIVILEGE_CHANGE, &queue);
	values[MATCH_QUEUE] = Int32GetDatum(queue.id);
	read_match(fcinfo, values, &entry);
	if (!PG_ARGISNULL(MATCH_MAX_JOBS))
		max_jobs = idemq_arg_int(fcinfo, MATCH_MAX_JOBS, "max_jobs", 1, PG_INT32_MAX);
	if (values[MATCH_GROUP] != 0)
		statement = &of_group;
	else if (values[MATCH_PREFIX] != 0)
		statement = &of_keys;
	ids = idemq_spi_rows(statement, values, sizeof(int64), &count);
	idemq_jobs_open(&table);
	for (int i = 0; i < count && jobs[0] < max_jobs; i++)
	{
		int32 changed;

		CHECK_FOR_INTERRUPTS();
		jobs[1] += idemq_change_job(&table, ids[i], &canceller_of, &changed) == OUTCOME_LOCKED;
		jobs[0] += changed != 0;
	}
	idemq_jobs_close(&table);
	entry.queue = &queue;
	entry.jobs = jobs[0];
	if (jobs[0] > 0)
		idemq_audit(&entry);
	answer[0] = Int64GetDatum(jobs[0]);
	answer[1] = Int64GetDatum(jobs[1]);
	return idemq_row_datum(fcinfo, answer, isnull);
}
