/*
 * observe/metrics.c
 *		SQL functions that return what is counted: queue_metrics, recount, memory_usage and
 *		server_counts; timing_buckets, percentile and add_counts for histograms of times.
 *
 * They do not write, so they also work on a standby and in a read-only transaction.  If the gauges
 * of a queue are unknown in shared memory, its jobs are counted with SQL.  Where possible, the
 * result is kept in shared memory.  This is not possible for a queue without a state, on a
 * standby, in a transaction that has changed something, and just after another count.
 */
#include "postgres.h"

#include <math.h>

#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "job/job.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/* A ready job that is older is shown with this age. */
#define OLDEST_AGE (36500 * USECS_PER_DAY)

/* The jobs of all queues, counted with SQL when the first queue needs it; counts NULL: not yet. */
typedef struct SqlGauges
{
	QueueCount *counts;
	int ncounts;
} SqlGauges;

static const double quantiles[] = {0.5, 0.95, 0.99};

/* Bounds of timing_buckets: 2^10 us (1 ms) to 2^35 us (9.5 hours), then infinity. */
#define FIRST_EXPONENT 10
#define LAST_EXPONENT 35

static const char *const timing_names[] = {"wait", "run"};

StaticAssertDecl(lengthof(timing_names) == TIMING_COUNT, "a histogram has no name");

/*
 * Reads a queue's counters from shared memory; returns false if it has none.  count: if the gauges
 * are unknown, counts the jobs of the database, so that they become known, where possible.
 */
static bool
read_counters(const QueueInfo *queue, bool count, CounterView *view)
{
	int index;

	if (queue->qstate == NULL)
		return false;
	index = idemq_qstate_index(queue->qstate);
	if (!idemq_counters_read(index, queue->id, view))
		return false;
	if (!view->known && count && !idemq_follows() && idemq_queue_counts_run_if_due())
		return idemq_counters_read(index, queue->id, view);
	return true;
}

/*
 * Adds the number of jobs in each status.  view: the counters in shared memory, or NULL.
 * sql_gauges NULL: if the counters do not tell the numbers, they are NULL rather than counted with
 * SQL.
 */
static void
add_gauges(RowBuilder *row, const QueueInfo *queue, const CounterView *view, SqlGauges *sql_gauges)
{
	static const int64 none[JOB_STATUS_COUNT] = {0};
	const int64 *gauges = NULL;

	if (view != NULL && view->known && !RecoveryInProgress() && !idemq_follows())
		gauges = view->gauges;
	else if (sql_gauges != NULL)
	{
		const QueueCount *found;

		if (sql_gauges->counts == NULL)
			sql_gauges->counts = idemq_queue_counts_by_sql(&sql_gauges->ncounts);
		found = bsearch(&queue->id, sql_gauges->counts, sql_gauges->ncounts, sizeof(QueueCount),
						idemq_compare_int32);
		gauges = found == NULL ? none : found->jobs;
	}
	/* The counts of a later commit may be added first, so a gauge can be negative for a moment. */
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		row_add_if(row, gauges != NULL, Int64GetDatum(gauges == NULL ? 0 : Max(gauges[i], 0)));
}

/*
 * Returns since when a queue has had ready jobs but no worker; oldest: since when its first job
 * has been ready.  A queue has no worker if no job is running, no session is waiting for its jobs,
 * and no session claims from it.  Returns DT_NOEND if the queue has a worker or no ready job, if
 * it needs no worker (it is paused or held back, a limit is reached, or expect_workers is false),
 * and during the first minute, because a worker may claim only from time to time.
 */
TimestampTz
idemq_unattended_since(const QueueInfo *queue, TimestampTz oldest, TimestampTz now)
{
	TimestampTz since = oldest;
	CounterView counts;
	LimitView limit;
	int64 claimed_at;

	if (oldest > now - USECS_PER_MINUTE || queue->qstate == NULL || !queue->expect_workers ||
		idemq_queue_is_closed(queue) || RecoveryInProgress() || idemq_follows() ||
		idemq_running_count(queue->qstate) > 0 ||
		idemq_waiters_any(idemq_waiters_of_queue(queue->qstate)))
		return DT_NOEND;
	idemq_limit_view(queue, &limit);
	if (limit.state != LIMIT_OPEN ||
		!idemq_counters_read(idemq_qstate_index(queue->qstate), queue->id, &counts))
		return DT_NOEND;
	claimed_at = (int64) pg_atomic_read_u64(&queue->qstate->claimed_at);
	since = Max(since, counts.since);
	if (claimed_at > 0)
		since = Max(since, idemq_timestamp_from_mono(claimed_at));
	return since > now - USECS_PER_MINUTE ? DT_NOEND : since;
}

