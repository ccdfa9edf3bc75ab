/*
 * observe/metrics.c
 *		SQL functions behind idemq.metrics, idemq.memory and the views of what is counted on
 *		the whole server: queue_metrics, recount, memory_usage, server_counts.
 *
 * They read, also on a standby and in a read-only transaction.  Gauges that
 * shared memory does not know are counted by SQL, and known from then on, unless
 * that cannot be: a queue without a slot, a standby, a transaction that has
 * changed something, a count that was just now.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/slots/slots.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_queue_metrics);
PG_FUNCTION_INFO_V1(idemq_sql_v2_recount);
PG_FUNCTION_INFO_V1(idemq_sql_v2_memory_usage);
PG_FUNCTION_INFO_V1(idemq_sql_v2_server_counts);

/* A job that is ready for longer is said to be so for that long. */
#define OLDEST_AGE (36500 * USECS_PER_DAY)

/* The jobs as SQL counts them, once they are asked for. */
typedef struct SqlGauges
{
	bool counted;
	QueueCount *counts;
	int ncounts;
} SqlGauges;

static const double quantiles[] = {0.5, 0.95, 0.99};

/* Returns the number of a queue's jobs by status, from SQL. */
static const int64 *
gauges_by_sql(SqlGauges *gauges, int32 queue_id)
{
	static const int64 none[JOB_STATUS_COUNT] = {0};
	QueueCount *found;

	if (!gauges->counted)
		gauges->counts = idemq_queue_counts_by_sql(&gauges->ncounts);
	gauges->counted = true;
	found = bsearch(&queue_id, gauges->counts, gauges->ncounts, sizeof(QueueCount),
					idemq_compare_int32);
	return found == NULL ? none : found->jobs;
}

/* Returns whether a claim would take a job. */
static bool
is_claimable(const Job *job, TimestampTz now)
{
	return idemq_transition_allowed(EVENT_CLAIM, job->status) &&
		   !(job->attempt == 0 && job->expires_at <= now);
}

/* Returns when the first claimable job of a priority was due, or, if that is later, limit. */
static TimestampTz
oldest_in_priority(JobsTable *table, int32 queue_id, int priority, ReadyKey from, TimestampTz limit)
{
	TimestampTz now = idemq_now();
	ReadyKey key;
	Job job;

	idemq_jobs_scan_begin(table, queue_id, priority, from, READY_KEY_MAX);
	while (idemq_jobs_scan_next(table, &key) && key.ready_at < limit)
	{
		CHECK_FOR_INTERRUPTS();
		if (!idemq_lease_busy(key.id) && idemq_jobs_scan_row(table, &job) &&
			is_claimable(&job, now))
			limit = key.ready_at;
	}
	idemq_jobs_scan_end(table);
	return limit;
}

/*
 * Returns since when, before now, a queue has had a job that can be claimed; now
 * when it has none.
 */
static TimestampTz
oldest_ready(const QueueInfo *queue, TimestampTz now)
{
	TimestampTz oldest = now;
	CursorView view;
	JobsTable table;

	/* Cursors first, then the snapshot: below them nothing is claimable in it. */
	idemq_cursor_read(queue->slot, queue->id, 0, &view);
	idemq_jobs_open_to_read(&table);
	for (int p = 0; p < IDEMQ_PRIORITIES; p++)
	{
		if (view.from[p].ready_at < oldest)
			oldest = oldest_in_priority(&table, queue->id, p, view.from[p], oldest);
	}
	idemq_jobs_close(&table);
	return oldest;
}

/*
 * Reads a queue's counters; count: and its gauges known if that can be, by counting.  false
 * when it has none.
 */
static bool
read_counters(const QueueInfo *queue, bool count, CounterView *view)
{
	int index;

	if (queue->slot == NULL)
		return false;
	index = idemq_slot_index(queue->slot);
	if (!idemq_counters_read(index, queue->id, view))
		return false;
	return view->known || !count || idemq_follows() || !idemq_queue_counts_run_if_due() ||
		   idemq_counters_read(index, queue->id, view);
}

/* Adds the jobs by status.  view: NULL for none; sql_gauges: NULL to leave out what would have to be counted. */
static void
add_gauges(RowBuilder *row, const QueueInfo *queue, const CounterView *view, SqlGauges *sql_gauges)
{
	const int64 *gauges = NULL;

	if (view != NULL && view->known && !RecoveryInProgress() && !idemq_follows())
		gauges = view->gauges;
	else if (sql_gauges != NULL)
		gauges = gauges_by_sql(sql_gauges, queue->id);
	/* Of two commits, the later may be counted first. */
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		row_add_if(row, gauges != NULL, Int64GetDatum(gauges == NULL ? 0 : Max(gauges[i], 0)));
}

