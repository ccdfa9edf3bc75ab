/*
 * api/finish.c
 *		SQL functions that end an attempt: commit, try_commit, commit_many, fail,
 *		fail_many, release.
 *
 * Each looks at the job's latest version, checks status and token on it, and
 * writes that very version.  If it changed in between, it looks again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "job/attempt.h"
#include "job/transition.h"
#include "table/jobs.h"
#include "base/args.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/oids.h"

PG_FUNCTION_INFO_V1(idemq_sql_commit);
PG_FUNCTION_INFO_V1(idemq_sql_try_commit);
PG_FUNCTION_INFO_V1(idemq_sql_commit_many);
PG_FUNCTION_INFO_V1(idemq_sql_fail);
PG_FUNCTION_INFO_V1(idemq_sql_fail_many);
PG_FUNCTION_INFO_V1(idemq_sql_release);

typedef enum FinishKind
{
	FINISH_COMMIT,
	FINISH_FAIL,
	FINISH_RELEASE
} FinishKind;

/* How attempts are to end. */
typedef struct Finish
{
	FinishKind kind;
	bool permanent; /* fail: no further attempt */
	bool has_delay;
	int64 delay;	/* fail, release: microseconds until the job is ready again */
	EventArgs args; /* result or error */
} Finish;

/* One element of a batch. */
typedef struct BatchItem
{
	int64 id;
	int64 token;
	int32 ord; /* its place in the caller's arrays, from 0 */
} BatchItem;

/* Returns the event by which an attempt ends, and what to answer then. */
static JobEvent
choose_event(Finish *finish, const Attempt *attempt, Outcome *outcome)
{
	const QueueInfo *queue = &attempt->queue;
	int64 delay = finish->delay;

	finish->args.now = idemq_now();
	if (finish->kind == FINISH_COMMIT)
	{
		*outcome = OUTCOME_COMMITTED;
		return EVENT_COMMIT;
	}
	if (finish->kind == FINISH_FAIL &&
		(finish->permanent || attempt->job.attempt >= attempt->job.max_attempts))
	{
		*outcome = OUTCOME_DEAD;
		return EVENT_DIE;
	}
	if (finish->kind == FINISH_FAIL && !finish->has_delay)
		delay = idemq_backoff(queue->retry_base, queue->retry_factor, queue->retry_max,
							  queue->retry_jitter, attempt->job.attempt, compat_random());
	finish->args.ready_at = finish->args.now + delay;
	*outcome = finish->kind == FINISH_FAIL ? OUTCOME_RETRYING : OUTCOME_RELEASED;
	return finish->kind == FINISH_FAIL ? EVENT_FAIL : EVENT_RELEASE;
}

/*
 * Ends one attempt.  Returns its outcome, or that of idemq_attempt_find when the
 * token is not current; raises 40001 above READ COMMITTED.
 */
static Outcome
finish_attempt(JobsTable *table, int64 id, int64 token, Finish *finish, Attempt *attempt)
{
	for (;;)
	{
		Outcome outcome = idemq_attempt_find(table, id, token, attempt);
		JobEvent event;

		if (outcome != OUTCOME_CURRENT)
			return outcome;
		event = choose_event(finish, attempt, &outcome);
		if (idemq_transition(table, &attempt->job, &attempt->queue, event, &finish->args,
							 JOB_WAITS) == JOB_WRITTEN)
			return outcome;
		idemq_jobs_refresh_or_raise(table);
	}
}

/* Ends the attempt of arguments id and token; raises for a stale one if told to. */
static Datum
finish_one(FunctionCallInfo fcinfo, Finish *finish, bool raise)
{
	JobsTable table;
	Attempt attempt;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_arg_required(fcinfo, 1, "token");
	idemq_jobs_open(&table);
	outcome = finish_attempt(&table, PG_GETARG_INT64(0), PG_GETARG_INT64(1), finish, &attempt);
	if (raise)
		idemq_attempt_raise(&attempt, outcome);
	idemq_jobs_close(&table);
	/* Only a commit tells a repeated call from a stale one. */
	if (outcome == OUTCOME_ALREADY_COMMITTED && finish->kind != FINISH_COMMIT)
		outcome = OUTCOME_STALE;
	return idemq_outcome_datum(outcome);
}

static int
compare_items(const void *a, const void *b)
{
	const BatchItem *x = a;
	const BatchItem *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	if (x->token != y->token)
		return x->token < y->token ? -1 : 1;
	return 0;
}

/* As compare_items, and of equal ones the first in the caller's arrays first. */
static int
compare_items_stably(const void *a, const void *b)
{
	int order = compare_items(a, b);

	return order != 0 ? order : ((const BatchItem *) a)->ord - ((const BatchItem *) b)->ord;
}

/*
 * Ends many attempts, in the order of their ids, so that two batches never
 * deadlock; of an (id, token) named twice the first counts.  documents: the result or
 * error of each, or none.
 */
