/*
 * api/reschedule.c
 *		SQL function reschedule: another time, or another priority, for a job that waits.
 *
 * Status, attempts and error stay.  What changes is the job's position in the ready index: after a
 * commit the scan start of the new priority is lowered to the new key, after a rollback the scan
 * start of the old priority to the old key (job/transition.c).
 *
 * A job of a group keeps its position in it.  The time of a blocked job counts once its turn has
 * come (run_at).  The time of a head moves at once, and is never before now, so that it does
 * not come below its group's low-water mark (shared/groups/groups.c).
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/* What is asked for. */
typedef struct Schedule
{
	bool has_run_at;
	TimestampTz run_at;
	int priority; /* -1: as it is */
} Schedule;

static bool
decide_reschedule(const Job *job, const void *arg, EventArgs *args, JobEvent *event,
				  Outcome *outcome)
{
	const Schedule *schedule = arg;

	args->new_run_at = schedule->has_run_at;
	args->ready_at = schedule->has_run_at ? Max(schedule->run_at, args->now) : job->ready_at;
	args->priority = schedule->priority >= 0 ? schedule->priority : job->priority;
	*outcome = OUTCOME_ACCEPTED;
	switch (job->status)
	{
		case JOB_PENDING:
			*event = EVENT_RESCHEDULE;
			return true;
		case JOB_RETRYING:
			*event = EVENT_RESCHEDULE_RETRYING;
			return true;
		case JOB_BLOCKED:
			*event = EVENT_RESCHEDULE_BLOCKED;
			return true;
		default:
			*outcome = idemq_outcome_of_status(job->status);
			return false;
	}
}

/*
 * reschedule(id, run_at, priority) -> accepted | locked | completed | dead | cancelled |
 *		not_found; 22004, 22023, 40001.
 */
SQL_FUNCTION(idemq_sql_reschedule)
{
	Schedule schedule = {!PG_ARGISNULL(1), 0, -1};
	JobChanger rescheduler = {.decide = decide_reschedule,
							  .arg = &schedule,
							  .privileges = PRIVILEGE_CHANGE,
							  .audit = {.action = "reschedule"}};
	const char **member = rescheduler.audit.members;

	idemq_arg_required(fcinfo, 0, "id");
	if (PG_ARGISNULL(1) && PG_ARGISNULL(2))
		ereport(ERROR, errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("run_at and priority must not both be NULL"),
				errhint("Pass a time, a priority from 0 to 9, or both."));
	if (schedule.has_run_at)
	{
		schedule.run_at = PG_GETARG_TIMESTAMPTZ(1);
		if (TIMESTAMP_NOT_FINITE(schedule.run_at))
			ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("run_at must be finite"),
					errhint(
						"Pass a finite time. To prevent the job from running, call idemq.cancel."));
		*member++ = "run_at";
		*member++ = pstrdup(timestamptz_to_str(schedule.run_at));
	}
	if (!PG_ARGISNULL(2))
	{
		schedule.priority = idemq_arg_int(fcinfo, 2, "priority", 0, IDEMQ_PRIORITIES - 1);
		*member++ = "priority";
		*member++ = psprintf("%d", schedule.priority);
	}
	return idemq_change_one(fcinfo, &rescheduler);
}
