/*
 * job/transition.c
 *		The state machine of a job: every change of status, in one table.
 *
 * The status is checked here, on the very version that is then written.  The caller has fetched
 * that version, and has checked its token.  A write that returns JOB_CHANGED has changed nothing;
 * the caller fetches the job again.
 *
 * A running job may be asked to run once more (rerun_at and the newest payload, by job/rerun.c).
 * The call that ends the attempt acts as if the request had come just after the end, so no one can
 * tell in which order the two came: a job that continues gets the new payload, and a finished job
 * becomes ready again by a second event in the same transaction.  Only cancel drops the request, as
 * if the request had come before it.  Neither is lost: request and end both write the row, and the
 * later one waits for the earlier one, finds another version than it fetched, and starts again with
 * that version (40001 above READ COMMITTED).
 *
 * What shared memory must do after commit or abort is noted in txn/: a lease that ends, a ready key
 * that becomes claimable, a group that may need a head.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "shared/groups/groups.h"
#include "table/table.h"
#include "txn/txn.h"

/* What an event does to ready_at. */
typedef enum ReadyMove
{
	READY_KEEP,
	READY_CLEAR,
	READY_SET
} ReadyMove;

/* What an event adds to attempt; ATTEMPT_RESET sets it to 0. */
typedef enum AttemptMove
{
	ATTEMPT_BACK = -1,
	ATTEMPT_KEEP,
	ATTEMPT_NEXT,
	ATTEMPT_RESET
} AttemptMove;

#define UNTIMED (-1)

/* Events for NOTIFY, as bits. */
#define TELL_LEASE 1 /* the lease expired, or the worker's session ended */
#define TELL_DEATH 2

/* Other properties of an event, as bits. */
#define ONE_STEP 1	 /* claims and ends the attempt, with the call's own token and lease */
#define MAY_EXPIRE 2 /* expires_at applies again, or to another ready_at */
#define LEAVES_JOB 4 /* undoes the claim: no history if the queue keeps nothing */
/* What the end of an attempt does with the request to run once more: */
#define TAKES_REQUEST 8	  /* the job continues with its payload */
#define SERVES_REQUEST 16 /* the job runs again */
#define DROPS_REQUEST 32

typedef struct Transition
{
	uint32 from;  /* statuses, as bits */
	JobStatus to; /* a finished status sets finished_at, and JOB_DEAD also dead_at */
	ReadyMove ready;
	AttemptMove attempt;
	const char *history; /* outcome in idemq.attempts if it ends an attempt */
	uint32 counters;	 /* that it increments, as COUNTER_BITs */
	int timed;			 /* the Timing that it measures; UNTIMED: none */
	uint32 told;
	uint32 flags;
	uint32 columns; /* that it sets from its EventArgs */
} Transition;

#define BIT(status) (1U << (status))
#define BLOCKED BIT(JOB_BLOCKED)
#define PENDING BIT(JOB_PENDING)
#define RUNNING BIT(JOB_RUNNING)
#define RETRYING BIT(JOB_RETRYING)
#define DEAD BIT(JOB_DEAD)
#define COMPLETED BIT(JOB_COMPLETED)
#define CANCELLED BIT(JOB_CANCELLED)
#define FINISHED (COMPLETED | DEAD | CANCELLED)
#define UNFINISHED (BLOCKED | PENDING | RETRYING | RUNNING)

#define CLAIM_COLUMNS                                                                              \
	(COLUMN_BIT(COL_TOKEN) | COLUMN_BIT(COL_CLAIMED_AT) | COLUMN_BIT(COL_DEADLINE) |               \
	 COLUMN_BIT(COL_WORKER))
#define RESULT COLUMN_BIT(COL_RESULT)
#define TOKEN COLUMN_BIT(COL_TOKEN)
#define ERROR_TEXT COLUMN_BIT(COL_LAST_ERROR)
#define STATE COLUMN_BIT(COL_CHECKPOINT)
#define DEADLINE COLUMN_BIT(COL_DEADLINE)
#define RENEWED COLUMN_BIT(COL_RENEWED_AT)
#define RUN_AT COLUMN_BIT(COL_RUN_AT)
#define PRIORITY COLUMN_BIT(COL_PRIORITY)
#define GROUP COLUMN_BIT(COL_GROUP_KEY)
#define ASKED COLUMN_BIT(COL_RERUN_PAYLOAD)
#define REQUEST COLUMN_BIT(COL_PAYLOAD)

