/*
 * api/enqueue.c
 *		SQL functions that add jobs: enqueue, enqueue_many.
 *
 * A job without a key is written by direct access.  A job with one goes through
 * job/new_job_keyed.c: the unique index decides which of two is first.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "job/new_job.h"
#include "job/new_job_keyed.h"
#include "table/jobs.h"
#include "table/jobs_id.h"
#include "table/jobs_write.h"
#include "txn/pending_counts.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/oids.h"

PG_FUNCTION_INFO_V1(idemq_sql_enqueue);
PG_FUNCTION_INFO_V1(idemq_sql_enqueue_many);

/* Arguments of enqueue. */
enum
{
	ARG_QUEUE,
	ARG_PAYLOAD,
	ARG_KEY,
	ARG_DELAY,
	ARG_RUN_AT,
	ARG_PRIORITY,
	ARG_GROUP_KEY,
	ARG_MAX_ATTEMPTS,
	ARG_HEADERS,
	ARG_EXPIRES_IN,
	ARG_ON_DUPLICATE
};

/* Arguments of enqueue_many. */
enum
{
	MANY_QUEUE,
	MANY_PAYLOADS,
	MANY_KEYS,
	MANY_RUN_ATS,
	MANY_PRIORITIES,
	MANY_GROUP_KEYS
};

/* id, outcome, status, result */
#define ANSWER_COLUMNS 4

/* Raises 22023 for infinity: such a job would never be due, or always have been. */
static TimestampTz
check_run_at(TimestampTz run_at)
{
	if (TIMESTAMP_NOT_FINITE(run_at))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_at must be finite"),
						errhint("Pass a time, or NULL for now.")));
	return run_at;
}

static int
check_priority(int priority)
{
	if (priority < 0 || priority >= IDEMQ_PRIORITIES)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("priority must be between 0 and %d, not %d", IDEMQ_PRIORITIES - 1,
							   priority),
						errhint("0 is claimed first, %d last.", IDEMQ_PRIORITIES - 1)));
	return priority;
}

/* Reads on_duplicate. */
static OnDuplicate
duplicate_policy(FunctionCallInfo fcinfo)
{
	char *value = idemq_arg_text(fcinfo, ARG_ON_DUPLICATE, "on_duplicate", 16);

	if (strcmp(value, "keep") == 0)
		return DUPLICATE_KEEP;
	if (strcmp(value, "ignore") == 0)
		return DUPLICATE_IGNORE;
	if (strcmp(value, "replace") == 0)
		return DUPLICATE_REPLACE;
	if (strcmp(value, "error") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("on_duplicate must be keep, ignore, replace or error, not \"%s\"", value),
				 errhint("Leave it out for keep: the answer is the job that has the key.")));
	return DUPLICATE_ERROR;
}

/*
 * Puts a new job into a FIFO group: blocked, until it is promoted (job/promote.c), which
 * heeds the time that was asked for.
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

/* Writes a new job, or finds its duplicate; the id is given here, if it is not set. */
static void
add_job(JobsTable *table, const QueueInfo *queue, JobChange *columns, OnDuplicate policy,
		EnqueueAnswer *answer)
{
	JobStatus status;

	if (columns->set & COLUMN_BIT(COL_KEY))
	{
		idemq_new_job_keyed(table, queue, columns, policy, JOB_WAITS, answer);
		idemq_pending_counts_event(queue->id, COUNTER_BIT(answer->outcome == OUTCOME_ACCEPTED
															  ? COUNTER_ENQUEUED
															  : COUNTER_DUPLICATES));
		return;
	}
	status = idemq_new_job_insert(table, queue, columns);
	idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ENQUEUED));
	*answer = (EnqueueAnswer){DatumGetInt64(columns->values[COL_ID]), OUTCOME_ACCEPTED, status,
							  (Datum) 0, true};
}

