/*
 * job/transition.c
 *		The state machine of a job: every change of status, in one table.
 *
 * Guards: the status here, on the very version that is then written; the token
 * by the caller, who fetched that version.  A write that answers JOB_CHANGED
 * did nothing; the caller looks again.
 *
 * What a transition owes to shared memory it notes in txn/pending.c: a lease that
 * ends, a ready key that becomes claimable.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "job/dead_queue.h"
#include "job/transition.h"
#include "table/attempt_history.h"
#include "table/jobs.h"
#include "table/jobs_write.h"
#include "txn/pending.h"
#include "txn/pending_counts.h"
#include "txn/pending_groups.h"
#include "txn/pending_ready.h"
#include "base/oids.h"

/* What becomes of ready_at. */
typedef enum ReadyMove
{
	READY_KEEP,
	READY_CLEAR,
	READY_SET
} ReadyMove;

typedef enum AttemptMove
{
	ATTEMPT_KEEP,
	ATTEMPT_NEXT,
	ATTEMPT_BACK,
	ATTEMPT_RESET
} AttemptMove;

typedef struct Transition
{
	uint32 from; /* statuses, as bits */
	JobStatus to;
	ReadyMove ready;
	AttemptMove attempt;
	bool finishes;		 /* finished_at is set */
	const char *history; /* outcome in idemq.attempts when it ends an attempt */
	uint32 counters;	 /* that it adds to, as COUNTER_BITs */
	uint32 columns;		 /* that it takes from its EventArgs */
} Transition;

#define BIT(status) (1U << (status))
#define BLOCKED BIT(JOB_BLOCKED)
#define PENDING BIT(JOB_PENDING)
#define PROCESSING BIT(JOB_PROCESSING)
#define FAILED BIT(JOB_FAILED)
#define DEAD BIT(JOB_DEAD)
#define CANCELLED BIT(JOB_CANCELLED)

#define CLAIM_COLUMNS                                                                              \
	(COLUMN_BIT(COL_TOKEN) | COLUMN_BIT(COL_CLAIMED_AT) | COLUMN_BIT(COL_DEADLINE) |               \
	 COLUMN_BIT(COL_WORKER))
#define RESULT COLUMN_BIT(COL_RESULT)
#define TOKEN COLUMN_BIT(COL_TOKEN)
#define ERROR_TEXT COLUMN_BIT(COL_LAST_ERROR)
#define STATE COLUMN_BIT(COL_CHECKPOINT)
#define DEADLINE COLUMN_BIT(COL_DEADLINE)

#define COUNT(counter) COUNTER_BIT(COUNTER_##counter)

/* clang-format off */
static const Transition transitions[] = {
	/*                     from                                     to              ready        attempt        finishes history      counters                        columns */
	[EVENT_CLAIM] =        {PENDING | FAILED,                        JOB_PROCESSING, READY_KEEP,  ATTEMPT_NEXT,  false,   NULL,        COUNT(CLAIMED),                 CLAIM_COLUMNS},
	[EVENT_COMMIT] =       {PROCESSING,                              JOB_COMPLETED,  READY_CLEAR, ATTEMPT_KEEP,  true,    NULL,        COUNT(COMMITTED),               RESULT},
	[EVENT_COMMIT_ONCE] =  {PENDING | FAILED,                        JOB_COMPLETED,  READY_CLEAR, ATTEMPT_KEEP,  true,    NULL,        COUNT(COMMITTED),               RESULT | TOKEN},
	[EVENT_FAIL] =         {PROCESSING,                              JOB_FAILED,     READY_SET,   ATTEMPT_KEEP,  false,   "failed",    COUNT(FAILED),                  ERROR_TEXT},
	[EVENT_DIE] =          {PROCESSING,                              JOB_DEAD,       READY_CLEAR, ATTEMPT_KEEP,  true,    "failed",    COUNT(FAILED) | COUNT(DEAD),    ERROR_TEXT},
	[EVENT_RELEASE] =      {PROCESSING,                              JOB_PENDING,    READY_SET,   ATTEMPT_BACK,  false,   "released",  COUNT(RELEASED),                0},
	[EVENT_REAP] =         {PROCESSING,                              JOB_PENDING,    READY_SET,   ATTEMPT_KEEP,  false,   "expired",   COUNT(EXPIRED),                 ERROR_TEXT},
	[EVENT_REAP_DEAD] =    {PROCESSING,                              JOB_DEAD,       READY_CLEAR, ATTEMPT_KEEP,  true,    "expired",   COUNT(EXPIRED) | COUNT(DEAD),   ERROR_TEXT},
	[EVENT_CANCEL] =       {BLOCKED | PENDING | FAILED | PROCESSING, JOB_CANCELLED,  READY_CLEAR, ATTEMPT_KEEP,  true,    "cancelled", COUNT(CANCELLED),               0},
	[EVENT_EXPIRE] =       {BLOCKED | PENDING | FAILED,              JOB_CANCELLED,  READY_CLEAR, ATTEMPT_KEEP,  true,    NULL,        COUNT(CANCELLED),               ERROR_TEXT},
	[EVENT_RETRY] =        {PENDING | FAILED,                        JOB_PENDING,    READY_SET,   ATTEMPT_KEEP,  false,   NULL,        COUNT(RETRIED),                 0},
	[EVENT_REDRIVE] =      {DEAD | CANCELLED,                        JOB_PENDING,    READY_SET,   ATTEMPT_RESET, false,   NULL,        COUNT(REDRIVEN),                0},
	[EVENT_REDRIVE_GROUPED] = {DEAD | CANCELLED,                     JOB_BLOCKED,    READY_CLEAR, ATTEMPT_RESET, false,   NULL,        COUNT(REDRIVEN),                0},
	[EVENT_PROMOTE] =      {BLOCKED,                                 JOB_PENDING,    READY_SET,   ATTEMPT_KEEP,  false,   NULL,        0,                              0},
	[EVENT_CHECKPOINT] =   {PROCESSING,                              JOB_PROCESSING, READY_KEEP,  ATTEMPT_KEEP,  false,   NULL,        0,                              STATE},
	[EVENT_EXTEND] =       {PROCESSING,                              JOB_PROCESSING, READY_KEEP,  ATTEMPT_KEEP,  false,   NULL,        0,                              DEADLINE},
};
/* clang-format on */

