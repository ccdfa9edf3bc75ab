/*
 * observe/progress.c
 *		How far a job has come, by its last checkpoint: {"done": 3, "of": 10} is 30 %.
 *
 * A checkpoint is the worker's own, of any shape: one without these two numbers says
 * nothing, and neither does an "of" that is not above 0.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "queue/queue.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_progress);
PG_FUNCTION_INFO_V1(idemq_sql_v2_attempt_progress);

/* Reads a number of an object; false when there is none of that name. */
static bool
read_number(Jsonb *object, const char *name, double *number)
{
	JsonbValue buffer;
	JsonbValue *value =
		getKeyJsonValueFromContainer(&object->root, name, (int) strlen(name), &buffer);

	if (value == NULL || value->type != jbvNumeric)
		return false;
	/* Beyond the range of float8 it is infinite, and no error. */
	*number = DatumGetFloat8(
		DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value->val.numeric)));
	return true;
}

/* Reads the progress, from 0 to 100; false when the checkpoint does not say. */
static bool
read_progress(Jsonb *checkpoint, double *percent)
{
	double done;
	double of;

	if (!JB_ROOT_IS_OBJECT(checkpoint) || !read_number(checkpoint, "done", &done) ||
		!read_number(checkpoint, "of", &of) || isnan(done) || !(of > 0))
		return false;
	/* In that order 3 of 10 is 30 and no more; what is too large for it is in this. */
	*percent = done >= of	  ? 100
			   : done <= 0	  ? 0
			   : done < 1e300 ? 100 * done / of
							  : 100 * (done / of);
	return true;
}

/* progress(checkpoint) -> float8, NULL when it does not say. */
Datum
idemq_sql_v2_progress(PG_FUNCTION_ARGS)
{
	double percent;

	if (!read_progress(PG_GETARG_JSONB_P(0), &percent))
		PG_RETURN_NULL();
	PG_RETURN_FLOAT8(percent);
}

/*
 * attempt_progress(id) -> float8, NULL when the job is not in processing, does not say, or
 * is not for the role to see; for the view idemq.workers.
 */
Datum
idemq_sql_v2_attempt_progress(PG_FUNCTION_ARGS)
{
	bool sees_all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	bool says = false;
	double percent = 0;
	JobsTable table;
	QueueInfo queue;
	Job job;

	idemq_jobs_open_to_read(&table);
	if (idemq_jobs_fetch(&table, PG_GETARG_INT64(0), &job) && job.status == JOB_PROCESSING &&
		!job.row->tts_isnull[COL_CHECKPOINT] && idemq_queue_by_id(job.queue_id, &queue) &&
		(sees_all || (queue.privileges & (PRIVILEGE_CLAIM | PRIVILEGE_ADMIN))))
		says = read_progress(DatumGetJsonbP(job.row->tts_values[COL_CHECKPOINT]), &percent);
	idemq_jobs_close(&table);
	if (!says)
		PG_RETURN_NULL();
	PG_RETURN_FLOAT8(percent);
}
