/*
 * observe/progress.c
 *		How far a job has come, by its last checkpoint: {"done": 3, "of": 10} is 30 %.
 *
 * A checkpoint is the worker's own, of any shape: one without these two numbers says
 * nothing, and neither does an "of" that is not above 0.
 */
#include "postgres.h"

#include <math.h>

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/base.h"

/* Reads a number of an object; false when there is none of that name. */
static bool
progress_read_number(Jsonb *object, const char *name, double *number)
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

/* progress(checkpoint) -> float8, from 0 to 100; NULL when it does not say. */
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
	/* The first order makes 3 of 10 exactly 30; the second is for what would overflow in it. */
	PG_RETURN_FLOAT8(done < 1e300 ? 100 * done / of : 100 * (done / of));
}
