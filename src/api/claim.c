/*
 * api/claim.c
 *		SQL functions that begin attempts: claim, claim_any.  (claim_job: api/claim_job.c)
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "queue/queue.h"

/*
 * Reads max_jobs, lease, worker and attach, from argument n on, and begins the answer, a set.
 * Raises 22004, 22023, 25006.
 */
void
idemq_claim_args(FunctionCallInfo fcinfo, int n, ClaimCall *call)
{
	ReturnSetInfo *set;
	int wanted;

	idemq_jobs_check_writable();
	memset(call, 0, sizeof(*call));
	wanted = idemq_arg_int(fcinfo, n, "max_jobs", 1, IDEMQ_MAX_ARRAY);
	if (!PG_ARGISNULL(n + 1))
		call->lease = idemq_arg_interval(fcinfo, n + 1, "lease", 1);
	call->worker = idemq_arg_worker(fcinfo, n + 2);
	call->flags = idemq_arg_bool(fcinfo, n + 3, "attach") ? JOB_ATTACHED : 0;
	idemq_claim_begin(call, wanted);
	set = idemq_srf_begin(fcinfo);
	call->store = set->setResult;
	call->desc = set->setDesc;
}

/*
 * claim(queue text, max_jobs int, lease interval, worker text, attach bool)
 *		-> setof claimed job; 42501, IQ005, 22004, 22023.
 */
SQL_FUNCTION(idemq_sql_claim)
{
	char *queue = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	ClaimCall call;

	idemq_claim_args(fcinfo, 1, &call);
	idemq_queue_by_name(queue, PRIVILEGE_CLAIM, &call.scan.queue);
	idemq_settings_check_lease(&call.scan.queue, call.lease);
	idemq_claim_from_queue(&call);
	return (Datum) 0;
}

/* claim_any(queues text[], ...) -> as claim, and the queue's name. */
SQL_FUNCTION(idemq_sql_claim_any)
{
	QueueInfo *queue;
	ArrayArg queues;
	ClaimCall call;

	idemq_arg_array(fcinfo, 0, "queues", TEXTOID, false, &queues);
	idemq_claim_args(fcinfo, 1, &call);
	call.with_queue = true;
	queue = &call.scan.queue;
	for (int i = 0; i < queues.count; i++)
	{
		idemq_queue_by_name(TextDatumGetCString(queues.values[i]), PRIVILEGE_CLAIM, queue);
		idemq_settings_check_lease(queue, call.lease);
	}
	for (int i = 0; i < queues.count && call.claimed < call.wanted; i++)
	{
		idemq_queue_by_name(TextDatumGetCString(queues.values[i]), PRIVILEGE_CLAIM, queue);
		idemq_claim_from_queue(&call);
	}
	return (Datum) 0;
}
