/*
 * job/claim_from_queue.c
 *		Claiming from a queue: the engine of claim, claim_any, commit_and_claim, and of handlers.
 *
 * A claim begins at the scan start of each priority, skips the jobs that have a lease entry, claims
 * those that are ready, and moves the scan start up past the index entries that it has proved
 * unclaimable.  If a job has no lease entry but another transaction holds its row, the claim skips
 * the job, and the scan start stays before it.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "table/table.h"

/* Maximum number of jobs that one scan defers: without a permit, paused, or too soon for their group. */
#define MAX_DEFERRED 256

/* Remembers the group of a job, whose next job this call must promote. */
static void
claim_note_group(ClaimCall *call, const Job *job)
{
	MemoryContext old = MemoryContextSwitchTo(MemoryContextGetParent(call->scan.row_context));
	Datum name = job_value(job, COL_GROUP_KEY);

	call->groups = lappend(call->groups, PG_DETOAST_DATUM_COPY(name));
	MemoryContextSwitchTo(old);
}

/*
 * Makes a due job wait: because its group is paused, or until a time when its group may start it, or,
 * if until is DT_NOBEGIN, for a permit of its group.
 */
static ScanStep
make_wait(ClaimCall *call, JobsTable *table, const Job *job, bool is_paused, TimestampTz until)
{
	const QueueInfo *queue = &call->scan.queue;

	if (call->deferred >= MAX_DEFERRED)
	{
		call->scan.stopped = true;
		return STEP_STAY;
	}
	if ((is_paused ? idemq_job_pause(table, job, queue)
				   : idemq_job_defer(table, job, queue, until)) != JOB_WRITTEN)
		return STEP_STAY;
	call->deferred++;
	if (!is_paused && until == DT_NOBEGIN)
		claim_note_group(call, job);
	return STEP_PASS;
}

/*
 * Claims a fetched job and adds it to the answer, or makes it wait, or stops the scan.  The caller
 * has checked that the job has not expired, that its group is not paused, and that it has a permit.
 */
static ScanStep
claim_ready(ClaimCall *call, JobsTable *table, const Job *job)
{
	EventArgs args = {0};
	Datum values[CLAIM_COLUMN_COUNT + 2];
	bool nulls[CLAIM_COLUMN_COUNT + 2];
	int first = call->with_outcome ? 1 : 0;

	args.now = idemq_now();
	args.deadline = args.now + idemq_settings_lease(&call->scan.queue, call->lease);
	args.worker = call->worker;
	switch (idemq_claim_one(table, job, &call->scan.queue, EVENT_CLAIM, &args, call->flags))
	{
		case TAKE_BUSY:
			return STEP_PASS;
		case TAKE_CHANGED:
			/* Above READ COMMITTED the job may only be too new for our snapshot. */
			return table->crosscheck == InvalidSnapshot ? STEP_PASS : STEP_STAY;
		case TAKE_LOCKED:
			return STEP_STAY;
		case TAKE_LIMIT:
			call->scan.stopped = true;
			return STEP_STAY;
		case TAKE_EARLY:
			return make_wait(call, table, job, false, args.ready_at);
		case TAKE_DONE:
			break;
	}
	values[0] = idemq_outcome_datum(OUTCOME_CLAIMED);
	nulls[0] = false;
	idemq_claim_row_fill(job, &args, &values[first], &nulls[first]);
	if (call->with_queue)
	{
		int column = first + CLAIM_KIND;

		values[column + 1] = values[column];
		nulls[column + 1] = nulls[column];
		values[column] = CStringGetTextDatum(call->scan.queue.name);
		nulls[column] = false;
	}
	tuplestore_putvalues(call->store, call->desc, values, nulls);
	call->claimed++;
	if (idemq_job_uses_permits(&call->scan.queue, job))
		claim_note_group(call, job);
	return call->claimed < call->wanted ? STEP_PASS : STEP_STOP;
}

/* Claims the job of one due entry of the ready index, or makes it wait. */
static ScanStep
claim_consider(ReadyScan *scan, JobsTable *table, int priority, ReadyKey key)
{
	ClaimCall *call = (ClaimCall *) scan;
	const QueueInfo *queue = &scan->queue;
	Job job;

	if (!idemq_ready_job(scan, table, priority, key, &job))
		return STEP_PASS;
	/* Before a lower priority, promote the next jobs of the groups whose jobs were claimed. */
	if (idemq_groups_use_permits(queue) && call->groups != NIL && priority > call->round_priority)
	{
		call->round_ended = scan->stopped = true;
		return STEP_STAY;
	}
	call->round_priority = priority;
	if (job_has_expired(&job, scan->now))
		return idemq_job_expire(table, &job, queue, scan->now) == JOB_WRITTEN ? STEP_PASS
																			  : STEP_STAY;
	/* A pause that has committed since the queue was looked up need not stop this claim. */
	if (unlikely(queue->has_paused_groups) && job_has(&job, COL_GROUP_KEY) &&
		idemq_jobs_group_pause_find(table, queue->id, job_value(&job, COL_GROUP_KEY), NULL))
		return make_wait(call, table, &job, true, DT_NOBEGIN);
	if (idemq_lacks_permit(queue, &job))
		return make_wait(call, table, &job, false, DT_NOBEGIN);
	return claim_ready(call, table, &job);
}

