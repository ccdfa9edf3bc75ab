/*
 * claim.c
 *		SQL functions that begin an attempt: claim, claim_any, claim_job.
 *
 * A claim starts at the ready cursor of each priority, skips what the lease
 * table says is busy, takes what is ready, and moves the cursor up past what it
 * proved unclaimable.  Where it meets a row that somebody holds without an
 * entry, it skips it, and the cursor stays before it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "args.h"
#include "catalog.h"
#include "claim_row.h"
#include "clock.h"
#include "lease_sweep.h"
#include "reap.h"
#include "take.h"
#include "xact.h"

PG_FUNCTION_INFO_V1(idemq_sql_claim);
PG_FUNCTION_INFO_V1(idemq_sql_claim_any);

/* Entries that a claim looks ahead, to bound the scans of the next ones. */
#define STRETCH_LENGTH 32

/* One call of claim or claim_any. */
typedef struct ClaimCall
{
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
	/* of the queue at hand */
	QueueInfo queue;
	CursorView view;
	TimestampTz now;
	MemoryContext row_context; /* reset for each job */
} ClaimCall;

typedef enum Step
{
	STEP_PASS, /* not claimable, or ours now: the cursor may pass it */
	STEP_STAY  /* held by somebody: the cursor stays before it */
} Step;

/* Cancels a job that was not claimed in time. */
static Step
expire(ClaimCall *call, JobsTable *table, const Job *job)
{
	EventArgs args = {0};

	args.now = call->now;
	args.error = cstring_to_text("expired before it was claimed");
	return idemq_transition(table, job, &call->queue, EVENT_EXPIRE, &args, JOB_SKIPS) == JOB_WRITTEN
			   ? STEP_PASS
			   : STEP_STAY;
}

/* Claims a fetched job that is ready, and adds it to the answer. */
static Step
claim_ready(ClaimCall *call, JobsTable *table, const Job *job)
{
	EventArgs args = {0};
	int64 lease = call->lease > 0 ? call->lease : call->queue.lease;
	Datum values[CLAIM_COLUMN_COUNT + 1];
	bool nulls[CLAIM_COLUMN_COUNT + 1];

	args.now = idemq_now();
	args.deadline = args.now + lease;
	args.worker = call->worker;
	switch (idemq_take(table, job, &call->queue, EVENT_CLAIM, &args, lease, call->attach))
	{
		case TAKE_BUSY:
			return STEP_PASS;
		case TAKE_CHANGED:
			/* Above READ COMMITTED it may just be too new for our snapshot. */
			return table->crosscheck == InvalidSnapshot ? STEP_PASS : STEP_STAY;
		case TAKE_LOCKED:
			return STEP_STAY;
		case TAKE_DONE:
			break;
	}
	idemq_claim_row_fill(job, &args, values, nulls);
	values[CLAIM_COLUMN_COUNT] = CStringGetTextDatum(call->queue.name);
	nulls[CLAIM_COLUMN_COUNT] = false;
	tuplestore_putvalues(call->store, call->desc, values, nulls);
	call->claimed++;
	return STEP_PASS;
}

/* Looks at one entry of the ready index that is due. */
static Step
consider(ClaimCall *call, JobsTable *table, int priority, ReadyKey key)
{
	Job job;

	if (idemq_lease_turns_away(key.id, priority, key) || !idemq_jobs_scan_row(table, &job))
		return STEP_PASS;
	if (!idemq_transition_allowed(EVENT_CLAIM, job.status))
		return STEP_PASS;
	if (job.attempt == 0 && job.expires_at <= call->now)
		return expire(call, table, &job);
	return claim_ready(call, table, &job);
}

/* Where a claim is in the ready index of one priority. */
typedef struct PriorityScan
{
	int priority;
	ReadyKey until; /* READY_KEY_MAX: to the end */
	bool stayed;
	ReadyKey reach; /* where the cursor may go: nothing below is claimable */
} PriorityScan;

