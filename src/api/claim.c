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

PG_FUNCTION_INFO_V1(idemq_sql_v2_claim);
PG_FUNCTION_INFO_V1(idemq_sql_v2_claim_any);

/*
 * claim(queue text, max_jobs int, lease interval, worker text, attach bool)
 *		-> setof claimed job; 42501, IQ005, 22004, 22023.
 */
Datum
idemq_sql_v2_claim(PG_FUNCTION_ARGS)
{
	char *queue = idemq_arg_text(fcinfo, 0, "queue", IDEMQ_MAX_NAME_ARG);
	ClaimCall call;

	idemq_claim_args(fcinfo, 1, &call);
	call.store = idemq_srf_begin(fcinfo, &call.desc);
	idemq_queue_by_name(queue, PRIVILEGE_CLAIM, &call.scan.queue);
	idemq_settings_check_lease(&call.scan.queue, call.lease);
	idemq_claim_from_queue(&call);
	return (Datum) 0;
}

/* claim_any(queues text[], ...) -> as claim, and the queue's name. */
Datum
idemq_sql_v2_claim_any(PG_FUNCTION_ARGS)
{
	QueueInfo *queue;
	ArrayArg queues;
	ClaimCall call;

	idemq_arg_array(fcinfo, 0, "queues", TEXTOID, false, &queues);
	idemq_claim_args(fcinfo, 1, &call);
	call.store = idemq_srf_begin(fcinfo, &call.desc);
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
