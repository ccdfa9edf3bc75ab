/*
 * observe/why_group.c
 *		What idemq.why says of a job's group: who keeps a blocked job from its turn; since when
 *		the group may not start another.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "observe/observe.h"
#include "table/table.h"

/* Microseconds by which two readings of when a group may go on may differ. */
#define CLOSE 1000

/* Where a job waits for its turn. */
static const char *
line_of(Datum name)
{
	return idemq_is_no_group(name) ? "among the jobs without a group" : "in its group";
}

/* Says who has the places of a group; false when there is one for its next job. */
static bool
say_places(StringInfo answer, JobsTable *table, const QueueInfo *queue, Datum name)
{
	GroupPlaces places;

	idemq_places_count(table, queue, name, DT_NOBEGIN, DT_NOEND, &places);
	if (places.next != 0)
		appendStringInfo(answer,
						 "waits %s behind job %lld, which is to be claimed next: see "
						 "idemq.why(%lld)",
						 line_of(name), (long long) places.next, (long long) places.next);
	else if (places.taken >= idemq_group_places(queue, name))
		appendStringInfo(answer,
						 "its group is at group_running of queue \"%s\": %d of its jobs are in "
						 "processing",
						 queue->name, places.taken);
	return places.next != 0 || places.taken >= idemq_group_places(queue, name);
}

/*
 * Says who is in front of a blocked job in its group; returns true, and says nothing, when it
 * is next itself: then it is the row last fetched.
 */
bool
idemq_why_group(StringInfo answer, JobsTable *table, const QueueInfo *queue, const Job *job)
{
	Datum name = PointerGetDatum(PG_DETOAST_DATUM_COPY(job->row->tts_values[COL_GROUP_KEY]));
	int64 id = job->id;
	bool found;
	Job head;

	if (idemq_group_has_places(queue, name) && say_places(answer, table, queue, name))
		return false;
	if (idemq_group_has_places(queue, name))
		found = idemq_jobs_group_blocked(table, queue->id, name, PG_INT64_MIN, &head);
	else
		found = idemq_jobs_group_first(table, queue->id, name, &head);
	if (!found)
		return false; /* not without itself */
	if (head.status != JOB_BLOCKED)
		appendStringInfo(answer,
						 "waits in its group behind job %lld, which is %s: see idemq.why(%lld)",
						 (long long) head.id, idemq_status_name(head.status), (long long) head.id);
	else if (head.id != id)
		appendStringInfo(answer, "waits in its group behind job %lld, which is next",
						 (long long) head.id);
	return head.status == JOB_BLOCKED && head.id == id;
}

/*
 * Says that the group of a job, which is pending or failed, may not start it yet; false when that is not what it waits for.
 */
bool
idemq_why_group_rate(StringInfo answer, const QueueInfo *queue, const Job *job, TimestampTz now)
{
	TimestampTz next;

	if (queue->group_rate == 0 || job->row->tts_isnull[COL_GROUP_KEY] || RecoveryInProgress())
		return false;
	next = idemq_group_rate_next(queue, job->row->tts_values[COL_GROUP_KEY]);
	/* It may have been put off until then; what waits longer waits for something else. */
	if (next <= now || next < job->ready_at - CLOSE)
		return false;
	appendStringInfo(answer,
					 "the group_rate of queue \"%s\" is used up for its group: the next "
					 "job of that may be started at %s",
					 queue->name, timestamptz_to_str(next));
	return true;
}
