/*
 * worker/history.c
 *		The figures of each queue over time, for charts: task "history".
 *
 * At the end of each step of 10 s of the wall clock, the worker writes one row for each queue that
 * has changed, and one row for all queues together.  Every minute, and every 10 minutes, it folds
 * rows into one.  SQL defines the rows and writes them (sql/parts/71_history.sql); this file reads
 * the counters in shared memory.
 *
 * A row contains the differences to the counters at the end of the last step that was written,
 * which this process remembers.  If a queue's counters have been reset, and therefore have another
 * counted_since, the row contains the counters themselves.  When a worker starts, or idemq.history
 * is turned on, the worker remembers the present counters; but if they are younger than a step,
 * because the server has just started, they count from zero.  So no event is counted in two steps,
 * and no step contains the events of a time in which no worker wrote.
 *
 * The worker does not poll.  A commit that has counted something requests a step, at most once per
 * step (shared/processes/worker_call.c), and wakes the worker if it would sleep past the end of the
 * step.  So in an idle database the worker wakes only at the end of the last minute and of the last
 * 10 minutes.  It takes the request before it reads the counters, so a later change makes a new
 * request.
 *
 * All state is local to the process.  The counters that a step has read replace the remembered ones
 * after its transaction has committed (idemq_history_ended).  This file has no locks of its own.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "worker/worker.h"

/* Lengths of the steps.  The first is read from memory; each other one is folded from the previous. */
static const int64 steps[] = {IDEMQ_HISTORY_STEP, USECS_PER_MINUTE, 10 * USECS_PER_MINUTE};
#define STEPS ((int) lengthof(steps))

static const JobStatus gauges[] = {JOB_PENDING, JOB_BLOCKED, JOB_RUNNING, JOB_RETRYING, JOB_DEAD};
static const Counter counters[] = {COUNTER_ENQUEUED, COUNTER_CLAIMED, COUNTER_COMMITTED,
								   COUNTER_FAILED,	 COUNTER_DEAD,	  COUNTER_CANCELLED,
								   COUNTER_EXPIRED};

/* The figures of a queue at one moment. */
typedef struct Figures
{
	CounterView counts;
	TimestampTz due; /* since when a job has been ready; DT_NOEND: none is ready */
} Figures;

/* The figures of a queue, or of all queues together (queue_id 0). */
typedef struct Known
{
	int32 queue_id; /* hash key */
	bool seen;		/* the queue exists in the current step */
	Figures last;	/* at the end of the last step that was written */
	Figures next;	/* at the end of the current step; they become last when it has committed */
} Known;

static HTAB *history_known = NULL;

/* The end of the step that must be written next; 0: none. */
static TimestampTz next_step = 0;
/* For each length of a step, the end of the last one that was written; 0: not known. */
static TimestampTz written[STEPS];
/* The value of written after the current transaction has committed. */
static TimestampTz history_writing[STEPS];
/* Whether the current transaction reads the counters, and the end of the step that it writes. */
static bool reading;
static TimestampTz reading_until;

/* Returns the end of the step that contains a time; a time at the end of a step belongs to it. */
static TimestampTz
end_of_step(TimestampTz at, int64 step)
{
	return at + (step - at % step) % step;
}

/*
 * Starts from scratch: each queue's next row will contain the differences to its present counters.
 * Counters that began after young count from zero.
 */
void
idemq_history_begin(TimestampTz young)
{
	HASHCTL info = {.keysize = sizeof(int32), .entrysize = sizeof(Known)};
	QueueStateView view = {0};

	if (history_known != NULL)
		hash_destroy(history_known);
	history_known = hash_create("idemq history", 64, &info, HASH_ELEM | HASH_BLOBS);
	while (idemq_qstate_next(MyDatabaseId, &view))
	{
		CounterView counts;
		Known *queue;

		if (!idemq_counters_read(idemq_qstate_index(view.qstate), view.queue_id, &counts) ||
			counts.since > young)
			continue;
		queue = hash_search(history_known, &view.queue_id, HASH_ENTER, NULL);
		queue->seen = false;
		queue->last.counts = counts;
		/* This makes the next row contain the gauges even if they do not change. */
		queue->last.counts.known = false;
		queue->last.due = DT_NOEND;
	}
	next_step = 0;
	/* Rows that a former worker did not fold are folded when this worker has written some. */
	memset(written, 0, sizeof(written));
	idemq_worker_note_counts();
}

