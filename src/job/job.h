/*
 * job/job.h
 *		The state machine, and the steps of a job's life.
 */
#ifndef IDEMQ_JOB_JOB_H
#define IDEMQ_JOB_JOB_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/jsonb.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/*
 * transition.c
 *		The state machine of a job.
 */

typedef enum JobEvent
{
	EVENT_CLAIM,
	EVENT_COMMIT,
	EVENT_COMMIT_ONCE,
	EVENT_FAIL,
	EVENT_DIE,
	EVENT_RELEASE,
	EVENT_INTERRUPT, /* a release; the history says why */
	EVENT_REAP,
	EVENT_REAP_LATER, /* a reap after which the job waits by the retry policy */
	EVENT_REAP_DEAD,
	EVENT_CANCEL,
	EVENT_EXPIRE,
	EVENT_RETRY,
	EVENT_REDRIVE,
	EVENT_REDRIVE_GROUPED,
	EVENT_RESCHEDULE,
	EVENT_RESCHEDULE_RETRYING,
	EVENT_RESCHEDULE_BLOCKED,
	EVENT_PROMOTE,
	EVENT_DEFER,
	EVENT_PAUSE, /* its group is paused (job/group_pause.c) */
	EVENT_JOIN_GROUP,
	EVENT_CHECKPOINT,
	EVENT_ASK_RERUN,
	EVENT_RERUN,
	EVENT_RERUN_GROUPED,
	EVENT_EXTEND
} JobEvent;

/* A request for a job that exists already. */
typedef struct JobRequest
{
	Datum payload;
	Datum headers;				/* 0 for none */
	Datum kind;					/* 0 for none */
	TimestampTz key_expires_at; /* 0: unchanged */
} JobRequest;

/* The arguments of events; each event reads the fields whose comments name it. */
typedef struct EventArgs
{
	TimestampTz now; /* extend: the time of the heartbeat */
	/* fail, release, reap, retry, redrive, reschedule, promote, reruns; pause: its time so far */
	TimestampTz ready_at;
	int32 priority;		  /* reschedule */
	bool new_run_at;	  /* reschedule: ready_at was asked for */
	int16 claim_flags;	  /* claim: JOB_ATTACHED, JOB_HANDLER */
	bool takes_permit;	  /* promote, reschedule: the job keeps a permit until ready_at */
	TimestampTz due;	  /* the same: when it was due, if group_rate_limit set ready_at; or 0 */
	TimestampTz deadline; /* claim, extend */
	int64 token;		  /* claim, commit_once: the new one */
	text *worker;		  /* claim; NULL for none */
	text *error;		  /* fail, die, interrupt, reap, expire; NULL for none */
	Jsonb *details;		  /* fail, die; NULL for none */
	bool worker_lost;	  /* reap: the session of an attached claim ended */
	Datum document;		  /* commit: the result, 0 for none; checkpoint: the state */
	Datum group;		  /* join group */
	JobRequest request;	  /* ask rerun, rerun */
} EventArgs;

/* The flags that say something about an attempt, and go with it. */
#define JOB_FLAGS_OF_ATTEMPT (JOB_ATTACHED | JOB_HANDLER | JOB_EXTENDED)

extern Outcome idemq_outcome_of_status(JobStatus status);
extern bool idemq_transition_allowed(JobEvent event, JobStatus status);
extern JobWrite idemq_transition(JobsTable *table, const Job *job, const QueueInfo *queue,
								 JobEvent event, const EventArgs *args, JobWait wait);
extern JobWrite idemq_job_expire(JobsTable *table, const Job *job, const QueueInfo *queue,
								 TimestampTz now);

/*
 * permits.c
 *		The permits of a group: how many of its jobs may be claimed or running.
 */

/* What a snapshot shows of the jobs of a group that have a permit. */
typedef struct GroupPermits
{
	int taken;		   /* running, or being claimed */
	int64 next;		   /* one that waits to be claimed; 0: there is none */
	TimestampTz first; /* the least ready_at of these; DT_NOEND for none */
	TimestampTz last;  /* the greatest; DT_NOBEGIN for none */
} GroupPermits;

/* Returns whether the groups of a queue use permits; otherwise each has one head. */
static inline bool
idemq_groups_use_permits(const QueueInfo *queue)
{
	return queue->group_max_running > 1;
}

