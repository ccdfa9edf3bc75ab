/*
 * api/finish.c
 *		Ending attempts: what commit, fail and release share.
 *
 * The job's latest version is fetched, status and token are checked on it, and that
 * very version is written.  If it changed in between, this starts again.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "table/table.h"

/* The arrays of a batch; values of an absent one is NULL. */
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
	int32 ord; /* its position in the caller's arrays, from 0 */
} BatchItem;

/* Returns the event by which an attempt ends, and what to answer then. */
static JobEvent
choose_event(Finish *finish, const Attempt *attempt, Outcome *outcome)
{
	const QueueInfo *queue = &attempt->queue;
	int64 delay = finish->delay;

	if (finish->kind == FINISH_FAIL && !finish->has_delay)
		delay = idemq_backoff(queue->retry_base, queue->retry_factor, queue->retry_max,
							  queue->retry_jitter, attempt->job.attempt, compat_random());
	finish->args.now = idemq_now();
	finish->args.ready_at = finish->args.now + delay;
	switch (finish->kind)
	{
		case FINISH_COMMIT:
			*outcome = OUTCOME_COMMITTED;
			return EVENT_COMMIT;
		case FINISH_FAIL:
			if (finish->permanent || attempt->job.attempt >= attempt->job.max_attempts)
			{
				*outcome = OUTCOME_DEAD;
				return EVENT_DIE;
			}
			*outcome = OUTCOME_RETRYING;
			return EVENT_FAIL;
		case FINISH_RELEASE:
			*outcome = OUTCOME_RELEASED;
			return finish->args.error != NULL ? EVENT_INTERRUPT : EVENT_RELEASE;
	}
	pg_unreachable();
}

/*
 * Ends one attempt.  Returns its outcome, that of idemq_attempt_find when the token is not
 * current, or OUTCOME_LOCKED when it would have to wait and is not to; raises 40001 above READ
 * COMMITTED.
 */
static Outcome
finish_attempt(JobsTable *table, int64 id, int64 token, Finish *finish, Attempt *attempt)
{
	for (;;)
	{
		Outcome outcome = idemq_attempt_find(table, id, token, attempt);
		JobEvent event;
		JobWrite write;

		if (outcome != OUTCOME_CURRENT)
		{
			if (!finish->uncounted)
				idemq_attempt_count(attempt, outcome, finish->kind == FINISH_COMMIT);
			/* Only a commit distinguishes a repeated call from a stale one. */
			return outcome == OUTCOME_ALREADY_COMMITTED && finish->kind != FINISH_COMMIT
					   ? OUTCOME_STALE
					   : outcome;
		}
		event = choose_event(finish, attempt, &outcome);
		write = idemq_transition(table, &attempt->job, &attempt->queue, event, &finish->args,
								 finish->wait);
		if (write != JOB_CHANGED)
			return write == JOB_LOCKED ? OUTCOME_LOCKED : outcome;
		idemq_jobs_refresh_or_raise(table);
	}
}

/* Checks how long what an attempt ends with is; raises 54000. */
static void
check_documents(const Finish *finish)
{
	if (!finish->args.no_document)
		idemq_check_document("result", finish->args.document, 0);
	idemq_check_text("error", PointerGetDatum(finish->args.error));
	idemq_check_document("details", PointerGetDatum(finish->args.details), 0);
}

/* Returns whether an outcome tells of what another transaction has committed. */
static bool
is_of_others(const Attempt *attempt, Outcome outcome)
{
	return outcome == OUTCOME_ALREADY_COMMITTED && !idemq_jobs_is_own(&attempt->job);
}

/*
 * Ends one attempt; with raise, a stale one is an error.  Of *attempt the job is void
 * afterwards.
 */
Outcome
idemq_finish_by_token(int64 id, int64 token, Finish *finish, bool raise, Attempt *attempt)
{
	JobsTable table;
	Outcome outcome;

	check_documents(finish);
	idemq_jobs_open(&table);
	outcome = finish_attempt(&table, id, token, finish, attempt);
	if (is_of_others(attempt, outcome))
		idemq_sync_rep_await();
	if (raise)
		idemq_attempt_raise(attempt, outcome);
	idemq_jobs_close(&table);
	return outcome;
}

