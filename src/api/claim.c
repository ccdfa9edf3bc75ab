/*
 * api/claim.c
 *		SQL functions that begin attempts: claim, claim_any.  (claim_job: api/claim_job.c)
 *
 * A claim starts at the ready cursor of each priority, skips what the lease
 * table says is busy, takes what is ready, and moves the cursor up past what it
 * proved unclaimable.  A row that is held without an entry is skipped, and the cursor
 * stays before it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "api/claim_row.h"
#include "job/claim_one.h"
#include "job/limits.h"
#include "job/promote.h"
#include "job/ready_scan.h"
#include "job/recover.h"
#include "job/transition.h"
#include "table/jobs.h"
#include "queue/queue_settings.h"
#include "queue/queues.h"
#include "shared/lease_scan.h"
#include "shared/leases.h"
#include "shared/promote_round.h"
#include "shared/ready_cursor.h"
#include "shared/wake.h"
#include "shared/worker_board.h"
#include "base/args.h"
#include "base/clock.h"

PG_FUNCTION_INFO_V1(idemq_sql_claim);
PG_FUNCTION_INFO_V1(idemq_sql_claim_any);

/* One call of claim or claim_any. */
typedef struct ClaimCall
{
	ReadyScan scan; /* of the queue at hand; first, for consider */
	/* what is asked for */
	int32 wanted;
	int64 lease; /* microseconds, 0 for the queue's */
	text *worker;
	bool attach;
	/* where the answer goes */
	Tuplestorestate *store;
	TupleDesc desc;
	bool with_queue; /* the last column is the queue's name */
	int32 claimed;
} ClaimCall;

/* Claims a fetched job that is ready, and adds it to the answer. */
static Step
claim_ready(ClaimCall *call, JobsTable *table, const Job *job)
{
	EventArgs args = {0};
	int64 lease = call->lease > 0 ? call->lease : call->scan.queue.lease;
	Datum values[CLAIM_COLUMN_COUNT + 1];
	bool nulls[CLAIM_COLUMN_COUNT + 1];

	args.now = idemq_now();
	args.deadline = args.now + lease;
	args.worker = call->worker;
	switch (idemq_claim_one(table, job, &call->scan.queue, EVENT_CLAIM, &args, lease, call->attach))
	{
		case TAKE_BUSY:
			return STEP_PASS;
		case TAKE_CHANGED:
			/* Above READ COMMITTED it may just be too new for our snapshot. */
			return table->crosscheck == InvalidSnapshot ? STEP_PASS : STEP_STAY;
		case TAKE_LOCKED:
			return STEP_STAY;
		case TAKE_LIMIT:
			call->scan.stopped = true;
			return STEP_STAY;
		case TAKE_DONE:
			break;
	}
	idemq_claim_row_fill(job, &args, values, nulls);
	values[CLAIM_COLUMN_COUNT] = CStringGetTextDatum(call->scan.queue.name);
	nulls[CLAIM_COLUMN_COUNT] = false;
	tuplestore_putvalues(call->store, call->desc, values, nulls);
	call->claimed++;
	return call->claimed < call->wanted ? STEP_PASS : STEP_STOP;
}

/* Decides about one entry of the ready index that is due. */
static Step
consider(ReadyScan *scan, JobsTable *table, int priority, ReadyKey key)
{
	ClaimCall *call = (ClaimCall *) scan;
	Job job;

	if (idemq_lease_turns_away(key.id, priority, key) || !idemq_jobs_scan_row(table, &job))
		return STEP_PASS;
	if (!idemq_transition_allowed(EVENT_CLAIM, job.status))
		return STEP_PASS;
	if (job_has_expired(&job, scan->now))
	{
		JobWrite write = idemq_job_expire(table, &job, &scan->queue, scan->now);

		return write == JOB_WRITTEN ? STEP_PASS : STEP_STAY;
	}
	return claim_ready(call, table, &job);
}

/* Claims from the queue at hand, from its cursors or from the start of the index. */
static void
scan_queue(ClaimCall *call, bool from_start)
{
	LimitView view;
	JobsTable table;

	idemq_ready_scan(&call->scan, &table, from_start);
	idemq_jobs_close(&table);
	/* A signal may be lost with its sleeper: what is left wakes the next one. */
	if (call->scan.more && idemq_limit_lets(&call->scan.queue, &view))
		(void) idemq_sleepers_wake(idemq_sleepers_of_queue(call->scan.queue.slot), 1);
}