/* Returns whether a group is the one without a name, of jobs that have no group. */
static inline bool
idemq_is_no_group(Datum name)
{
	return VARSIZE_ANY_EXHDR(DatumGetPointer(name)) == 0;
}

/* Returns whether a group of a queue uses permits; the one without a name does in any queue. */
static inline bool
idemq_group_uses_permits(const QueueInfo *queue, Datum name)
{
	return idemq_groups_use_permits(queue) || idemq_is_no_group(name);
}

/* Returns how many permits a group that uses them has. */
static inline int
idemq_group_permits(const QueueInfo *queue, Datum name)
{
	return idemq_is_no_group(name) ? PG_INT32_MAX : queue->group_max_running;
}

/* Returns whether a job is in a group that uses permits. */
static inline bool
idemq_job_uses_permits(const QueueInfo *queue, const Job *job)
{
	return job_has(job, COL_GROUP_KEY) &&
		   idemq_group_uses_permits(queue, job_value(job, COL_GROUP_KEY));
}

/*
 * Returns whether a job of such a group has a permit.  One that is running always counts, even if it
 * was made so by hand.
 */
static inline bool
idemq_job_has_permit(const Job *job)
{
	return job->status == JOB_RUNNING || (job->flags & JOB_PERMIT) != 0;
}

/* Returns whether a fetched job is in a group that uses permits, but has none. */
static inline bool
idemq_lacks_permit(const QueueInfo *queue, const Job *job)
{
	return idemq_job_uses_permits(queue, job) && !idemq_job_has_permit(job);
}

extern void idemq_permit_follow(JobChange *change, const Job *job, const QueueInfo *queue,
								bool takes, TimestampTz ready_at);
extern void idemq_permits_count(JobsTable *table, const QueueInfo *queue, Datum name,
								TimestampTz from, TimestampTz until, GroupPermits *permits);

/*
 * new_job_keyed.c
 *		Enqueue with an idempotency key.
 */

/* What a producer asks for if a job has its key. */
typedef enum OnDuplicate
{
	DUPLICATE_KEEP,	   /* the first job stays; another payload is an error */
	DUPLICATE_IGNORE,  /* the first job stays, whatever its payload */
	DUPLICATE_REPLACE, /* a waiting job without an attempt gets the new payload, time, priority */
	DUPLICATE_RERUN,   /* like replace; a running or finished job runs again with the new payload */
	DUPLICATE_ERROR	   /* an error */
} OnDuplicate;

/* What happens to a new job if its queue or its group is full: see job/room.c and group_room.c. */
typedef enum WhenFull
{
	FULL_RAISES, /* IQ007 */
	FULL_ADDS,	 /* the job is added, and EnqueueAnswer.full is set */
	FULL_SKIPS,	 /* the job is not added, and EnqueueAnswer.full is set */
	FULL_UNASKED /* the job is added without asking for room */
} WhenFull;

/* OnDuplicate with its details.  Fields that are left out are 0. */
typedef struct DuplicateRule
{
	OnDuplicate policy;
	const Interval *max_wait; /* replace: time since the first request; NULL: no limit */
	bool is_ours;			  /* the server has made the key: see job/kept_key.c */
	WhenFull when_full;		  /* for a new job */
} DuplicateRule;

typedef struct EnqueueAnswer
{
	int64 id;
	Outcome outcome; /* OUTCOME_ACCEPTED, OUTCOME_DUPLICATE, OUTCOME_RERUN, or OUTCOME_LOCKED */
	JobStatus status;
	Datum result; /* jsonb, in the caller's memory context; 0 for none */
	bool foreign; /* a duplicate that another transaction has written */
	bool full;	  /* there was no room; the job was added all the same, or not (OUTCOME_LOCKED) */
} EnqueueAnswer;

extern bool idemq_key_lookup(JobsTable *table, const QueueInfo *queue, Datum key,
							 const Datum *payload, Job *job);
extern void idemq_new_job_keyed(JobsTable *table, const QueueInfo *queue, JobChange *columns,
								DuplicateRule rule, JobWait wait, EnqueueAnswer *answer);

/*
 * recover.c
 *		Finding leases that memory lost: running jobs without a lease entry.
 */

