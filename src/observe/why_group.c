/*
 * observe/why_group.c
 *		What idemq.why says of a job's group: who keeps a blocked job from its turn.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "observe/why_group.h"
#include "job/places.h"
#include "table/jobs.h"
#include "table/jobs_group.h"
#include "base/oids.h"

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
