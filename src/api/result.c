/*
 * api/result.c
 *		SQL function result: what wait_result answers, without the wait.
 *
 * It is for clients that cannot CALL a procedure that sleeps between transactions, such as a
 * proxy that calls functions only.  It reads the job's latest version, as wait_result does.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* result(id) -> (status, result); IQ002, 22004, 55000.  Needs any privilege on the job's queue. */
SQL_FUNCTION(idemq_sql_result)
{
	Datum values[2];
	bool nulls[2] = {false, false};
	JobsTable table;
	QueueInfo queue;
	Datum row;
	Job job;

	idemq_arg_required(fcinfo, 0, "id");
	idemq_following_refuse_moved();
	idemq_jobs_open_to_read(&table);
	if (!idemq_jobs_fetch(&table, PG_GETARG_INT64(0), &job) ||
		!idemq_queue_allows(job.queue_id, PRIVILEGE_ALL, &queue))
		ereport(
			ERROR, errcode(ERRCODE_IDEMQ_NO_SUCH_JOB),
			errmsg("job %lld does not exist", (long long) PG_GETARG_INT64(0)),
			errhint(
				"A queue with retention '0' deletes finished jobs immediately. To read results, "
				"set a longer retention."));
	values[0] = ObjectIdGetDatum(idemq_oids()->status[job.status]);
	values[1] = idemq_job_document(&job, COL_RESULT, &nulls[1]);
	row = idemq_row_datum(fcinfo, values, nulls);
	idemq_jobs_close(&table);
	return row;
}