/* Running jobs that a scan found without a lease entry. */
typedef struct LostLeases
{
	MemoryContext context; /* of the list; lives until idemq_lost_leases_settle */
	List *found;		   /* elements are LostLease */
	bool dropped;		   /* one has changed, or its row is held: another search is needed */
	bool unsettled; /* entries were added: interrupts are held until idemq_lost_leases_settle */
} LostLeases;

extern int64 idemq_row_lease(const Job *job);
extern TimestampTz idemq_row_limit(const Job *job, const QueueInfo *queue);
extern TimestampTz idemq_row_deadline(const Job *job, const QueueInfo *queue);
extern bool idemq_lost_lease_note(LostLeases *lost, const Job *job, const QueueInfo *queue);
extern LeaseTake idemq_lost_lease_renew(LostLeases *lost, const Job *job, const QueueInfo *queue,
										int64 length);
extern int64 idemq_lost_leases_settle(LostLeases *lost, JobsTable *table, const QueueInfo *queue);
extern void idemq_recover_some(const QueueInfo *queue);
extern bool idemq_recover_for_limits(const QueueInfo *queue);
extern bool idemq_reap_some(const QueueInfo *queue);
extern int64 idemq_reap_all(const QueueInfo *queue);

/*
 * ready_scan.c
 *		Visiting the due jobs of a queue, from its scan starts.
 */

/* What the scan does with a due entry of the ready index. */
typedef enum ScanStep
{
	STEP_PASS, /* not claimable, or claimed by us: the scan start may pass it */
	STEP_STAY, /* still claimable, or its row is held: the scan start stays before it */
	STEP_STOP  /* like STEP_PASS, and the scan ends */
} ScanStep;

/* One scan of a queue. */
typedef struct ReadyScan
{
	QueueInfo queue;
	ScanStep (*consider)(struct ReadyScan *scan, JobsTable *table, int priority, ReadyKey key);
	bool reads;				   /* consider writes nothing */
	int wanted;				   /* jobs that consider may take */
	MemoryContext row_context; /* current in consider, reset for each entry */
	/* set on the way */
	ScanStart view;
	const ReadyEntry *entry; /* in the read-ahead buffer; NULL: the table's scan is at it */
	TimestampTz now;
	bool stopped;
	bool held;			  /* met a row that was held */
	bool more;			  /* stopped where something due may follow */
	TimestampTz next_due; /* the earliest entry met that is not due yet; DT_NOEND: none */
} ReadyScan;

extern void idemq_ready_scan(ReadyScan *scan, JobsTable *table, bool from_start);
extern bool idemq_ready_job(ReadyScan *scan, JobsTable *table, int priority, ReadyKey key,
							Job *job);
extern bool idemq_ready_check(const QueueInfo *queue, TimestampTz *next_due, bool *held);
extern TimestampTz idemq_ready_next_due(const QueueInfo *queue);
extern TimestampTz idemq_ready_oldest(const QueueInfo *queue, TimestampTz now);

/*
 * claim_one.c
 *		Taking a ready job: the lease entry first, then the row.
 */

typedef enum TakeResult
{
	TAKE_DONE,
	TAKE_BUSY,	  /* another session is on it */
	TAKE_CHANGED, /* it has changed since the snapshot */
	TAKE_LOCKED,  /* a transaction that does not claim it holds its row */
	TAKE_LIMIT,	  /* max_running or rate_limit of its queue: see job/limits.c */
	TAKE_EARLY /* group_rate_limit, or a hold of its group: args->ready_at is when to try again */
} TakeResult;

extern TakeResult idemq_claim_one(JobsTable *table, const Job *job, const QueueInfo *queue,
								  JobEvent event, EventArgs *args, int16 flags);
extern JobWrite idemq_job_defer(JobsTable *table, const Job *job, const QueueInfo *queue,
								TimestampTz until);

/*
 * claim_row.c
 *		A claimed job as a row for its worker.
 */

/* id, token, attempt, max_attempts, deadline, payload, key, group_key, checkpoint,
 * enqueued_at, headers, kind; where other columns follow headers, kind is the last of all */
#define CLAIM_COLUMN_COUNT 12
#define CLAIM_KIND (CLAIM_COLUMN_COUNT - 1)

