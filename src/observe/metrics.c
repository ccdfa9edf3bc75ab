/*
 * observe/metrics.c
 *		SQL functions behind idemq.metrics, idemq.memory and the views of what is counted on
 *		the whole server: queue_metrics, recount, memory_usage, server_counts.
 *
 * They only read, also on a standby and in a read-only transaction.  Gauges that
 * shared memory does not know are counted by SQL, and known from then on, unless
 * that cannot be: for a queue without a state, on a standby, in a transaction that has
 * changed something, or just after another count.
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
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"

/* The longest age of a ready job that is shown. */
#define OLDEST_AGE (36500 * USECS_PER_DAY)

/* The jobs as SQL counts them, once they are asked for. */
typedef struct SqlGauges
{
	QueueCount *counts;
	int ncounts;
} SqlGauges;

static const double quantiles[] = {0.5, 0.95, 0.99};

/*
 * Reads a queue's counters; false when it has none.  count: makes its gauges known, by
 * counting, if that can be.
 */
static bool
read_counters(const QueueInfo *queue, bool count, CounterView *view)
{
	return queue->qstate != NULL &&
		   idemq_counters_read(idemq_qstate_index(queue->qstate), queue->id, view) &&
		   (view->known || !count || idemq_follows() || !idemq_queue_counts_run_if_due() ||
			idemq_counters_read(idemq_qstate_index(queue->qstate), queue->id, view));
}

/*
 * Adds the jobs by status.  view: of shared memory, NULL for none; sql_gauges: NULL to leave out
 * what would have to be counted.
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
	/* Of two commits, the later may be counted first: a gauge may be below 0 for a moment. */
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		row_add_if(row, gauges != NULL, Int64GetDatum(gauges == NULL ? 0 : Max(gauges[i], 0)));
}

/*
 * Returns since when no worker has worked on a queue, though jobs are due; oldest: since when the
 * first job has been due.  No worker works on it if no job is in flight, no session has claimed,
 * and none sleeps until there is something.  DT_NOEND if a worker does, if nothing is due, or if
 * none has to: the queue is paused or held back, a limit keeps its jobs, or expect_workers is false; and before
 * a minute is over, since a worker may ask now and then.
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
	/* Nothing can be claimed from a database that follows another; its scan starts say nothing. */
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
	/* A lower bound is also shown, because it still tells that the queue is full. */
	counts_room = has_status && queue->max_unfinished > 0 &&
				  idemq_unfinished_view(queue->qstate, queue->id, &room);
	row_add_if(row, counts_room, Int64GetDatum(room.jobs + room.taken));
}

/*
 * queue_metrics(count) -> setof a queue's metrics: of the queues that the role may
 * claim from or administer, of all for members of pg_monitor.
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
	/* The counts for max_unfinished also lack rows that no trigger saw.  Enqueues count again. */
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

/* server_counts() -> setof (name, value), what is counted on the whole server. */
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
