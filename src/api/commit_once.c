/*
 * api/commit_once.c
 *		SQL function commit_once: claims and commits one job by its id, in one
 *		transaction with the job's effect.  job/claim_by_id.c does the work.
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"

/*
 * commit_once(id, result) -> committed | already_committed | locked | dead |
 * cancelled | blocked | not_due | not_found; 22004, 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_commit_once)
{
	JobCall call = {0};
	JobsTable table;
	Outcome outcome;

	idemq_arg_required(fcinfo, 0, "id");
	call.id = PG_GETARG_INT64(0);
	call.event = EVENT_COMMIT_ONCE;
	if (!PG_ARGISNULL(1))
		call.args.document = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(1)));
	idemq_check_document("result", call.args.document, 0);
	idemq_jobs_open(&table);
	outcome = idemq_claim_by_id(&call, &table);
	idemq_jobs_close(&table);
	return idemq_outcome_datum(outcome);
}
