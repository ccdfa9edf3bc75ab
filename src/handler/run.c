/*
 * handler/run.c
 *		One transaction of a handler process: it runs jobs, and claims the next ones.  Also the SQL
 *		function current_job.
 *
 *		begin
 *			check that the handler is the one that was read, and that it may still run
 *			lock the rows of the jobs, in id order, so that no other transaction ends these attempts
 *			for each job, in claim order:
 *				skip the job if its attempt is no longer the current one
 *				call the function
 *				commit the job with the result of the function
 *			claim the next jobs
 *		commit
 *
 * The effects, the ends of the attempts and the next claim therefore share one flush.  Each job is
 * committed before the function is called for the next one, so the jobs run as if each had its own
 * transaction.  A function may end the attempt of a later job of the batch, which is then skipped.
 * If a function ends the attempt of its own job, with commit, fail or release, the job stays that
 * way.
 *
 * There are no subtransactions.  If anything raises an error, even COMMIT, then everything is
 * rolled back, including the claim, and handler/handler.c decides what to do next.
 *
 * Claims are attached, so the leases end with the process.  A lease lasts for the queue's
 * max_lease, so no heartbeats are needed: job_timeout limits how long a job may run.  While the
 * jobs of one claim run, the same transaction makes the next claim, so there are two ClaimedJobs,
 * which are exchanged after the commit.  If the transaction is rolled back, the next claim
 * overwrites what this one has claimed.
 *
 * A function in C may call LISTEN, which PostgreSQL otherwise refuses in a background process.
 * Its channels are removed in the same transaction.  Everything else that a function leaves behind
 * in the session is removed by handler/handler.c, after the transaction.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "handler/handler.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

static ClaimedJobs claims[2];

HandlerProcess idemq_handler = {.claimed = &claims[0]};

/* The one of the two that idemq_handler.claimed does not point to. */
static ClaimedJobs *next_claim = &claims[1];
static TupleDesc claim_desc = NULL;
static TupleTableSlot *claim_slot = NULL;

/* current_job() -> a row with the columns of idemq.claim_any; all NULL outside of a handler. */
SQL_FUNCTION(idemq_sql_current_job)
{
	const ClaimedJob *job = idemq_handler.current;
	Datum values[CLAIM_COLUMN_COUNT + 1] = {0};
	bool nulls[CLAIM_COLUMN_COUNT + 1];

	memset(nulls, true, sizeof(nulls));
	if (job != NULL)
	{
		heap_deform_tuple(job->row, claim_desc, values, nulls);
		/* The queue's name comes before the kind, which is the last column. */
		values[CLAIM_KIND + 1] = values[CLAIM_KIND];
		nulls[CLAIM_KIND + 1] = nulls[CLAIM_KIND];
		values[CLAIM_KIND] = CStringGetTextDatum(idemq_handler.queue_name);
		nulls[CLAIM_KIND] = false;
	}
	return idemq_row_datum(fcinfo, values, nulls);
}

