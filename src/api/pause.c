/*
 * api/pause.c
 *		SQL functions that stop and start the claims of a queue: pause, resume.
 */
#include "postgres.h"

#include "catalog/pg_type.h"

#include "table/audit_log.h"
#include "table/jobs.h"
#include "txn/pending.h"
#include "queue/queues.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_pause);
PG_FUNCTION_INFO_V1(idemq_sql_v2_resume);

static SqlStatement set_paused = {.text = "UPDATE idemq.queues SET paused = $2 WHERE queue_id = $1",
								  .nargs = 2,
								  .types = {INT4OID, BOOLOID}};

static Datum
change_paused(FunctionCallInfo fcinfo, bool paused)
{
	QueueInfo queue;
	SqlScope scope;
	Datum values[2];

	idemq_queue_arg(fcinfo, 0, "name", PRIVILEGE_ADMIN, &queue);
	idemq_jobs_check_writable();
	values[0] = Int32GetDatum(queue.id);
	values[1] = BoolGetDatum(paused);
	idemq_spi_begin(&scope);
	(void) idemq_spi_run(&set_paused, values, NULL, SPI_OK_UPDATE);
	if (!paused)
		idemq_pending_note_resume(queue.id);
	idemq_spi_end(&scope);
	idemq_audit(&(AuditEntry){.action = paused ? "pause" : "resume", .queue = &queue});
	PG_RETURN_VOID();
}

/* pause(name) -> void; IQ005, 42501. */
Datum
idemq_sql_v2_pause(PG_FUNCTION_ARGS)
{
	return change_paused(fcinfo, true);
}

/* resume(name) -> void; IQ005, 42501. */
Datum
idemq_sql_v2_resume(PG_FUNCTION_ARGS)
{
	return change_paused(fcinfo, false);
}
