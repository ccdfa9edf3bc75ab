/*
 * api/finish.c
 *		SQL functions that end attempts: commit, commit_job, try_commit and commit_many end them
 *		with success; fail, fail_job and fail_many with an error; release and release_many give
 *		jobs back as if they had not been claimed, and with revoke_lease, an administrator does so
 *		for a worker.  commit_and_claim and commit_many_and_claim also begin the next attempts.
 *
 * job/finish.c does the work.  A batch is processed in the order of the ids, so two batches do not
 * deadlock.
 *
 * commit_and_claim commits and claims in one statement, and so with one flush of the WAL.  The
 * commit comes first.  If the claim is not possible, because the queue is paused, at a limit or
 * dropped, or because the role may not claim from it, no error is raised, since that would undo the
 * commit and its effect.  The token of the new attempt is valid once the transaction has committed,
 * as always.  A job of the same FIFO group as a committed one is not claimed, because the group's
 * next head is promoted only when the commit is visible.  If the answer is lost with the
 * connection, a repeated call raises IQ006, and the claimed jobs wait until their leases end.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* The arrays of a batch.  An array that was not passed has values NULL. */
typedef struct Batch
{
	ArrayArg ids;
	ArrayArg tokens;
	ArrayArg results;
	ArrayArg errors;
	ArrayArg details;
} Batch;

/* One element of a batch. */
typedef struct BatchItem
{
	int64 id;
	int64 token;
	int32 ord; /* position in the caller's arrays, from 0 */
} BatchItem;

/* Receives one outcome of a batch; ord: the element's position in the arguments, from 0. */
typedef void (*FinishAnswer)(const Attempt *attempt, int32 ord, Outcome outcome, void *arg);

/* Like idemq_finish_by_token, for the attempt of arguments id and token. */
static Outcome
finish_attempt(FunctionCallInfo fcinfo, Finish *finish, bool raise, Attempt *attempt)
{
	idemq_arg_attempt(fcinfo);
	return idemq_finish_by_token(PG_GETARG_INT64(0), PG_GETARG_INT64(1), finish, raise, attempt);
}

/* Like finish_attempt, but returns the outcome as an SQL value. */
static Datum
finish_one(FunctionCallInfo fcinfo, Finish *finish, bool raise)
{
	Attempt attempt;

	return idemq_outcome_datum(finish_attempt(fcinfo, finish, raise, &attempt));
}

static int
compare_items(const void *a, const void *b)
{
	const BatchItem *x = a;
	const BatchItem *y = b;
	int order = idemq_compare_int64(&x->id, &y->id);

	return order != 0 ? order : idemq_compare_int64(&x->token, &y->token);
}

/* Like compare_items, but equal ones are in the order of the caller's arrays. */
static int
compare_items_stably(const void *a, const void *b)
{
	int order = compare_items(a, b);

	return order != 0 ? order : ((const BatchItem *) a)->ord - ((const BatchItem *) b)->ord;
}

/* Reads ids and tokens, and the results of commit, or the errors and details of fail. */
static void
read_batch(FunctionCallInfo fcinfo, FinishKind kind, Batch *batch)
{
	int n;

	memset(batch, 0, sizeof(*batch));
	idemq_arg_attempts(fcinfo, &batch->ids, &batch->tokens);
	n = batch->ids.count;
	if (kind == FINISH_COMMIT)
		idemq_arg_array_like(fcinfo, 2, "results", JSONBOID, true, n, "ids", &batch->results);
	if (kind == FINISH_FAIL)
	{
		idemq_arg_array_like(fcinfo, 2, "errors", TEXTOID, true, n, "ids", &batch->errors);
		idemq_arg_array_like(fcinfo, 5, "details", JSONBOID, true, n, "ids", &batch->details);
	}
}

/* Returns the n-th element of an optional array, or NULL. */
static void *
element(const ArrayArg *array, int n)
{
	return array->values == NULL || array->nulls[n] ? NULL : DatumGetPointer(array->values[n]);
}

/*
 * Returns the elements of a batch in the order of their ids, so that two batches do not deadlock.  Of
 * several equal pairs (id, token), it returns only the first.
 */