#define COUNT(counter) COUNTER_BIT(COUNTER_##counter)

/* clang-format off */
static const Transition transitions[] = {
	/*                         from                          to             ready        attempt        history      counters                      timed        told                     flags                                    columns */
	[EVENT_CLAIM] =           {PENDING | RETRYING,           JOB_RUNNING,   READY_KEEP,  ATTEMPT_NEXT,  NULL,        COUNT(CLAIMED),               TIMING_WAIT, 0,                       0,                                       CLAIM_COLUMNS},
	[EVENT_COMMIT] =          {RUNNING,                      JOB_COMPLETED, READY_CLEAR, ATTEMPT_KEEP,  NULL,        COUNT(COMMITTED),             TIMING_RUN,  0,                       SERVES_REQUEST,                          RESULT},
	[EVENT_COMMIT_ONCE] =     {PENDING | RETRYING,           JOB_COMPLETED, READY_CLEAR, ATTEMPT_KEEP,  NULL,        COUNT(COMMITTED),             TIMING_WAIT, 0,                       ONE_STEP,                                RESULT | TOKEN},
	[EVENT_FAIL] =            {RUNNING,                      JOB_RETRYING,  READY_SET,   ATTEMPT_KEEP,  "failed",    COUNT(FAILED),                UNTIMED,     0,                       TAKES_REQUEST,                           ERROR_TEXT},
	[EVENT_DIE] =             {RUNNING,                      JOB_DEAD,      READY_CLEAR, ATTEMPT_KEEP,  "failed",    COUNT(FAILED) | COUNT(DEAD),  UNTIMED,     TELL_DEATH,              SERVES_REQUEST,                          ERROR_TEXT},
	[EVENT_RELEASE] =         {RUNNING,                      JOB_PENDING,   READY_SET,   ATTEMPT_BACK,  "released",  COUNT(RELEASED),              UNTIMED,     0,                       MAY_EXPIRE | LEAVES_JOB | TAKES_REQUEST, 0},
	[EVENT_INTERRUPT] =       {RUNNING,                      JOB_PENDING,   READY_SET,   ATTEMPT_BACK,  "released",  COUNT(RELEASED),              UNTIMED,     0,                       MAY_EXPIRE | TAKES_REQUEST,              ERROR_TEXT},
	[EVENT_REAP] =            {RUNNING,                      JOB_PENDING,   READY_SET,   ATTEMPT_KEEP,  "expired",   COUNT(EXPIRED),               UNTIMED,     TELL_LEASE,              TAKES_REQUEST,                           ERROR_TEXT},
	[EVENT_REAP_LATER] =      {RUNNING,                      JOB_RETRYING,  READY_SET,   ATTEMPT_KEEP,  "expired",   COUNT(EXPIRED),               UNTIMED,     TELL_LEASE,              TAKES_REQUEST,                           ERROR_TEXT},
	[EVENT_REAP_DEAD] =       {RUNNING,                      JOB_DEAD,      READY_CLEAR, ATTEMPT_KEEP,  "expired",   COUNT(EXPIRED) | COUNT(DEAD), UNTIMED,     TELL_LEASE | TELL_DEATH, SERVES_REQUEST,                          ERROR_TEXT},
	[EVENT_CANCEL] =          {UNFINISHED,                   JOB_CANCELLED, READY_CLEAR, ATTEMPT_KEEP,  "cancelled", COUNT(CANCELLED),             UNTIMED,     0,                       DROPS_REQUEST,                           0},
	[EVENT_EXPIRE] =          {BLOCKED | PENDING | RETRYING, JOB_CANCELLED, READY_CLEAR, ATTEMPT_KEEP,  NULL,        COUNT(CANCELLED),             UNTIMED,     0,                       0,                                       ERROR_TEXT},
	[EVENT_RETRY] =           {PENDING | RETRYING,           JOB_PENDING,   READY_SET,   ATTEMPT_KEEP,  NULL,        COUNT(RETRIED),               UNTIMED,     0,                       MAY_EXPIRE,                              0},
	[EVENT_REDRIVE] =         {DEAD | CANCELLED,             JOB_PENDING,   READY_SET,   ATTEMPT_RESET, NULL,        COUNT(REDRIVEN),              UNTIMED,     0,                       0,                                       0},
	[EVENT_REDRIVE_GROUPED] = {DEAD | CANCELLED,             JOB_BLOCKED,   READY_CLEAR, ATTEMPT_RESET, NULL,        COUNT(REDRIVEN),              UNTIMED,     0,                       0,                                       0},
	[EVENT_RESCHEDULE] =      {PENDING,                      JOB_PENDING,   READY_SET,   ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       MAY_EXPIRE,                              PRIORITY},
	[EVENT_RESCHEDULE_RETRYING] = {RETRYING,                 JOB_RETRYING,  READY_SET,   ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       MAY_EXPIRE,                              PRIORITY},
	[EVENT_RESCHEDULE_BLOCKED] = {BLOCKED,                   JOB_BLOCKED,   READY_KEEP,  ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       PRIORITY},
	[EVENT_PROMOTE] =         {BLOCKED,                      JOB_PENDING,   READY_SET,   ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       0},
	[EVENT_DEFER] =            {PENDING | RETRYING,           JOB_BLOCKED,   READY_CLEAR, ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       0},
	[EVENT_PAUSE] =           {PENDING | RETRYING,           JOB_BLOCKED,   READY_CLEAR, ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       RUN_AT},
	[EVENT_JOIN_GROUP] =      {BLOCKED,                      JOB_BLOCKED,   READY_KEEP,  ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       GROUP},
	[EVENT_CHECKPOINT] =      {RUNNING,                      JOB_RUNNING,   READY_KEEP,  ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       STATE},
	[EVENT_ASK_RERUN] =       {RUNNING,                      JOB_RUNNING,   READY_KEEP,  ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       ASKED},
	[EVENT_RERUN] =           {FINISHED,                     JOB_PENDING,   READY_SET,   ATTEMPT_RESET, NULL,        COUNT(RERUNS),                UNTIMED,     0,                       0,                                       REQUEST},
	[EVENT_RERUN_GROUPED] =   {FINISHED,                     JOB_BLOCKED,   READY_CLEAR, ATTEMPT_RESET, NULL,        COUNT(RERUNS),                UNTIMED,     0,                       0,                                       REQUEST | RUN_AT},
	[EVENT_EXTEND] =          {RUNNING,                      JOB_RUNNING,   READY_KEEP,  ATTEMPT_KEEP,  NULL,        0,                            UNTIMED,     0,                       0,                                       DEADLINE | RENEWED},
};
/* clang-format on */

