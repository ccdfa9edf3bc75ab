/*
 * handler/run.c
 *		Running the jobs of a handler: a transaction of one or more.  SQL function current_job.
 *
 *		begin
 *			check that the handler is the one that was read, and may run
 *			lock the row of each job, by id: no other transaction ends these attempts meanwhile.
 *			If one holds the row already, a cancel perhaps, the reaper gives the job back.
 *			for each job, in the order of the claim:
 *				look whether its attempt still stands
 *				call the function
 *				commit the job with what the function returned
 *			claim the next ones
 *		commit
 *
 * So the effect, the end of the attempt and the next claim share one flush.  A job is committed
 * before the next one's function is called: what that function sees and does is as if the jobs
 * ran one after the other, each in a transaction of its own.  A function may end the attempts of
 * jobs that come after its own, and these are left out then; those before are completed.  A job
 * that its own function has settled, by commit, fail or release, stays so.
 *
 * There are no subtransactions: when anything raises an error, at COMMIT too, all is rolled back,
 * the claim of the next ones included, and handler/handler.c decides what follows.
 *
 * What the function LISTENs to (PostgreSQL refuses that in a background process, but a
 * function in C may do it) is taken back in the same transaction; what else it leaves behind in
 * the session goes after that (handler/handler.c).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "commands/async.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "handler/handler.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* The job that the function is called for, NULL between jobs; and its queue's name. */
static const ClaimedJob *current = NULL;
static QueueName queue_name;

/* Returns the job that the function is called for; NULL: none. */
const ClaimedJob *
idemq_handler_job(void)
{
	return current;
}

/* Returns the name of this handler's queue. */
const char *
idemq_handler_queue(void)
{
	return queue_name;
}

/* current_job() -> a row as idemq.claim_any answers; NULLs outside of a handler. */
SQL_FUNCTION(idemq_sql_current_job)
{
	const ClaimedJob *job = current;
	Datum values[CLAIM_COLUMN_COUNT + 1] = {0};
	bool nulls[CLAIM_COLUMN_COUNT + 1];

	memset(nulls, true, sizeof(nulls));
	if (job != NULL)
	{
		heap_deform_tuple(job->row, idemq_claimed_desc(), values, nulls);
		values[CLAIM_KIND + 1] = values[CLAIM_KIND];
		nulls[CLAIM_KIND + 1] = nulls[CLAIM_KIND];
		values[CLAIM_KIND] = CStringGetTextDatum(queue_name);
		nulls[CLAIM_KIND] = false;
	}
	return idemq_row_datum(fcinfo, values, nulls);
}

/*
 * Begins a transaction of idemq's own, in which no function is called: a claim, or the end of an
 * attempt.  It is READ COMMITTED, whatever the role's default: a 40001 here would be no job's,
 * and would end the process.  It does not wait long for a lock: other handlers need the process.
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
 * Checks, in a transaction, that the handler is the one that was read, and may run; looks up
 * its function and its queue.  RUN_LEAVE otherwise; if it may not run, the reason is noted where
 * the DBA sees it.
 */
RunResult
idemq_handler_check(HandlerRun *run, HandlerTarget *target, QueueInfo *queue)
{
	uint64 version = idemq_version_of_queue(run->info.queue_id);
	char *why;

	if (idemq_follows())
		return RUN_LEAVE;
	if (version != run->version)
	{
		HandlerInfo info;

		if (!idemq_handler_read(run->info.queue_id, &info) ||
			!idemq_handler_same(&info, &run->info))
			return RUN_LEAVE;
		run->info = info;
		run->version = version;
	}
	why = idemq_handler_resolve(&run->info, target);
	if (why == NULL && target->role != run->role)
		return RUN_LEAVE;
	if (why != NULL)
	{
		(void) idemq_handler_refuse((QueueStateKey){MyDatabaseId, run->info.queue_id}, why);
		return RUN_LEAVE;
	}
	if (!idemq_queue_by_id(run->info.queue_id, queue) || queue->qstate == NULL)
		return RUN_LEAVE;
	run->qstate = queue->qstate;
	strlcpy(queue_name, queue->name, sizeof(queue_name));
	return RUN_DONE;
}