/* Moves to the next entry, past the end of the stretch; READY_KEY_MAX at the end. */
static ReadyKey
next_entry(ClaimCall *call, JobsTable *table, PriorityScan *scan)
{
	ReadyKey key;

	if (idemq_jobs_scan_next(table, &key))
		return key;
	if (!ready_key_less(scan->until, READY_KEY_MAX))
		return READY_KEY_MAX;
	idemq_jobs_scan_end(table);
	idemq_jobs_scan_begin(table, call->queue.id, scan->priority, scan->until, READY_KEY_MAX);
	scan->until = READY_KEY_MAX;
	return next_entry(call, table, scan);
}

/* Returns the key some entries ahead, for the next claims to stop at first. */
static ReadyKey
look_ahead(JobsTable *table, const PriorityScan *scan)
{
	ReadyKey key = READY_KEY_MIN;

	if (ready_key_less(scan->until, READY_KEY_MAX))
		return key; /* still within the stretch */
	for (int i = 0; i < STRETCH_LENGTH && idemq_jobs_scan_next(table, &key); i++)
		;
	return key;
}

/*
 * Claims from one priority.  Its cursor moves to the first entry that was not
 * passed: the one after the last, one that is held, one that is not due yet, or
 * the end of the index.
 */
static void
claim_priority(ClaimCall *call, JobsTable *table, int priority)
{
	ReadyKey from = call->view.from[priority];
	ReadyKey stretch = READY_KEY_MIN;
	PriorityScan scan = {priority, READY_KEY_MAX, false, from};

	scan.until = idemq_jobs_scan_limit(from, call->view.stretch[priority]);
	idemq_jobs_scan_begin(table, call->queue.id, priority, from, scan.until);
	for (;;)
	{
		ReadyKey key = next_entry(call, table, &scan);
		MemoryContext old;
		Step step;

		CHECK_FOR_INTERRUPTS();
		if (key.ready_at > call->now)
		{
			scan.reach = scan.stayed ? scan.reach : key;
			break;
		}
		MemoryContextReset(call->row_context);
		old = MemoryContextSwitchTo(call->row_context);
		step = consider(call, table, priority, key);
		MemoryContextSwitchTo(old);
		if (!scan.stayed)
			scan.reach = step == STEP_STAY ? key : ready_key_after(key);
		scan.stayed |= step == STEP_STAY;
		if (call->claimed >= call->wanted)
		{
			stretch = look_ahead(table, &scan);
			break;
		}
	}
	idemq_jobs_scan_end(table);
	idemq_cursor_advance(&call->view, call->queue.id, priority, scan.reach, stretch);
}

/* Claims from the queue at hand, from its cursors or from the start of the index. */
static void
scan_queue(ClaimCall *call, bool from_start)
{
	JobsTable table;

	/* Sequence and cursors first, then the snapshot: see cursor.c. */
	idemq_cursor_read(call->queue.slot, call->queue.id, &call->view);
	idemq_xact_lower_view(call->queue.id, &call->view);
	idemq_jobs_open(&table);
	call->now = idemq_now();
	for (int p = 0; p < IDEMQ_PRIORITIES && call->claimed < call->wanted; p++)
	{
		if (from_start)
			call->view.from[p] = READY_KEY_MIN;
		if (call->view.from[p].ready_at <= call->now)
			claim_priority(call, &table, p);
	}
	idemq_jobs_close(&table);
}

/*
 * Claims up to what is still wanted from a queue: first what has expired goes
 * back, then the scan from the cursors; a queue that looks empty is looked
 * through from the start, at most once a second.
 */
static void
claim_from_queue(ClaimCall *call, const char *name)
{
	idemq_queue_by_name(name, PRIVILEGE_CLAIM, &call->queue);
	if (call->queue.paused)
		return;
	(void) idemq_reap_some(&call->queue);
	scan_queue(call, false);
	if (call->claimed == 0 && idemq_cursor_verify_due(call->queue.slot, call->queue.id))
	{
		int64 started = idemq_mono_now();

		scan_queue(call, true);
		idemq_cursor_verified(call->queue.slot, call->queue.id, idemq_mono_now() - started);
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
	call->row_context =
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
		idemq_queue_by_name(TextDatumGetCString(queues.values[i]), PRIVILEGE_CLAIM, &call.queue);
	for (int i = 0; i < queues.count && call.claimed < call.wanted; i++)
		claim_from_queue(&call, TextDatumGetCString(queues.values[i]));
	return (Datum) 0;
}