/* Returns the outcome of a call that does not change a job, because of the job's status. */
Outcome
idemq_outcome_of_status(JobStatus status)
{
	static const Outcome outcomes[JOB_STATUS_COUNT] =
		{[JOB_BLOCKED] = OUTCOME_BLOCKED,	  [JOB_PENDING] = OUTCOME_CURRENT,
		 [JOB_RUNNING] = OUTCOME_LOCKED,	  [JOB_RETRYING] = OUTCOME_CURRENT,
		 [JOB_COMPLETED] = OUTCOME_COMPLETED, [JOB_DEAD] = OUTCOME_DEAD,
		 [JOB_CANCELLED] = OUTCOME_CANCELLED};

	return outcomes[status];
}

/* Returns whether an event may happen to a job of that status. */
bool
idemq_transition_allowed(JobEvent event, JobStatus status)
{
	return (transitions[event].from & BIT(status)) != 0;
}

/* Sets a column that is passed by reference; 0 means NULL. */
static void
set_reference(JobChange *change, JobColumn column, Datum value)
{
	if (value == (Datum) 0)
		job_set_null(change, column);
	else
		job_set(change, column, value);
}

static void
clear_request(JobChange *change)
{
	job_set_null(change, COL_RERUN_AT);
	job_set_null(change, COL_RERUN_PAYLOAD);
	job_set_null(change, COL_RERUN_HEADERS);
	job_set_null(change, COL_RERUN_KIND);
}

/*
 * Sets a new payload, and removes the checkpoint and the request, which belong to the former one.
 */
static void
set_payload(JobChange *change, const JobRequest *request)
{
	job_set(change, COL_PAYLOAD, request->payload);
	set_reference(change, COL_HEADERS, request->headers);
	set_reference(change, COL_KIND, request->kind);
	job_set_null(change, COL_CHECKPOINT);
	clear_request(change);
}

