/*
 * observe/timings.c
 *		SQL functions of how long jobs waited and ran: timing_buckets, cumulative from short to
 *		long, as Prometheus wants it; percentile and add_counts, for idemq.history.
 *
 * Four buckets of the histograms in shared memory (shared/counts/counters.c) make one here.  A
 * bound here is a power of two of microseconds, and a bound there too, so each count is exact.
 * The sum adds up the middles of the buckets there: it is off by 12.5 % at most, and grows
 * whenever a count does.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"

/* Bounds: 2^10 us (1 ms) to 2^35 us (9.5 hours), and then infinity. */
#define FIRST_EXPONENT 10
#define LAST_EXPONENT 35

static const char *const timing_names[] = {"wait", "run"};

StaticAssertDecl(lengthof(timing_names) == TIMING_COUNT, "each histogram has a name");

/* Adds the rows of one histogram. */
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
 * timing_buckets() -> setof (queue_id, timing, le, jobs, seconds): of the queues that the role
 * may claim from or administer, of all for members of pg_monitor; none of a queue without a state.
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

/* percentile(counts, part) -> interval; 22023. */
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

/* add_counts(counts, more) -> both together; 22023. */
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
