/*
 * api/reap.c
 *		SQL function reap: takes back the leases that have ended, of one queue or of all that
 *		the role may claim from.  job/recover.c and job/reap.c do the work.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* reap(queue) -> number of leases taken back; IQ005, 42501, 53400. */
SQL_FUNCTION(idemq_sql_reap)
{
	QueueInfo queue;
	int64 reaped = 0;
	int32 *ids;
	int count;

	idemq_jobs_check_writable();
	if (!PG_ARGISNULL(0))
	{
		idemq_queue_arg(fcinfo, 0, "queue", PRIVILEGE_CLAIM, &queue);
		idemq_queue_need_qstate(&queue);
		PG_RETURN_INT64(idemq_reap_all(&queue));
	}
	ids = idemq_queue_ids(PRIVILEGE_CLAIM, &count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (idemq_queue_by_id(ids[i], &queue) && queue.qstate != NULL)
			reaped += idemq_reap_all(&queue);
	}
	PG_RETURN_INT64(reaped);
}
