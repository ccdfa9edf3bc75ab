/*
 * observe/handlers_view.c
 *		SQL function handler_states, behind the view idemq.handlers: what each handler does,
 *		as shared memory and its row say.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_handler_states);

static SqlStatement list_handlers = {.text = "SELECT array_agg(queue_id) "
											 "FROM idemq.handler_entries"};

static const char *
name_of_state(const HandlerInfo *info, const HandlerState *state, int busy, bool has_slot)
{
	if (info->stopped)
		return "stopped";
	if (busy > 0)
		return "running";
	if (!idemq_worker)
		return "off";
	if (state->refused || !has_slot)
		return "refused";
	return state->waits ? "waiting" : "idle";
}

/* Returns what is said of a handler that does not run, or its last error; NULL: nothing. */
static const char *
last_error(const HandlerInfo *info, const HandlerState *state, bool has_slot)
{
	if (info->stopped)
		return idemq_handler_stopped_text(info);
	if (!has_slot)
		return HANDLER_WITHOUT_SLOT;
	return state->error[0] != '\0' ? state->error : NULL;
}

/* Adds the row of one handler; errors: whether the caller may see what went wrong. */
static void
add_handler(Tuplestorestate *store, TupleDesc desc, const HandlerInfo *info, bool has_slot,
			bool errors)
{
	HandlerKey key = {MyDatabaseId, info->queue_id};
	RowBuilder row = {0};
	HandlerState state;
	const char *error;
	int processes;
	int busy;

	idemq_handler_state(key, &state);
	idemq_handler_processes(key, &processes, &busy);
	error = errors ? last_error(info, &state, has_slot) : NULL;
	row_add(&row, Int32GetDatum(info->queue_id));
	row_add(&row, CStringGetTextDatum(name_of_state(info, &state, busy, has_slot)));
	row_add(&row, Int32GetDatum(processes));
	row_add(&row, Int64GetDatum(state.done));
	row_add(&row, Int64GetDatum(state.failed));
	row_add(&row, Float8GetDatum(state.rate));
	row_add_if(&row, error != NULL, CStringGetTextDatum(error == NULL ? "" : error));
	row_add_if(&row, error != NULL && state.error_at != 0, TimestampTzGetDatum(state.error_at));
	tuplestore_putvalues(store, desc, row.values, row.nulls);
}

/* Returns the ids of all queues with a handler. */
static int32 *
handled_queues(int *count)
{
	MemoryContext caller = CurrentMemoryContext;
	SqlScope scope;
	int32 *ids = NULL;
	bool isnull;
	Datum value;

	*count = 0;
	idemq_spi_begin(&scope);
	(void) idemq_spi_query_latest(&list_handlers, NULL, NULL);
	value = idemq_spi_value(0, 1, &isnull);
	if (!isnull)
	{
		ArrayType *array = DatumGetArrayTypeP(value);

		*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
		ids = MemoryContextAlloc(caller, *count * sizeof(int32));
		memcpy(ids, ARR_DATA_PTR(array), *count * sizeof(int32));
	}
	idemq_spi_end(&scope);
	return ids;
}

/* handler_states() -> setof (queue_id, state, ...), of queues that the role may claim from. */
Datum
idemq_sql_v2_handler_states(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);
	bool monitor = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	int count;
	int32 *ids = handled_queues(&count);

	for (int i = 0; i < count; i++)
	{
		QueueInfo queue;
		HandlerInfo info;
		bool there = idemq_queue_by_id(ids[i], &queue);
		bool errors = there && (queue.privileges & (PRIVILEGE_CLAIM | PRIVILEGE_ADMIN)) != 0;

		if (there && (errors || monitor) && idemq_handler_read(ids[i], &info))
			add_handler(store, desc, &info, queue.slot != NULL, errors);
	}
	return (Datum) 0;
}
