/*
 * job/places.h
 *		The places of a group: how many of its jobs may be claimed or in processing.
 */
#ifndef IDEMQ_JOB_PLACES_H
#define IDEMQ_JOB_PLACES_H

#include "table/jobs.h"
#include "queue/queue_settings.h"

/* What a snapshot shows of the jobs of a group that have a place. */
typedef struct GroupPlaces
{
	int taken;		   /* in processing, or being claimed */
	int64 next;		   /* one that waits to be claimed; 0: there is none */
	TimestampTz first; /* the least ready_at of these; DT_NOEND for none */
	TimestampTz last;  /* the greatest; DT_NOBEGIN for none */
} GroupPlaces;

/* Returns whether jobs of a queue's groups have places: otherwise each has one head. */
static inline bool
idemq_has_places(const QueueInfo *queue)
{
	return queue->group_running > 1;
}

/* Returns whether a group is that of the jobs that have none. */
static inline bool
idemq_is_no_group(Datum name)
{
	return VARSIZE_ANY_EXHDR(DatumGetPointer(name)) == 0;
}

/* Returns whether a group of a queue has places; that without a name keeps them in any. */
static inline bool
idemq_group_has_places(const QueueInfo *queue, Datum name)
{
	return idemq_has_places(queue) || idemq_is_no_group(name);
}

/* Returns how many places a group with places has. */
static inline int
idemq_group_places(const QueueInfo *queue, Datum name)
{
	return idemq_is_no_group(name) ? PG_INT32_MAX : queue->group_running;
}

/* Returns whether a job is of a group that has places. */
static inline bool
idemq_is_of_places(const QueueInfo *queue, const Job *job)
{
	return !job->row->tts_isnull[COL_GROUP_KEY] &&
		   idemq_group_has_places(queue, job->row->tts_values[COL_GROUP_KEY]);
}

/*
 * Returns whether a job of such a group, which is ready or will be, has no place: it
 * waits for its time, and then for its turn.
 */
static inline bool
idemq_waits_for_place(const Job *job)
{
	return job->status == JOB_FAILED ||
		   (job->status == JOB_PENDING && !job->row->tts_isnull[COL_RUN_AT]);
}

/* Returns whether a fetched job is of a group that has places, and has none of them. */
static inline bool
idemq_is_without_place(const QueueInfo *queue, const Job *job)
{
	return idemq_is_of_places(queue, job) && idemq_waits_for_place(job);
}

extern void idemq_place_follow(JobChange *change, const Job *job, const QueueInfo *queue,
							   bool takes, TimestampTz ready_at);
extern void idemq_places_count(JobsTable *table, const QueueInfo *queue, Datum name,
							   TimestampTz from, TimestampTz until, GroupPlaces *places);
extern bool idemq_places_in_doubt(JobsTable *table, const QueueInfo *queue, Datum name,
								  TimestampTz from);

#endif
