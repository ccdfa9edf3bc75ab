/*
 * observe/views.c
 *		SQL functions behind the views of what is running: leases (running_jobs), handler_states
 *		(handlers), worker_state (background_worker) and task_counts (maintenance_tasks).
 *
 * They read shared memory, including the counters of queues, and the rows of jobs and handlers.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/* Adds a column of a job's row; NULL unless is_current. */
static void
add_column(RowBuilder *row, const Job *job, bool is_current, JobColumn column)
{
	bool known = is_current && !job->row->tts_isnull[column];

	row_add_if(row, known, known ? job->row->tts_values[column] : (Datum) 0);
}

/*
 * leases() -> setof lease, for the queues that the role may claim from or administer; members of
 * pg_monitor see all queues.  For the view idemq.running_jobs.
 *
 * The lease table is copied before the snapshot is taken, so the snapshot sees the claim of each
 * ACTIVE entry.  Columns that only the row contains (worker, attempt, claimed_at) are NULL while
 * the claim is open, and if the row shows another attempt by now.
 */
SQL_FUNCTION(idemq_sql_leases)
{
	bool sees_all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	MemoryContext row_context;
	JobsTable table;
	Lease *leases;
	int count;

	leases = idemq_lease_copy_all(&count);
	row_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq leases", ALLOCSET_DEFAULT_SIZES);
	idemq_jobs_open_to_read(&table);
	for (int i = 0; i < count; i++)
	{
		const Lease *lease = &leases[i];
		int pid = idemq_lease_pid(lease);
		TimestampTz deadline;
		RowBuilder row = {0};
		MemoryContext old;
		QueueInfo queue;
		const char *state;
		bool is_current;
		Job job;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(lease->queue_id, &queue) ||
			!(sees_all || (queue.privileges & (PRIVILEGE_CLAIM | PRIVILEGE_ADMIN))))
			continue;
		old = MemoryContextSwitchTo(row_context);
		is_current = idemq_jobs_fetch(&table, lease->key.job_id, &job) &&
					 job_is_attempt(&job, lease->token);
		row_add(&row, CStringGetTextDatum(queue.name));
		row_add(&row, Int64GetDatum(lease->key.job_id));
		add_column(&row, &job, is_current, COL_WORKER);
		row_add_if(&row, pid != 0, Int32GetDatum(pid));
		add_column(&row, &job, is_current, COL_ATTEMPT);
		add_column(&row, &job, is_current, COL_CLAIMED_AT);
		deadline = lease->claiming ? DT_NOEND : idemq_timestamp_from_mono(lease->deadline);
		row_add_if(&row, !lease->claiming, TimestampTzGetDatum(deadline));
		row_add_if(&row, !lease->claiming,
				   idemq_interval_datum(lease->deadline - idemq_mono_now()));
		row_add(&row, BoolGetDatum(lease->attached));
		state = lease->claiming ? "claiming"
				: lease->ending.finisher != NO_SESSION
					? (lease->ending.reaping ? "reaping" : "ending")
				: lease->cancels > 0 ? "cancelling"
									 : "active";
		row_add(&row, CStringGetTextDatum(state));
		row_add(&row, BoolGetDatum(lease->handler));
		row_add(&row, BoolGetDatum(lease->ahead));
		tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row_context);
	}
	idemq_jobs_close(&table);
	return (Datum) 0;
}

static SqlStatement list_handlers = {.text = "SELECT queue_id FROM idemq_internal.handler_entries",
									 .fields = SQL_SCALAR(int32)};

/* Adds the row of one handler; show_errors: the caller may see error messages. */
static void
add_handler(ReturnSetInfo *set, const HandlerInfo *info, const QueueState *qstate, bool show_errors)
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
	/* The reason why it does not run, or else its last error. */
	if (show_errors && info->stopped)
		error = idemq_handler_stopped_text(info);
	else if (show_errors && qstate == NULL)
		error = HANDLER_WITHOUT_QUEUE_STATE;
	else if (show_errors && status.error[0] != '\0')
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
 * handler_states() -> setof (queue_id, state, ...), for the queues that the role may claim from or
 * administer; members of pg_monitor see all queues, but errors only of those.  For the view
 * idemq.handlers.
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
		bool allowed = idemq_queue_allows_role(id, user, PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &queue);

		if ((allowed || (monitor && idemq_queue_by_id(id, &queue))) &&
			idemq_handler_read(id, &info))
			add_handler(set, &info, queue.qstate, allowed);
	}
	return (Datum) 0;
}

/*
 * worker_state() -> one row; all NULL if no worker is running.  For the view
 * idemq.background_worker.  A worker that has just begun a long piece of work is not shown as
 * stuck yet.
 */
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
	/* In a database that follows another one, nothing is due. */
	row_add_if(&row, known && !idemq_follows(), idemq_interval_datum(health.lag));
	return idemq_row_datum(fcinfo, row.values, row.nulls);
}

/*
 * task_counts() -> setof (task, runs, failures, busy); no rows if no worker is registered for the
 * database.  For the view idemq.maintenance_tasks.
 */
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
