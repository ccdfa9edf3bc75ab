/*
 * api/purge.c
 *		SQL function purge: deletes a queue's jobs of one status, or all but those in
 *		processing.  (What is past its retention is deleted by worker/retention.c.)
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_purge);

/*
 * Parents of children that stay and are not finished, and their parents: these stay too, or
 * the children would have to be told that they are gone.
 */
#define KEPT                                                                                       \
	"WITH RECURSIVE kept AS (SELECT d.parent FROM idemq.dependencies d "                           \
	"JOIN idemq.jobs c ON c.id = d.child WHERE c.finished_at IS NULL "                             \
	"AND NOT (c.queue_id = $1 AND c.status <> 'processing' "                                       \
	"AND ($2 IS NULL OR c.status::text = $2)) UNION SELECT d.parent FROM kept k "                  \
	"JOIN idemq.jobs j ON j.id = k.parent AND j.finished_at IS NULL "                              \
	"JOIN idemq.dependencies d ON d.child = k.parent), "

/* Never waits for a row: the transaction that holds it may be about to wait for ours. */
static SqlStatement purge_jobs =
	{.text = KEPT
	 "free AS MATERIALIZED (SELECT id FROM idemq.jobs WHERE queue_id = $1 "
	 "AND status <> 'processing' AND ($2 IS NULL OR status::text = $2) "
	 "AND id NOT IN (SELECT parent FROM kept) "
	 "FOR UPDATE SKIP LOCKED), "
	 "gone AS (DELETE FROM idemq.jobs j USING free WHERE j.id = free.id RETURNING j.id), "
	 "history AS (DELETE FROM idemq.attempts a USING gone WHERE a.job_id = gone.id), "
	 "steps AS (DELETE FROM idemq.steps s USING gone WHERE s.job_id = gone.id) "
	 "SELECT count(*) FROM gone",
	 .nargs = 2,
	 .types = {INT4OID, TEXTOID}};

/*
 * purge(name, status) -> number of jobs deleted; IQ005, 42501, 22023 for processing,
 * 40001.  A job that another open transaction holds stays.
 */
Datum
idemq_sql_v2_purge(PG_FUNCTION_ARGS)
{
	char nulls[] = "  ";
	Datum values[2] = {0};
	QueueInfo queue;
	SqlScope scope;
	AuditEntry entry = {.action = "purge", .queue = &queue};
	int64 purged;
	bool isnull;

	idemq_queue_arg(fcinfo, 0, "name", PRIVILEGE_ADMIN, &queue);
	values[0] = Int32GetDatum(queue.id);
	if (PG_ARGISNULL(1))
		nulls[1] = 'n';
	else
	{
		JobStatus status = idemq_status_from_oid(PG_GETARG_OID(1));

		if (status == JOB_PROCESSING)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("jobs in processing cannot be purged"),
							errhint("Cancel them first, with idemq.cancel.")));
		entry.members[0] = "status";
		entry.members[1] = idemq_status_name(status);
		values[1] = CStringGetTextDatum(idemq_status_name(status));
	}
	idemq_jobs_check_writable();
	idemq_spi_begin_on_jobs(&scope);
	(void) idemq_spi_run(&purge_jobs, values, nulls, SPI_OK_SELECT);
	purged = DatumGetInt64(idemq_spi_value(0, 1, &isnull));
	idemq_spi_end(&scope);
	entry.jobs = purged;
	if (purged > 0)
		idemq_audit(&entry);
	PG_RETURN_INT64(purged);
}
