/*
 * api/enqueue.c
 *		SQL functions that add jobs: enqueue, which is also enqueue_job, and enqueue_many; and the
 *		options of a job, which publish and enqueue_sequenced accept, too.
 *
 * Each option (key, time, priority, group and so on) is an argument of enqueue and an array of
 * enqueue_many.  The table job_options contains the column that the option sets, and the name and
 * the position of the array.
 *
 * A job without a key is written by direct access; enqueue_many writes many such jobs at once.  A
 * job with a key goes through job/new_job_keyed.c, where the unique index decides which of two
 * calls is first.  enqueue_many writes the jobs with keys in the order of their keys, so two
 * batches never deadlock.
 *
 * Locks: the queue's id in shared mode, until the transaction ends, so that no other session can
 * drop the queue.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"
#include "txn/txn.h"

/*
 * Arguments of enqueue.  The options begin with delay; enqueue_many has the other arguments at
 * these positions.
 */
enum
{
	ARG_QUEUE,
	ARG_PAYLOAD,
	ARG_KEY,
	ARG_DELAY,
	ARG_KEY_TTL = 10,
	ARG_ON_DUPLICATE,
	ARG_NOWAIT,
	ARG_KIND,
	ARG_MAX_WAIT,
	ARG_DEPENDS_ON
};

/* id, outcome, status, result */
#define ANSWER_COLUMNS 4

/* An option: the column that it sets, and its array argument in enqueue_many. */
typedef struct JobOption
{
	JobColumn column;
	const char *plural; /* name of the array argument */
	Oid type;			/* type of its elements */
	int many_arg;		/* its position */
} JobOption;

static const JobOption job_options[OPTIONS] = {
	[OPTION_KEY] = {COL_KEY, "keys", TEXTOID, 2},
	[OPTION_DELAY] = {COL_READY_AT, "delays", INTERVALOID, 6},
	[OPTION_RUN_AT] = {COL_READY_AT, "run_ats", TIMESTAMPTZOID, 3},
	[OPTION_PRIORITY] = {COL_PRIORITY, "priorities", INT4OID, 4},
	[OPTION_GROUP_KEY] = {COL_GROUP_KEY, "group_keys", TEXTOID, 5},
	[OPTION_MAX_ATTEMPTS] = {COL_MAX_ATTEMPTS, "max_attempts", INT4OID, 7},
	[OPTION_HEADERS] = {COL_HEADERS, "headers", JSONBOID, 8},
	[OPTION_EXPIRES_IN] = {COL_EXPIRES_AT, "expires_ins", INTERVALOID, 9},
	[OPTION_KEY_TTL] = {COL_KEY_EXPIRES_AT, "key_ttls", INTERVALOID, 10},
	[OPTION_KIND] = {COL_KIND, "kinds", TEXTOID, 13},
};

/* Returns enqueued_at plus an interval, like timestamptz + interval in SQL. */
static Datum
later(const JobChange *columns, const char *name, Datum interval, int64 least)
{
	(void) idemq_check_interval(name, DatumGetIntervalP(interval), least);
	return DirectFunctionCall2(timestamptz_pl_interval, columns->values[COL_ENQUEUED_AT], interval);
}

