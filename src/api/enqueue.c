/*
 * api/enqueue.c
 *		SQL functions that add jobs: enqueue, which is also enqueue_job, and enqueue_many.
 *
 * Both read the same options, of a job each; options[] says of each how enqueue_many
 * calls its array, and what it sets.
 *
 * A job without a key is written by direct access, those of enqueue_many many at once.
 * A job with one goes through job/new_job_keyed.c: the unique index decides which of two
 * is first.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/enqueue.h"
#include "job/new_job.h"
#include "job/new_job_keyed.h"
#include "job/rerun.h"
#include "table/jobs.h"
#include "table/jobs_batch.h"
#include "table/jobs_id.h"
#include "table/jobs_write.h"
#include "txn/pending_counts.h"
#include "queue/queue_counts.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/documents.h"
#include "base/oids.h"
#include "base/sync_rep.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_enqueue);
PG_FUNCTION_INFO_V1(idemq_sql_v2_enqueue_many);

/* Arguments of enqueue; those in between are its options. */
enum
{
	ARG_QUEUE,
	ARG_PAYLOAD,
	ARG_OPTIONS,
	ARG_ON_DUPLICATE = 11,
	ARG_NOWAIT
};

/* Arguments of enqueue_many. */
enum
{
	MANY_QUEUE,
	MANY_PAYLOADS,
	MANY_KEYS,
	MANY_RUN_ATS,
	MANY_PRIORITIES,
	MANY_GROUP_KEYS,
	MANY_DELAYS,
	MANY_MAX_ATTEMPTS,
	MANY_HEADERS,
	MANY_EXPIRES_INS,
	MANY_KEY_TTLS,
	MANY_ON_DUPLICATE,
	MANY_NOWAIT
};

/* Options of a job, in the order of enqueue's arguments. */
enum
{
	OPTION_KEY,
	OPTION_DELAY,
	OPTION_RUN_AT,
	OPTION_PRIORITY,
	OPTION_GROUP_KEY,
	OPTION_MAX_ATTEMPTS,
	OPTION_HEADERS,
	OPTION_EXPIRES_IN,
	OPTION_KEY_TTL,
	OPTIONS
};

/* id, outcome, status, result */
#define ANSWER_COLUMNS 4

static void
set_key(JobChange *columns, Datum value)
{
	text *key = DatumGetTextPP(value);

	idemq_check_key("key", VARSIZE_ANY_EXHDR(key));
	job_set(columns, COL_KEY, PointerGetDatum(key));
}

/* Returns the job's time of birth and an interval by the calendar, as timestamptz + interval. */
static Datum
later(const JobChange *columns, const char *name, Datum interval, int64 least)
{
	(void) idemq_check_interval(name, DatumGetIntervalP(interval), least);
	return DirectFunctionCall2(timestamptz_pl_interval, columns->values[COL_CREATED_AT], interval);
}

static void
set_delay(JobChange *columns, Datum value)
{
	job_set(columns, COL_READY_AT, later(columns, "delay", value, 0));
}

/* Infinity is refused: such a job would never be due, or always have been. */
static void
set_run_at(JobChange *columns, Datum value)
{
	if (TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(value)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_at must be finite"),
						errhint("Pass a time, or NULL for now.")));
	job_set(columns, COL_READY_AT, value);
}

static void
set_priority(JobChange *columns, Datum value)
{
	int priority = DatumGetInt32(value);

	if (priority < 0 || priority >= IDEMQ_PRIORITIES)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("priority must be between 0 and %d, not %d", IDEMQ_PRIORITIES - 1,
							   priority),
						errhint("0 is claimed first, %d last.", IDEMQ_PRIORITIES - 1)));
	job_set(columns, COL_PRIORITY, Int16GetDatum(priority));
}

/*
 * Puts a new job into a FIFO group: blocked, until it is promoted (job/promote.c), which
 * heeds the time that was asked for, and is set by now.
 */
static void
set_group(JobChange *columns, Datum name)
{
	text *value = DatumGetTextPP(name);
	TimestampTz ready_at = DatumGetTimestampTz(columns->values[COL_READY_AT]);

	idemq_check_key("group_key", VARSIZE_ANY_EXHDR(value));
	job_set(columns, COL_GROUP_KEY, PointerGetDatum(value));
	job_set(columns, COL_STATUS, ObjectIdGetDatum(idemq_oids()->status[JOB_BLOCKED]));
	columns->set &= ~COLUMN_BIT(COL_READY_AT);
	if (ready_at > DatumGetTimestampTz(columns->values[COL_CREATED_AT]))
		job_set(columns, COL_RUN_AT, TimestampTzGetDatum(ready_at));
}