static Datum
finish_many(FunctionCallInfo fcinfo, Finish *finish, const ArrayArg *documents, const ArrayArg *ids,
			const ArrayArg *tokens)
{
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);
	BatchItem *items =
		MemoryContextAllocHuge(CurrentMemoryContext, Max(ids->count, 1) * sizeof(BatchItem));
	MemoryContext item_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq batch", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;
	JobsTable table;
	Attempt attempt;
	int n = ids->count;

	for (int i = 0; i < n; i++)
		items[i] = (BatchItem){DatumGetInt64(ids->values[i]), DatumGetInt64(tokens->values[i]), i};
	qsort(items, n, sizeof(BatchItem), compare_items_stably);
	n = qunique(items, n, sizeof(BatchItem), compare_items);

	idemq_jobs_open(&table);
	old = MemoryContextSwitchTo(item_context);
	for (int i = 0; i < n; i++)
	{
		bool none = documents->values == NULL || documents->nulls[items[i].ord];
		Datum document = none ? (Datum) 0 : documents->values[items[i].ord];
		Datum values[2];
		bool nulls[2] = {false, false};
		Outcome outcome;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(item_context);
		finish->args.document = document;
		finish->args.no_document = none;
		finish->args.error = none ? NULL : (text *) DatumGetPointer(document);
		outcome = finish_attempt(&table, items[i].id, items[i].token, finish, &attempt);
		if (outcome == OUTCOME_ALREADY_COMMITTED && finish->kind != FINISH_COMMIT)
			outcome = OUTCOME_STALE;
		values[0] = Int64GetDatum(items[i].id);
		values[1] = idemq_outcome_datum(outcome);
		tuplestore_putvalues(store, desc, values, nulls);
	}
	MemoryContextSwitchTo(old);
	idemq_jobs_close(&table);
	return (Datum) 0;
}

static Finish
commit_args(FunctionCallInfo fcinfo)
{
	Finish finish = {.kind = FINISH_COMMIT};

	finish.args.no_document = PG_ARGISNULL(2);
	if (!PG_ARGISNULL(2))
		finish.args.document = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(2)));
	return finish;
}

/* commit(id, token, result) -> committed; IQ001, IQ002, IQ006, 40001. */
Datum
idemq_sql_commit(PG_FUNCTION_ARGS)
{
	Finish finish = commit_args(fcinfo);

	return finish_one(fcinfo, &finish, true);
}

/* try_commit(id, token, result) -> committed | already_committed | stale | not_found; 40001. */
Datum
idemq_sql_try_commit(PG_FUNCTION_ARGS)
{
	Finish finish = commit_args(fcinfo);

	return finish_one(fcinfo, &finish, false);
}

/* commit_many(ids, tokens, results) -> setof (id, outcome as try_commit). */
Datum
idemq_sql_commit_many(PG_FUNCTION_ARGS)
{
	Finish finish = {.kind = FINISH_COMMIT};
	ArrayArg ids;
	ArrayArg tokens;
	ArrayArg results;

	idemq_arg_array(fcinfo, 0, "ids", INT8OID, false, &ids);
	idemq_arg_required(fcinfo, 1, "tokens");
	idemq_arg_array_like(fcinfo, 1, "tokens", INT8OID, false, ids.count, "ids", &tokens);
	idemq_arg_array_like(fcinfo, 2, "results", JSONBOID, true, ids.count, "ids", &results);
	return finish_many(fcinfo, &finish, &results, &ids, &tokens);
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

/* fail(id, token, error, retry_in, permanent) -> retrying | dead | stale | not_found; 40001. */
Datum
idemq_sql_fail(PG_FUNCTION_ARGS)
{
	Finish finish = fail_args(fcinfo);

	if (!PG_ARGISNULL(2))
		finish.args.error = PG_GETARG_TEXT_P(2);
	return finish_one(fcinfo, &finish, false);
}

/* fail_many(ids, tokens, errors, retry_in, permanent) -> setof (id, outcome as fail). */
Datum
idemq_sql_fail_many(PG_FUNCTION_ARGS)
{
	Finish finish = fail_args(fcinfo);
	ArrayArg ids;
	ArrayArg tokens;
	ArrayArg errors;

	idemq_arg_array(fcinfo, 0, "ids", INT8OID, false, &ids);
	idemq_arg_required(fcinfo, 1, "tokens");
	idemq_arg_array_like(fcinfo, 1, "tokens", INT8OID, false, ids.count, "ids", &tokens);
	idemq_arg_array_like(fcinfo, 2, "errors", TEXTOID, true, ids.count, "ids", &errors);
	return finish_many(fcinfo, &finish, &errors, &ids, &tokens);
}

/* release(id, token, delay) -> released | stale | not_found; 40001. */
Datum
idemq_sql_release(PG_FUNCTION_ARGS)
{
	Finish finish = {.kind = FINISH_RELEASE};

	if (!PG_ARGISNULL(2))
		finish.delay = idemq_arg_interval(fcinfo, 2, "delay", 0);
	return finish_one(fcinfo, &finish, false);
}
