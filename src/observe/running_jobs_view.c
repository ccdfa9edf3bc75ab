/*
 * observe/running_jobs_view.c
 *		SQL function leases, behind the view idemq.running_jobs: who holds what.
 *
 * The lease table is copied first, each entry as it was at some moment; then the rows are read,
 * under a snapshot that sees every claim whose lease had started by then.  What only the row
 * knows (worker, attempt) is NULL while the claim is open, or when the job has moved on since.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "table/table.h"

/* Adds a column of the job's row, if that shows the attempt. */
static void
add_column(RowBuilder *row, const Job *job, bool shown, JobColumn column)
{
	bool known = shown && !job->row->tts_isnull[column];

	row_add_if(row, known, known ? job->row->tts_values[column] : (Datum) 0);
}

/* leases() -> setof lease of the queues that the role may see; pg_monitor sees all. */
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
		bool shown;
		Job job;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(lease->queue_id, &queue) ||
			!(sees_all || (queue.privileges & (PRIVILEGE_CLAIM | PRIVILEGE_ADMIN))))
			continue;
		old = MemoryContextSwitchTo(row_context);
		shown = idemq_jobs_fetch(&table, lease->key.job_id, &job) &&
				job_is_attempt(&job, lease->token);
		row_add(&row, CStringGetTextDatum(queue.name));
		row_add(&row, Int64GetDatum(lease->key.job_id));
		add_column(&row, &job, shown, COL_WORKER);
		row_add_if(&row, pid != 0, Int32GetDatum(pid));
		add_column(&row, &job, shown, COL_ATTEMPT);
		add_column(&row, &job, shown, COL_CLAIMED_AT);
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
		tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row_context);
	}
	idemq_jobs_close(&table);
	return (Datum) 0;
}