/* Fills in a queue's row of queue_metrics; sql_gauges: as for add_gauges. */
static void
make_metrics(RowBuilder *row, const QueueInfo *queue, SqlGauges *sql_gauges)
{
	CounterView view = {0};
	bool in_memory = read_counters(queue, sql_gauges != NULL, &view);
	TimestampTz now = idemq_now();
	TimestampTz oldest;
	TimestampTz unattended;
	QueueStateSummary status = {0};
	bool has_status = queue->qstate != NULL && !idemq_follows() &&
					  idemq_qstate_summary(queue->id, &status);
	bool uses_permits = has_status && queue->group_max_running > 1;
	UnfinishedView room = {0};
	bool counts_room;

	row_add(row, Int32GetDatum(queue->id));
	add_gauges(row, queue, in_memory ? &view : NULL, sql_gauges);
	/*
	 * In a database that follows another one, scan starts are not maintained, and no job is ready.
	 */
	oldest = idemq_follows() ? now : idemq_ready_oldest(queue, now);
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
	row_add_if(row, has_status, Int32GetDatum(has_status ? idemq_running_count(queue->qstate) : 0));
	row_add_if(row, uses_permits,
			   Int64GetDatum(uses_permits ? idemq_groups_limited(MyDatabaseId, queue->id) : 0));
	unattended = idemq_unattended_since(queue, oldest, now);
	row_add_if(row, unattended != DT_NOEND,
			   idemq_interval_datum(now - Max(unattended, now - OLDEST_AGE)));
	/* The count may be a lower bound; even that can show that the queue is full. */
	counts_room = has_status && queue->max_unfinished > 0 &&
				  idemq_unfinished_view(queue->qstate, queue->id, &room);
	row_add_if(row, counts_room, Int64GetDatum(room.jobs + room.taken));
}

/*
 * queue_metrics(count) -> setof row, for the queues that the role may claim from or administer;
 * members of pg_monitor see all queues.  count: jobs are counted if necessary.
 */