static void
set_max_attempts(JobChange *columns, Datum value)
{
	job_set(columns, COL_MAX_ATTEMPTS,
			Int32GetDatum(idemq_check_int("max_attempts", DatumGetInt32(value), 1, PG_INT32_MAX)));
}

static void
set_headers(JobChange *columns, Datum value)
{
	idemq_check_document("headers", value, 0);
	job_set(columns, COL_HEADERS, value);
}

static void
set_expires_in(JobChange *columns, Datum value)
{
	job_set(columns, COL_EXPIRES_AT, later(columns, "expires_in", value, 1));
}

static void
set_key_ttl(JobChange *columns, Datum value)
{
	if ((columns->set & COLUMN_BIT(COL_KEY)) == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("key_ttl needs a key"),
						errhint("Pass a key, or leave key_ttl out.")));
	job_set(columns, COL_KEY_EXPIRES_AT, later(columns, "key_ttl", value, 1));
}

typedef struct JobOption
{
	void (*set)(JobChange *columns, Datum value);
	int many; /* argument of enqueue_many, its name and element type */
	const char *plural;
	Oid type;
} JobOption;

static const JobOption options[OPTIONS] = {
	[OPTION_KEY] = {set_key, MANY_KEYS, "keys", TEXTOID},
	[OPTION_DELAY] = {set_delay, MANY_DELAYS, "delays", INTERVALOID},
	[OPTION_RUN_AT] = {set_run_at, MANY_RUN_ATS, "run_ats", TIMESTAMPTZOID},
	[OPTION_PRIORITY] = {set_priority, MANY_PRIORITIES, "priorities", INT4OID},
	[OPTION_GROUP_KEY] = {set_group, MANY_GROUP_KEYS, "group_keys", TEXTOID},
	[OPTION_MAX_ATTEMPTS] = {set_max_attempts, MANY_MAX_ATTEMPTS, "max_attempts", INT4OID},
	[OPTION_HEADERS] = {set_headers, MANY_HEADERS, "headers", JSONBOID},
	[OPTION_EXPIRES_IN] = {set_expires_in, MANY_EXPIRES_INS, "expires_ins", INTERVALOID},
	[OPTION_KEY_TTL] = {set_key_ttl, MANY_KEY_TTLS, "key_ttls", INTERVALOID},
};

/* Sets what the options say of a new job; NULL ones say nothing. */
static void
set_options(JobChange *columns, const NullableDatum *values)
{
	if (!values[OPTION_DELAY].isnull && !values[OPTION_RUN_AT].isnull)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("delay and run_at cannot be used together"), errhint("Pass one of them.")));
	for (int i = 0; i < OPTIONS; i++)
	{
		if (!values[i].isnull)
			options[i].set(columns, values[i].value);
	}
}

/* Reads on_duplicate. */
static OnDuplicate
duplicate_policy(FunctionCallInfo fcinfo, int n)
{
	char *value = idemq_arg_text(fcinfo, n, "on_duplicate", 16);

	if (strcmp(value, "keep") == 0)
		return DUPLICATE_KEEP;
	if (strcmp(value, "ignore") == 0)
		return DUPLICATE_IGNORE;
	if (strcmp(value, "replace") == 0)
		return DUPLICATE_REPLACE;
	if (strcmp(value, "rerun") == 0)
		return DUPLICATE_RERUN;
	if (strcmp(value, "error") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("on_duplicate must be keep, ignore, replace, rerun or error, not \"%s\"",
						value),
				 errhint("Leave it out for keep: the answer is the job that has the key.")));
	return DUPLICATE_ERROR;
}

/* Reads nowait. */
static JobWait
wait_policy(FunctionCallInfo fcinfo, int n)
{
	return idemq_arg_bool(fcinfo, n, "nowait") ? JOB_SKIPS : JOB_WAITS;
}

/*
 * Writes a new job, or finds its duplicate.  batch: of enqueue_many, where the job has an
 * id; without one it is given here.
 */
static void
add_job(JobsTable *table, JobsBatch *batch, const QueueInfo *queue, JobChange *columns,
		OnDuplicate policy, JobWait wait, EnqueueAnswer *answer)
{
	JobStatus status;

	if (columns->set & COLUMN_BIT(COL_KEY))
	{
		if (policy == DUPLICATE_RERUN)
			idemq_new_job_or_rerun(table, queue, columns, wait, answer);
		else
			idemq_new_job_keyed(table, queue, columns, policy, wait, answer);
		if (answer->outcome == OUTCOME_ACCEPTED)
			idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ENQUEUED));
		else if (answer->outcome != OUTCOME_LOCKED)
			idemq_queue_count_refusal(queue, COUNTER_DUPLICATES);
		return;
	}
	status = batch != NULL ? idemq_new_job_add(batch, queue, columns)
						   : idemq_new_job_insert(table, queue, columns);
	idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ENQUEUED));
	*answer = (EnqueueAnswer){.id = DatumGetInt64(columns->values[COL_ID]),
							  .outcome = OUTCOME_ACCEPTED,
							  .status = status,
							  .no_result = true};
}

