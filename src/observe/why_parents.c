/*
 * observe/why_parents.c
 *		What a job that depends on others waits for, in words: for idemq.why.
 */
#include "postgres.h"

#include "base/base.h"
#include "observe/observe.h"
#include "table/table.h"

/* Says which parent is in the way of a blocked job; false when it does not wait for parents. */
static bool
say_parent(StringInfo answer, int64 job_id)
{
	KinWait wait;
	KinParent parent;
	long long id;

	if (!idemq_kin_wait_of(job_id, &wait))
		return false;
	if (!idemq_kin_obstacle(job_id, &wait, &parent))
	{
		appendStringInfoString(answer, "its parents are done: the background worker, or the next "
									   "claim, makes it pending");
		return true;
	}
	id = parent.id;
	if (parent.gone)
		appendStringInfo(answer,
						 "its parent, job %lld, is gone: the background worker, or the "
						 "next claim, cancels it",
						 id);
	else if (!job_status_is_finished(parent.status))
		appendStringInfo(answer, "waits for its parent, job %lld, which is %s: see idemq.why(%lld)",
						 id, idemq_status_name(parent.status), id);
	else if (wait.on_failure == FAILURE_CANCELS)
		appendStringInfo(answer,
						 "its parent, job %lld, is %s: the background worker, or the next "
						 "claim, cancels it",
						 id, idemq_status_name(parent.status));
	else
		appendStringInfo(answer,
						 "waits for its parent, job %lld, which is %s: idemq.retry(%lld) makes "
						 "that ready again",
						 id, idemq_status_name(parent.status), id);
	return true;
}

/* Says what a job waits for that is blocked, and in no group. */
void
idemq_why_alone(StringInfo answer, int64 job_id)
{
	if (!say_parent(answer, job_id))
		appendStringInfo(answer,
						 "written by hand, and in no group: nothing ends that; idemq.cancel(%lld) "
						 "ends the job",
						 (long long) job_id);
}