/* Prepares this process for claims; call it once, in a transaction. */
void
idemq_handler_prepare(void)
{
	static const char *const names[CLAIM_COLUMN_COUNT] = {"id",			  "token",	   "attempt",
														  "max_attempts", "deadline",  "payload",
														  "key",		  "group_key", "checkpoint",
														  "enqueued_at",  "headers",   "kind"};
	static const Oid types[CLAIM_COLUMN_COUNT] = {INT8OID,		  INT8OID,		  INT4OID,
												  INT4OID,		  TIMESTAMPTZOID, JSONBOID,
												  TEXTOID,		  TEXTOID,		  JSONBOID,
												  TIMESTAMPTZOID, JSONBOID,		  TEXTOID};
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	claim_desc = CreateTemplateTupleDesc(CLAIM_COLUMN_COUNT);
	for (int i = 0; i < CLAIM_COLUMN_COUNT; i++)
		TupleDescInitEntry(claim_desc, (AttrNumber) (i + 1), names[i], types[i], -1, 0);
	claim_slot = MakeSingleTupleTableSlot(claim_desc, &TTSOpsMinimalTuple);
	for (int i = 0; i < (int) lengthof(claims); i++)
		claims[i].context =
			AllocSetContextCreate(TopMemoryContext, "idemq claimed jobs", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(old);
}

/*
 * Begins a transaction in which no handler function is called: a claim, or the end of an attempt.
 * The transaction is READ COMMITTED, regardless of the role's default, because a 40001 error here
 * would not be the fault of any job, and would end the process.  Its waits for locks are short,
 * because other handlers need the process.
 */
void
idemq_handler_begin(void)
{
	idemq_begin_transaction();
	XactIsoLevel = XACT_READ_COMMITTED;
	PushActiveSnapshot(GetTransactionSnapshot());
	idemq_handler_limit_waits(GUC_ACTION_LOCAL);
}

/* Commits a transaction that idemq_handler_run or idemq_handler_begin has begun. */
void
idemq_handler_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * Checks that the handler has not changed since it was read, and that it may still run.  Returns
 * RUN_DONE, and its function and queue, if so; otherwise RUN_LEAVE.  If the handler may not run,
 * the reason is recorded for idemq.handlers.  Call it in a transaction.
 */
RunResult
idemq_handler_check(HandlerTarget *target, QueueInfo *queue)
{
	uint64 version = idemq_version_of_queue(idemq_handler.key.queue_id);
	char *why;

	if (idemq_follows())
		return RUN_LEAVE;
	if (version != idemq_handler.version)
	{
		HandlerInfo info;

		if (!idemq_handler_read(idemq_handler.key.queue_id, &info) ||
			!idemq_handler_same(&info, &idemq_handler.info))
			return RUN_LEAVE;
		idemq_handler.info = info;
		idemq_handler.version = version;
	}
	why = idemq_handler_resolve(&idemq_handler.info, target);
	if (why != NULL)
	{
		(void) idemq_handler_refuse(idemq_handler.key, why, false);
		return RUN_LEAVE;
	}
	if (target->role != idemq_handler.role ||
		!idemq_queue_by_id(idemq_handler.key.queue_id, queue) || queue->qstate == NULL)
		return RUN_LEAVE;
	idemq_handler.qstate = queue->qstate;
	strlcpy(idemq_handler.queue_name, queue->name, sizeof(idemq_handler.queue_name));
	return RUN_DONE;
}

/* Compares pointers to jobs by the ids with which the jobs begin, for qsort. */
static int
run_compare_ids(const void *a, const void *b)
{
	return idemq_compare_int64(*(const void *const *) a, *(const void *const *) b);
}

/*
 * Locks the rows of jobs, in id order, so that two transactions never deadlock.  If another
 * transaction holds a row, for example to cancel the job, the lease is handed over to the reaper:
 * to wait could take hours, during which no other handler could use this process.
 */
static void
run_lock(ClaimedJob *jobs, int count)
{
	ClaimedJob **sorted = palloc(count * sizeof(ClaimedJob *));
	JobsTable table;
	Attempt attempt;

	for (int i = 0; i < count; i++)
		sorted[i] = &jobs[i];
	qsort(sorted, count, sizeof(ClaimedJob *), run_compare_ids);
	idemq_jobs_open(&table);
	for (int i = 0; i < count; i++)
	{
		ClaimedJob *job = sorted[i];

		if (job->settled ||
			idemq_attempt_try_lock(&table, job->id, job->token, LockTupleNoKeyExclusive,
								   &attempt) != OUTCOME_LOCKED)
			continue;
		idemq_lease_hand_over(job->id, job->token, LOSS_RETURNED);
		job->settled = true;
	}
	idemq_jobs_close(&table);
	CommandCounterIncrement();
}

/*
 * Calls the function for a job, and returns its result; *isnull: the function has no result.
 * in_batch: the transaction runs several jobs, so the settings that the function changes are
 * restored after the call, before the next job.
 */
static Datum
run_call(FmgrInfo *function, const HandlerTarget *target, const ClaimedJob *job,
		 const QueueInfo *queue, bool in_batch, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, 1);
	Oid user;
	int sec_context;
	Datum result;
	int guc_level = in_batch ? NewGUCNestLevel() : 0;

	GetUserIdAndSecContext(&user, &sec_context);
	InitFunctionCallInfoData(*fcinfo, function, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = job->payload;
	fcinfo->args[0].isnull = false;
	/* Like a new statement, the function sees what the jobs before it have done. */
	PopActiveSnapshot();
	PushActiveSnapshot(GetTransactionSnapshot());
	idemq_handler.current = job;
	idemq_handler_limit_start(queue->job_timeout, job->id, job->token);
	result = FunctionCallInvoke(fcinfo);
	idemq_handler_limit_stop();
	idemq_handler.current = NULL;
	*isnull = fcinfo->isnull || target->returns_void;
	if (in_batch)
		AtEOXact_GUC(false, guc_level);
	/* The function may have called SET ROLE. */
	SetUserIdAndSecContext(user, sec_context);
	CommandCounterIncrement();
	return result;
}

/*
 * Commits a job with the result of its function, unless the function has ended the attempt itself.
 * Raises 42501 if the attempt is still running and the role may no longer claim from the queue,
 * because the effect of a job must not commit without the job.
 */
static void
run_finish(const ClaimedJob *job, Datum result, bool no_result)
{
	Finish finish = {.kind = FINISH_COMMIT, .uncounted = true};
	int guc_level = NewGUCNestLevel();
	Attempt attempt;

	idemq_handler_limit_waits(GUC_ACTION_SAVE);
	if (!no_result)
		finish.args.document = PointerGetDatum(PG_DETOAST_DATUM(result));
	if (idemq_finish_by_token(job->id, job->token, &finish, false, &attempt) != OUTCOME_COMMITTED &&
		idemq_attempt_stands(job->id, job->token))
		ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("job %lld cannot be committed", (long long) job->id),
				errdetail("The handler's role no longer has the claim privilege on queue \"%s\".",
						  idemq_handler.queue_name),
				errhint("Grant the claim privilege with idemq.grant_queue, or drop the handler."));
	AtEOXact_GUC(true, guc_level);
	CommandCounterIncrement();
}