static BatchItem *
sort_batch(const Batch *batch, int *count)
{
	int n = batch->ids.count;
	BatchItem *items = MemoryContextAllocHuge(CurrentMemoryContext, Max(n, 1) * sizeof(BatchItem));

	for (int i = 0; i < n; i++)
		items[i] = (BatchItem){DatumGetInt64(batch->ids.values[i]),
							   DatumGetInt64(batch->tokens.values[i]), i};
	qsort(items, n, sizeof(BatchItem), compare_items_stably);
	*count = (int) qunique(items, n, sizeof(BatchItem), compare_items);
	return items;
}

/*
 * Ends the attempts of arguments ids and tokens, all in the same way.  Argument 2 contains the
 * results of commit or the errors of fail, argument 5 the details of fail.  Calls add for each
 * different pair of id and token, even for two tokens of one job.  attempt->job is invalid by then.
 */
static void
finish_batch(FunctionCallInfo fcinfo, Finish *finish, FinishAnswer answer, void *arg)
{
	Batch batch;
	BatchItem *items;
	MemoryContext item_context;
	MemoryContext old;
	JobsTable table;
	Attempt attempt;
	bool of_others = false;
	int n;

	read_batch(fcinfo, finish->kind, &batch);
	items = sort_batch(&batch, &n);
	item_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq batch", ALLOCSET_DEFAULT_SIZES);
	idemq_jobs_open(&table);
	old = MemoryContextSwitchTo(item_context);
	for (int i = 0; i < n; i++)
	{
		Outcome outcome;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(item_context);
		finish->args.document = PointerGetDatum(element(&batch.results, items[i].ord));
		finish->args.error = element(&batch.errors, items[i].ord);
		finish->args.details = element(&batch.details, items[i].ord);
		outcome =
			idemq_finish_in(&table, items[i].id, items[i].token, finish, &attempt, &of_others);
		answer(&attempt, items[i].ord, outcome, arg);
	}
	MemoryContextSwitchTo(old);
	idemq_jobs_close(&table);
	if (of_others)
		idemq_sync_rep_await();
}

static void
add_to_set(const Attempt *attempt, int32 ord, Outcome outcome, void *arg)
{
	ReturnSetInfo *set = arg;
	Datum values[3];
	bool nulls[3] = {false};

	values[0] = Int64GetDatum(attempt->id);
	values[1] = Int64GetDatum(attempt->token);
	values[2] = idemq_outcome_datum(outcome);
	tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
}

/* Like finish_batch, but returns a set of (id, token, outcome). */
static Datum
finish_many(FunctionCallInfo fcinfo, Finish *finish)
{
	finish_batch(fcinfo, finish, add_to_set, idemq_srf_begin(fcinfo));
	return (Datum) 0;
}

/* Reads result, which is argument 2. */
static Finish
commit_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_COMMIT};

	if (!PG_ARGISNULL(2))
		finish.args.document = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(2)));
	return finish;
}

/* commit(id, token, result) -> committed; IQ001, IQ002, IQ006, 40001, 54000. */
SQL_FUNCTION(idemq_sql_commit)
{
	Finish finish = commit_args(fcinfo);

	return finish_one(fcinfo, &finish, true);
}

/* CALL commit_job(id, token, result, INOUT outcome): as commit. */
SQL_FUNCTION(idemq_sql_commit_job)
{
	return idemq_value_row_datum(fcinfo, idemq_sql_commit(fcinfo));
}

/*
 * try_commit(id, token, result) -> committed | already_committed | stale | not_found;
 * 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_try_commit)
{
	Finish finish = commit_args(fcinfo);

	return finish_one(fcinfo, &finish, false);
}

/* commit_many(ids, tokens, results) -> setof (id, token, outcome as try_commit). */
SQL_FUNCTION(idemq_sql_commit_many)
{
	Finish finish = {.kind = FINISH_COMMIT};

	return finish_many(fcinfo, &finish);
}

/*
 * Stores details of an attempt that has completed its job, and returns whether it did.  The job is
 * left alone if it is not completed, or has run again since.
 */
