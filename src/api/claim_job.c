/*
 * api/claim_job.c
 *		SQL function claim_job: claims one job by its id, for consumers whose message
 *		carries only that.  job/claim_by_id.c does the work.
 */
#include "postgres.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/*
 * claim_job(id, lease, worker, attach) -> claim_result; 22004, 22023, 40001.
 */
SQL_FUNCTION(idemq_sql_claim_job)
{
	JobCall call = {0};
	JobsTable table;
	Datum answer;

	idemq_arg_required(fcinfo, 0, "id");
	call.id = PG_GETARG_INT64(0);
	idemq_claim_by_id_args(fcinfo, 1, &call);
	idemq_jobs_open(&table);
	answer = idemq_claim_result_row(fcinfo, &call, idemq_claim_by_id(&call, &table));
	idemq_jobs_close(&table);
	return answer;
}