/* Returns whether an event may happen to a job of that status. */
bool
idemq_transition_allowed(JobEvent event, JobStatus status)
{
	return (transitions[event].from & BIT(status)) != 0;
}

/* Sets the columns that an event takes from its arguments. */
static void
set_argument_columns(JobChange *change, uint32 columns, const EventArgs *args)
{
	if (columns & TOKEN)
		job_set(change, COL_TOKEN, Int64GetDatum(args->token));
	if (columns & COLUMN_BIT(COL_CLAIMED_AT))
		job_set(change, COL_CLAIMED_AT, TimestampTzGetDatum(args->now));
	if (columns & DEADLINE)
		job_set(change, COL_DEADLINE, TimestampTzGetDatum(args->deadline));
	if (columns & COLUMN_BIT(COL_WORKER))
	{
		job_set(change, COL_WORKER, PointerGetDatum(args->worker));
		change->isnull[COL_WORKER] = args->worker == NULL;
	}
	if (columns & ERROR_TEXT)
	{
		job_set(change, COL_LAST_ERROR, PointerGetDatum(args->error));
		change->isnull[COL_LAST_ERROR] = args->error == NULL;
	}
	if (columns & (RESULT | STATE))
	{
		JobColumn column = (columns & RESULT) ? COL_RESULT : COL_CHECKPOINT;

		job_set(change, column, args->document);
		change->isnull[column] = args->no_document;
	}
}

/* Makes the change that a transition is. */
static void
fill_change(JobChange *change, const Transition *transition, const Job *job, const EventArgs *args)
{
	static const int attempt_step[] =
		{[ATTEMPT_KEEP] = 0, [ATTEMPT_NEXT] = 1, [ATTEMPT_BACK] = -1, [ATTEMPT_RESET] = 0};

	change->set = 0;
	if (transition->to != job->status)
		job_set(change, COL_STATUS, ObjectIdGetDatum(idemq_catalog()->status[transition->to]));
	if (transition->ready == READY_SET)
		job_set(change, COL_READY_AT, TimestampTzGetDatum(args->ready_at));
	else if (transition->ready == READY_CLEAR)
		job_set_null(change, COL_READY_AT);
	if (transition->attempt == ATTEMPT_RESET)
		job_set(change, COL_ATTEMPT, Int32GetDatum(0));
	else if (transition->attempt != ATTEMPT_KEEP)
		job_set(change, COL_ATTEMPT,
				Int32GetDatum(job->attempt + attempt_step[transition->attempt]));
	if (transition->finishes)
		job_set(change, COL_FINISHED_AT, TimestampTzGetDatum(args->now));
	else if (transition->from & (DEAD | CANCELLED))
	{
		/* Back to life, also when it had expired. */
		job_set_null(change, COL_FINISHED_AT);
		job_set_null(change, COL_EXPIRES_AT);
	}
	set_argument_columns(change, transition->columns, args);
}