extern void idemq_claim_row_fill(const Job *job, const EventArgs *args, Datum *values, bool *nulls);
extern Datum idemq_job_document(const Job *job, JobColumn column, bool *isnull);

/*
 * claim_from_queue.c
 *		Claiming from a queue.
 */

/* One call that claims. */
typedef struct ClaimCall
{
	ReadyScan scan; /* of the current queue; first, because scan.consider casts it */
	/* inputs */
	int32 wanted;
	int64 lease; /* microseconds, 0 for the queue's */
	text *worker;
	int16 flags; /* JOB_ATTACHED, JOB_HANDLER */
	/* where the results go */
	Tuplestorestate *store;
	TupleDesc desc;
	bool with_outcome; /* the first column is an outcome */
	bool with_queue;   /* the queue's name comes before kind */
	int32 claimed;
	/* about the last scan, for groups with permits */
	bool round_ended;	/* it stopped before a priority: see idemq_claim_from_queue */
	int round_priority; /* priority of the last job that it claimed or left */
	int32 deferred;		/* jobs that it made wait */
	List *groups;		/* names of groups whose next job must be promoted */
} ClaimCall;

extern void idemq_claim_begin(ClaimCall *call, int wanted);
extern void idemq_claim_from_queue(ClaimCall *call);

/*
 * promote.c
 *		Giving FIFO groups their heads.
 */

extern bool idemq_promote_wanted(const QueueInfo *queue);
extern int idemq_promote_some(const QueueInfo *queue, int max);
extern void idemq_promote_batch(const QueueInfo *queue);
extern bool idemq_promote_may_linger(void);
extern void idemq_promote_later(const QueueInfo *queue, Datum name);
extern bool idemq_promote_child(JobsTable *table, const QueueInfo *queue, int64 id);
extern bool idemq_promote_group(const QueueInfo *queue, Datum name);

/*
 * group_rate_limit.c
 *		group_rate_limit: how many jobs of a group may be started in group_rate_period.
 */

extern int64 idemq_starts_known_since(const QueueInfo *queue);
extern TimestampTz idemq_group_rate_limit(const QueueInfo *queue, Datum group, bool charge);

/*
 * reap.c
 *		Taking back leases that ended.
 */

/* Expired leases that are collected in one go. */
#define REAP_BATCH 256

extern bool idemq_reap_row(JobsTable *table, const Job *job, const QueueInfo *queue,
						   LeaseLoss loss);
extern bool idemq_reap_job(JobsTable *table, const QueueInfo *queue, int64 job_id, int64 token);
extern int64 idemq_reap_in(const QueueInfo *queue, const Slice *slice);
extern void idemq_reap_expired(const QueueInfo *queue);

/*
 * dead_letter.c
 *		The queue to which the dead jobs of another queue go.
 */

extern void idemq_dead_letter_check(const char *queue, int32 queue_id,
									const char *dead_letter_queue);
extern bool idemq_dead_letter_allowed(const QueueInfo *queue, const QueueInfo *dead);
extern bool idemq_dead_letter_wants(const QueueInfo *queue, const Job *job, JobStatus becomes);
extern bool idemq_dead_letter_hold(const QueueInfo *queue, JobWait wait, QueueInfo *dead);
extern Datum idemq_dead_letter_key(const QueueInfo *queue, int64 id, int64 token);
extern void idemq_dead_letter_add(const Job *job, const QueueInfo *queue, const QueueInfo *dead,
								  JobStatus status, text *error);

/*
 * new_job.c
 *		A new job: the columns that each one has, and adding it without a key.
 */

extern void idemq_new_job(JobChange *columns, const QueueInfo *queue, TimestampTz now,
						  Datum payload);
extern JobStatus idemq_new_job_note(const QueueInfo *queue, const JobChange *columns);
extern JobStatus idemq_new_job_insert(JobsTable *table, const QueueInfo *queue, JobChange *columns);

/*
 * room.c
 *		Whether a queue's max_unfinished allows new jobs.
 */

extern bool idemq_room_try(const QueueInfo *queue, int64 jobs, int64 *taken);
pg_noreturn extern void idemq_room_refuse(const QueueInfo *queue, int64 jobs);
extern void idemq_room_for(const QueueInfo *queue, int64 jobs);
extern bool idemq_room_is_there(const QueueInfo *queue, int64 jobs);

