/*
 * api/finish.c
 *		Ending attempts: what commit, fail and release share (job/finish.c does it).
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
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

/* As idemq_finish_by_token, for the attempt of arguments id and token. */
Outcome
idemq_finish_attempt(FunctionCallInfo fcinfo, Finish *finish, bool raise, Attempt *attempt)
{
	idemq_arg_attempt(fcinfo);
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

/* As compare_items; equal ones are in the order of the caller's arrays. */
static int
compare_items_stably(const void *a, const void *b)
{
	int order = compare_items(a, b);

	return order != 0 ? order : ((const BatchItem *) a)->ord - ((const BatchItem *) b)->ord;
}

/* Reads ids and tokens, and commit's results, or fail's errors and details. */
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
 * Ends the attempts of arguments ids and tokens, all in one way.  Argument 2 has commit's
 * results or fail's errors, argument 5 fail's details.  Calls answer for each different pair
 * of id and token, also for two tokens of one job; the attempt's job is void by then.
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
	/*
	 * In the order of their ids, so that two batches never deadlock; of an (id, token) named
	 * twice, the first.
	 */
	n = batch.ids.count;
	items = MemoryContextAllocHuge(CurrentMemoryContext, Max(n, 1) * sizeof(BatchItem));
	for (int i = 0; i < n; i++)
		items[i] = (BatchItem){DatumGetInt64(batch.ids.values[i]),
							   DatumGetInt64(batch.tokens.values[i]), i};
	qsort(items, n, sizeof(BatchItem), compare_items_stably);
	n = (int) qunique(items, n, sizeof(BatchItem), compare_items);
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

/* As idemq_finish_batch; returns a set of (id, token, outcome). */
Datum
idemq_finish_many(FunctionCallInfo fcinfo, Finish *finish)
{
	idemq_finish_batch(fcinfo, finish, add_to_set, idemq_srf_begin(fcinfo));
	return (Datum) 0;
}