/* Notes what shared memory has to follow. */
static void
note(const Transition *transition, const Job *job, const QueueInfo *queue, JobEvent event,
	 const EventArgs *args)
{
	bool ends_lease = job->status == JOB_PROCESSING && transition->to != JOB_PROCESSING;
	int64 token = event == EVENT_COMMIT_ONCE ? args->token : job->token;
	ReadyKey key = {args->ready_at, job->id};
	bool reaped = event == EVENT_REAP || event == EVENT_REAP_DEAD;

	if (ends_lease || event == EVENT_COMMIT_ONCE)
		idemq_xact_note_end(queue->slot, queue->id, job->id, token);
	else if (transition->finishes)
		idemq_xact_note_finished(job->id);
	if (reaped)
		idemq_xact_note_event(queue->slot, queue->id,
							  args->worker_lost ? JOB_WORKER_LOST : JOB_LEASE_EXPIRED, job->id,
							  job->attempt);
	if (transition->to == JOB_DEAD)
		idemq_xact_note_event(queue->slot, queue->id, JOB_DIED, job->id, job->attempt);
	/* The group has lost its head, or one that was next; or has a job again that may be it. */
	if (!job->row->tts_isnull[COL_GROUP_KEY] &&
		(transition->finishes || transition->to == JOB_BLOCKED))
		idemq_group_note(queue->slot, queue->id, job->row->tts_values[COL_GROUP_KEY],
						 transition->to == JOB_BLOCKED ? job->id : GROUP_KEEP_FLOOR);
	if (transition->ready == READY_SET)
	{
		idemq_lowers_note(queue->slot, queue->id, job->priority, key);
		/* Given back, or due earlier; redriven, it does not expire. */
		if (job->expires_at < DT_NOEND && (event == EVENT_RELEASE || event == EVENT_RETRY))
			idemq_lowers_note_expiry(queue->slot, queue->id, job->priority, job->expires_at);
	}
	/* Taken out of the index with no entry: should this abort, it is back. */
	if (transition->ready != READY_KEEP && job->is_ready && job->status != JOB_PROCESSING &&
		event != EVENT_COMMIT_ONCE)
		idemq_lowers_note_taken(queue->slot, queue->id, job->priority, job_ready_key(job));
}

/* Counts the event, and how long it took to come to it. */
static void
count(const Transition *transition, const Job *job, const QueueInfo *queue, JobEvent event,
	  const EventArgs *args)
{
	idemq_tally_count(queue->id, transition->counters);
	if (event == EVENT_CLAIM || event == EVENT_COMMIT_ONCE)
		idemq_tally_timing(queue->id, TIMING_WAIT, job->ready_at, args->now);
	else if (event == EVENT_COMMIT)
		idemq_tally_timing(queue->id, TIMING_RUN, job->claimed_at, args->now);
}

/* Returns whether nothing is left of a job once it is completed. */
static bool
keeps_nothing(const Job *job, const QueueInfo *queue)
{
	return queue->retention == 0 && job->row->tts_isnull[COL_KEY];
}

/*
 * Makes an event happen to a fetched job.  The caller has checked that it is
 * allowed, and the token where the job is somebody's.  A commit of a job without
 * a key in a queue that keeps nothing deletes the row.  A death adds a job to the
 * dead queue of the job's queue.
 */
JobWrite
idemq_transition(JobsTable *table, const Job *job, const QueueInfo *queue, JobEvent event,
				 const EventArgs *args, JobWait wait)
{
	const Transition *transition = &transitions[event];
	bool deleted = transition->to == JOB_COMPLETED && keeps_nothing(job, queue);
	bool goes_on = transition->to == JOB_DEAD && queue->dead_queue[0] != '\0';
	QueueInfo dead;
	JobChange change;
	JobWrite write;

	if (!idemq_transition_allowed(event, job->status))
		elog(ERROR, "event %d cannot happen to a job that is %s", event,
			 idemq_status_name(job->status));
	if (goes_on && !idemq_dead_queue_hold(queue, wait, &dead))
		return JOB_LOCKED;
	if (deleted)
		write = idemq_jobs_delete(table, job, wait);
	else
	{
		fill_change(&change, transition, job, args);
		write = idemq_jobs_update(table, job, &change, wait);
	}
	if (write != JOB_WRITTEN)
		return write;
	note(transition, job, queue, event, args);
	count(transition, job, queue, event, args);
	if (deleted && (job->attempt > 1 || !job->row->tts_isnull[COL_LAST_ERROR]))
		idemq_attempts_forget(job->id);
	/* A queue that keeps nothing keeps no history of a job that was only given back. */
	if (event == EVENT_RELEASE && keeps_nothing(job, queue))
		return write;
	if (transition->history != NULL && job->status == JOB_PROCESSING)
		idemq_attempts_add(job, args->now, transition->history, args->error);
	if (goes_on)
		idemq_dead_queue_add(job, queue, &dead, args->now, args->error);
	return write;
}