/*
 * group_room.c
 *		Whether a queue's group_max_unfinished allows new jobs of a group.
 */

typedef struct GroupAsks GroupAsks;

typedef enum GroupRoom
{
	GROUP_ROOM_TAKEN, /* or none was needed */
	GROUP_ROOM_FULL,
	GROUP_ROOM_NO_ENTRY, /* shared memory has no free entry for the group */
	GROUP_ROOM_NOT_ASKED /* the queue is full */
} GroupRoom;

/* The room of a new job; all 0 before it is taken. */
typedef struct NewJobRoom
{
	int64 in_queue; /* taken for the job */
	int64 in_group;
	bool has_in_queue; /* the job has room in the queue, even if none had to be taken for it */
	bool has_in_group;
	GroupRoom group; /* what the last attempt to take room found */
} NewJobRoom;

extern bool idemq_new_job_room_take(JobsTable *table, const QueueInfo *queue,
									const JobChange *columns, NewJobRoom *room);
extern void idemq_new_job_room_give_back(const QueueInfo *queue, const JobChange *columns,
										 NewJobRoom *room);
pg_noreturn extern void idemq_new_job_room_refuse(const QueueInfo *queue, const JobChange *columns,
												  const NewJobRoom *room);
extern bool idemq_room_for_new_job(JobsTable *table, const QueueInfo *queue,
								   const JobChange *columns, WhenFull rule);
extern GroupAsks *idemq_group_rooms_begin(JobsTable *table, const QueueInfo *queue,
										  const ArrayArg *names, int count);
extern void idemq_group_rooms_for(JobsTable *table, GroupAsks *asks, const int *elements,
								  int count);
extern void idemq_group_rooms_accepted(GroupAsks *asks, int element);
extern void idemq_group_rooms_end(GroupAsks *asks);

/*
 * new_child.c
 *		A new job that waits for its parents.
 */

extern void idemq_new_child(JobChange *columns, NewDependencies *depends);
extern bool idemq_parent_hold(JobsTable *table, const char *argument, int64 parent, JobWait wait,
							  QueueInfo *queue, Job *job);
extern void idemq_parent_note(NewDependencies *depends, const Job *parent);
extern void idemq_new_child_add(JobsTable *table, const QueueInfo *queue, int64 id,
								NewDependencies *depends);

/*
 * replace_job.c
 *		A request for a job that waits: it takes the request's payload, time and priority.
 */

extern TimestampTz idemq_request_time(const JobChange *columns);
extern void idemq_job_wait_no_longer(JobChange *columns, const Job *job, const Interval *max_wait);
extern bool idemq_job_is_replaceable(const Job *job, bool rerun);
extern JobWrite idemq_job_replace(JobsTable *table, const QueueInfo *queue, const Job *job,
								  const JobChange *columns, bool rerun, const Interval *max_wait);

/*
 * rerun.c
 *		A request for a job that is in progress, or finished: it runs once more.
 */

extern void idemq_new_job_or_rerun(JobsTable *table, const QueueInfo *queue, JobChange *columns,
								   DuplicateRule rule, JobWait wait, EnqueueAnswer *answer);

/*
 * kept_key.c
 *		Keys that producers may not use: of ticks, published jobs and dead-letter records.
 */

/* Between a publisher's key and the space of its topic. */
#define TOPIC_KEY_MARK "@topic:"
/* Before the queue, the id and the token of a dead job. */
#define DEAD_LETTER_KEY_MARK "@dead:"

extern void idemq_tick_key_own(int32 queue_id, const char *key, int length);
extern void idemq_tick_key_check(int32 queue_id, Datum key);
extern void idemq_reserved_key_check(Datum key);

/*
 * limits.c
 *		max_running and rate_limit of a queue.
 */

typedef enum QueueLimit
{
	LIMIT_OPEN,
	LIMIT_RECOVERING, /* jobs may be in flight that are not counted yet */
	LIMIT_TABLE_FULL, /* the lease table has no room for what would be counted */
	LIMIT_RUNNING,	  /* max_running is reached */
	LIMIT_RATE		  /* rate_limit is used up */
} QueueLimit;