/* Returns now and an interval argument by the calendar, as timestamptz + interval. */
static Datum
later(FunctionCallInfo fcinfo, int n, const char *name, int64 least, TimestampTz now)
{
	(void) idemq_arg_interval(fcinfo, n, name, least);
	return DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(now),
							   PG_GETARG_DATUM(n));
}

/* Reads the optional arguments of enqueue into the columns of the new job. */
static void
read_options(FunctionCallInfo fcinfo, JobChange *columns, TimestampTz now)
{
	if (!PG_ARGISNULL(ARG_KEY))
	{
		text *key = PG_GETARG_TEXT_PP(ARG_KEY);

		idemq_check_key("key", VARSIZE_ANY_EXHDR(key));
		job_set(columns, COL_KEY, PointerGetDatum(key));
	}
	if (!PG_ARGISNULL(ARG_DELAY) && !PG_ARGISNULL(ARG_RUN_AT))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("delay and run_at cannot be used together"), errhint("Pass one of them.")));
	if (!PG_ARGISNULL(ARG_DELAY))
		job_set(columns, COL_READY_AT, later(fcinfo, ARG_DELAY, "delay", 0, now));
	if (!PG_ARGISNULL(ARG_RUN_AT))
		job_set(columns, COL_READY_AT,
				TimestampTzGetDatum(check_run_at(PG_GETARG_TIMESTAMPTZ(ARG_RUN_AT))));
	idemq_arg_required(fcinfo, ARG_PRIORITY, "priority");
	job_set(columns, COL_PRIORITY, Int16GetDatum(check_priority(PG_GETARG_INT32(ARG_PRIORITY))));
	if (!PG_ARGISNULL(ARG_GROUP_KEY))
		set_group(columns, PG_GETARG_DATUM(ARG_GROUP_KEY));
	if (!PG_ARGISNULL(ARG_MAX_ATTEMPTS))
		job_set(columns, COL_MAX_ATTEMPTS,
				Int32GetDatum(
					idemq_arg_int(fcinfo, ARG_MAX_ATTEMPTS, "max_attempts", 1, PG_INT32_MAX)));
	if (!PG_ARGISNULL(ARG_HEADERS))
		job_set(columns, COL_HEADERS, PG_GETARG_DATUM(ARG_HEADERS));
	if (!PG_ARGISNULL(ARG_EXPIRES_IN))
		job_set(columns, COL_EXPIRES_AT, later(fcinfo, ARG_EXPIRES_IN, "expires_in", 1, now));
}

/* Shapes an answer: ANSWER_COLUMNS values. */
static void
fill_answer(const EnqueueAnswer *answer, Datum *values, bool *nulls)
{
	memset(nulls, 0, ANSWER_COLUMNS * sizeof(bool));
	values[0] = Int64GetDatum(answer->id);
	values[1] = idemq_outcome_datum(answer->outcome);
	values[2] = ObjectIdGetDatum(idemq_oids()->status[answer->status]);
	values[3] = answer->result;
	nulls[3] = answer->no_result;
}

/*
 * enqueue(queue, payload, key, delay, run_at, priority, group_key, max_attempts,
 *		headers, expires_in, on_duplicate) -> (id, outcome, status, result);
 * IQ003, IQ004, IQ005, 42501, 22004, 22023, 40001.
 */
Datum
idemq_sql_enqueue(PG_FUNCTION_ARGS)
{
	QueueInfo queue;
	JobsTable table;
	JobChange columns;
	EnqueueAnswer answer;
	OnDuplicate policy = duplicate_policy(fcinfo);
	Datum values[ANSWER_COLUMNS];
	bool nulls[ANSWER_COLUMNS];
	TimestampTz now;

	idemq_arg_required(fcinfo, ARG_PAYLOAD, "payload");
	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, ARG_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_jobs_open(&table);
	now = idemq_now();
	idemq_new_job(&columns, &queue, now, PG_GETARG_DATUM(ARG_PAYLOAD));
	read_options(fcinfo, &columns, now);
	add_job(&table, &queue, &columns, policy, &answer);
	idemq_jobs_close(&table);
	fill_answer(&answer, values, nulls);
	return idemq_row_datum(fcinfo, values, nulls);
}

