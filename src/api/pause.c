/*
 * api/pause.c
 *		SQL functions that stop and start the claims of a queue: pause, resume.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_pause);
PG_FUNCTION_INFO_V1(idemq_sql_v2_resume);

/* Reads until when; DT_NOEND for no time.  Raises 22023 for one that is over. */
static TimestampTz
until_arg(FunctionCallInfo fcinfo, int n)
{
	TimestampTz until = PG_ARGISNULL(n) ? DT_NOEND : PG_GETARG_TIMESTAMPTZ(n);

	if (until <= idemq_now())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("until must be a time to come"),
				 errhint("Pass now() + an interval, or NULL to pause until idemq.resume.")));
	return until;
}

/* pause(name, until) -> void; IQ005, 42501, 22023. */
Datum
idemq_sql_v2_pause(PG_FUNCTION_ARGS)
{
	QueueInfo queue;

	idemq_queue_arg(fcinfo, 0, "name", PRIVILEGE_ADMIN, &queue);
	idemq_jobs_check_writable();
	idemq_pause_begin(&queue, until_arg(fcinfo, 1));
	PG_RETURN_VOID();
}

/* resume(name) -> void; IQ005, 42501. */
Datum
idemq_sql_v2_resume(PG_FUNCTION_ARGS)
{
	QueueInfo queue;

	idemq_queue_arg(fcinfo, 0, "name", PRIVILEGE_ADMIN, &queue);
	idemq_jobs_check_writable();
	idemq_pause_end(&queue);
	PG_RETURN_VOID();
}