static bool
record_details(JobsTable *table, const BatchItem *item, Jsonb *details)
{
	Attempt attempt;
	const Job *job = &attempt.job;
	JobChange change = {0};

	idemq_check_document("details", PointerGetDatum(details), 0);
	for (;;)
	{
		if (idemq_attempt_find(table, item->id, item->token, &attempt) !=
				OUTCOME_ALREADY_COMMITTED ||
			job->status != JOB_COMPLETED || job->token != item->token)
			return false;
		job_set(&change, COL_FLAGS, Int16GetDatum(job->flags | JOB_HISTORY));
		if (idemq_jobs_update(table, job, &change, JOB_WAITS) == JOB_WRITTEN)
			break;
		idemq_jobs_refresh_or_raise(table);
	}
	idemq_attempt_history_add_commit(job, details);
	return true;
}

/*
 * record_details(ids, tokens, details) -> number of rows written; 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_record_details)
{
	Batch batch = {0};
	BatchItem *items;
	JobsTable table;
	int64 stored = 0;
	int n;

	idemq_arg_attempts(fcinfo, &batch.ids, &batch.tokens);
	idemq_arg_required(fcinfo, 2, "details");
	idemq_arg_array_like(fcinfo, 2, "details", JSONBOID, true, batch.ids.count, "ids",
						 &batch.details);
	items = sort_batch(&batch, &n);
	idemq_jobs_open(&table);
	for (int i = 0; i < n; i++)
	{
		Jsonb *details = element(&batch.details, items[i].ord);

		CHECK_FOR_INTERRUPTS();
		if (details != NULL && record_details(&table, &items[i], details))
			stored++;
	}
	idemq_jobs_close(&table);
	PG_RETURN_INT64(stored);
}

/* Reads retry_in and permanent. */
static Finish
fail_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_FAIL};

	finish.has_delay = !PG_ARGISNULL(3);
	if (finish.has_delay)
		finish.delay = idemq_arg_interval(fcinfo, 3, "retry_in", 0);
	finish.permanent = idemq_arg_bool(fcinfo, 4, "permanent");
	return finish;
}

/*
 * fail(id, token, error, retry_in, permanent, details) -> retrying | dead | stale | not_found;
 * 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_fail)
{
	Finish finish = fail_args(fcinfo);

	if (!PG_ARGISNULL(2))
		finish.args.error = PG_GETARG_TEXT_P(2);
	if (!PG_ARGISNULL(5))
		finish.args.details = PG_GETARG_JSONB_P(5);
	return finish_one(fcinfo, &finish, false);
}

/* CALL fail_job(id, token, error, retry_in, permanent, details, INOUT outcome): as fail. */
SQL_FUNCTION(idemq_sql_fail_job)
{
	return idemq_value_row_datum(fcinfo, idemq_sql_fail(fcinfo));
}

/*
 * fail_many(ids, tokens, errors, retry_in, permanent, details)
 *		-> setof (id, token, outcome as fail).
 */
SQL_FUNCTION(idemq_sql_fail_many)
{
	Finish finish = fail_args(fcinfo);

	return finish_many(fcinfo, &finish);
}

/* Reads delay. */
static Finish
release_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_RELEASE};

	if (!PG_ARGISNULL(2))
		finish.delay = idemq_arg_interval(fcinfo, 2, "delay", 0);
	return finish;
}

/* release(id, token, delay) -> released | cancelled | stale | not_found; 40001. */
SQL_FUNCTION(idemq_sql_release)
{
	Finish finish = release_args(fcinfo);

	return finish_one(fcinfo, &finish, false);
}

/* release_many(ids, tokens, delay) -> setof (id, token, outcome as release). */
SQL_FUNCTION(idemq_sql_release_many)
{
	Finish finish = release_args(fcinfo);

	return finish_many(fcinfo, &finish);
}

static bool
decide_revoke(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_RELEASE;
	args->error = cstring_to_text("the lease was revoked");
	*outcome = job->status == JOB_RUNNING ? OUTCOME_RELEASED : idemq_outcome_of_status(job->status);
	return job->status == JOB_RUNNING;
}

/*
 * revoke_lease(id) -> released | current (not running) | blocked | completed | dead | cancelled |
 * not_found; 22004, 40001.
 */
SQL_FUNCTION(idemq_sql_revoke_lease)
{
	static const JobChanger revoker = {.decide = decide_revoke,
									   .privileges = PRIVILEGE_ADMIN,
									   .audit = {.action = "revoke_lease"}};

	return idemq_change_one(fcinfo, &revoker);
}

/* Positions of the arguments after those of commit_many. */
#define ARG_QUEUE 3
#define ARG_CLAIM 4

