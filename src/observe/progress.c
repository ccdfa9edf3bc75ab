/*
 * observe/progress.c
 *		SQL function progress: the progress of a job, computed from its last checkpoint.  For
 *		{"done": 3, "of": 10}, this is 30 %.
 *
 * The worker chooses the form of its checkpoints.  If either number is missing, or
 * "of" is not positive, the job has no progress.
 */
#include "postgres.h"

#include <math.h>

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/base.h"

/* Reads a member of an object; returns false if there is no number of that name. */
static bool
progress_read_number(Jsonb *object, const char *name, double *number)
{
	JsonbValue buffer;
	JsonbValue *value =
		getKeyJsonValueFromContainer(&object->root, name, (int) strlen(name), &buffer);

	if (value == NULL || value->type != jbvNumeric)
		return false;
	/* A number outside the range of float8 becomes infinite, without an error. */
	*number = DatumGetFloat8(
		DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value->val.numeric)));
	return true;
}

/* progress(checkpoint) -> float8, from 0 to 100; NULL if unknown. */
SQL_FUNCTION(idemq_sql_progress)
{
	Jsonb *checkpoint = PG_GETARG_JSONB_P(0);
	double done;
	double of;

	if (!JB_ROOT_IS_OBJECT(checkpoint) || !progress_read_number(checkpoint, "done", &done) ||
		!progress_read_number(checkpoint, "of", &of) || isnan(done) || !(of > 0))
		PG_RETURN_NULL();
	if (done >= of || done <= 0)
		PG_RETURN_FLOAT8(done >= of ? 100 : 0);
	/* 100 * 3 / 10 is exactly 30, and 100 * (3 / 10) is not, but 100 * done might overflow. */
	PG_RETURN_FLOAT8(done < 1e300 ? 100 * done / of : 100 * (done / of));
}