/* Checks an option's value, and sets its column of a new job. */
static void
set_option(JobChange *columns, int option, Datum value)
{
	switch (option)
	{
		case OPTION_KEY:
			value = PointerGetDatum(DatumGetTextPP(value));
			idemq_check_key("key", VARSIZE_ANY_EXHDR(DatumGetPointer(value)));
			break;
		case OPTION_DELAY:
			value = later(columns, "delay", value, 0);
			break;
		case OPTION_RUN_AT:
			/* Such a job would never be due, or would always have been due. */
			if (TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(value)))
				ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("run_at must be finite"),
						errhint("Pass a time, or NULL to run the job now."));
			break;
		case OPTION_PRIORITY:
			if (DatumGetInt32(value) < 0 || DatumGetInt32(value) >= IDEMQ_PRIORITIES)
				ereport(
					ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("priority must be between 0 and %d, not %d", IDEMQ_PRIORITIES - 1,
						   DatumGetInt32(value)),
					errhint("Jobs with priority 0 are claimed first, and jobs with priority %d are "
							"claimed last.",
							IDEMQ_PRIORITIES - 1));
			value = Int16GetDatum(DatumGetInt32(value));
			break;
		case OPTION_GROUP_KEY:
			value = PointerGetDatum(DatumGetTextPP(value));
			idemq_check_key("group_key", VARSIZE_ANY_EXHDR(DatumGetPointer(value)));
			break;
		case OPTION_MAX_ATTEMPTS:
			(void) idemq_check_int("max_attempts", DatumGetInt32(value), 1, PG_INT32_MAX);
			break;
		case OPTION_HEADERS:
			idemq_check_document("headers", value, 0);
			break;
		case OPTION_EXPIRES_IN:
			value = later(columns, "expires_in", value, 1);
			break;
		case OPTION_KEY_TTL:
			value = later(columns, "key_ttl", value, 1);
			break;
		case OPTION_KIND:
			value = PointerGetDatum(DatumGetTextPP(value));
			idemq_check_kind(VARSIZE_ANY_EXHDR(DatumGetPointer(value)));
			break;
	}
	job_set(columns, job_options[option].column, value);
}

/*
 * Reads the options from a call's arguments.  first: the position of delay, which is followed by
 * the next six options; key, key_ttl: their positions, or -1 if the function does not have them.
 */
void
idemq_enqueue_read_options(FunctionCallInfo fcinfo, int key, int first, int key_ttl, int kind,
						   NullableDatum *values)
{
	const NullableDatum none = {.isnull = true};

	for (int i = OPTION_DELAY; i <= OPTION_EXPIRES_IN; i++)
		values[i] = fcinfo->args[first + i - OPTION_DELAY];
	values[OPTION_KEY] = key >= 0 ? fcinfo->args[key] : none;
	values[OPTION_KEY_TTL] = key_ttl >= 0 ? fcinfo->args[key_ttl] : none;
	values[OPTION_KIND] = fcinfo->args[kind];
	idemq_arg_required(fcinfo, first + OPTION_PRIORITY - OPTION_DELAY, "priority");
}

/*
 * Sets the columns of a new job from its options; options that are NULL set nothing.  If the
 * queue's groups use permits, jobs without a group also form a group (job/permits.c).  Raises 22023
 * for options that contradict each other.
 */
void
idemq_enqueue_set_options(JobChange *columns, const QueueInfo *queue, const NullableDatum *values)
{
	TimestampTz ready_at;
	if (!values[OPTION_DELAY].isnull && !values[OPTION_RUN_AT].isnull)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("delay and run_at cannot both be specified"),
				errhint("Pass only one of them."));
	if (!values[OPTION_KEY_TTL].isnull && values[OPTION_KEY].isnull)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("key_ttl requires a key"),
				errhint("Pass a key, or omit key_ttl."));
	for (int i = 0; i < OPTIONS; i++)
	{
		if (!values[i].isnull)
			set_option(columns, i, values[i].value);
	}
	if (values[OPTION_GROUP_KEY].isnull && !idemq_groups_use_permits(queue))
		return;
	if (values[OPTION_GROUP_KEY].isnull)
		job_set(columns, COL_GROUP_KEY, PointerGetDatum(cstring_to_text("")));
	/* The job is blocked until its promotion (job/promote.c), which respects the requested time. */
	ready_at = DatumGetTimestampTz(columns->values[COL_READY_AT]);
	job_set(columns, COL_STATUS, ObjectIdGetDatum(idemq_oids()->status[JOB_BLOCKED]));
	columns->set &= ~COLUMN_BIT(COL_READY_AT);
	if (ready_at > DatumGetTimestampTz(columns->values[COL_ENQUEUED_AT]))
		job_set(columns, COL_RUN_AT, TimestampTzGetDatum(ready_at));
}

/*
 * Reads depends_on (argument n) and on_parent_failure (the next one).  Returns false if there are
 * no parents.
 */
