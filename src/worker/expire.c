/*
 * worker/expire.c
 *		Cancelling jobs that nobody claimed in time (expires_in), for the background
 *		worker.  A claim that meets such a job does so itself.
 *
 * A queue's slot knows a time before which no job of it expires: who makes a job
 * ready that expires lowers it at his commit (txn/pending_ready.c).  When it has come, the
 * worker looks through the queue's part of the ready index, in steps, and the
 * earliest time that it finds is the next one.  There is no index on expires_at: a
 * look reads every job that waits.  So the next look of the queue begins not before
 * 99 times as long as this one took: 1 % of the time at most.
 *
 * Lowerings while a look is under way stay: it first sets the time to never.  What
 * it passed and comes back later is noted by who brings it back, save when a claim is
 * rolled back: a job that has expired and that somebody holds is looked for again.
 *
 * A blocked job is not in the ready index: those are looked for last, by SQL.  A group
 * whose next job has expired goes on with the one after it (job/promote.c).
 *
 * State is local to the process; with it, a look ends and begins anew.  Locks: as
 * table/jobs.c; a row that somebody holds is left alone.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "worker/expire.h"
#include "job/transition.h"
#include "table/jobs.h"
#include "table/jobs_ready.h"
#include "shared/wake.h"
#include "base/clock.h"
#include "base/spi.h"

/* What a step does at most: index entries, jobs, microseconds. */
#define STEP_ENTRIES 20000
#define STEP_JOBS 1000
#define STEP_TIME INT64CONST(5000)
/* A look takes a part of 1 / (1 + PAUSES) of the time at most. */
#define PAUSES 99
/* A job that has expired and is held is looked for again after that. */
#define HELD_PAUSE USECS_PER_SEC

/* The look through a queue that is under way, or was the last. */
typedef struct ExpireLook
{
	int32 queue_id; /* hash key */
	bool under_way;
	int priority; /* it has come to here: */
	ReadyKey from;
	TimestampTz next; /* the earliest time found */
	int64 took;		  /* so far */
	int64 not_before; /* mono, of the next one */
} ExpireLook;

static HTAB *looks = NULL;

/* Those of a queue that expire first. */
static SqlStatement blocked_jobs =
	{.text = "SELECT id, expires_at FROM idemq.jobs WHERE queue_id = $1 AND group_key IS NOT NULL "
			 "AND finished_at IS NULL AND status = 'blocked' AND attempt = 0 "
			 "AND expires_at IS NOT NULL ORDER BY expires_at, id LIMIT $2",
	 .nargs = 2,
	 .types = {INT4OID, INT8OID}};

static ExpireLook *
find_look(int32 queue_id, bool make)
{
	HASHCTL info = {.keysize = sizeof(int32), .entrysize = sizeof(ExpireLook)};
	ExpireLook *look;
	bool found;

	if (looks == NULL && !make)
		return NULL;
	if (looks == NULL)
		looks = hash_create("idemq looks for expired jobs", 16, &info, HASH_ELEM | HASH_BLOBS);
	look = hash_search(looks, &queue_id, make ? HASH_ENTER : HASH_FIND, &found);
	if (make && !found)
	{
		memset(look, 0, sizeof(*look));
		look->queue_id = queue_id;
	}
	return look;
}

/* Returns when (mono) a step of a queue is to be done; PG_INT64_MAX for never. */
int64
idemq_expire_due_at(const SlotView *view)
{
	const ExpireLook *look = find_look(view->queue_id, false);
	uint64 next = pg_atomic_read_u64(&view->slot->next_expiry);
	int64 due;

	if (look != NULL && look->under_way)
		return 0;
	if (next >= (uint64) DT_NOEND)
		return PG_INT64_MAX;
	due = idemq_mono_from_timestamp((TimestampTz) next);
	return look == NULL ? due : Max(due, look->not_before);
}

/* Cancels a fetched job that was not claimed in time; returns whether it did. */
static bool
expire(ExpireLook *look, JobsTable *table, const QueueInfo *queue, const Job *job)
{
	EventArgs args = {.now = idemq_now()};
	JobWrite write;

	if (job->attempt > 0 || job->expires_at == DT_NOEND ||
		!idemq_transition_allowed(EVENT_EXPIRE, job->status))
		return false;
	if (job->expires_at > args.now)
	{
		look->next = Min(look->next, job->expires_at);
		return false;
	}
	args.error = cstring_to_text("expired before it was claimed");
	write = idemq_transition(table, job, queue, EVENT_EXPIRE, &args, JOB_SKIPS);
	if (write == JOB_LOCKED)
		look->next = Min(look->next, args.now + HELD_PAUSE);
	return write == JOB_WRITTEN;
}

