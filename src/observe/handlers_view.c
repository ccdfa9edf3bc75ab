/*
 * observe/handlers_view.c
 *		SQL function handler_states, behind the view idemq.handlers: what each handler does,
 *		as shared memory, the counters of its queue and its row say.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

static SqlStatement list_handlers = {.text = "SELECT queue_id FROM idemq_internal.handler_entries",
									 .fields = (const SqlField[]){{0, sizeof(int32), NULL}}};

/* Adds the row of one handler; errors: whether the caller may see what went wrong. */
static void
add_handler(ReturnSetInfo *set, const HandlerInfo *info, const QueueState *qstate, bool errors)
{
	QueueStateKey key = {MyDatabaseId, info->queue_id};
	RowBuilder row = {0};
	CounterView counts = {0};
	HandlerStatus status;
	const char *error = NULL;
	const char *name;
	int processes;
	int busy;

	idemq_handler_state(key, &status, &processes, &busy);
	if (qstate != NULL && !idemq_counters_read(idemq_qstate_index(qstate), info->queue_id, &counts))
		memset(&counts, 0, sizeof(counts));
	name = info->stopped						   ? "stopped"
		   : busy > 0							   ? "running"
		   : !idemq_worker						   ? "off"
		   : status.failures > 0 || qstate == NULL ? "refused"
		   : status.waits						   ? "waiting"
												   : "idle";
	/* Why it does not run, or its last error. */
	if (errors && info->stopped)
		error = idemq_handler_stopped_text(info);
	else if (errors && qstate == NULL)
		error = HANDLER_WITHOUT_QUEUE_STATE;
	else if (errors && status.error[0] != '\0')
		error = status.error;
	row_add(&row, Int32GetDatum(info->queue_id));
	row_add(&row, CStringGetTextDatum(name));
	row_add(&row, Int32GetDatum(processes));
	row_add(&row, Int64GetDatum((int64) counts.counters[COUNTER_COMMITTED]));
	row_add(&row, Int64GetDatum((int64) counts.counters[COUNTER_FAILED]));
	row_add_if(&row, error != NULL, CStringGetTextDatum(error == NULL ? "" : error));
	row_add_if(&row, error != NULL && status.error_at != 0, TimestampTzGetDatum(status.error_at));
	tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
}

/*
 * handler_states() -> setof (queue_id, state, ...), of queues that the role may claim from or
 * administer, of all for members of pg_monitor.
 */
SQL_FUNCTION(idemq_sql_handler_states)
{
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	Oid user = GetUserId();
	bool monitor = has_privs_of_role(user, ROLE_PG_MONITOR);
	int count;
	int32 *ids = idemq_spi_rows(&list_handlers, NULL, sizeof(int32), &count);

	for (int i = 0; i < count; i++)
	{
		int32 id = ids[i];
		QueueInfo queue;
		HandlerInfo info;
		bool errors = idemq_queue_allows_role(id, user, PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &queue);

		if ((errors || (monitor && idemq_queue_by_id(id, &queue))) && idemq_handler_read(id, &info))
			add_handler(set, &info, queue.qstate, errors);
	}
	return (Datum) 0;
}