/* The state of a queue's limits. */
typedef struct LimitView
{
	QueueLimit state;
	int running;
	TimestampTz until; /* LIMIT_RATE: when the rate allows the next claim; DT_NOEND otherwise */
	bool after_search; /* LIMIT_RECOVERING: a claim, which searches first, would find room */
} LimitView;

extern bool idemq_limit_may_transfer(const QueueInfo *queue);
extern bool idemq_limit_rate(const QueueInfo *queue, bool charge);
extern void idemq_limit_view(const QueueInfo *queue, LimitView *view);
extern bool idemq_limit_has_room(const QueueInfo *queue, LimitView *view);

/*
 * pausing.c
 *		The end of a pause at its time, of a queue or of its groups.
 */

extern bool idemq_pause_end_if_over(const QueueInfo *queue);
extern bool idemq_group_pause_is_over(const QueueInfo *queue);
extern int idemq_group_pauses_end(const QueueInfo *queue);

/*
 * token_epoch.c
 *		What a restored database adds to its tokens.
 */

extern int64 idemq_token_epoch_base(void);
extern int64 idemq_token_epoch_latest_base(void);
extern void idemq_token_epoch_note(void);
extern int64 idemq_token_epoch_advance(int64 seen);

/*
 * claim_by_id.c
 *		Taking one job by its id.
 */

/* A call for one job. */
typedef struct JobCall
{
	int64 id;
	JobEvent event; /* EVENT_CLAIM or EVENT_COMMIT_ONCE */
	int64 lease;	/* microseconds, 0 for the queue's */
	int16 flags;	/* JOB_ATTACHED, or 0 */
	EventArgs args;
	bool fetched; /* job is fetched already, under the table's snapshot */
	/* results */
	Job job;
	QueueInfo queue;
	TimestampTz retry_after; /* DT_NOEND: none */
} JobCall;

extern Outcome idemq_claim_by_id(JobCall *call, JobsTable *table);
extern bool idemq_job_is_settled(const JobCall *call);
extern Outcome idemq_claim_by_id_check(JobCall *call, JobsTable *table);

/*
 * attempt.c
 *		A worker's attempt: a job with the token that the worker holds.
 */

typedef struct Attempt
{
	int64 id;
	int64 token; /* the worker's */
	Job job;	 /* as fetched; not set if it was not found */
	QueueInfo queue;
} Attempt;

extern Outcome idemq_attempt_find(JobsTable *table, int64 id, int64 token, Attempt *attempt);
extern Outcome idemq_attempt_try_lock(JobsTable *table, int64 id, int64 token, LockTupleMode mode,
									  Attempt *attempt);
extern bool idemq_attempt_stands(int64 id, int64 token);
extern bool idemq_attempt_is_gone(JobsTable *table, const Attempt *attempt);
extern void idemq_attempt_count(const Attempt *attempt, Outcome outcome, bool commit);
extern void idemq_attempt_raise_cancelled(const Attempt *attempt);
extern void idemq_attempt_raise(const Attempt *attempt, Outcome outcome);
extern void idemq_attempt_refuse(const Attempt *attempt, Outcome outcome);
extern void idemq_attempt_find_current(JobsTable *table, int64 id, int64 token, Attempt *attempt);
extern int32 idemq_attempt_hold(int64 id, int64 token);

/*
 * add_parents.c
 *		A running job makes a child of it wait for further parents.
 */

typedef struct ParentsCall
{
	int64 child;
	int64 id; /* the running job, and the token that its worker holds */
	int64 token;
	int count;
	int64 *parents;
	Outcome *outcomes; /* one per parent: OUTCOME_ADDED, OUTCOME_ALREADY or OUTCOME_LOCKED */
} ParentsCall;

extern void idemq_add_parents(ParentsCall *call);

/*
 * holds.c
 *		Holding back: no further job of a group, or of a queue, starts before a time.
 */

/* The last hold of a group or queue. */
typedef struct Hold
{
	TimestampTz began_at;
	TimestampTz until;
	int64 job_id; /* whose worker asked for that end */
} Hold;

extern bool idemq_hold_find(const QueueInfo *queue, Datum group, Hold *hold);
extern TimestampTz idemq_group_held_until(const QueueInfo *queue, Datum group, bool *was_held);
extern void idemq_holds_note_claim(const QueueInfo *queue, const Job *job, bool was_held,
								   TimestampTz claimed_at);