/* Sets the time for which a job waits; NULL means now. */
static void
set_run_at(JobChange *change, const EventArgs *args)
{
	job_set(change, COL_RUN_AT, TimestampTzGetDatum(args->ready_at));
	change->isnull[COL_RUN_AT] = args->ready_at <= args->now;
}

/* Sets the columns that an event takes from its arguments. */
static void
set_argument_columns(JobChange *change, uint32 columns, const Job *job, const EventArgs *args)
{
	const JobRequest *request = &args->request;

	if (columns & TOKEN)
		job_set(change, COL_TOKEN, Int64GetDatum(args->token));
	if (columns & COLUMN_BIT(COL_CLAIMED_AT))
		job_set(change, COL_CLAIMED_AT, TimestampTzGetDatum(args->now));
	if (columns & DEADLINE)
		job_set(change, COL_DEADLINE, TimestampTzGetDatum(args->deadline));
	if (columns & RENEWED)
		job_set(change, COL_RENEWED_AT, TimestampTzGetDatum(args->now));
	if (columns & COLUMN_BIT(COL_WORKER))
		set_reference(change, COL_WORKER, PointerGetDatum(args->worker));
	if (columns & ERROR_TEXT)
		set_reference(change, COL_LAST_ERROR, PointerGetDatum(args->error));
	if (columns & (RESULT | STATE))
		set_reference(change, (columns & RESULT) ? COL_RESULT : COL_CHECKPOINT, args->document);
	if (columns & GROUP)
		job_set(change, COL_GROUP_KEY, args->group);
	if (columns & ASKED)
	{
		job_set(change, COL_RERUN_AT, TimestampTzGetDatum(args->ready_at));
		job_set(change, COL_RERUN_PAYLOAD, request->payload);
		set_reference(change, COL_RERUN_HEADERS, request->headers);
		set_reference(change, COL_RERUN_KIND, request->kind);
	}
	if (columns & REQUEST)
		set_payload(change, request);
	if (columns & RUN_AT)
		set_run_at(change, args);
	if ((columns & (ASKED | REQUEST)) && request->key_expires_at != 0)
		job_set(change, COL_KEY_EXPIRES_AT, TimestampTzGetDatum(request->key_expires_at));
	if (columns & PRIORITY)
	{
		job_set(change, COL_PRIORITY, Int16GetDatum((int16) args->priority));
		/* Only if the job has its time in run_at. */
		if (args->new_run_at && (job->status == JOB_BLOCKED || job_has(job, COL_GROUP_KEY)))
			set_run_at(change, args);
	}
}

/*
 * Returns whether a job has a stored request to run once more, and the event has one of the flags.
 */
static bool
is_asked(const Transition *transition, const Job *job, uint32 flags)
{
	return (transition->flags & flags) != 0 && job->status == JOB_RUNNING &&
		   job_has(job, COL_RERUN_AT);
}

/* Returns the stored request of a running job; a column that is NULL becomes 0. */
static JobRequest
asked_request(const Job *job)
{
	return (JobRequest){.payload = job_value(job, COL_RERUN_PAYLOAD),
						.headers = job_value(job, COL_RERUN_HEADERS),
						.kind = job_value(job, COL_RERUN_KIND)};
}

/* Returns whether a job is deleted when it is completed. */
static bool
keeps_nothing(const Job *job, const QueueInfo *queue)
{
	return queue->retention == 0 && !job_has(job, COL_KEY);
}

/* Returns whether an event adds a row to idemq.attempts for the attempt that it ends. */
static bool
adds_attempt(const Transition *transition, const Job *job, const QueueInfo *queue)
{
	return transition->history != NULL && job->status == JOB_RUNNING &&
		   !((transition->flags & LEAVES_JOB) && keeps_nothing(job, queue));
}

/*
 * Returns whether an event adds a row to idemq.attempts for the commit of a job that runs again.
 * The job's own row will no longer show that commit, and a call that repeats it must be recognized.
 */
static bool
adds_commit(const Transition *transition, const Job *job)
{
	return (transition->columns & REQUEST) && job->status == JOB_COMPLETED;
}

/* Returns flags in which a count is one greater if something happened again, and otherwise 0. */
static int16
count_in_a_row(int16 flags, int16 which, bool again)
{
	int count = again ? Min(job_count(flags, which) + 1, JOB_COUNT_MAX) : 0;

	return (int16) ((flags & ~(which * JOB_COUNT_MAX)) | (count * which));
}

