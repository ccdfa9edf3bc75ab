/*
 * api/claim_result.c
 *		What claim_job and acquire share: their arguments lease, worker and attach, and
 *		their answer, a row of idemq.claim_result.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "api/api.h"
#include "base/base.h"
#include "shared/leases/leases.h"

/* Positions in idemq.claim_result; the columns of claim begin at RESULT_CLAIM. */
#define RESULT_OUTCOME 0
#define RESULT_CLAIM 1
#define RESULT_ID 1
#define RESULT_DEADLINE 5
#define RESULT_RESULT (RESULT_CLAIM + CLAIM_KIND)
#define RESULT_RETRY_AFTER (RESULT_RESULT + 1)
#define RESULT_KIND (RESULT_RETRY_AFTER + 1)
#define RESULT_COLUMNS (RESULT_KIND + 1)

/* Returns an outcome and what came of the call as a row of idemq.claim_result. */
Datum
idemq_claim_result_row(FunctionCallInfo fcinfo, const JobCall *call, Outcome outcome)
{
	Datum values[RESULT_COLUMNS] = {0};
	bool nulls[RESULT_COLUMNS];

	memset(nulls, true, sizeof(nulls));
	if (outcome == OUTCOME_CLAIMED || outcome == OUTCOME_CLAIMED_AGAIN)
	{
		idemq_claim_row_fill(&call->job, &call->args, values + RESULT_CLAIM, nulls + RESULT_CLAIM);
		/* idemq_claim_row_fill writes the kind where the result belongs. */
		values[RESULT_KIND] = values[RESULT_RESULT];
		nulls[RESULT_KIND] = nulls[RESULT_RESULT];
		nulls[RESULT_RESULT] = true;
	}
	else if (outcome == OUTCOME_COMPLETED)
		values[RESULT_RESULT] = idemq_job_document(&call->job, COL_RESULT, &nulls[RESULT_RESULT]);
	if (outcome == OUTCOME_LOCKED && call->retry_after != DT_NOEND)
	{
		values[RESULT_DEADLINE] = TimestampTzGetDatum(call->retry_after);
		nulls[RESULT_DEADLINE] = false;
	}
	if ((outcome == OUTCOME_LOCKED || outcome == OUTCOME_NOT_DUE) && call->retry_after != DT_NOEND)
	{
		values[RESULT_RETRY_AFTER] = TimestampTzGetDatum(call->retry_after);
		nulls[RESULT_RETRY_AFTER] = false;
	}
	if (outcome != OUTCOME_NOT_FOUND && call->id != 0)
	{
		values[RESULT_ID] = Int64GetDatum(call->id);
		nulls[RESULT_ID] = false;
	}
	values[RESULT_OUTCOME] = idemq_outcome_datum(outcome);
	nulls[RESULT_OUTCOME] = false;
	return idemq_row_datum(fcinfo, values, nulls);
}

/* Begins a claim: reads lease, worker and attach, from argument n on. */
void
idemq_claim_by_id_args(FunctionCallInfo fcinfo, int n, JobCall *call)
{
	call->event = EVENT_CLAIM;
	call->retry_after = DT_NOEND;
	if (!PG_ARGISNULL(n))
		call->lease = idemq_arg_interval(fcinfo, n, "lease", 1);
	call->args.worker = idemq_arg_worker(fcinfo, n + 1);
	call->flags = idemq_arg_bool(fcinfo, n + 2, "attach") ? JOB_ATTACHED : 0;
	if (call->flags & JOB_ATTACHED)
		idemq_lease_attach_session();
}