extern TimestampTz idemq_hold_begin(const Attempt *attempt, Datum group, TimestampTz now,
									TimestampTz until);
extern void idemq_group_waits_end(int32 queue_id, Datum name);
extern int idemq_holds_end(int32 queue_id, Datum group);

/*
 * finish.c
 *		Ending attempts.
 */

typedef enum FinishKind
{
	FINISH_COMMIT,
	FINISH_FAIL,
	FINISH_RELEASE,
	/* the handler's process was told to end: a release; after HANDLER_MAX_INTERRUPTS a failure */
	FINISH_INTERRUPT
} FinishKind;

/* How to end attempts. */
typedef struct Finish
{
	FinishKind kind;
	bool permanent; /* fail: no further attempt */
	bool uncounted; /* a token that is not current does not count as a refused call */
	bool has_delay;
	JobWait wait;	/* on a held row, or a dead-letter queue being dropped; JOB_WAITS unless set */
	int64 delay;	/* fail, release: microseconds until the job is ready again */
	EventArgs args; /* result; error, details; for a release: error, why it was interrupted */
} Finish;

extern Outcome idemq_finish_in(JobsTable *table, int64 id, int64 token, Finish *finish,
							   Attempt *attempt, bool *of_others);
extern Outcome idemq_finish_by_token(int64 id, int64 token, Finish *finish, bool raise,
									 Attempt *attempt);

/*
 * dependencies.c
 *		Children whose parents have finished.
 */

/* The result of visiting a mark, of a group or of a job with dependencies. */
typedef enum Promotion
{
	PROMOTED,			/* there is a pending job now, which is not committed yet */
	PROMOTED_FOR_LATER, /* the same, but it is not due yet; or a child's new watch was written */
	JOINED,				/* a child has joined its group, which must be promoted next */
	AT_LIMIT,			/* all permits of its group are taken, and there is a next job */
	HAS_HEAD,			/* there is nothing to do until it is marked again */
	HELD,				/* a row is held, or a head is made but not committed */
	HAS_MORE,			/* a parent has more children to mark, or a paused group more jobs */
	NOT_FOR_US,			/* it changes again and again, or our snapshot must not see it */
	LOOK_AGAIN			/* its row has changed; only within job/dependencies.c */
} Promotion;

/* Children that this transaction has released, until the end of their waiting is written. */
typedef struct ReleasedChildren
{
	int64 *ids;
	int64 *tokens; /* each was issued after the child's parents had been looked at */
	int count;
	int room;
} ReleasedChildren;

extern Promotion idemq_dependency_promote(JobsTable *table, const QueueInfo *queue,
										  DependencyMark mark, int64 id, int64 *next,
										  ReleasedChildren *released, Datum *group);
extern bool idemq_child_is_resolvable(JobsTable *table, int32 queue_id, int64 id,
									  DependencyMark *mark);
extern int idemq_children_scan(JobsTable *table, const QueueInfo *queue, Slice *slice,
							   ChildrenScan *scan);
extern void idemq_dependencies_learn(const QueueInfo *queue);
extern bool idemq_job_waits_again(const Job *job);
extern void idemq_dependency_gone(int64 id, JobStatus status);

/*
 * group_pause.c
 *		Paused groups.
 */

extern JobWrite idemq_job_pause(JobsTable *table, const Job *job, const QueueInfo *queue);
extern Promotion idemq_group_pause_block(JobsTable *table, const QueueInfo *queue, Datum name,
										 TimestampTz from, int most);

/*
 * promote_one.c
 *		One group that this session owns: its head, or its next job with a permit.
 */

extern Promotion idemq_promote_one(JobsTable *table, const QueueInfo *queue, const GroupKey *key,
								   Datum name, GroupLowWater *low_water);
extern JobWrite idemq_promote_job(JobsTable *table, const QueueInfo *queue, const Job *job,
								  EventArgs *args);

/*
 * follow.c
 *		Beginning to follow another database, and taking over from it.
 */

extern bool idemq_follow_begin(void);
extern void idemq_follow_note_subscription(void);
extern bool idemq_follow_end(void);
extern bool idemq_follow_retire(const char *moved_to);

#endif