/* As idemq_finish_by_token, the attempt of arguments id and token. */
Outcome
idemq_finish_attempt(FunctionCallInfo fcinfo, Finish *finish, bool raise, Attempt *attempt)
{
	idemq_arg_required(fcinfo, 0, "id");
	idemq_arg_required(fcinfo, 1, "token");
	return idemq_finish_by_token(PG_GETARG_INT64(0), PG_GETARG_INT64(1), finish, raise, attempt);
}

/* As idemq_finish_attempt; returns the outcome as a value of SQL. */
Datum
idemq_finish_one(FunctionCallInfo fcinfo, Finish *finish, bool raise)
{
	Attempt attempt;

	return idemq_outcome_datum(idemq_finish_attempt(fcinfo, finish, raise, &attempt));
}

static int
compare_items(const void *a, const void *b)
{
	const BatchItem *x = a;
	const BatchItem *y = b;
	int order = idemq_compare_int64(&x->id, &y->id);

	return order != 0 ? order : idemq_compare_int64(&x->token, &y->token);
}

/* As compare_items, and of equal ones the first in the caller's arrays first. */
static int
compare_items_stably(const void *a, const void *b)
{
	int order = compare_items(a, b);

	return order != 0 ? order : ((const BatchItem *) a)->ord - ((const BatchItem *) b)->ord;
}

/*
 * Returns the attempts in the order of their ids, so that two batches never deadlock; of
 * an (id, token) named twice, the first.
 */
static BatchItem *
sort_items(const ArrayArg *ids, const ArrayArg *tokens, int *count)
{
	int n = ids->count;
	BatchItem *items = MemoryContextAllocHuge(CurrentMemoryContext, Max(n, 1) * sizeof(BatchItem));

	for (int i = 0; i < n; i++)
		items[i] = (BatchItem){DatumGetInt64(ids->values[i]), DatumGetInt64(tokens->values[i]), i};
	qsort(items, n, sizeof(BatchItem), compare_items_stably);
	*count = (int) qunique(items, n, sizeof(BatchItem), compare_items);
	return items;
}

/* Reads ids, tokens, and the result, or error and details, of each. */
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
 * Ends the attempts of arguments ids and tokens, in one way; commit's results and
 * fail's errors are argument 2, fail's details argument 5.  answer is called for each
 * pair of id and token: two tokens of one job are answered both.  Of attempt's, the job
 * is void when it is answered.
 */
void
idemq_finish_batch(FunctionCallInfo fcinfo, Finish *finish, FinishAnswer answer, void *arg)
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
	items = sort_items(&batch.ids, &batch.tokens, &n);
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
		finish->args.no_document = finish->args.document == (Datum) 0;
		finish->args.error = element(&batch.errors, items[i].ord);
		finish->args.details = element(&batch.details, items[i].ord);
		check_documents(finish);
		outcome = finish_attempt(&table, items[i].id, items[i].token, finish, &attempt);
		of_others |= is_of_others(&attempt, outcome);
		answer(&attempt, items[i].ord, outcome, arg);
	}
	MemoryContextSwitchTo(old);
	idemq_jobs_close(&table);
	if (of_others)
		idemq_sync_rep_await();
}

/* The set that idemq_finish_many returns. */
typedef struct FinishSet
{
	Tuplestorestate *store;
	TupleDesc desc;
} FinishSet;

static void
add_to_set(const Attempt *attempt, int32 ord, Outcome outcome, void *arg)
{
	FinishSet *set = arg;
	Datum values[3];
	bool nulls[3] = {false};

	values[0] = Int64GetDatum(attempt->id);
	values[1] = Int64GetDatum(attempt->token);
	values[2] = idemq_outcome_datum(outcome);
	tuplestore_putvalues(set->store, set->desc, values, nulls);
}

/* As idemq_finish_batch; returns a set of (id, token, outcome). */
Datum
idemq_finish_many(FunctionCallInfo fcinfo, Finish *finish)
{
	FinishSet set;

	set.store = idemq_srf_begin(fcinfo, &set.desc);
	idemq_finish_batch(fcinfo, finish, add_to_set, &set);
	return (Datum) 0;
}