/* Runs jobs in the open transaction; returns how many. */
static int
run_jobs(const HandlerTarget *target, const QueueInfo *queue, ClaimedJob *jobs, int count)
{
	FmgrInfo function;
	int done = 0;

	run_lock(jobs, count);
	fmgr_info(target->function, &function);
	for (int i = 0; i < count; i++)
	{
		Datum result;
		bool isnull;

		if (jobs[i].settled || !idemq_attempt_stands(jobs[i].id, jobs[i].token))
			continue;
		result = run_call(&function, target, &jobs[i], queue, count > 1, &isnull);
		run_finish(&jobs[i], result, isnull);
		done++;
	}
	/* Nobody would read the notifications. */
	Async_UnlistenAll();
	return done;
}

/*
 * Claims at most a batch of jobs into next_claim, in the open transaction.  If the queue may have
 * more ready jobs, asks the worker to start another process of this handler.
 */
static void
run_claim(const QueueInfo *queue)
{
	ClaimCall call = {.lease = queue->max_lease, .flags = JOB_ATTACHED | JOB_HANDLER};
	int guc_level = NewGUCNestLevel();
	MemoryContext old;

	idemq_handler_limit_waits(GUC_ACTION_SAVE);
	call.worker = cstring_to_text(psprintf(IDEMQ_HANDLER_WORKER " %d", MyProcPid));
	call.desc = claim_desc;
	call.store = tuplestore_begin_heap(false, false, work_mem);
	call.scan.queue = *queue;
	/* job_timeout starts when the function is called (handler/limits.c), and not now. */
	call.scan.queue.job_timeout = 0;
	idemq_claim_begin(&call, idemq_handler.info.batch);
	idemq_claim_from_queue(&call);
	MemoryContextReset(next_claim->context);
	old = MemoryContextSwitchTo(next_claim->context);
	next_claim->jobs = palloc0(Max(call.claimed, 1) * sizeof(ClaimedJob));
	next_claim->count = next_claim->next = 0;
	while (next_claim->count < call.claimed &&
		   tuplestore_gettupleslot(call.store, true, false, claim_slot))
	{
		ClaimedJob *job = &next_claim->jobs[next_claim->count++];
		bool isnull;

		job->row = ExecCopySlotHeapTuple(claim_slot);
		job->id = DatumGetInt64(heap_getattr(job->row, 1, claim_desc, &isnull));
		job->token = DatumGetInt64(heap_getattr(job->row, 2, claim_desc, &isnull));
		job->attempt = DatumGetInt32(heap_getattr(job->row, 3, claim_desc, &isnull));
		job->payload = heap_getattr(job->row, 6, claim_desc, &isnull);
		/* It has failed before, and must not roll back other jobs. */
		job->alone = job->attempt > 1;
	}
	MemoryContextSwitchTo(old);
	ExecClearTuple(claim_slot);
	tuplestore_end(call.store);
	if (call.scan.more)
		idemq_handler_call(queue->qstate);
	AtEOXact_GUC(true, guc_level);
}

/*
 * Runs jobs in a transaction.  If claim is true, it also claims the next jobs, which are in
 * idemq_handler.claimed after the commit.  If count is 0, the transaction only claims.  Returns
 * RUN_DONE if everything was done and has committed, and RUN_LEAVE if no job was run and none
 * claimed; this transaction commits, too.  After RUN_FAILED, everything was rolled back, and *error
 * is the error that was raised.
 */
RunResult
idemq_handler_run(ClaimedJob *jobs, int count, bool claim, ErrorData **error)
{
	MemoryContext context = CurrentMemoryContext;
	volatile RunResult result = RUN_DONE;

	PG_TRY();
	{
		HandlerTarget target;
		QueueInfo queue;

		if (count == 0)
			idemq_handler_begin();
		else
		{
			/* At the role's isolation level. */
			idemq_begin_transaction();
			PushActiveSnapshot(GetTransactionSnapshot());
		}
		result = idemq_handler_check(&target, &queue);
		if (result == RUN_DONE && count > 0)
			idemq_handler.done = run_jobs(&target, &queue, jobs, count);
		if (result == RUN_DONE && claim)
			run_claim(&queue);
		idemq_handler_commit();
		/* No interrupt is processed between the commit and the end of this block. */
		for (int i = 0; i < count && result == RUN_DONE; i++)
			jobs[i].settled = true;
		if (claim && result == RUN_DONE)
		{
			ClaimedJobs *former = idemq_handler.claimed;

			idemq_handler.claimed = next_claim;
			next_claim = former;
		}
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		idemq_handler.current = NULL;
		idemq_handler_limit_stop();
		MemoryContextReset(idemq_handler.errors);
		MemoryContextSwitchTo(idemq_handler.errors);
		*error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(idemq_handler.errors);
		RESUME_INTERRUPTS();
		result = RUN_FAILED;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return result;
}