/* Returns when (mono) a step must be written or folded; PG_INT64_MAX: never. */
int64
idemq_history_due_at(const QueueStateView *view)
{
	static bool was_off = false;
	TimestampTz now = idemq_now();
	TimestampTz due;

	if (was_off && idemq_history)
		idemq_history_begin(DT_NOEND);
	was_off = !idemq_history;
	if (was_off)
		return PG_INT64_MAX;
	if (!idemq_worker_is_asked(WORKER_ASKED_HISTORY, false))
		next_step = 0;
	/* If the clock was set back, next_step may be far in the future. */
	else if (next_step == 0 || next_step > now + IDEMQ_HISTORY_STEP)
		next_step =
			end_of_step(idemq_test_clock ? idemq_clock_counted_at() : now, IDEMQ_HISTORY_STEP);
	due = next_step == 0 ? DT_NOEND : next_step;
	for (int i = 1; i < STEPS; i++)
	{
		if (written[i - 1] > written[i])
			due = Min(due, end_of_step(written[i - 1], steps[i]));
	}
	return due == DT_NOEND ? PG_INT64_MAX : idemq_mono_now() + Max(due - now, 0);
}

/* $2: the end of the last step of that length, or -infinity. */
static SqlStatement write_rows =
	{.text = "SELECT idemq_internal.write_history($1, nullif($2, '-infinity'), $3)",
	 .types = {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID},
	 .locks = true,
	 .fields = SQL_SCALAR(int64)};

/* Writes the steps of a length, from the last one written to until; returns whether it wrote a row. */
static bool
write_up_to(int step, TimestampTz until)
{
	TimestampTz since = written[step] == 0 ? DT_NOBEGIN : written[step];
	Datum values[] = {Int32GetDatum((int32) (steps[step] / USECS_PER_SEC)),
					  TimestampTzGetDatum(since), TimestampTzGetDatum(until)};
	int64 rows;

	(void) idemq_spi_row(&write_rows, values, &rows, sizeof(rows));
	return rows > 0;
}

/* Task "history": writes the step that has ended, and folds earlier steps. */
void
idemq_history_write(void)
{
	TimestampTz now = idemq_now();

	memcpy(history_writing, written, sizeof(history_writing));
	reading = next_step != 0 && next_step <= now;
	if (reading)
	{
		TimestampTz until = now - now % steps[0];

		/* When the test clock jumps, nothing happens between the end of the step and now. */
		if (idemq_test_clock)
			until = Max(next_step, written[0] + steps[0]);
		reading_until = until;

		/* Before the counters are read, so that a later change makes a new request. */
		(void) idemq_worker_is_asked(WORKER_ASKED_HISTORY, true);
		if (write_up_to(0, until))
			history_writing[0] = until;
	}
	for (int i = 1; i < STEPS; i++)
	{
		/* Up to the end of the step that contains the last row; there is nothing to fold after it. */
		TimestampTz until = end_of_step(history_writing[i - 1], steps[i]);

		/* Nothing is left to fold, or the step has not ended. */
		if (history_writing[i - 1] <= history_writing[i] || until > now)
			continue;
		(void) write_up_to(i, until);
		history_writing[i] = until;
	}
}

/* Called after the transaction of idemq_history_write: applies what it read, or requests it again. */
void
idemq_history_ended(const QueueStateView *view, bool done)
{
	HASH_SEQ_STATUS all;
	Known *queue;

	if (done)
		memcpy(written, history_writing, sizeof(written));
	if (!reading)
		return;
	reading = false;
	next_step = 0;
	if (!done)
		idemq_worker_note_counts();
	hash_seq_init(&all, history_known);
	while ((queue = hash_seq_search(&all)) != NULL)
	{
		if (done && queue->seen)
			queue->last = queue->next;
		else if (done)
			(void) hash_search(history_known, &queue->queue_id, HASH_REMOVE, NULL);
		queue->seen = false;
	}
}

