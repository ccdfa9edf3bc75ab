/*
 * api/cancel.c
 *		SQL functions that end a job without running it: cancel, cancel_by_key.
 */
#include "postgres.h"

#include "api/change_job.h"
#include "job/transition.h"
#include "table/jobs.h"
#include "table/jobs_key.h"
#include "queue/queues.h"
#include "base/args.h"
#include "base/oids.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_cancel);
PG_FUNCTION_INFO_V1(idemq_sql_v2_cancel_by_key);

static bool
decide_cancel(const Job *job, const void *arg, EventArgs *args, JobEvent *event, Outcome *outcome)
{
	*event = EVENT_CANCEL;
	*outcome = OUTCOME_CANCELLED;
	if (job->status == JOB_COMPLETED)
		*outcome = OUTCOME_COMPLETED;
	else if (job->status == JOB_DEAD)
		*outcome = OUTCOME_DEAD;
	return idemq_transition_allowed(EVENT_CANCEL, job->status);
}

static const JobChanger canceller = {.decide = decide_cancel,
									 .privileges = PRIVILEGE_CHANGE,
									 .audit = {.action = "cancel"}};

/* cancel(id) -> cancelled | completed | dead | not_found; 22004, 40001. */
Datum
idemq_sql_v2_cancel(PG_FUNCTION_ARGS)
{
	return idemq_change_one(fcinfo, &canceller);
}

/* cancel_by_key(queue, key) -> as cancel; IQ005, 42501, 22004, 22023, 40001. */
Datum
idemq_sql_v2_cancel_by_key(PG_FUNCTION_ARGS)
{
	char *name = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	Outcome outcome = OUTCOME_NOT_FOUND;
	QueueInfo queue;
	JobsTable table;
	Job job;

	idemq_arg_required(fcinfo, 1, "key");
	idemq_check_key("key", VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(1)));
	idemq_queue_by_name(name, PRIVILEGE_CHANGE, &queue);
	idemq_jobs_open(&table);
	if (idemq_jobs_find_key(&table, queue.id, PointerGetDatum(PG_GETARG_TEXT_PP(1)), &job))
		outcome = idemq_change_job(&table, job.id, &canceller, NULL);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}
