/*
 * api/depends_on.c
 *		The arguments of an enqueue that say what the job waits for.
 */
#include "postgres.h"

#include "catalog/pg_type.h"

#include "api/api.h"
#include "base/base.h"

/* Reads argument n, depends_on, and the one behind it, on_parent_failure; false for no parents. */
bool
idemq_arg_parents(FunctionCallInfo fcinfo, int n, NewDependencies *depends)
{
	ArrayArg parents;
	char *policy;

	/* Most jobs have none, and pay nothing. */
	if (PG_ARGISNULL(n))
		return false;
	policy = idemq_arg_text(fcinfo, n + 1, "on_parent_failure", 16);
	depends->on_failure = FAILURE_CANCELS;
	while (strcmp(policy, idemq_failure_name(depends->on_failure)) != 0)
	{
		if (++depends->on_failure > FAILURE_RUNS)
			ereport(
				ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("on_parent_failure must be cancel, wait or run, not \"%s\"", policy),
				errhint(
					"Omit the argument to use cancel, which cancels a job when a parent dies or is "
					"cancelled."));
	}
	idemq_arg_array(fcinfo, n, "depends_on", INT8OID, false, &parents);
	depends->count = parents.count;
	depends->parents = palloc(Max(parents.count, 1) * sizeof(int64));
	for (int i = 0; i < parents.count; i++)
		depends->parents[i] = DatumGetInt64(parents.values[i]);
	return depends->count > 0;
}
