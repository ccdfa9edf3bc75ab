/*
 * hooks/queue_trigger.c
 *		The trigger that deletes what hangs on a queue when the queue is deleted: its grants,
 *		schedules, handler, producers, events and bindings to topics.
 *
 * There is no foreign key, since a parallel restore fills the tables in any order.  What
 * one would do besides is done where a row is made: grant_queue, schedule, set_handler and
 * bind_topic hold the queue's row (idemq_queue_keep), so the DELETE that fires this waits for
 * them, and what they have committed is there by now.  Rows that come by hand, and find no
 * queue, are told of by check().
 *
 * It does not fire in an apply worker: the publisher's has, and its deletions come along.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/rel.h"

#include "base/base.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_queue_gone);

static SqlStatement delete_grants = {.text = "DELETE FROM idemq.queue_grants WHERE queue_id = $1",
									 .types = {INT4OID}};
static SqlStatement delete_schedules =
	{.text = "DELETE FROM idemq.schedule_entries WHERE queue_id = $1", .types = {INT4OID}};
static SqlStatement delete_handler = {.text =
										  "DELETE FROM idemq.handler_entries WHERE queue_id = $1",
									  .types = {INT4OID}};
static SqlStatement delete_events = {.text = "DELETE FROM idemq.events WHERE queue_id = $1",
									 .types = {INT4OID}};
static SqlStatement delete_bindings =
	{.text = "DELETE FROM idemq.topic_binding_entries WHERE queue_id = $1", .types = {INT4OID}};
static SqlStatement delete_producers = {.text = "DELETE FROM idemq.producers WHERE queue_id = $1",
										.types = {INT4OID}};
static SqlStatement anything_left =
	{.text = "SELECT FROM idemq.queue_grants WHERE queue_id = $1 "
			 "UNION ALL SELECT FROM idemq.schedule_entries WHERE queue_id = $1 "
			 "UNION ALL SELECT FROM idemq.handler_entries WHERE queue_id = $1 "
			 "UNION ALL SELECT FROM idemq.events WHERE queue_id = $1 "
			 "UNION ALL SELECT FROM idemq.topic_binding_entries WHERE queue_id = $1 "
			 "UNION ALL SELECT FROM idemq.producers WHERE queue_id = $1 LIMIT 1",
	 .types = {INT4OID}};
static SqlStatement delete_all_grants = {.text = "DELETE FROM idemq.queue_grants"};
static SqlStatement delete_all_handlers = {.text = "DELETE FROM idemq.handler_entries"};
static SqlStatement delete_all_events = {.text = "DELETE FROM idemq.events"};
static SqlStatement delete_all_bindings = {.text = "DELETE FROM idemq.topic_binding_entries"};
static SqlStatement delete_all_producers = {.text = "DELETE FROM idemq.producers"};
static SqlStatement delete_all_schedules = {.text = "DELETE FROM idemq.schedule_entries"};

/* Deletes what hangs on one queue; above READ COMMITTED raises 40001 when there is more. */
static void
delete_of(Datum queue_id)
{
	(void) idemq_spi_run(&delete_grants, &queue_id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_schedules, &queue_id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_handler, &queue_id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_events, &queue_id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_bindings, &queue_id, NULL, SPI_OK_DELETE);
	(void) idemq_spi_run(&delete_producers, &queue_id, NULL, SPI_OK_DELETE);
	if (IsolationUsesXactSnapshot() && idemq_spi_query_latest(&anything_left, &queue_id, NULL) > 0)
		ereport(
			ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg(
				 "queue %d has grants, schedules, producers, events, bindings or a handler that this "
				 "transaction cannot see",
				 DatumGetInt32(queue_id)),
			 errhint("Run it at READ COMMITTED.")));
}

/* queue_gone(): row trigger of a DELETE from idemq.queues, and trigger of its TRUNCATE. */
Datum
idemq_sql_v2_queue_gone(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	bool isnull;
	Datum queue_id = 0;
	SqlScope scope;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		RelationGetRelid(data->tg_relation) != idemq_oids()->queues)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("this function is for idemq's own triggers only"),
						errhint("Do not call it, and do not use it in a trigger.")));
	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		TupleDesc desc = RelationGetDescr(data->tg_relation);

		queue_id = SPI_getbinval(data->tg_trigtuple, desc, SPI_fnumber(desc, "queue_id"), &isnull);
	}
	idemq_spi_begin(&scope);
	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
		delete_of(queue_id);
	else
	{
		(void) idemq_spi_run(&delete_all_grants, NULL, NULL, SPI_OK_DELETE);
		(void) idemq_spi_run(&delete_all_schedules, NULL, NULL, SPI_OK_DELETE);
		(void) idemq_spi_run(&delete_all_handlers, NULL, NULL, SPI_OK_DELETE);
		(void) idemq_spi_run(&delete_all_events, NULL, NULL, SPI_OK_DELETE);
		(void) idemq_spi_run(&delete_all_bindings, NULL, NULL, SPI_OK_DELETE);
		(void) idemq_spi_run(&delete_all_producers, NULL, NULL, SPI_OK_DELETE);
	}
	idemq_spi_end(&scope);
	return PointerGetDatum(NULL);
}