/*
 * Adds a job that is published, to a queue which is held; one with its key stays as it is,
 * whatever its payload.  Raises as enqueue.
 */
void
idemq_enqueue_published(JobsTable *table, const QueueInfo *queue, TimestampTz now, Datum payload,
						const PublishedOptions *published, EnqueueAnswer *answer)
{
	NullableDatum values[OPTIONS];
	JobChange columns;

	for (int i = 0; i < OPTIONS; i++)
		values[i].isnull = true;
	values[OPTION_KEY] = published->key;
	values[OPTION_DELAY] = published->delay;
	values[OPTION_RUN_AT] = published->run_at;
	values[OPTION_PRIORITY] = published->priority;
	values[OPTION_GROUP_KEY] = published->group_key;
	values[OPTION_MAX_ATTEMPTS] = published->max_attempts;
	values[OPTION_HEADERS] = published->headers;
	values[OPTION_EXPIRES_IN] = published->expires_in;
	idemq_new_job(&columns, queue, now, payload);
	set_options(&columns, values);
	add_job(table, NULL, queue, &columns, DUPLICATE_IGNORE, JOB_WAITS, answer);
}

/* Returns whether an answer tells of what another transaction has committed. */
static bool
is_of_others(const EnqueueAnswer *answer)
{
	return answer->outcome == OUTCOME_DUPLICATE && answer->foreign;
}

/* Shapes an answer: ANSWER_COLUMNS values.  Of a twin that is not committed nothing is known. */
static void
fill_answer(const EnqueueAnswer *answer, Datum *values, bool *nulls)
{
	bool unknown = answer->outcome == OUTCOME_LOCKED;

	memset(values, 0, ANSWER_COLUMNS * sizeof(Datum));
	memset(nulls, unknown, ANSWER_COLUMNS * sizeof(bool));
	values[1] = idemq_outcome_datum(answer->outcome);
	nulls[1] = false;
	if (unknown)
		return;
	values[0] = Int64GetDatum(answer->id);
	values[2] = ObjectIdGetDatum(idemq_oids()->status[answer->status]);
	values[3] = answer->result;
	nulls[3] = answer->no_result;
}

/*
 * enqueue(queue, payload, key, delay, run_at, priority, group_key, max_attempts,
 *		headers, expires_in, key_ttl, on_duplicate, nowait) -> (id, outcome, status, result);
 * IQ003, IQ004, IQ005, 42501, 22004, 22023, 40001, 54000.  CALL enqueue_job has four INOUT
 * arguments more, which that row fills.
 */
Datum
idemq_sql_v2_enqueue(PG_FUNCTION_ARGS)
{
	QueueInfo queue;
	JobsTable table;
	JobChange columns;
	EnqueueAnswer answer;
	OnDuplicate policy = duplicate_policy(fcinfo, ARG_ON_DUPLICATE);
	JobWait wait = wait_policy(fcinfo, ARG_NOWAIT);
	Datum values[ANSWER_COLUMNS];
	bool nulls[ANSWER_COLUMNS];

	idemq_arg_required(fcinfo, ARG_PAYLOAD, "payload");
	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, ARG_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_jobs_open(&table);
	idemq_check_document("payload", PG_GETARG_DATUM(ARG_PAYLOAD), 0);
	idemq_new_job(&columns, &queue, idemq_now(), PG_GETARG_DATUM(ARG_PAYLOAD));
	idemq_arg_required(fcinfo, ARG_OPTIONS + OPTION_PRIORITY, "priority");
	set_options(&columns, fcinfo->args + ARG_OPTIONS);
	add_job(&table, NULL, &queue, &columns, policy, wait, &answer);
	idemq_jobs_close(&table);
	if (is_of_others(&answer))
		idemq_sync_rep_await();
	fill_answer(&answer, values, nulls);
	return idemq_row_datum(fcinfo, values, nulls);
}

/* The arrays of enqueue_many; values of an absent one is NULL. */
typedef struct EnqueueArrays
{
	ArrayArg payloads;
	ArrayArg options[OPTIONS];
	int *order; /* in which the elements are written */
	int64 *ids; /* given in the order of the elements */
} EnqueueArrays;

