/*
 * observe/worker_state.c
 *		SQL functions worker_state and chore_counts, behind the views
 *		idemq.background_worker and idemq.worker_chores: the process that makes this
 *		database's jobs prompt, whether it moves, and what it has done.
 *
 * Shared memory says so (shared/processes/worker_watch.c), whether or not a sleeper has found it
 * stuck.  A worker that is at the beginning of a long piece of work is not yet stuck.
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_worker_state);
PG_FUNCTION_INFO_V1(idemq_sql_v2_chore_counts);

/* The columns of worker_state. */
enum
{
	STATE_PID,
	STATE_STUCK_FOR,
	STATE_AWAKE,
	STATE_CHORE,
	STATE_LAST_RUN,
	STATE_LAG,
	STATE_COLUMNS
};

static void
put(Datum *values, bool *nulls, int column, Datum value)
{
	values[column] = value;
	nulls[column] = false;
}

/* worker_state() -> one row, all NULL where no worker runs. */
Datum
idemq_sql_v2_worker_state(PG_FUNCTION_ARGS)
{
	Datum values[STATE_COLUMNS] = {0};
	bool nulls[STATE_COLUMNS];
	pid_t pid = idemq_worker_pid();
	WorkerHealth health;
	int64 since;

	memset(nulls, true, sizeof(nulls));
	if (pid != 0)
		put(values, nulls, STATE_PID, Int32GetDatum((int32) pid));
	if (pid != 0 && idemq_worker_stuck_since(&since) == pid)
		put(values, nulls, STATE_STUCK_FOR, idemq_interval_datum(idemq_mono_now() - since));
	if (pid != 0 && idemq_worker_health(&health))
	{
		put(values, nulls, STATE_AWAKE, BoolGetDatum(health.awake));
		/* Where another database has the jobs, nothing is due. */
		if (!idemq_follows())
			put(values, nulls, STATE_LAG, idemq_interval_datum(health.lag));
		if (health.doing >= 0)
			put(values, nulls, STATE_CHORE,
				PointerGetDatum(cstring_to_text(idemq_chore_names[health.doing])));
		if (health.last_run > 0)
			put(values, nulls, STATE_LAST_RUN,
				TimestampTzGetDatum(idemq_timestamp_from_mono(health.last_run)));
	}
	return idemq_row_datum(fcinfo, values, nulls);
}

/* chore_counts() -> setof (chore, runs, failures, busy); none without a place for a worker. */
Datum
idemq_sql_v2_chore_counts(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);
	uint64 counts[CHORE_KINDS][CHORE_COUNTS];
	bool nulls[] = {false, false, false, false};

	if (!idemq_worker_chore_counts(counts))
		return (Datum) 0;
	for (int i = 0; i < CHORE_KINDS; i++)
	{
		Datum values[] = {CStringGetTextDatum(idemq_chore_names[i]),
						  Int64GetDatum((int64) counts[i][CHORE_RUNS]),
						  Int64GetDatum((int64) counts[i][CHORE_FAILURES]),
						  idemq_interval_datum((int64) counts[i][CHORE_BUSY])};

		tuplestore_putvalues(store, desc, values, nulls);
	}
	return (Datum) 0;
}
