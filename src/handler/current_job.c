/*
 * handler/current_job.c
 *		SQL function current_job: the job that a handler's function was called for.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "handler/handler.h"
#include "job/job.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_current_job);

/* current_job() -> a row as idemq.claim_any answers; NULLs outside of a handler. */
Datum
idemq_sql_v2_current_job(PG_FUNCTION_ARGS)
{
	const ClaimedJob *job = idemq_handler_job();
	Datum values[CLAIM_COLUMN_COUNT + 1] = {0};
	bool nulls[CLAIM_COLUMN_COUNT + 1];

	memset(nulls, true, sizeof(nulls));
	if (job != NULL)
	{
		heap_deform_tuple(job->row, idemq_claimed_desc(), values, nulls);
		values[CLAIM_KIND + 1] = values[CLAIM_KIND];
		nulls[CLAIM_KIND + 1] = nulls[CLAIM_KIND];
		values[CLAIM_KIND] = CStringGetTextDatum(idemq_handler_queue());
		nulls[CLAIM_KIND] = false;
	}
	return idemq_row_datum(fcinfo, values, nulls);
}
