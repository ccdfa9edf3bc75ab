/*
 * observe/worker_state.c
 *		SQL function worker_state, behind the view idemq.background_worker: the process
 *		that makes this database's jobs prompt, and whether it moves.
 *
 * Shared memory says so (shared/worker_watch.c), whether or not a sleeper has found it
 * stuck.  A worker that is at the beginning of a long piece of work is not yet stuck.
 */
#include "postgres.h"

#include "funcapi.h"

#include "shared/worker_watch.h"
#include "base/args.h"
#include "base/clock.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_worker_state);

/* worker_state() -> (pid, stuck_for), both NULL where no worker runs. */
Datum
idemq_sql_v2_worker_state(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Datum values[2] = {0};
	bool nulls[] = {true, true};
	pid_t pid = idemq_worker_pid();
	int64 since;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (pid != 0)
	{
		values[0] = Int32GetDatum((int32) pid);
		nulls[0] = false;
	}
	if (pid != 0 && idemq_worker_stuck_since(&since) == pid)
	{
		values[1] = idemq_interval_datum(idemq_mono_now() - since);
		nulls[1] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