/* Returns the flags of a job after an event that does what transition says; see table/table.h. */
static int16
flags_after(JobEvent event, const Transition *transition, const Job *job, const QueueInfo *queue,
			const EventArgs *args)
{
	int16 flags = job->flags;

	/* Its permit, and whether it waits for its group's rate. */
	if (transition->ready != READY_KEEP)
		flags &= ~JOB_PERMIT;
	/* Another priority does not change the time, or the reason for it. */
	if ((event == EVENT_CLAIM || transition->ready != READY_KEEP) &&
		((transition->columns & PRIORITY) == 0 || args->new_run_at || args->due != 0))
		flags &= ~JOB_RATE_LIMITED;
	if (transition->ready == READY_SET && job_has(job, COL_GROUP_KEY))
	{
		if (args->takes_permit)
			flags |= JOB_PERMIT;
		if (args->due != 0)
			flags |= JOB_RATE_LIMITED;
	}
	/* Its attempt. */
	if (event == EVENT_CLAIM || transition->to != JOB_RUNNING)
		flags &= ~JOB_FLAGS_OF_ATTEMPT;
	if (event == EVENT_CLAIM)
		flags |= args->claim_flags;
	else if (event == EVENT_EXTEND)
		flags |= JOB_EXTENDED;
	else if (job_status_is_finished(transition->to))
		flags &= JOB_HISTORY;
	else if (job->status == JOB_RUNNING && transition->to != JOB_RUNNING)
	{
		bool lost = event == EVENT_REAP || event == EVENT_REAP_LATER;

		/* A release does not count as an attempt, so what the previous attempt left stays. */
		flags = count_in_a_row(flags, JOB_INTERRUPTED, event == EVENT_INTERRUPT);
		if (lost || event == EVENT_FAIL)
			flags = count_in_a_row(flags, JOB_CRASHED, lost && job_is_handled(job));
		if (lost)
			flags |= JOB_LOST;
		else if (event == EVENT_FAIL)
			flags &= ~JOB_LOST;
	}
	if (adds_attempt(transition, job, queue) || adds_commit(transition, job))
		flags |= JOB_HISTORY;
	return flags;
}

/* Fills in the change that an event makes. flags: those of the job after the event. */
static void
fill_change(JobChange *change, const Transition *transition, const Job *job, const EventArgs *args,
			int16 flags)
{
	change->set = 0;
	/* Only if they change, because WAL would otherwise contain all columns after them. */
	if (flags != job->flags)
		job_set(change, COL_FLAGS, Int16GetDatum(flags));
	/* Has a value only together with the flag. */
	if (job_has(job, COL_RENEWED_AT) && (flags & JOB_EXTENDED) == 0)
		job_set_null(change, COL_RENEWED_AT);
	if (transition->to != job->status)
		job_set(change, COL_STATUS, ObjectIdGetDatum(idemq_oids()->status[transition->to]));
	if (transition->ready == READY_SET)
		job_set(change, COL_READY_AT, TimestampTzGetDatum(args->ready_at));
	else if (transition->ready == READY_CLEAR)
		job_set_null(change, COL_READY_AT);
	if (transition->attempt == ATTEMPT_RESET)
		job_set(change, COL_ATTEMPT, Int32GetDatum(0));
	else if (transition->attempt != ATTEMPT_KEEP)
		job_set(change, COL_ATTEMPT, Int32GetDatum(job->attempt + transition->attempt));
	if (job_status_is_finished(transition->to))
		job_set(change, COL_FINISHED_AT, TimestampTzGetDatum(args->now));
	else if (transition->from & (DEAD | CANCELLED))
	{
		/* The job is unfinished again, even if it had expired. */
		job_set_null(change, COL_FINISHED_AT);
		job_set_null(change, COL_DEAD_AT);
		job_set_null(change, COL_EXPIRES_AT);
	}
	if (transition->to == JOB_DEAD)
		job_set(change, COL_DEAD_AT, TimestampTzGetDatum(args->now));
	set_argument_columns(change, transition->columns, job, args);
	if (is_asked(transition, job, TAKES_REQUEST))
	{
		JobRequest request = asked_request(job);

		set_payload(change, &request);
		/* It was the limit for claiming the former request, which was claimed in time. */
		job_set_null(change, COL_EXPIRES_AT);
	}
	else if (is_asked(transition, job, DROPS_REQUEST))
		clear_request(change);
}

