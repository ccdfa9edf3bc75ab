/*
 * api/enqueue.h
 *		Adding a job to a queue as enqueue does, for publish.
 */
#ifndef IDEMQ_API_ENQUEUE_H
#define IDEMQ_API_ENQUEUE_H

#include "job/new_job_keyed.h"
#include "table/jobs.h"
#include "queue/queue_settings.h"

/* The options of a job that is published; NULL ones say nothing. */
typedef struct PublishedOptions
{
	NullableDatum key; /* text: of the job, not of the call */
	NullableDatum delay;
	NullableDatum run_at;
	NullableDatum priority;
	NullableDatum group_key;
	NullableDatum max_attempts;
	NullableDatum headers;
	NullableDatum expires_in;
} PublishedOptions;

extern void idemq_enqueue_published(JobsTable *table, const QueueInfo *queue, TimestampTz now,
									Datum payload, const PublishedOptions *published,
									EnqueueAnswer *answer);

#endif