/* The arrays of enqueue_many; values of an absent one is NULL. */
typedef struct EnqueueArrays
{
	ArrayArg payloads;
	ArrayArg keys;
	ArrayArg run_ats;
	ArrayArg priorities;
	ArrayArg group_keys;
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
	idemq_arg_array_like(fcinfo, MANY_KEYS, "keys", TEXTOID, true, n, "payloads", &arrays->keys);
	idemq_arg_array_like(fcinfo, MANY_RUN_ATS, "run_ats", TIMESTAMPTZOID, true, n, "payloads",
						 &arrays->run_ats);
	idemq_arg_array_like(fcinfo, MANY_PRIORITIES, "priorities", INT4OID, true, n, "payloads",
						 &arrays->priorities);
	idemq_arg_array_like(fcinfo, MANY_GROUP_KEYS, "group_keys", TEXTOID, true, n, "payloads",
						 &arrays->group_keys);
	arrays->order = palloc(Max(n, 1) * sizeof(int));
	arrays->ids = palloc(Max(n, 1) * sizeof(int64));
	for (int i = 0; i < n; i++)
	{
		arrays->order[i] = i;
		arrays->ids[i] = idemq_jobs_next_id();
	}
	if (arrays->keys.values != NULL)
		qsort_arg(arrays->order, n, sizeof(int), compare_by_key, &arrays->keys);
}

/* Sets what the arrays say of element i. */
static void
fill_element(JobChange *columns, const EnqueueArrays *arrays, int i)
{
	job_set(columns, COL_ID, Int64GetDatum(arrays->ids[i]));
	if (arrays->keys.values != NULL && !arrays->keys.nulls[i])
	{
		idemq_check_key("key", VARSIZE_ANY_EXHDR(DatumGetPointer(arrays->keys.values[i])));
		job_set(columns, COL_KEY, arrays->keys.values[i]);
	}
	if (arrays->run_ats.values != NULL && !arrays->run_ats.nulls[i])
		job_set(columns, COL_READY_AT,
				TimestampTzGetDatum(check_run_at(DatumGetTimestampTz(arrays->run_ats.values[i]))));
	if (arrays->priorities.values != NULL && !arrays->priorities.nulls[i])
		job_set(columns, COL_PRIORITY,
				Int16GetDatum(check_priority(DatumGetInt32(arrays->priorities.values[i]))));
	if (arrays->group_keys.values != NULL && !arrays->group_keys.nulls[i])
		set_group(columns, arrays->group_keys.values[i]);
}

/*
 * enqueue_many(queue, payloads, keys, run_ats, priorities, group_keys)
 *		-> setof (ord, id, outcome, status, result); as enqueue.
 */
Datum
idemq_sql_enqueue_many(PG_FUNCTION_ARGS)
{
	EnqueueArrays arrays;
	QueueInfo queue;
	JobsTable table;
	TupleDesc desc;
	Tuplestorestate *store;
	MemoryContext job_context;
	MemoryContext old;
	TimestampTz now;

	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, MANY_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_jobs_open(&table);
	read_arrays(fcinfo, &arrays);
	store = idemq_srf_begin(fcinfo, &desc);
	now = idemq_now();
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
		idemq_new_job(&columns, &queue, now, arrays.payloads.values[i]);
		fill_element(&columns, &arrays, i);
		add_job(&table, &queue, &columns, DUPLICATE_KEEP, &answer);
		values[0] = Int32GetDatum(i + 1);
		fill_answer(&answer, values + 1, nulls + 1);
		tuplestore_putvalues(store, desc, values, nulls);
	}
	MemoryContextSwitchTo(old);
	idemq_jobs_close(&table);
	return (Datum) 0;
}
