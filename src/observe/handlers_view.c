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
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "queue/handlers.h"
#include "queue/queues.h"
#include "shared/handler_board.h"
#include "shared/handler_known.h"
#include "base/args.h"
#include "base/settings.h"
#include "base/spi.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_handler_states);

#define STATE_COLUMNS 8

static SqlStatement list_handlers = {.text = "SELECT array_agg(queue_id) "
											 "FROM idemq.handler_entries"};

static const char *
name_of_state(const HandlerInfo *info, const HandlerState *state, int busy)
{
	if (info->stopped)
		return "stopped";
	if (busy > 0)
		return "running";
	if (!idemq_worker)
		return "off";
	if (state->refused)
		return "refused";
	return state->waits ? "waiting" : "idle";
}

/* Adds the row of one handler; errors: whether the caller may see what went wrong. */
static void
add_handler(Tuplestorestate *store, TupleDesc desc, const HandlerInfo *info, bool errors)
{
	HandlerKey key = {MyDatabaseId, info->queue_id};
	HandlerState state;
	int processes;
	int busy;
	Datum values[STATE_COLUMNS];
	bool nulls[STATE_COLUMNS] = {false};

	idemq_handler_state(key, &state);
	idemq_handler_processes(key, &processes, &busy);
	values[0] = Int32GetDatum(info->queue_id);
	values[1] = CStringGetTextDatum(name_of_state(info, &state, busy));
	values[2] = Int32GetDatum(processes);
	values[3] = Int64GetDatum(state.done);
	values[4] = Int64GetDatum(state.failed);
	values[5] = Float8GetDatum(state.rate);
	nulls[6] = nulls[7] = !errors || (state.error[0] == '\0' && !info->stopped);
	if (!nulls[6])
	{
		values[6] =
			CStringGetTextDatum(info->stopped ? idemq_handler_stopped_text(info) : state.error);
		values[7] = TimestampTzGetDatum(state.error_at);
		nulls[7] = state.error_at == 0;
	}
	tuplestore_putvalues(store, desc, values, nulls);
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
		bool errors = idemq_queue_allows(ids[i], PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &queue);

		if ((errors || monitor) && idemq_handler_read(ids[i], &info))
			add_handler(store, desc, &info, errors);
	}
	return (Datum) 0;
}
