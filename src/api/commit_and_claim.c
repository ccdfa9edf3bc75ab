/*
 * api/commit_and_claim.c
 *		SQL functions that end attempts and begin the next in one statement, one
 *		transaction, one flush of WAL: commit_and_claim, commit_many_and_claim.
 *
 * The commit comes first.  What keeps the claim from being made (a queue that is paused, at
 * a limit, dropped, or not this role's to claim from) is no error, since an error would undo
 * the commit, and with it the effect.  A new attempt's token is good when the transaction
 * commits, as any other.
 *
 * A job of the same FIFO group as one that ends here is not claimed here: the group's next
 * head is promoted after the commit is visible.
 *
 * An answer that is lost with the connection is lost for good: a repeated call raises IQ006,
 * and the claimed jobs wait for their leases to end.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "queue/queue.h"

/* Positions of the arguments behind the commit's. */
#define ARG_QUEUE 3
#define ARG_CLAIM 4

/* A call of commit_many_and_claim. */
typedef struct BatchCall
{
	ClaimCall claim; /* from the queue of the first job, by the arguments, that is committed */
	int32 first;	 /* the position of that job; -1: none */
} BatchCall;

/* Returns the name of the queue that was asked for, NULL for the job's own. */
static char *
queue_arg(FunctionCallInfo fcinfo)
{
	return PG_ARGISNULL(ARG_QUEUE) ? NULL
								   : idemq_arg_text(fcinfo, ARG_QUEUE, "queue", IDEMQ_MAX_NAME_ARG);
}

/* Says that nothing can be claimed; an error would undo the commit. */
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

/* Claims from a queue by name, or from the one that the call has already. */
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
	Finish finish = idemq_commit_args(fcinfo);
	char *name = queue_arg(fcinfo);
	Attempt attempt;
	ClaimCall call;

	idemq_claim_args(fcinfo, ARG_CLAIM, &call);
	(void) idemq_finish_attempt(fcinfo, &finish, true, &attempt);
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
	idemq_finish_batch(fcinfo, &finish, add_outcome, &batch);
	if (name != NULL || batch.first >= 0)
		claim_next(&batch.claim, name);
	return (Datum) 0;
}