static bool
arg_parents(FunctionCallInfo fcinfo, int n, NewDependencies *depends)
{
	ArrayArg parents;
	char *policy;

	/* The usual case, which must cost nothing. */
	if (PG_ARGISNULL(n))
		return false;
	policy = idemq_arg_text(fcinfo, n + 1, "on_parent_failure", 16);
	depends->on_failure = FAILURE_CANCELS;
	while (strcmp(policy, idemq_failure_name(depends->on_failure)) != 0)
	{
		if (++depends->on_failure > FAILURE_RUNS)
			ereport(
				ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("on_parent_failure must be cancel, wait or run, not \"%s\"", policy),
				errhint(
					"Omit the argument to use cancel, which cancels a job when a parent dies or is "
					"cancelled."));
	}
	idemq_arg_array(fcinfo, n, "depends_on", INT8OID, false, &parents);
	depends->count = parents.count;
	depends->parents = palloc(Max(parents.count, 1) * sizeof(int64));
	for (int i = 0; i < parents.count; i++)
		depends->parents[i] = DatumGetInt64(parents.values[i]);
	return depends->count > 0;
}

/* Reads on_duplicate and max_wait; the latter is for replace. */
static DuplicateRule
duplicate_rule(FunctionCallInfo fcinfo)
{
	static const char *const names[] = {[DUPLICATE_KEEP] = "keep",
										[DUPLICATE_IGNORE] = "ignore",
										[DUPLICATE_REPLACE] = "replace",
										[DUPLICATE_RERUN] = "rerun",
										[DUPLICATE_ERROR] = "error"};
	char *name = idemq_arg_text(fcinfo, ARG_ON_DUPLICATE, "on_duplicate", 16);
	DuplicateRule rule = {0};

	while (strcmp(name, names[rule.policy]) != 0)
	{
		if (++rule.policy > DUPLICATE_ERROR)
			ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("on_duplicate must be keep, ignore, replace, rerun or error, not \"%s\"",
						   name),
					errhint(
						"Omit the argument to use keep, which returns the job that already has the "
						"key."));
	}
	if (PG_ARGISNULL(ARG_MAX_WAIT))
		return rule;
	(void) idemq_arg_interval(fcinfo, ARG_MAX_WAIT, "max_wait", 1);
	if (rule.policy != DUPLICATE_REPLACE)
		ereport(
			ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("max_wait requires on_duplicate => 'replace'"),
			errhint(
				"max_wait limits how long repeated requests with the same key can postpone a job. "
				"Omit max_wait if requests do not replace each other."));
	rule.max_wait = PG_GETARG_INTERVAL_P(ARG_MAX_WAIT);
	return rule;
}

/*
 * Writes a new job, or finds its duplicate.  batch: of enqueue_many, NULL otherwise.  In a batch,
 * the job already has its id and, unless it has a key, room in the queue; otherwise it gets both
 * here.
 */
void
idemq_enqueue_add(JobsTable *table, JobsBatch *batch, const QueueInfo *queue, JobChange *columns,
				  DuplicateRule rule, JobWait wait, EnqueueAnswer *answer)
{
	bool has_key = (columns->set & COLUMN_BIT(COL_KEY)) != 0;
	JobStatus status;
	bool full = false;

	idemq_queue_need_qstate(queue);
	if (rule.max_wait != NULL && !has_key)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("max_wait requires a key"),
				errhint("Pass a key, or omit max_wait."));
	if (rule.max_wait != NULL)
		idemq_job_wait_no_longer(columns, NULL, rule.max_wait);
	if (has_key)
	{
		idemq_new_job_or_rerun(table, queue, columns, rule, wait, answer);
		if (answer->outcome == OUTCOME_ACCEPTED)
			idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ENQUEUED));
		else if (answer->outcome != OUTCOME_LOCKED)
			idemq_queue_count_refusal(queue, COUNTER_DUPLICATES);
		return;
	}
	if (batch != NULL)
	{
		status = idemq_new_job_note(queue, columns);
		idemq_jobs_batch_add(batch, columns);
	}
	else
	{
		full = !idemq_room_for_new_job(table, queue, columns, rule.when_full);
		if (full && rule.when_full == FULL_SKIPS)
		{
			*answer = (EnqueueAnswer){.outcome = OUTCOME_LOCKED, .full = true};
			return;
		}
		status = idemq_new_job_insert(table, queue, columns);
	}
	idemq_pending_counts_event(queue->id, COUNTER_BIT(COUNTER_ENQUEUED));
	*answer = (EnqueueAnswer){.id = DatumGetInt64(columns->values[COL_ID]),
							  .outcome = OUTCOME_ACCEPTED,
							  .status = status,
							  .full = full};
}

