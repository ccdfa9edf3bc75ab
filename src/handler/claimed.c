/*
 * handler/claimed.c
 *		The jobs that a handler's process has claimed: those that it runs now, and those that
 *		the open transaction claims.
 *
 * Claims are attached: the lease ends with the process.  It is as long as the queue allows
 * (max_lease), so that no heartbeat is needed: job_timeout bounds a job here, not the lease.
 *
 * The rows are copied into one of two pieces of memory alternately: the jobs of the last claim are
 * at work while the next claim is made, in the same transaction.  Once that has committed the
 * pieces are swapped; if it has not, the next claim forgets what was claimed.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "handler/handler.h"
#include "job/job.h"

static ClaimedJobs pieces[2];
static ClaimedJobs *at_hand = &pieces[0];
static ClaimedJobs *later = &pieces[1];
static TupleDesc desc = NULL;
static TupleTableSlot *slot = NULL;

/* Returns the jobs that are at work. */
ClaimedJobs *
idemq_claimed_now(void)
{
	return at_hand;
}

/* Returns the shape of the jobs' rows, as idemq.claim answers. */
TupleDesc
idemq_claimed_desc(void)
{
	return desc;
}

/* Prepares this process, in a transaction. */
void
idemq_claimed_begin(void)
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

	desc = CreateTemplateTupleDesc(CLAIM_COLUMN_COUNT);
	for (int i = 0; i < CLAIM_COLUMN_COUNT; i++)
		TupleDescInitEntry(desc, (AttrNumber) (i + 1), names[i], types[i], -1, 0);
	slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	for (int i = 0; i < (int) lengthof(pieces); i++)
		pieces[i].context =
			AllocSetContextCreate(TopMemoryContext, "idemq claimed jobs", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(old);
}

/* Copies a row, and what this process has to know of it. */
static void
claimed_keep(ClaimedJob *job)
{
	bool isnull;

	memset(job, 0, sizeof(*job));
	job->row = ExecCopySlotHeapTuple(slot);
	job->id = DatumGetInt64(heap_getattr(job->row, 1, desc, &isnull));
	job->token = DatumGetInt64(heap_getattr(job->row, 2, desc, &isnull));
	job->attempt = DatumGetInt32(heap_getattr(job->row, 3, desc, &isnull));
	job->payload = heap_getattr(job->row, 6, desc, &isnull);
	/* A job that has failed before is not to take others along. */
	job->alone = job->attempt > 1;
}

/*
 * Claims up to so many jobs in the open transaction, for after it.  Returns whether the queue
 * may have more.
 */
bool
idemq_claimed_more(const QueueInfo *queue, int wanted)
{
	ClaimCall call = {.lease = queue->max_lease, .flags = JOB_ATTACHED | JOB_HANDLER};
	MemoryContext old;

	call.worker = cstring_to_text(psprintf(IDEMQ_HANDLER_WORKER " %d", MyProcPid));
	call.desc = desc;
	call.store = tuplestore_begin_heap(false, false, work_mem);
	call.scan.queue = *queue;
	/* job_timeout counts from the call of the function (handler/limits.c), not from here. */
	call.scan.queue.job_timeout = 0;
	idemq_claim_begin(&call, wanted);
	idemq_claim_from_queue(&call);
	MemoryContextReset(later->context);
	old = MemoryContextSwitchTo(later->context);
	later->jobs = palloc(Max(call.claimed, 1) * sizeof(ClaimedJob));
	later->count = later->next = 0;
	while (later->count < call.claimed && tuplestore_gettupleslot(call.store, true, false, slot))
		claimed_keep(&later->jobs[later->count++]);
	MemoryContextSwitchTo(old);
	ExecClearTuple(slot);
	tuplestore_end(call.store);
	return call.scan.more;
}

/* The transaction that has claimed is committed: its jobs are at work now. */
void
idemq_claimed_swap(void)
{
	ClaimedJobs *other = at_hand;

	at_hand = later;
	later = other;
	later->count = later->next = 0;
}