/* Makes a row of queue_metrics; steps: those without an answer. */
static void
make_metrics(RowBuilder *row, const QueueInfo *queue, SqlGauges *sql_gauges, const StepCount *steps)
{
	CounterView view = {0};
	bool in_memory = read_counters(queue, sql_gauges != NULL, &view);
	TimestampTz now = idemq_now();
	TimestampTz oldest;
	SlotStatus status = {0};
	bool has_status = queue->slot != NULL && !idemq_follows() &&
					  idemq_slot_status(queue->id, &status);
	bool has_places = has_status && queue->group_running > 1;

	row_add(row, Int32GetDatum(queue->id));
	add_gauges(row, queue, in_memory ? &view : NULL, sql_gauges);
	/* Nothing can be claimed from a database that follows another; its cursors say nothing. */
	oldest = idemq_follows() ? now : oldest_ready(queue, now);
	row_add_if(row, oldest < now, idemq_interval_datum(now - Max(oldest, now - OLDEST_AGE)));
	for (int i = 0; i < COUNTER_COUNT; i++)
		row_add_if(row, in_memory, Int64GetDatum((int64) view.counters[i]));
	for (int i = 0; i < TIMING_COUNT * (int) lengthof(quantiles); i++)
	{
		int64 usecs = idemq_histogram_quantile(view.timings[i / lengthof(quantiles)],
											   quantiles[i % lengthof(quantiles)]);

		row_add_if(row, in_memory && usecs >= 0, idemq_interval_datum(usecs));
	}
	row_add(row, BoolGetDatum(in_memory));
	row_add_if(row, in_memory, TimestampTzGetDatum(view.since));
	row_add_if(row, has_status, BoolGetDatum(status.needs_recovery));
	row_add_if(row, has_status, Int32GetDatum(has_status ? idemq_running_count(queue->slot) : 0));
	row_add(row, Int64GetDatum(steps == NULL ? 0 : steps->open));
	row_add(row, Int64GetDatum(steps == NULL ? 0 : steps->unknown));
	row_add_if(row, has_places,
			   Int64GetDatum(has_places ? idemq_groups_limited(MyDatabaseId, queue->id) : 0));
}

/*
 * queue_metrics(count) -> setof a queue's metrics: of the queues that the role may
 * claim from or administer, of all for members of pg_monitor.
 */
Datum
idemq_sql_v2_queue_metrics(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);
	bool all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	bool counts = idemq_arg_bool(fcinfo, 0, "count");
	SqlGauges gauges = {0};
	int count;
	int32 *ids = idemq_queue_ids(all ? 0 : PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &count);
	int nsteps;
	StepCount *steps = idemq_steps_count(&nsteps);

	for (int i = 0; i < count; i++)
	{
		RowBuilder row = {0};
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(ids[i], &queue))
			continue;
		make_metrics(&row, &queue, counts ? &gauges : NULL,
					 bsearch(&queue.id, steps, nsteps, sizeof(StepCount), idemq_compare_int32));
		tuplestore_putvalues(store, desc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/* recount() -> number of jobs; 25001, 25006, 54000, 55006. */
Datum
idemq_sql_v2_recount(PG_FUNCTION_ARGS)
{
	int64 jobs = 0;

	switch (idemq_queue_counts_try(&jobs))
	{
		case COUNT_BEGUN:
			break;
		case COUNT_BUSY:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE), errmsg("another session is counting the jobs"),
					 errhint("Its count is as good as yours; wait for it.")));
		case COUNT_CROWDED:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("too many transactions are open, or databases use idemq, to count"),
					 errhint("Until jobs are counted, idemq.metrics counts them by SQL.")));
	}
	PG_RETURN_INT64(jobs);
}

/* Adds a row of memory_usage. */
static void
put_usage(Tuplestorestate *store, TupleDesc desc, const char *resource, TableUsage usage)
{
	RowBuilder row = {0};

	row_add(&row, CStringGetTextDatum(resource));
	row_add(&row, Int64GetDatum(usage.used));
	row_add(&row, Int64GetDatum(usage.room));
	row_add(&row, Int64GetDatum(usage.refused));
	tuplestore_putvalues(store, desc, row.values, row.nulls);
}

/* memory_usage() -> setof (resource, used, size, refused). */
Datum
idemq_sql_v2_memory_usage(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);

	put_usage(store, desc, "leases", idemq_leases_usage());
	put_usage(store, desc, "leases of this database", idemq_leases_usage_mine());
	put_usage(store, desc, "buckets", idemq_buckets_usage());
	put_usage(store, desc, "groups", idemq_groups_usage());
	put_usage(store, desc, "queues", idemq_slots_usage());
	return (Datum) 0;
}

/* server_counts() -> setof (name, value), what is counted on the whole server. */
Datum
idemq_sql_v2_server_counts(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Tuplestorestate *store = idemq_srf_begin(fcinfo, &desc);
	bool nulls[] = {false, false};

	for (ServerCount what = 0; what < SERVER_COUNTS; what++)
	{
		Datum values[] = {CStringGetTextDatum(idemq_server_count_names[what]),
						  Int64GetDatum(idemq_count_read(what))};

		tuplestore_putvalues(store, desc, values, nulls);
	}
	return (Datum) 0;
}