/* Returns whether an answer depends on another transaction's commit. */
static bool
is_of_others(const EnqueueAnswer *answer)
{
	return answer->outcome == OUTCOME_DUPLICATE && answer->foreign;
}

/*
 * Fills the ANSWER_COLUMNS of an answer.  If a concurrent duplicate has not been committed, its id,
 * status and result are unknown.
 */
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
	nulls[3] = answer->result == (Datum) 0;
}

/*
 * enqueue(queue, payload, key, delay, run_at, priority, group_key, max_attempts,
 *		headers, expires_in, key_ttl, on_duplicate, nowait, kind,
 *		max_wait, depends_on, on_parent_failure) -> (id, outcome, status, result); IQ002,
 * IQ003, IQ004, IQ005, IQ007, 42501, 22004, 22023, 40001, 53400, 54000, 55P03.  CALL enqueue_job has
 * four more INOUT arguments, which are filled from that row.
 */
SQL_FUNCTION(idemq_sql_enqueue)
{
	QueueInfo queue;
	JobsTable table;
	JobChange columns;
	EnqueueAnswer answer;
	DuplicateRule rule = duplicate_rule(fcinfo);
	JobWait wait = idemq_arg_bool(fcinfo, ARG_NOWAIT, "nowait") ? JOB_SKIPS : JOB_WAITS;
	NewDependencies depends;
	bool waits = arg_parents(fcinfo, ARG_DEPENDS_ON, &depends);
	NullableDatum options[OPTIONS];
	Datum values[ANSWER_COLUMNS];
	bool nulls[ANSWER_COLUMNS];

	idemq_arg_required(fcinfo, ARG_PAYLOAD, "payload");
	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, ARG_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_jobs_open(&table);
	idemq_check_document("payload", PG_GETARG_DATUM(ARG_PAYLOAD), 0);
	idemq_new_job(&columns, &queue, idemq_now(), PG_GETARG_DATUM(ARG_PAYLOAD));
	idemq_enqueue_read_options(fcinfo, ARG_KEY, ARG_DELAY, ARG_KEY_TTL, ARG_KIND, options);
	idemq_enqueue_set_options(&columns, &queue, options);
	if (waits)
		idemq_new_child(&columns, &depends);
	idemq_enqueue_add(&table, NULL, &queue, &columns, rule, wait, &answer);
	/* A duplicate keeps its own parents. */
	if (waits && answer.outcome == OUTCOME_ACCEPTED)
		idemq_new_child_add(&table, &queue, answer.id, &depends);
	idemq_jobs_close(&table);
	if (is_of_others(&answer))
		idemq_sync_rep_await();
	fill_answer(&answer, values, nulls);
	return idemq_row_datum(fcinfo, values, nulls);
}

