/*
 * observe/worker_state.c
 *		SQL functions worker_state and task_counts, behind the views
 *		idemq.background_worker and idemq.maintenance_tasks: the process that makes this
 *		database's jobs prompt, whether it moves, and what it has done.
 *
 * It comes from shared memory (shared/processes/worker_health.c).  A worker that has just begun a
 * long piece of work is not stuck yet.
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"

/* worker_state() -> one row, all NULL when no worker runs. */
SQL_FUNCTION(idemq_sql_worker_state)
{
	RowBuilder row = {0};
	WorkerHealth health = {0};
	bool known = idemq_worker_health(&health);
	bool doing = known && health.doing >= 0;

	row_add_if(&row, known, Int32GetDatum((int32) health.pid));
	row_add_if(&row, known && health.stuck_for > 0, idemq_interval_datum(health.stuck_for));
	row_add_if(&row, known, BoolGetDatum(health.awake));
	row_add_if(&row, doing,
			   doing ? CStringGetTextDatum(idemq_task_names[health.doing]) : (Datum) 0);
	row_add_if(&row, known && health.last_run > 0,
			   TimestampTzGetDatum(idemq_timestamp_from_mono(health.last_run)));
	/* When another database has the jobs, nothing is due. */
	row_add_if(&row, known && !idemq_follows(), idemq_interval_datum(health.lag));
	return idemq_row_datum(fcinfo, row.values, row.nulls);
}

/* task_counts() -> setof (task, runs, failures, busy); none when the database has no worker slot. */
SQL_FUNCTION(idemq_sql_task_counts)
{
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	uint64 counts[TASK_KINDS][TASK_COUNTS];

	if (!idemq_worker_task_counts(counts))
		return (Datum) 0;
	for (int i = 0; i < TASK_KINDS; i++)
	{
		RowBuilder row = {0};

		row_add(&row, CStringGetTextDatum(idemq_task_names[i]));
		row_add(&row, Int64GetDatum((int64) counts[i][TASK_RUNS]));
		row_add(&row, Int64GetDatum((int64) counts[i][TASK_FAILURES]));
		row_add(&row, idemq_interval_datum((int64) counts[i][TASK_BUSY]));
		tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}