/* Goes on in one priority until a time (mono), or the end; takes off what it looked at and did. */
static void
look_on(ExpireLook *look, JobsTable *table, const QueueInfo *queue, int64 until, int *entries,
		int *jobs)
{
	bool more = true;
	ReadyKey key;
	Job job;

	idemq_jobs_scan_begin(table, queue->id, look->priority, look->from, READY_KEY_MAX);
	while (*entries > 0 && *jobs > 0 && (*entries % 64 != 0 || idemq_mono_now() < until))
	{
		CHECK_FOR_INTERRUPTS();
		more = idemq_jobs_scan_next(table, &key);
		if (!more)
			break;
		if (idemq_jobs_scan_row(table, &job))
			*jobs -= expire(look, table, queue, &job);
		(*entries)--;
		look->from = ready_key_after(key);
	}
	idemq_jobs_scan_end(table);
	if (!more)
	{
		look->priority++;
		look->from = READY_KEY_MIN;
	}
	else
		*entries = 0;
}

/*
 * Ends the look: cancels the queue's blocked jobs that have expired, STEP_JOBS at most,
 * and finds the earliest time among the others.
 */
static void
expire_blocked(ExpireLook *look, JobsTable *table, const QueueInfo *queue)
{
	Datum values[] = {Int32GetDatum(queue->id), Int64GetDatum(STEP_JOBS)};
	int64 *ids = palloc(STEP_JOBS * sizeof(int64));
	TimestampTz now = idemq_now();
	int count = 0;
	SqlScope scope;
	uint64 rows;
	bool isnull;

	idemq_sql_begin(&scope);
	rows = idemq_sql_query_latest(&blocked_jobs, values, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		TimestampTz expires_at = DatumGetTimestampTz(idemq_sql_value(i, 2, &isnull));

		if (expires_at <= now)
			ids[count++] = DatumGetInt64(idemq_sql_value(i, 1, &isnull));
		else
			look->next = Min(look->next, expires_at);
	}
	idemq_sql_end(&scope);
	if (count == STEP_JOBS)
		look->next = Min(look->next, now);
	for (int i = 0; i < count; i++)
	{
		Job job;

		CHECK_FOR_INTERRUPTS();
		if (idemq_jobs_fetch(table, ids[i], &job))
			(void) expire(look, table, queue, &job);
	}
	pfree(ids);
}

/*
 * Does a step of the look through a queue, which has a slot; idemq_expire_ended must
 * be told how its transaction ended.
 */
void
idemq_expire_some(const QueueInfo *queue)
{
	ExpireLook *look = find_look(queue->id, true);
	int64 started = idemq_mono_now();
	int entries = STEP_ENTRIES;
	int jobs = STEP_JOBS;
	JobsTable table;

	if (!look->under_way)
	{
		*look = (ExpireLook){.queue_id = queue->id,
							 .under_way = true,
							 .from = READY_KEY_MIN,
							 .next = DT_NOEND};
		/* First: who makes a job ready after our snapshot lowers it. */
		(void) pg_atomic_exchange_u64(&queue->slot->next_expiry, PG_UINT64_MAX);
	}
	idemq_jobs_open(&table);
	while (entries > 0 && jobs > 0 && look->priority < IDEMQ_PRIORITIES)
		look_on(look, &table, queue, started + STEP_TIME, &entries, &jobs);
	if (look->priority == IDEMQ_PRIORITIES)
		expire_blocked(look, &table, queue);
	idemq_jobs_close(&table);
	look->took += idemq_mono_now() - started;
}

/* Follows the end of a step's transaction: after a failure the look begins anew. */
void
idemq_expire_ended(const SlotView *view, bool done)
{
	ExpireLook *look = find_look(view->queue_id, false);

	if (look == NULL || !look->under_way)
		return;
	if (done && look->priority < IDEMQ_PRIORITIES)
		return;
	look->under_way = false;
	if (!done)
		idemq_wake_to_expire_at(view->slot, view->queue_id, 1);
	else if (look->next < DT_NOEND)
		idemq_wake_to_expire_at(view->slot, view->queue_id, look->next);
	look->not_before = idemq_mono_now() + PAUSES * look->took;
}