/* Reads the figures of a queue into its hash entry; returns NULL if the queue has none. */
static Known *
read_figures(int32 queue_id)
{
	QueueInfo queue;
	CounterView counts;
	Known *it;
	bool found;
	TimestampTz now = idemq_now();

	if (!idemq_queue_by_id(queue_id, &queue) || queue.qstate == NULL ||
		!idemq_counters_read(idemq_qstate_index(queue.qstate), queue.id, &counts))
		return NULL;
	it = hash_search(history_known, &queue_id, HASH_ENTER, &found);
	if (!found)
		it->last = (Figures){.due = DT_NOEND};
	if (it->last.counts.since != counts.since)
	{
		memset(it->last.counts.counters, 0, sizeof(it->last.counts.counters));
		memset(it->last.counts.timings, 0, sizeof(it->last.counts.timings));
	}
	it->seen = true;
	it->next.counts = counts;
	it->next.due = DT_NOEND;
	/* Saves a scan of the index if no job is waiting. */
	if (!counts.known || counts.gauges[JOB_PENDING] + counts.gauges[JOB_RETRYING] > 0)
	{
		TimestampTz oldest = idemq_ready_oldest(&queue, now);

		if (oldest < Min(now, reading_until))
			it->next.due = oldest;
	}
	return it;
}

/* Adds the events of a queue in the current step, and its gauges, to the figures of all queues. */
static void
add_to_all(Known *all, const Known *queue)
{
	all->next.due = Min(all->next.due, queue->next.due);
	all->next.counts.known &= queue->next.counts.known;
	for (int i = 0; i < JOB_STATUS_COUNT; i++)
		all->next.counts.gauges[i] += Max(queue->next.counts.gauges[i], 0);
	for (int i = 0; i < COUNTER_COUNT; i++)
		all->next.counts.counters[i] += queue->next.counts.counters[i] -
										queue->last.counts.counters[i];
	for (int t = 0; t < TIMING_COUNT; t++)
	{
		for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
			all->next.counts.timings[t][i] += queue->next.counts.timings[t][i] -
											  queue->last.counts.timings[t][i];
	}
}

/* Returns whether a queue has changed in the current step, so that it needs a row. */
static bool
has_changed(const Known *queue)
{
	const CounterView *last = &queue->last.counts;
	const CounterView *next = &queue->next.counts;

	if (queue->last.due != queue->next.due || (last->known != next->known && next->known))
		return true;
	for (int i = 0; i < (int) lengthof(gauges); i++)
	{
		if (next->known && last->gauges[gauges[i]] != next->gauges[gauges[i]])
			return true;
	}
	for (int i = 0; i < (int) lengthof(counters); i++)
	{
		if (last->counters[counters[i]] != next->counters[counters[i]])
			return true;
	}
	return false;
}

/* Adds the row of a queue. */
static void
history_put(ReturnSetInfo *set, const Known *queue)
{
	const CounterView *last = &queue->last.counts;
	const CounterView *next = &queue->next.counts;
	RowBuilder row = {0};

	row_add(&row, Int32GetDatum(queue->queue_id));
	/* A gauge may be negative for a moment, if the later of two commits is counted first. */
	for (int i = 0; i < (int) lengthof(gauges); i++)
		row_add_if(&row, next->known, Int64GetDatum(Max(next->gauges[gauges[i]], 0)));
	row_add_if(&row, queue->next.due != DT_NOEND, TimestampTzGetDatum(queue->next.due));
	for (int i = 0; i < (int) lengthof(counters); i++)
		row_add(&row,
				Int64GetDatum((int64) (next->counters[counters[i]] - last->counters[counters[i]])));
	for (int t = 0; t < TIMING_COUNT; t++)
	{
		uint64 buckets[HISTOGRAM_BUCKETS];
		ArrayType *packed;

		for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
			buckets[i] = next->timings[t][i] - last->timings[t][i];
		packed = idemq_histogram_pack(buckets);
		row_add_if(&row, packed != NULL, PointerGetDatum(packed));
	}
	tuplestore_putvalues(set->setResult, set->setDesc, row.values, row.nulls);
}

/*
 * history() -> setof rows: one for each queue that has changed since the last step, and one with
 * queue_id 0 for all queues together.  Only the worker's task may call it; other sessions get no
 * rows.
 */
SQL_FUNCTION(idemq_sql_history)
{
	ReturnSetInfo *set = idemq_srf_begin(fcinfo);
	Known all = {.last.due = DT_NOEND, .next = {.counts.known = true, .due = DT_NOEND}};
	bool any = false;
	int count;
	int32 *ids;

	if (history_known == NULL)
		return (Datum) 0;
	ids = idemq_queue_ids(0, &count);
	for (int i = 0; i < count; i++)
	{
		Known *queue = read_figures(ids[i]);

		if (queue == NULL)
			continue;
		add_to_all(&all, queue);
		if (has_changed(queue))
		{
			history_put(set, queue);
			any = true;
		}
	}
	if (any)
		history_put(set, &all);
	return (Datum) 0;
}