/* The arrays of enqueue_many.  An array that was not passed has values NULL. */
typedef struct EnqueueArrays
{
	ArrayArg payloads;
	ArrayArg options[OPTIONS];
	int *order; /* order in which the elements are written: those with keys first */
	int keyed;	/* number of elements with keys */
	int64 *ids; /* in the order of the elements */
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
 * Reads the arrays.  Elements with keys are written in the order of their keys, so that two batches
 * may wait for each other but do not deadlock.
 */
static void
read_arrays(FunctionCallInfo fcinfo, EnqueueArrays *arrays)
{
	int n;

	idemq_arg_array(fcinfo, ARG_PAYLOAD, "payloads", JSONBOID, false, &arrays->payloads);
	n = arrays->payloads.count;
	for (int i = 0; i < OPTIONS; i++)
	{
		const JobOption *option = &job_options[i];

		idemq_arg_array_like(fcinfo, option->many_arg, option->plural, option->type, true, n,
							 "payloads", &arrays->options[i]);
	}
	arrays->order = palloc(Max(n, 1) * sizeof(int));
	arrays->ids = palloc(Max(n, 1) * sizeof(int64));
	for (int i = 0; i < n; i++)
		arrays->order[i] = i;
	idemq_jobs_next_ids(arrays->ids, n);
	for (int i = 0; i < n && arrays->options[OPTION_KEY].values != NULL; i++)
		arrays->keyed += !arrays->options[OPTION_KEY].nulls[i];
	if (arrays->keyed > 0)
		qsort_arg(arrays->order, n, sizeof(int), compare_by_key, &arrays->options[OPTION_KEY]);
}

/*
 * enqueue_many(queue, payloads, keys, run_ats, priorities, group_keys, delays,
 *		max_attempts, headers, expires_ins, key_ttls, on_duplicate, nowait, kinds, max_wait,
 *		depends_on, on_parent_failure) -> setof (ord, id, outcome, status, result); as enqueue.
 */
SQL_FUNCTION(idemq_sql_enqueue_many)
{
	EnqueueArrays arrays = {0};
	QueueInfo queue;
	JobsTable table;
	JobsBatch *batch;
	DuplicateRule rule = duplicate_rule(fcinfo);
	JobWait wait = idemq_arg_bool(fcinfo, ARG_NOWAIT, "nowait") ? JOB_SKIPS : JOB_WAITS;
	NewDependencies depends; /* the same for each job */
	bool waits = arg_parents(fcinfo, ARG_DEPENDS_ON, &depends);
	ReturnSetInfo *set;
	GroupAsks *rooms = NULL;
	MemoryContext job_context;
	MemoryContext old;
	TimestampTz now;
	bool of_others = false;

	idemq_jobs_check_writable();
	idemq_queue_open(fcinfo, ARG_QUEUE, "queue", PRIVILEGE_ENQUEUE, AccessShareLock, &queue);
	idemq_jobs_open(&table);
	read_arrays(fcinfo, &arrays);
	/* A child counts in its group only from the time when it stops waiting for its parents. */
	if (!waits)
		rooms = idemq_group_rooms_begin(&table, &queue, &arrays.options[OPTION_GROUP_KEY],
										arrays.payloads.count);
	set = idemq_srf_begin(fcinfo);
	now = idemq_now();
	batch = idemq_jobs_batch_begin(&table);
	job_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq enqueue", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(job_context);
	for (int n = 0; n < arrays.payloads.count; n++)
	{
		int i = arrays.order[n];
		NullableDatum options[OPTIONS];
		JobChange columns;
		EnqueueAnswer answer;
		Datum values[ANSWER_COLUMNS + 1];
		bool nulls[ANSWER_COLUMNS + 1] = {false};

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(job_context);
		/*
		 * Take room for all jobs at once, so that one of two calls succeeds if only one of them
		 * fits.
		 */
		if (n == arrays.keyed)
		{
			idemq_room_for(&queue, arrays.payloads.count - n);
			if (rooms != NULL)
				idemq_group_rooms_for(&table, rooms, arrays.order + n, arrays.payloads.count - n);
		}
		idemq_check_document("payload", arrays.payloads.values[i], 0);
		idemq_new_job(&columns, &queue, now, arrays.payloads.values[i]);
		job_set(&columns, COL_ID, Int64GetDatum(arrays.ids[i]));
		for (int o = 0; o < OPTIONS; o++)
		{
			const ArrayArg *array = &arrays.options[o];

			options[o].isnull = array->values == NULL || array->nulls[i];
			options[o].value = options[o].isnull ? (Datum) 0 : array->values[i];
		}
		idemq_enqueue_set_options(&columns, &queue, options);
		if (waits)
			idemq_new_child(&columns, &depends);
		idemq_enqueue_add(&table, batch, &queue, &columns, rule, wait, &answer);
		if (waits && answer.outcome == OUTCOME_ACCEPTED)
			idemq_new_child_add(&table, &queue, answer.id, &depends);
		if (rooms != NULL && answer.outcome == OUTCOME_ACCEPTED)
			idemq_group_rooms_accepted(rooms, i);
		of_others |= is_of_others(&answer);
		values[0] = Int32GetDatum(i + 1);
		fill_answer(&answer, values + 1, nulls + 1);
		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	MemoryContextSwitchTo(old);
	idemq_jobs_batch_end(batch);
	if (rooms != NULL)
		idemq_group_rooms_end(rooms);
	idemq_jobs_close(&table);
	if (of_others)
		idemq_sync_rep_await();
	return (Datum) 0;
}