/* Notes what shared memory must do when the transaction ends, and the events for NOTIFY. */
static void
transition_note(const Transition *transition, const Job *job, const QueueInfo *queue,
				const EventArgs *args)
{
	bool one_step = (transition->flags & ONE_STEP) != 0;
	bool finishes = job_status_is_finished(transition->to);
	bool blocks = transition->to == JOB_BLOCKED;
	/* A job that runs again in this transaction is not announced. */
	bool announces = finishes && queue->notify_finished &&
					 !is_asked(transition, job, SERVES_REQUEST);
	JobStatus announced = announces ? transition->to : NOT_ANNOUNCED;

	if (one_step || (job->status == JOB_RUNNING && transition->to != JOB_RUNNING))
		idemq_pending_note_end(queue->qstate, queue->id, job->id,
							   one_step ? args->token : job->token, announced, false);
	else if (finishes)
		idemq_pending_note_finished(queue->qstate, queue->id, job->id, announced);
	if (transition->told & TELL_LEASE)
		idemq_pending_note_event(queue->qstate, queue->id,
								 args->worker_lost ? JOB_WORKER_LOST : JOB_LEASE_EXPIRED, job->id,
								 job->attempt);
	if (transition->told & TELL_DEATH)
		idemq_pending_note_event(queue->qstate, queue->id, JOB_DIED, job->id, job->attempt);
	/* The group has lost its head or its next job, or has another blocked job. */
	if (job_has(job, COL_GROUP_KEY) && (finishes || blocks))
		idemq_pending_groups_note(queue->qstate, queue->id, job_value(job, COL_GROUP_KEY),
								  blocks ? job->id : GROUP_KEEP_LOW_WATER);
	else if (transition->columns & GROUP)
		idemq_pending_groups_note(queue->qstate, queue->id, args->group, job->id);
	else if (blocks && job->status != JOB_BLOCKED)
		idemq_pending_dependency_note_blocked(queue->qstate, queue->id, job->id);
	if (transition->ready == READY_SET)
	{
		idemq_pending_ready_note(queue->qstate, queue->id,
								 (transition->columns & PRIORITY) ? args->priority : job->priority,
								 (ReadyKey){args->ready_at, job->id});
	}
	if (job->expires_at < DT_NOEND && (transition->flags & MAY_EXPIRE))
		idemq_pending_ready_note_expiry(queue->qstate, queue->id, job->expires_at);
	/* The job leaves the index without a lease entry; an abort must bring it back. */
	if (transition->ready != READY_KEEP && job->is_ready && job->status != JOB_RUNNING && !one_step)
		idemq_pending_ready_note_taken(queue->qstate, queue->id, job->priority, job_ready_key(job));
}

/* Makes a job that this transaction has finished run again, as the stored request asks. */
static void
serve_request(JobsTable *table, int64 id, const QueueInfo *queue, TimestampTz now)
{
	EventArgs args = {.now = now};
	Job job;

	idemq_jobs_refresh(table);
	if (!idemq_jobs_fetch(table, id, &job))
		elog(ERROR, "job %lld, which should run again, no longer exists", (long long) id);
	args.ready_at = Max(now, job_time(&job, COL_RERUN_AT));
	args.request = asked_request(&job);
	if (idemq_transition(table, &job, queue,
						 !job_has(&job, COL_GROUP_KEY) ? EVENT_RERUN : EVENT_RERUN_GROUPED, &args,
						 JOB_WAITS) != JOB_WRITTEN)
		elog(ERROR, "job %lld could not be made ready again", (long long) id);
}

/*
 * Adds an event to idemq.attempts and idemq.steps; if the job's row was deleted, removes its rows
 * there.
 */
static void
write_history(const Transition *transition, const Job *job, const QueueInfo *queue,
			  const EventArgs *args, bool deleted)
{
	if (deleted)
	{
		if (job->flags & JOB_HISTORY)
			idemq_attempt_history_forget(&job->id, 1);
		idemq_steps_forget(&job->id, 1);
		if (idemq_may_have_dependencies(queue->qstate, job->id))
			idemq_dependency_forget(&job->id, 1);
	}
	if (adds_attempt(transition, job, queue))
		idemq_attempt_history_add(job, args->now, transition->history, args->error, args->details);
	/* The steps were done for the former payload. */
	if ((transition->columns & REQUEST) || is_asked(transition, job, TAKES_REQUEST))
		idemq_steps_void(job->id);
	if (adds_commit(transition, job))
		idemq_attempt_history_add_commit(job, NULL);
}

