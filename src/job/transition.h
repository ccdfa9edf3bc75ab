/*
 * job/transition.h
 *		The state machine of a job.
 */
#ifndef IDEMQ_JOB_TRANSITION_H
#define IDEMQ_JOB_TRANSITION_H

#include "utils/jsonb.h"

#include "table/jobs.h"
#include "table/jobs_write.h"
#include "queue/queue_settings.h"

typedef enum JobEvent
{
	EVENT_CLAIM,
	EVENT_COMMIT,
	EVENT_COMMIT_ONCE,
	EVENT_FAIL,
	EVENT_DIE,
	EVENT_RELEASE,
	EVENT_INTERRUPT, /* a release of which the history says why */
	EVENT_REAP,
	EVENT_REAP_DEAD,
	EVENT_CANCEL,
	EVENT_EXPIRE,
	EVENT_RETRY,
	EVENT_REDRIVE,
	EVENT_REDRIVE_GROUPED,
	EVENT_RESCHEDULE,
	EVENT_RESCHEDULE_FAILED,
	EVENT_RESCHEDULE_BLOCKED,
	EVENT_PROMOTE,
	EVENT_PARK,
	EVENT_JOIN_GROUP,
	EVENT_CHECKPOINT,
	EVENT_ASK_RERUN,
	EVENT_RERUN,
	EVENT_RERUN_GROUPED,
	EVENT_EXTEND
} JobEvent;

/* A request for a job that is there already. */
typedef struct JobRequest
{
	Datum payload;
	Datum headers; /* 0 for none */
	Datum kind;	   /* 0 for none */
	bool has_key_expiry;
	TimestampTz key_expires_at;
} JobRequest;

/* What comes with an event; each event reads the fields that its row names. */
typedef struct EventArgs
{
	TimestampTz now;
	TimestampTz ready_at; /* fail, release, reap, retry, redrive, reschedule, promote, rerun */
	int32 priority;		  /* reschedule */
	bool new_run_at;	  /* reschedule: ready_at was asked for */
	bool takes_place;	  /* promote, reschedule: has a place of its group until then, too */
	TimestampTz due; /* the same, where ready_at is when group_rate says: it was due then; or 0 */
	TimestampTz deadline; /* claim, extend */
	int64 token;		  /* claim, commit_once: the new one */
	text *worker;		  /* claim; NULL for none */
	text *error;		  /* fail, die, reap, expire; NULL for none */
	Jsonb *details;		  /* fail, die; NULL for none */
	bool worker_lost;	  /* reap: the session of an attached claim ended */
	Datum document;		  /* commit: the result; checkpoint: the state */
	bool no_document;
	Datum group;		/* join group */
	JobRequest request; /* ask rerun, rerun */
} EventArgs;

extern bool idemq_transition_allowed(JobEvent event, JobStatus status);
extern JobWrite idemq_transition(JobsTable *table, const Job *job, const QueueInfo *queue,
								 JobEvent event, const EventArgs *args, JobWait wait);
extern JobWrite idemq_job_expire(JobsTable *table, const Job *job, const QueueInfo *queue,
								 TimestampTz now);

#endif