SQL_FUNCTION(idemq_sql_queue_metrics)
{
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	bool all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	bool counts = idemq_arg_bool(fcinfo, 0, "count");
	SqlGauges gauges = {0};
	int count;
	int32 *ids = idemq_queue_ids(all ? 0 : PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &count);

	for (int i = 0; i < count; i++)
	{
		RowBuilder row = {0};
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(ids[i], &queue))
			continue;
		make_metrics(&row, &queue, counts ? &gauges : NULL);
		tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/* recount() -> number of jobs; 25001, 25006, 54000, 55006. */
SQL_FUNCTION(idemq_sql_recount)
{
	int64 jobs = 0;
	CountStart start = idemq_queue_counts_try(&jobs);

	if (start == COUNT_BUSY)
		ereport(
			ERROR, errcode(ERRCODE_OBJECT_IN_USE), errmsg("another session is counting the jobs"),
			errhint(
				"Wait for that session to finish. Its result will be available to all sessions."));
	if (start == COUNT_CROWDED)
		ereport(ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg(
					"cannot count jobs: too many transactions are open, or too many databases use "
					"idemq"),
				errhint("Try again later. Until then, idemq.metrics counts jobs with SQL."));
	/*
	 * The counts for max_unfinished may be wrong for the same reason.  Enqueues will count again.
	 */
	idemq_unfinished_unset_database(MyDatabaseId);
	PG_RETURN_INT64(jobs);
}

/* memory_usage() -> setof (resource, used, size, refused). */
SQL_FUNCTION(idemq_sql_memory_usage)
{
	const struct
	{
		const char *resource;
		TableUsage usage;
	} tables[] = {{"leases", idemq_leases_usage()},
				  {"leases of this database", idemq_leases_usage_mine()},
				  {"buckets", idemq_buckets_usage()},
				  {"groups", idemq_groups_usage()},
				  {"group room", idemq_group_room_usage()},
				  {"queues", idemq_qstates_usage()}};
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);

	for (int i = 0; i < (int) lengthof(tables); i++)
	{
		RowBuilder row = {0};

		row_add(&row, CStringGetTextDatum(tables[i].resource));
		row_add(&row, Int64GetDatum(tables[i].usage.used));
		row_add(&row, Int64GetDatum(tables[i].usage.room));
		row_add(&row, Int64GetDatum(tables[i].usage.refused));
		tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/* server_counts() -> setof (name, value): counts of the whole server. */
SQL_FUNCTION(idemq_sql_server_counts)
{
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	bool nulls[] = {false, false};

	for (ServerCount what = 0; what < SERVER_COUNTS; what++)
	{
		Datum values[] = {CStringGetTextDatum(idemq_server_count_names[what]),
						  Int64GetDatum(idemq_count_read(what))};

		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Adds the rows of one histogram of timing_buckets.
 *
 * Four buckets of a histogram in shared memory (base/histogram.c) make one bucket here.  A power
 * of two is a bound in both, so the counts are exact.  The sum of the times is computed from the
 * middles of the buckets, so its error is at most 12.5 %; it grows whenever a count grows.
 */
static void
put_buckets(ReturnSetInfo *set, int32 queue_id, Timing timing, const uint64 *buckets)
{
	uint64 all = 0;

	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		all += buckets[i];
	for (int e = FIRST_EXPONENT; e <= LAST_EXPONENT + 1; e++)
	{
		bool last = e > LAST_EXPONENT;
		double le = last ? get_float8_infinity() : ldexp(1, e) / USECS_PER_SEC;
		uint64 jobs = last ? all : idemq_histogram_below(buckets, e);
		RowBuilder row = {0};

		row_add(&row, Int32GetDatum(queue_id));
		row_add(&row, CStringGetTextDatum(timing_names[timing]));
		row_add(&row, Float8GetDatum(le));
		row_add(&row, Int64GetDatum((int64) jobs));
		row_add_if(&row, last, Float8GetDatum(idemq_histogram_sum(buckets) / USECS_PER_SEC));
		tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
	}
}

/*
 * timing_buckets() -> setof (queue_id, timing, le, jobs, seconds): cumulative histograms, as
 * Prometheus expects them, for the same queues as queue_metrics, except queues without a state.
 */
SQL_FUNCTION(idemq_sql_timing_buckets)
{
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	bool all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	int count;
	int32 *ids = idemq_queue_ids(all ? 0 : PRIVILEGE_CLAIM | PRIVILEGE_ADMIN, &count);

	for (int i = 0; i < count; i++)
	{
		CounterView view;
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		if (!idemq_queue_by_id(ids[i], &queue) || queue.qstate == NULL ||
			!idemq_counters_read(idemq_qstate_index(queue.qstate), queue.id, &view))
			continue;
		for (int t = 0; t < TIMING_COUNT; t++)
			put_buckets(set, queue.id, (Timing) t, view.timings[t]);
	}
	return (Datum) 0;
}

/* percentile(counts, part) -> interval, for the histograms in idemq.history; 22023. */
SQL_FUNCTION(idemq_sql_percentile)
{
	uint64 buckets[HISTOGRAM_BUCKETS] = {0};
	int64 usecs;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	idemq_histogram_unpack(PG_GETARG_ARRAYTYPE_P(0), buckets);
	usecs = idemq_histogram_quantile(buckets, idemq_arg_float(fcinfo, 1, "part", 0, 1));
	if (usecs < 0)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(idemq_interval_datum(usecs));
}

/* add_counts(counts, more) -> the sum of two such histograms; 22023. */
SQL_FUNCTION(idemq_sql_add_counts)
{
	uint64 buckets[HISTOGRAM_BUCKETS] = {0};
	ArrayType *sum;

	idemq_histogram_unpack(PG_GETARG_ARRAYTYPE_P(0), buckets);
	idemq_histogram_unpack(PG_GETARG_ARRAYTYPE_P(1), buckets);
	sum = idemq_histogram_pack(buckets);
	if (sum == NULL)
		PG_RETURN_NULL();
	PG_RETURN_ARRAYTYPE_P(sum);
}