/* A call of commit_many_and_claim. */
typedef struct BatchCall
{
	ClaimCall claim; /* its queue is that of job first */
	int32 first;	 /* in the arguments, position of the first committed job; -1: none */
} BatchCall;

/* Returns the argument queue, or NULL, which means the queue of the job. */
static char *
queue_arg(FunctionCallInfo fcinfo)
{
	return PG_ARGISNULL(ARG_QUEUE) ? NULL
								   : idemq_arg_text(fcinfo, ARG_QUEUE, "queue", IDEMQ_MAX_NAME_ARG);
}

/* Warns that no job can be claimed.  An error would undo the commit. */
static void
commit_and_claim_warn(const char *queue, const char *why)
{
	ereport(
		WARNING, errcode(ERRCODE_WARNING), errmsg("could not claim a job from queue \"%s\"", queue),
		errdetail("%s", why),
		errhint(
			"The previous job has been committed. Correct the arguments before you claim the next "
			"job."));
}

/*
 * Claims from the queue with a name, or, if it is NULL, from the queue that the call already has.
 */
static void
claim_next(ClaimCall *call, const char *name)
{
	QueueInfo *queue = &call->scan.queue;
	bool found = name == NULL ? idemq_queue_by_id(queue->id, queue) : idemq_queue_find(name, queue);

	if (name == NULL)
		name = queue->name;
	if (!found || (queue->privileges & PRIVILEGE_CLAIM) == 0)
		commit_and_claim_warn(
			name, "The queue does not exist, or this role lacks the claim privilege on it.");
	else if (call->lease > queue->max_lease)
		commit_and_claim_warn(name, "The lease is longer than the queue's max_lease.");
	else if (queue->qstate == NULL)
		commit_and_claim_warn(name, "The queue has no state in shared memory.");
	else
		idemq_claim_from_queue(call);
}

/*
 * commit_and_claim(id, token, result, queue, max_jobs, lease, worker, attach)
 *		-> setof claimed job; as commit: IQ001, IQ002, IQ006, 40001, 54000; 22004, 22023.
 */
SQL_FUNCTION(idemq_sql_commit_and_claim)
{
	Finish finish = commit_args(fcinfo);
	char *name = queue_arg(fcinfo);
	Attempt attempt;
	ClaimCall call;

	idemq_claim_args(fcinfo, ARG_CLAIM, &call);
	(void) finish_attempt(fcinfo, &finish, true, &attempt);
	call.scan.queue = attempt.queue;
	claim_next(&call, name);
	return (Datum) 0;
}

/* Adds one outcome to the answer. */
static void
add_outcome(const Attempt *attempt, int32 ord, Outcome outcome, void *arg)
{
	BatchCall *batch = arg;
	Datum values[CLAIM_COLUMN_COUNT + 1];
	bool nulls[CLAIM_COLUMN_COUNT + 1];

	memset(nulls, true, sizeof(nulls));
	memset(values, 0, sizeof(values));
	values[0] = idemq_outcome_datum(outcome);
	values[1] = Int64GetDatum(attempt->id);
	values[2] = Int64GetDatum(attempt->token);
	nulls[0] = nulls[1] = nulls[2] = false;
	tuplestore_putvalues(batch->claim.store, batch->claim.desc, values, nulls);
	if (outcome == OUTCOME_COMMITTED && (batch->first < 0 || ord < batch->first))
	{
		batch->first = ord;
		batch->claim.scan.queue = attempt->queue;
	}
}

/*
 * commit_many_and_claim(ids, tokens, results, queue, max_jobs, lease, worker, attach)
 *		-> setof (outcome, id, token, and of a claimed job the other columns of claim): first
 *		   a row for each pair as commit_many, then the claimed ones.
 */
SQL_FUNCTION(idemq_sql_commit_many_and_claim)
{
	Finish finish = {.kind = FINISH_COMMIT};
	char *name = queue_arg(fcinfo);
	BatchCall batch = {.first = -1};

	idemq_claim_args(fcinfo, ARG_CLAIM, &batch.claim);
	batch.claim.with_outcome = true;
	finish_batch(fcinfo, &finish, add_outcome, &batch);
	if (name != NULL || batch.first >= 0)
		claim_next(&batch.claim, name);
	return (Datum) 0;
}
