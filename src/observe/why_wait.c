/*
 * observe/why_wait.c
 *		What idemq.why says of a job that waits for an event.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "observe/observe.h"
#include "table/table.h"

/* Says which event a job waits for that is not due; false when its last attempt awaits none. */
bool
idemq_why_wait(StringInfo answer, const Job *job, const QueueInfo *queue)
{
	WaitView wait;

	if (job->token == 0 || job->status != JOB_PENDING || !idemq_wait_of(job->id, job->token, &wait))
		return false;
	appendStringInfo(answer, "waits for event \"%s\"", wait.name);
	appendStringInfo(answer, " since %s", timestamptz_to_str(wait.begun_at));
	appendStringInfo(answer, ", no longer than until %s", timestamptz_to_str(job->ready_at));
	appendStringInfo(answer, "; idemq.send_event(%s, %s) makes it ready now",
					 quote_literal_cstr(queue->name), quote_literal_cstr(wait.name));
	return true;
}
