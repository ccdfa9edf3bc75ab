/*
 * job/new_job_keyed.h
 *		Enqueue with an idempotency key.
 */
#ifndef IDEMQ_JOB_NEW_JOB_KEYED_H
#define IDEMQ_JOB_NEW_JOB_KEYED_H

#include "datatype/timestamp.h"

#include "table/jobs.h"
#include "table/jobs_write.h"
#include "queue/queue_settings.h"

/* What a producer wants when its key is taken. */
typedef enum OnDuplicate
{
	DUPLICATE_KEEP,	   /* the first job stands; another payload is an error */
	DUPLICATE_IGNORE,  /* the first job stands, whatever its payload */
	DUPLICATE_REPLACE, /* not yet claimed, it takes the new payload, time, priority */
	DUPLICATE_RERUN, /* as replace; claimed or finished, it runs once more, with the new payload */
	DUPLICATE_ERROR	 /* raise */
} OnDuplicate;

/* That, and how.  Fields that are left out are 0. */
typedef struct DuplicateRule
{
	OnDuplicate policy;
	const Interval *max_wait; /* of replace: from the first request on; NULL: no limit */
	bool is_published;		  /* the key is of a published job: see job/kept_key.c */
} DuplicateRule;

typedef struct EnqueueAnswer
{
	int64 id;
	Outcome outcome; /* OUTCOME_ACCEPTED, OUTCOME_DUPLICATE, OUTCOME_RERUN, or OUTCOME_LOCKED */
	JobStatus status;
	Datum result; /* jsonb, in the caller's memory context */
	bool no_result;
	bool foreign; /* a duplicate that another transaction has written */
	Job holder;	  /* of OUTCOME_RERUN: as fetched, by job/rerun.c */
} EnqueueAnswer;

extern bool idemq_key_lookup(JobsTable *table, const QueueInfo *queue, Datum key,
							 const Datum *payload, Job *job);
extern void idemq_new_job_keyed(JobsTable *table, const QueueInfo *queue, JobChange *columns,
								DuplicateRule rule, JobWait wait, EnqueueAnswer *answer);

#endif
