/*
 * observe/workers_view.c
 *		SQL function leases, behind the view idemq.workers: who holds what.
 *
 * The lease table is copied first, at one moment; then the rows are read, under a
 * snapshot that sees every claim whose lease had started by then.  What only the row
 * knows (worker, attempt) is NULL while the claim is open, or when the job has
 * moved on since.
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

PG_FUNCTION_INFO_V1(idemq_sql_v2_leases);

/* Columns of idemq.workers, from 0. */
typedef enum LeaseColumn
{
	LEASE_QUEUE,
	LEASE_JOB_ID,
	LEASE_WORKER,
	LEASE_PID,
	LEASE_ATTEMPT,
	LEASE_CLAIMED_AT,
	LEASE_DEADLINE,
	LEASE_EXPIRES_IN,
	LEASE_ATTACHED,
	LEASE_STATE
} LeaseColumn;

#define LEASE_COLUMNS 10

static const char *
state_of(const Lease *lease)
{
	if (lease->claiming)
		return "claiming";
	if (lease->ending.ender == NO_SESSION)
		return lease->cancels > 0 ? "cancelling" : "active";
	return lease->ending.reaping ? "reaping" : "ending";
}

static void
put(Datum *values, bool *nulls, LeaseColumn column, Datum value)
{
	values[column] = value;
	nulls[column] = false;
}

/* Fills what the row knows about the attempt. */
static void
fill_from_row(JobsTable *table, const Lease *lease, Datum *values, bool *nulls)
{
	Job job;

	if (!idemq_jobs_fetch(table, lease->key.job_id, &job) || job.status != JOB_PROCESSING ||
		job.token != lease->token)
		return;
	put(values, nulls, LEASE_ATTEMPT, Int32GetDatum(job.attempt));
	values[LEASE_WORKER] = job.row->tts_values[COL_WORKER];
	nulls[LEASE_WORKER] = job.row->tts_isnull[COL_WORKER];
	values[LEASE_CLAIMED_AT] = job.row->tts_values[COL_CLAIMED_AT];
	nulls[LEASE_CLAIMED_AT] = job.row->tts_isnull[COL_CLAIMED_AT];
}

static void
fill(JobsTable *table, const Lease *lease, const QueueInfo *queue, Datum *values, bool *nulls)
{
	int pid = idemq_lease_pid(lease);

	memset(nulls, true, LEASE_COLUMNS * sizeof(bool));
	put(values, nulls, LEASE_QUEUE, CStringGetTextDatum(queue->name));
	put(values, nulls, LEASE_JOB_ID, Int64GetDatum(lease->key.job_id));
	put(values, nulls, LEASE_ATTACHED, BoolGetDatum(lease->attached));
	put(values, nulls, LEASE_STATE, CStringGetTextDatum(state_of(lease)));
	if (pid != 0)
		put(values, nulls, LEASE_PID, Int32GetDatum(pid));
	if (!lease->claiming)
	{
		put(values, nulls, LEASE_DEADLINE,
			TimestampTzGetDatum(idemq_timestamp_from_mono(lease->deadline)));
		put(values, nulls, LEASE_EXPIRES_IN,
			idemq_interval_datum(lease->deadline - idemq_mono_now()));
	}
	fill_from_row(table, lease, values, nulls);
}

/* leases() -> setof lease of the queues that the role may see; pg_monitor sees all. */
Datum
idemq_sql_v2_leases(PG_FUNCTION_ARGS)
{
	bool sees_all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);
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
		Datum values[LEASE_COLUMNS] = {0};
		bool nulls[LEASE_COLUMNS];
		MemoryContext old;
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(leases[i].queue_id, &queue) ||
			!(sees_all || (queue.privileges & (PRIVILEGE_CLAIM | PRIVILEGE_ADMIN))))
			continue;
		old = MemoryContextSwitchTo(row_context);
		fill(&table, &leases[i], &queue, values, nulls);
		tuplestore_putvalues(store, desc, values, nulls);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row_context);
	}
	idemq_jobs_close(&table);
	return (Datum) 0;
}
