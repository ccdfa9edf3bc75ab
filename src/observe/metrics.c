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

/* The columns of queue_metrics. */
enum
{
	METRIC_QUEUE_ID,
	METRIC_GAUGES,
	METRIC_OLDEST_READY = METRIC_GAUGES + JOB_STATUS_COUNT,
	METRIC_COUNTERS,
	METRIC_TIMINGS = METRIC_COUNTERS + COUNTER_COUNT,
	METRIC_IN_MEMORY = METRIC_TIMINGS + TIMING_COUNT * 3,
	METRIC_SINCE,
	METRIC_RECOVERING,
	METRIC_RUNNING,
	METRIC_STEPS_OPEN,
	METRIC_STEPS_UNKNOWN,
	METRIC_GROUPS_LIMITED,
	METRIC_COLUMNS
};

/* A job that is ready for longer is said to be so for that long. */
#define OLDEST_AGE (36500 * USECS_PER_DAY)

/* The jobs as SQL counts them, once they are asked for. */
typedef struct SqlGauges
{
	bool counted;
	QueueCount *counts;
	int ncounts;
} SqlGauges;

/* Steps that have no answer, of each queue with any; an index has them, and no others. */
typedef struct StepGauges
{
	StepCount *counts;
	int ncounts;
} StepGauges;

static const double quantiles[] = {0.5, 0.95, 0.99};

/* Returns the number of a queue's jobs by status, from SQL. */
static const int64 *
gauges_by_sql(SqlGauges *gauges, int32 queue_id)
{
	static const int64 none[JOB_STATUS_COUNT] = {0};
	QueueCount wanted = {.queue_id = queue_id};
	QueueCount *found;

	if (!gauges->counted)
		gauges->counts = idemq_queue_counts_by_sql(&gauges->ncounts);
	gauges->counted = true;
	found =
		bsearch(&wanted, gauges->counts, gauges->ncounts, sizeof(QueueCount), idemq_compare_int32);
	return found == NULL ? none : found->jobs;
}

/* Fills how many steps of a queue are open and unknown. */
static void
fill_steps(const StepGauges *gauges, int32 queue_id, Datum *values, bool *nulls)
{
	StepCount wanted = {.queue_id = queue_id};
	StepCount *found =
		bsearch(&wanted, gauges->counts, gauges->ncounts, sizeof(StepCount), idemq_compare_int32);

	if (found == NULL)
		found = &wanted;
	values[METRIC_STEPS_OPEN] = Int64GetDatum(found->open);
	values[METRIC_STEPS_UNKNOWN] = Int64GetDatum(found->unknown);
	nulls[METRIC_STEPS_OPEN] = nulls[METRIC_STEPS_UNKNOWN] = false;
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

/* Fills what shared memory knows but the gauges; the columns are NULL so far. */
static void
fill_counters(const CounterView *view, Datum *values, bool *nulls)
{
	for (int i = 0; i < COUNTER_COUNT; i++)
	{
		values[METRIC_COUNTERS + i] = Int64GetDatum((int64) view->counters[i]);
		nulls[METRIC_COUNTERS + i] = false;
	}
	for (int i = 0; i < TIMING_COUNT * (int) lengthof(quantiles); i++)
	{
		int64 usecs = idemq_histogram_quantile(view->timings[i / lengthof(quantiles)],
											   quantiles[i % lengthof(quantiles)]);

		if (usecs < 0)
			continue;
		values[METRIC_TIMINGS + i] = idemq_interval_datum(usecs);
		nulls[METRIC_TIMINGS + i] = false;
	}
	values[METRIC_SINCE] = TimestampTzGetDatum(view->since);
	nulls[METRIC_SINCE] = false;
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

/* Fills a row of queue_metrics.  sql_gauges: NULL to leave out what would have to be counted. */
static void
fill_metrics(const QueueInfo *queue, SqlGauges *sql_gauges, Datum *values, bool *nulls)
{
	CounterView view;
	bool in_memory = read_counters(queue, sql_gauges != NULL, &view);
	const int64 *gauges = NULL;
	TimestampTz now = idemq_now();
	TimestampTz oldest;
	SlotStatus status;

	memset(nulls, true, METRIC_COLUMNS * sizeof(bool));
	nulls[METRIC_QUEUE_ID] = false;
	values[METRIC_QUEUE_ID] = Int32GetDatum(queue->id);
	if (in_memory && view.known && !RecoveryInProgress() && !idemq_follows())
		gauges = view.gauges;
	else if (sql_gauges != NULL)
		gauges = gauges_by_sql(sql_gauges, queue->id);
	for (int i = 0; gauges != NULL && i < JOB_STATUS_COUNT; i++)
	{
		/* Of two commits, the later may be counted first. */
		values[METRIC_GAUGES + i] = Int64GetDatum(Max(gauges[i], 0));
		nulls[METRIC_GAUGES + i] = false;
	}
	/* Nothing can be claimed from a database that follows another; its cursors say nothing. */
	oldest = idemq_follows() ? now : oldest_ready(queue, now);
	oldest = Max(oldest, now - OLDEST_AGE);
	if (oldest < now)
	{
		values[METRIC_OLDEST_READY] = idemq_interval_datum(now - oldest);
		nulls[METRIC_OLDEST_READY] = false;
	}
	if (in_memory)
		fill_counters(&view, values, nulls);
	values[METRIC_IN_MEMORY] = BoolGetDatum(in_memory);
	nulls[METRIC_IN_MEMORY] = false;
	if (queue->slot != NULL && !idemq_follows() && idemq_slot_status(queue->id, &status))
	{
		values[METRIC_RECOVERING] = BoolGetDatum(status.needs_recovery);
		nulls[METRIC_RECOVERING] = false;
		values[METRIC_RUNNING] = Int32GetDatum(idemq_running_count(queue->slot));
		nulls[METRIC_RUNNING] = false;
		if (queue->group_running > 1)
		{
			values[METRIC_GROUPS_LIMITED] =
				Int64GetDatum(idemq_groups_limited(MyDatabaseId, queue->id));
			nulls[METRIC_GROUPS_LIMITED] = false;
		}
	}
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
	StepGauges steps;
	int count;
	int32 *ids = idemq_queue_ids(all ? 0 : PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &count);

	steps.counts = idemq_steps_count(&steps.ncounts);
	for (int i = 0; i < count; i++)
	{
		Datum values[METRIC_COLUMNS];
		bool nulls[METRIC_COLUMNS];
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(ids[i], &queue))
			continue;
		fill_metrics(&queue, counts ? &gauges : NULL, values, nulls);
		fill_steps(&steps, queue.id, values, nulls);
		tuplestore_putvalues(store, desc, values, nulls);
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
	Datum values[] = {CStringGetTextDatum(resource), Int64GetDatum(usage.used),
					  Int64GetDatum(usage.room), Int64GetDatum(usage.refused)};
	bool nulls[] = {false, false, false, false};

	tuplestore_putvalues(store, desc, values, nulls);
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