/* Returns whether a claim may have use for heads that are to be promoted. */
static bool
may_promote(const QueueInfo *queue)
{
	LimitView view;

	return idemq_promote_wanted(queue) &&
		   (idemq_limit_may_borrow(queue) || idemq_limit_lets(queue, &view));
}

/*
 * Claims from the queue at hand what is ready; and, if that is not enough, heads of
 * FIFO groups that are not promoted yet.  Without a worker heads come first, or jobs of
 * no group could keep them waiting for ever.  Scans again after a round of promotion that
 * was under way.
 */
static void
scan_and_promote(ClaimCall *call)
{
	const QueueInfo *queue = &call->scan.queue;
	bool alone = queue->slot == NULL || !idemq_worker_present();
	uint32 round = queue->slot == NULL ? 0 : idemq_round_number(queue->slot);

	if (alone && may_promote(queue))
		(void) idemq_promote_some(queue, call->wanted - call->claimed);
	scan_queue(call, false);
	/* It has what it wants, or the queue is at a limit. */
	if (call->scan.stopped)
		return;
	if (may_promote(queue) && idemq_promote_some(queue, call->wanted - call->claimed) > 0)
		scan_queue(call, false);
	else if (queue->slot != NULL && call->claimed == 0)
	{
		idemq_round_await(queue->slot);
		if (idemq_round_number(queue->slot) != round)
			scan_queue(call, false);
	}
}

/*
 * Claims up to what is still wanted from a queue: first what has expired goes
 * back, then the scan from the cursors; a queue that seems empty is scanned from the
 * start, at most once a second.
 */
static void
claim_from_queue(ClaimCall *call, const char *name)
{
	idemq_queue_by_name(name, PRIVILEGE_CLAIM, &call->scan.queue);
	idemq_settings_check_lease(&call->scan.queue, call->lease);
	if (call->scan.queue.paused)
		return;
	if (!idemq_before_claim(&call->scan.queue))
		return;
	idemq_wake_claimed(call->scan.queue.slot);
	scan_and_promote(call);
	if (call->claimed == 0 && !call->scan.stopped &&
		idemq_cursor_verify_due(call->scan.queue.slot, call->scan.queue.id))
	{
		int64 started = idemq_mono_now();

		scan_queue(call, true);
		idemq_cursor_verified(call->scan.queue.slot, call->scan.queue.id,
							  idemq_mono_now() - started);
	}
}

/* Reads the arguments after the first of claim and claim_any, and begins the answer. */
static void
begin_call(ClaimCall *call, FunctionCallInfo fcinfo)
{
	idemq_jobs_check_writable();
	memset(call, 0, sizeof(*call));
	call->wanted = idemq_arg_int(fcinfo, 1, "max_jobs", 1, IDEMQ_MAX_ARRAY);
	if (!PG_ARGISNULL(2))
		call->lease = idemq_arg_interval(fcinfo, 2, "lease", 1);
	call->worker = idemq_arg_worker(fcinfo, 3);
	call->attach = idemq_arg_bool(fcinfo, 4, "attach");
	if (call->attach)
		idemq_lease_attach_session();
	call->store = idemq_srf_begin(fcinfo, &call->desc);
	call->scan.consider = consider;
	call->scan.row_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq claim", ALLOCSET_DEFAULT_SIZES);
}

/*
 * claim(queue text, max_jobs int, lease interval, worker text, attach bool)
 *		-> setof claimed job; 42501, IQ005, 22004, 22023.
 */
Datum
idemq_sql_claim(PG_FUNCTION_ARGS)
{
	char *queue = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	ClaimCall call;

	begin_call(&call, fcinfo);
	claim_from_queue(&call, queue);
	return (Datum) 0;
}

/* claim_any(queues text[], ...) -> as claim, and the queue's name. */
Datum
idemq_sql_claim_any(PG_FUNCTION_ARGS)
{
	ArrayArg queues;
	ClaimCall call;

	idemq_arg_array(fcinfo, 0, "queues", TEXTOID, false, &queues);
	begin_call(&call, fcinfo);
	for (int i = 0; i < queues.count; i++)
	{
		idemq_queue_by_name(TextDatumGetCString(queues.values[i]), PRIVILEGE_CLAIM,
							&call.scan.queue);
		idemq_settings_check_lease(&call.scan.queue, call.lease);
	}
	for (int i = 0; i < queues.count && call.claimed < call.wanted; i++)
		claim_from_queue(&call, TextDatumGetCString(queues.values[i]));
	return (Datum) 0;
}