static int
compare_by_key(const void *a, const void *b, void *arg)
{
	const ArrayArg *keys = arg;
	int x = *(const int *) a;
	int y = *(const int *) b;
	text *left;
	text *right;
	int order;

	if (keys->nulls[x] || keys->nulls[y])
		return keys->nulls[x] != keys->nulls[y] ? keys->nulls[x] - keys->nulls[y] : x - y;
	left = DatumGetTextPP(keys->values[x]);
	right = DatumGetTextPP(keys->values[y]);
	order = memcmp(VARDATA_ANY(left), VARDATA_ANY(right),
				   Min(VARSIZE_ANY_EXHDR(left), VARSIZE_ANY_EXHDR(right)));
	if (order == 0)
		order = (int) VARSIZE_ANY_EXHDR(left) - (int) VARSIZE_ANY_EXHDR(right);
	return order != 0 ? order : x - y;
}

/*
 * Reads the arrays.  Elements with keys are written in the order of their keys,
 * so that two batches wait for each other and never deadlock.
 */
static void
read_arrays(FunctionCallInfo fcinfo, EnqueueArrays *arrays)
{
	int n;

	idemq_arg_array(fcinfo, MANY_PAYLOADS, "payloads", JSONBOID, false, &arrays->payloads);
	n = arrays->payloads.count;
	for (int i = 0; i < OPTIONS; i++)
		idemq_arg_array_like(fcinfo, options[i].many, options[i].plural, options[i].type, true, n,
							 "payloads", &arrays->options[i]);
	arrays->order = palloc(Max(n, 1) * sizeof(int));
	arrays->ids = palloc(Max(n, 1) * sizeof(int64));
	for (int i = 0; i < n; i++)
		arrays->order[i] = i;
	idemq_jobs_next_ids(arrays->ids, n);
	if (arrays->options[OPTION_KEY].values != NULL)
		qsort_arg(arrays->order, n, sizeof(int), compare_by_key, &arrays->options[OPTION_KEY]);
}

/* Sets what the arrays say of element n. */
static void
fill_element(JobChange *columns, const EnqueueArrays *arrays, int n)
{
	NullableDatum values[OPTIONS];

	job_set(columns, COL_ID, Int64GetDatum(arrays->ids[n]));
	for (int i = 0; i < OPTIONS; i++)
	{
		const ArrayArg *array = &arrays->options[i];

		values[i].isnull = array->values == NULL || array->nulls[n];
		values[i].value = values[i].isnull ? (Datum) 0 : array->values[n];
	}
	set_options(columns, values);
}

/*
 * enqueue_many(queue, payloads, keys, run_ats, priorities, group_keys, delays,
 *		max_attempts, headers, expires_ins, key_ttls, on_duplicate, nowait)
 *		-> setof (ord, id, outcome, status, result); as enqueue.
 */
Datum
idemq_sql_v2_enqueue_many(PG_FUNCTION_ARGS)
{
	EnqueueArrays arrays;
	QueueInfo queue;
	JobsTable table;
	JobsBatch *batch;
	OnDuplicate policy = duplicate_policy(fcinfo, MANY_ON_DUPLICATE);
	JobWait wait = wait_policy(fcinfo, MANY_NOWAIT);
	TupleDesc desc;
	Tuplestorestate *store;
	MemoryContext job_context;
	MemoryContext old;
	TimestampTz now;
	bool of_others = false;

	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, MANY_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_jobs_open(&table);
	read_arrays(fcinfo, &arrays);
	store = idemq_srf_begin(fcinfo, &desc);
	now = idemq_now();
	batch = idemq_jobs_batch_begin(&table);
	job_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq enqueue", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(job_context);
	for (int n = 0; n < arrays.payloads.count; n++)
	{
		int i = arrays.order[n];
		JobChange columns;
		EnqueueAnswer answer;
		Datum values[ANSWER_COLUMNS + 1];
		bool nulls[ANSWER_COLUMNS + 1] = {false};

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(job_context);
		idemq_check_document("payload", arrays.payloads.values[i], 0);
		idemq_new_job(&columns, &queue, now, arrays.payloads.values[i]);
		fill_element(&columns, &arrays, i);
		add_job(&table, batch, &queue, &columns, policy, wait, &answer);
		of_others |= is_of_others(&answer);
		values[0] = Int32GetDatum(i + 1);
		fill_answer(&answer, values + 1, nulls + 1);
		tuplestore_putvalues(store, desc, values, nulls);
	}
	MemoryContextSwitchTo(old);
	idemq_jobs_batch_end(batch);
	idemq_jobs_close(&table);
	if (of_others)
		idemq_sync_rep_await();
	return (Datum) 0;
}
