/*
 * api/depends_on.c
 *		The arguments of an enqueue that say what the job waits for.
 */
#include "postgres.h"

#include "catalog/pg_type.h"

#include "api/api.h"
#include "base/base.h"

/* Reads on_parent_failure. */
static ParentFailure
failure_policy(FunctionCallInfo fcinfo, int n)
{
	char *value = idemq_arg_text(fcinfo, n, "on_parent_failure", 16);

	for (ParentFailure failure = FAILURE_CANCELS; failure <= FAILURE_RUNS; failure++)
	{
		if (strcmp(value, idemq_failure_name(failure)) == 0)
			return failure;
	}
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("on_parent_failure must be cancel, wait or run, not \"%s\"", value),
			errhint("Leave it out for cancel: a job is cancelled with its parent."));
}

/* Reads argument n, depends_on, and the one behind it, on_parent_failure; false for no parents. */
bool
idemq_arg_parents(FunctionCallInfo fcinfo, int n, NewDependencies *depends)
{
	ArrayArg parents;

	/* Most jobs: at no cost. */
	if (PG_ARGISNULL(n))
		return false;
	depends->on_failure = failure_policy(fcinfo, n + 1);
	idemq_arg_array(fcinfo, n, "depends_on", INT8OID, false, &parents);
	depends->count = parents.count;
	depends->parents = palloc(Max(parents.count, 1) * sizeof(int64));
	for (int i = 0; i < parents.count; i++)
		depends->parents[i] = DatumGetInt64(parents.values[i]);
	return depends->count > 0;
}