/*
 * Applies an event to a fetched job.  The caller has checked that the event is allowed, and the
 * token if the job is running.  A commit of a job without a key in a queue that keeps nothing
 * deletes the row, if possible.  A death, and with dead_letter_cancelled the cancel of a job of
 * which an attempt has begun, adds a job to the dead-letter queue.  A job with a stored request
 * runs once more; afterwards only the fields of *job may be read, not its columns.  In a paused
 * group, an event that would make the job ready makes it blocked instead, with its time in run_at
 * (job/group_pause.c).
 */
JobWrite
idemq_transition(JobsTable *table, const Job *job, const QueueInfo *queue, JobEvent event,
				 const EventArgs *given, JobWait wait)
{
	const Transition *transition = &transitions[event];
	Transition paused;
	bool deletes = transition->to == JOB_COMPLETED && keeps_nothing(job, queue);
	bool adds_record = idemq_dead_letter_wants(queue, job, transition->to);
	bool has_children;
	EventArgs args = *given;
	QueueInfo dead;
	JobChange change;
	JobWrite write;

	IDEMQ_STOP("idemq_transition");
	if (!idemq_transition_allowed(event, job->status))
		elog(ERROR, "event %d is not allowed for a job in status %s", event,
			 idemq_status_name(job->status));
	/* In a paused group no event makes a job ready.  A promotion has checked this beforehand. */
	if (transition->ready == READY_SET && event != EVENT_PROMOTE && job_has(job, COL_GROUP_KEY) &&
		idemq_jobs_group_is_paused(table, queue, job_value(job, COL_GROUP_KEY), NULL))
	{
		paused = *transition;
		paused.to = JOB_BLOCKED;
		paused.ready = READY_CLEAR;
		paused.columns |= RUN_AT;
		transition = &paused;
	}
	if (adds_record && !idemq_dead_letter_hold(queue, wait, &dead))
		return JOB_LOCKED;
	if (is_asked(transition, job, TAKES_REQUEST))
		args.ready_at = Max(args.ready_at, job_time(job, COL_RERUN_AT));

	if (deletes)
	{
		write = idemq_jobs_may_delete(table, job, queue->qstate, JOB_COMPLETED, &has_children);
		if (write == JOB_WRITTEN)
			write = idemq_jobs_delete(table, job);
		if (write == JOB_WRITTEN)
			idemq_jobs_check_deleted(queue->qstate, job->id, has_children);
		/* Retention deletes a row later that another transaction holds or needs. */
		deletes = write != JOB_LOCKED;
	}
	if (!deletes)
	{
		fill_change(&change, transition, job, &args,
					flags_after(event, transition, job, queue, &args));
		if (transition->ready == READY_SET && idemq_job_uses_permits(queue, job))
			idemq_permit_follow(&change, job, queue, args.takes_permit, args.ready_at);
		else if (args.due != 0 && job_has(job, COL_GROUP_KEY))
			job_set(&change, COL_RUN_AT, TimestampTzGetDatum(args.due)); /* group_rate_limit */
		write = idemq_jobs_update(table, job, &change, wait);
	}
	if (write != JOB_WRITTEN)
		return write;

	transition_note(transition, job, queue, &args);
	idemq_pending_counts_event(queue->id, transition->counters);
	if (transition->timed != UNTIMED)
		idemq_pending_counts_timing(queue->id, transition->timed,
									transition->timed == TIMING_WAIT ? job->ready_at
																	 : job->claimed_at,
									args.now);
	write_history(transition, job, queue, &args, deletes);
	if (adds_record)
		idemq_dead_letter_add(job, queue, &dead, transition->to, args.error);
	if (is_asked(transition, job, SERVES_REQUEST))
		serve_request(table, job->id, queue, args.now);
	return write;
}

/* Cancels a fetched job that has expired; never waits. */
JobWrite
idemq_job_expire(JobsTable *table, const Job *job, const QueueInfo *queue, TimestampTz now)
{
	EventArgs args = {.now = now, .error = cstring_to_text("expired before it was claimed")};

	return idemq_transition(table, job, queue, EVENT_EXPIRE, &args, JOB_SKIPS);
}