/* Claims from the queue at hand, from its scan starts or from the start of the index. */
static void
scan_queue(ClaimCall *call, bool from_start)
{
	LimitView view;
	JobsTable table;

	call->scan.wanted = call->wanted - call->claimed;
	call->deferred = 0;
	idemq_ready_scan(&call->scan, &table, from_start);
	idemq_jobs_close(&table);
	/*
	 * A signal may have been lost with the session that got it: if jobs are left, wake the next
	 * one.
	 */
	if (call->scan.more && idemq_limit_has_room(&call->scan.queue, &view))
		(void) idemq_waiters_wake(idemq_waiters_of_queue(call->scan.queue.qstate), InvalidOid, 1);
}

/* Returns whether the queue's limits let this call claim another job. */
static bool
may_claim_more(const QueueInfo *queue)
{
	LimitView view;

	return idemq_limit_may_transfer(queue) || idemq_limit_has_room(queue, &view);
}

/*
 * Marks the groups whose jobs the last scan claimed, so that another session promotes their next
 * jobs.
 */
static void
promote_later(ClaimCall *call)
{
	ListCell *cell;

	foreach(cell, call->groups)
		idemq_promote_later(&call->scan.queue, PointerGetDatum(lfirst(cell)));
	list_free_deep(call->groups);
	call->groups = NIL;
}

/*
 * Promotes the next jobs of the groups whose jobs the last scan claimed, in the same order, and
 * then of other marked groups: at most as many as are still wanted.  Returns whether to scan again.
 * At a limit of the queue, there is no next round: it would stop where this one has stopped.
 */
static bool
promote_round(ClaimCall *call)
{
	const QueueInfo *queue = &call->scan.queue;
	int wanted = call->wanted - call->claimed;
	int promoted = 0;

	if ((call->groups == NIL && !idemq_promote_wanted(queue)) || !may_claim_more(queue))
		return false;
	while (promoted < wanted && call->groups != NIL)
	{
		promoted += idemq_promote_group(queue, PointerGetDatum(linitial(call->groups)));
		pfree(linitial(call->groups));
		call->groups = list_delete_first(call->groups);
	}
	promote_later(call);
	if (promoted < wanted && idemq_promote_wanted(queue))
		promoted += idemq_promote_some(queue, wanted - promoted);
	return promoted > 0 || call->round_ended;
}

/*
 * Claims up to call->wanted jobs, less those already claimed, from call->scan.queue.  Claims none
 * if the queue is paused or held back.  Raises 53400 if the queue has no state.
 */
void
idemq_claim_from_queue(ClaimCall *call)
{
	const QueueInfo *queue = &call->scan.queue;
	bool alone = !idemq_worker_present();
	uint32 pass;

	/* Take back leases that have ended. */
	idemq_queue_need_qstate(queue);
	if (idemq_queue_is_closed(queue) || !idemq_reap_some(queue))
		return;
	idemq_wake_claimed(queue->qstate);
	idemq_qstate_note_claim(queue->qstate);

	/* Without a worker, heads come first, or jobs without a group could keep them waiting indefinitely. */
	pass = idemq_promote_pass_number(queue->qstate);
	if (alone && idemq_group_pause_is_over(queue))
		(void) idemq_group_pauses_end(queue);
	if (alone && idemq_promote_wanted(queue) && may_claim_more(queue))
		(void) idemq_promote_some(queue, call->wanted - call->claimed);

	/*
	 * Claim what is ready, and then what can be promoted.  Where groups have permits, this goes round by
	 * round, one job of each group per round: one priority as long as it has any, then the next.
	 */
	do
	{
		call->round_ended = false;
		scan_queue(call, false);
		if (call->scan.stopped && !call->round_ended && call->deferred < MAX_DEFERRED)
			break;
	} while (call->claimed < call->wanted && promote_round(call));
	promote_later(call);

	/* The worker may have been about to make heads ready. */
	if (call->claimed == 0 && !call->scan.stopped && !alone)
	{
		idemq_promote_pass_await(queue->qstate);
		if (idemq_promote_pass_number(queue->qstate) != pass)
			scan_queue(call, false);
	}

	/* A queue that seems empty is scanned from the start of the index, at most once a second. */
	if (call->claimed == 0 && !call->scan.stopped &&
		idemq_scan_start_verify_due(queue->qstate, queue->id))
	{
		int64 started = idemq_stopwatch();

		scan_queue(call, true);
		idemq_scan_start_verified(queue->qstate, queue->id, idemq_stopwatch() - started);
	}
	promote_later(call);
}

/*
 * Begins a claim of at most wanted jobs.  The caller has set the other inputs, and where the
 * results go.
 */
void
idemq_claim_begin(ClaimCall *call, int wanted)
{
	call->wanted = wanted;
	if (call->flags & JOB_ATTACHED)
		idemq_lease_attach_session();
	call->scan.consider = claim_consider;
	call->scan.row_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq claim", ALLOCSET_DEFAULT_SIZES);
}
