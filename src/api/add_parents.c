/*
 * api/add_parents.c
 *		SQL function add_parents: a running job makes a child wait for further parents.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/* parent, outcome */
#define COLUMNS 2

/*
 * add_parents(child, parents, id, token) -> setof (parent, outcome), in the order of the parents' ids;
 * outcome: added, already or locked.  Raises IQ001, IQ002, IQ006, 22004, 22023, 42501, 53400, 55000.
 */
SQL_FUNCTION(idemq_sql_add_parents)
{
	ParentsCall call;
	ArrayArg parents;
	ReturnSetInfo *set;

	idemq_arg_required(fcinfo, 0, "child");
	idemq_arg_array(fcinfo, 1, "parents", INT8OID, false, &parents);
	idemq_arg_required(fcinfo, 2, "id");
	idemq_arg_required(fcinfo, 3, "token");
	call = (ParentsCall){.child = PG_GETARG_INT64(0),
						 .id = PG_GETARG_INT64(2),
						 .token = PG_GETARG_INT64(3),
						 .count = parents.count,
						 .parents = palloc(Max(parents.count, 1) * sizeof(int64)),
						 .outcomes = palloc(Max(parents.count, 1) * sizeof(Outcome))};
	for (int i = 0; i < parents.count; i++)
		call.parents[i] = DatumGetInt64(parents.values[i]);
	set = idemq_srf_begin(fcinfo);
	idemq_jobs_check_writable();
	idemq_add_parents(&call);
	for (int i = 0; i < call.count; i++)
	{
		Datum values[COLUMNS] = {Int64GetDatum(call.parents[i]),
								 idemq_outcome_datum(call.outcomes[i])};
		bool nulls[COLUMNS] = {false, false};

		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	return (Datum) 0;
}