static int
compare_jobs(const void *a, const void *b)
{
	int64 x = (*(ClaimedJob *const *) a)->id;
	int64 y = (*(ClaimedJob *const *) b)->id;

	return x < y ? -1 : x > y ? 1 : 0;
}

/*
 * Locks the rows of jobs, in the order of their ids, so that two transactions never deadlock.  A
 * job whose row somebody holds is given back: to wait might take hours, and keep the process from
 * all handlers of the server.
 */
static void
run_lock(ClaimedJob *jobs, int count)
{
	ClaimedJob **sorted = palloc(count * sizeof(ClaimedJob *));
	JobsTable table;
	Attempt attempt;

	for (int i = 0; i < count; i++)
		sorted[i] = &jobs[i];
	qsort(sorted, count, sizeof(ClaimedJob *), compare_jobs);
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
 * Calls the function for a job; returns its result, or sets *isnull.  If the job is one of
 * several, what the function has SET ends with the call: the next job finds the role's settings.
 */
static Datum
run_call(FmgrInfo *function, const HandlerTarget *target, const ClaimedJob *job,
		 const QueueInfo *queue, bool several, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, 1);
	Oid user;
	int sec_context;
	Datum result;
	int nest_level = several ? NewGUCNestLevel() : 0;

	GetUserIdAndSecContext(&user, &sec_context);
	InitFunctionCallInfoData(*fcinfo, function, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = job->payload;
	fcinfo->args[0].isnull = false;
	/* It sees what the jobs before it have done, as a statement of its own would. */
	PopActiveSnapshot();
	PushActiveSnapshot(GetTransactionSnapshot());
	current = job;
	idemq_handler_limit_start(queue->job_timeout, job->id, job->token);
	result = FunctionCallInvoke(fcinfo);
	idemq_handler_limit_stop();
	current = NULL;
	*isnull = fcinfo->isnull || target->returns_void;
	if (several)
		AtEOXact_GUC(false, nest_level);
	/* A SET ROLE ends with the job. */
	SetUserIdAndSecContext(user, sec_context);
	CommandCounterIncrement();
	return result;
}

/*
 * Commits a job with what its function has returned, unless the function has ended it itself.
 * Raises 42501 when the role has lost the right to claim, and the attempt stands: the effect of
 * a job that is not committed must not commit.
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
						  queue_name),
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
	/* Nothing is to read what the function LISTENs to. */
	Async_UnlistenAll();
	return done;
}

/*
 * Runs jobs in a transaction; with claim it also claims the next ones, which are at work after
 * it.  Without jobs the transaction is one of idemq's own, for the claim alone.  After RUN_FAILED,
 * *error is what was raised.
 */
RunResult
idemq_handler_run(HandlerRun *run, ClaimedJob *jobs, int count, bool claim, ErrorData **error)
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
		result = idemq_handler_check(run, &target, &queue);
		if (result == RUN_DONE)
		{
			if (count > 0)
				run->done = run_jobs(&target, &queue, jobs, count);
			if (claim)
			{
				int guc_level = NewGUCNestLevel();

				idemq_handler_limit_waits(GUC_ACTION_SAVE);
				if (idemq_claimed_more(&queue, run->info.batch))
					idemq_handler_call(queue.qstate);
				AtEOXact_GUC(true, guc_level);
			}
		}
		idemq_handler_commit();
		/* No interrupt is taken between the commit and this. */
		for (int i = 0; i < count && result == RUN_DONE; i++)
			jobs[i].settled = true;
		if (claim && result == RUN_DONE)
			idemq_claimed_swap();
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		current = NULL;
		idemq_handler_limit_stop();
		MemoryContextReset(run->errors);
		MemoryContextSwitchTo(run->errors);
		*error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(run->errors);
		RESUME_INTERRUPTS();
		result = RUN_FAILED;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return result;
}
