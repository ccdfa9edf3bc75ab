/*
 * schedule/worker_tick.c
 *		Ticks of schedules, by the background worker: it sleeps until the first is due, and enqueues
 *		the ticks of all that are due together in one transaction.  Enqueueing is SQL
 *		(sql/parts/80_schedules.sql).
 *
 * The worker keeps in its memory when each schedule is due.  It reads all schedules when one has
 * changed (a statement trigger tells it), and at least once per minute while there are any, so that
 * it notices a change of the wall clock.  In between, each run returns when the schedules that ran
 * are due again.  The cost of a second therefore depends on the number of ticks in that second, not
 * on the number of schedules.  A run also returns the new places (ctid) of the rows, where the next
 * run looks for them.  A search by name would visit all dead versions of a row, and while an old
 * snapshot keeps these, a row that is updated every second gets one more each second.  None of this
 * is stored: the ticks of a schedule follow from its expression, and its row contains the time up to
 * which they are done.  If a worker starts after an outage, the last tick of each schedule is due.
 *
 * Up to TICK_BATCH schedules that are due run in one subtransaction, one after the other.  If one
 * of them fails, the whole batch is rolled back, and each schedule then runs in a subtransaction of
 * its own, so that a failed tick does not roll back others.  A schedule whose last tick failed will
 * probably fail again, so it runs by itself from the start, after the others.  It is tried again
 * with its next tick, or after a minute if that is earlier (schedule/calendar.c).  The same applies
 * to a schedule whose row another session holds.
 *
 * The worker is not told of its own writes.  Another driver may run at the same time: one of the two
 * skips the schedule's row.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "schedule/schedule.h"
#include "shared/processes/processes.h"

/* Maximum time between two reads of all schedules. */
#define LIST_PAUSE USECS_PER_MINUTE
/* The same while there are no schedules, in case the worker was not told of a new one. */
#define NO_SCHEDULES_PAUSE (10 * USECS_PER_MINUTE)
/* Maximum number of ticks in one subtransaction, for which other tasks have to wait. */
#define TICK_BATCH 128

/* What the worker knows about a schedule. */
typedef struct KnownSchedule
{
	Datum name;		/* text */
	Datum place;	/* text: where its row was last; (0,0): it is looked for by name */
	TimestampTz at; /* wall clock: when it is due; DT_NOEND: it is gone, paused or over */
	bool alone;		/* it has failed, or one with which it ran: it runs by itself */
} KnownSchedule;

/* What a run of a schedule returns. */
typedef struct Ran
{
	TimestampTz due; /* 0: never */
	Datum place;
	bool failed;
} Ran;

static SqlStatement list_schedules =
	{.text = "SELECT name, place, at, failed_at IS NOT NULL "
			 "FROM idemq_internal.schedule_times($1, false) ORDER BY name",
	 .types = {TIMESTAMPTZOID},
	 .fields = (const SqlField[]){SQL_FIELD(KnownSchedule, name), SQL_FIELD(KnownSchedule, place),
								  SQL_FIELD(KnownSchedule, at), SQL_FIELD(KnownSchedule, alone)}};
/* Those that were due by a time and have not run, whether or not they have failed since. */
static SqlStatement list_overdue =
	{.text = "SELECT string_agg(format('\"%s\"', name), ', ' ORDER BY name) "
			 "FROM idemq_internal.schedule_times($1, true) WHERE at <= $1",
	 .types = {TIMESTAMPTZOID},
	 .fields = (const SqlField[]){{0, sizeof(Datum), NULL}}};
/* The same, for a session that does the work of the worker. */
static SqlStatement list_due =
	{.text = "SELECT name, place FROM idemq_internal.schedule_times($1, true) WHERE at <= $1 "
			 "ORDER BY failed_at NULLS FIRST, name",
	 .types = {TIMESTAMPTZOID},
	 .fields = (const SqlField[]){SQL_FIELD(KnownSchedule, name), SQL_FIELD(KnownSchedule, place)}};
/* As the owner; a user's deferred triggers on idemq.jobs are to be run.  No row: one has failed. */
static SqlStatement run_together = {
	.locks = true,
	.on_jobs = true,
	.text =
		"SELECT u.due, coalesce(u.place, '(0,0)') FROM idemq_internal.try_run_schedules($1, $2) r, "
		"LATERAL unnest(r.due, r.place) WITH ORDINALITY u (due, place, n) ORDER BY u.n",
	.types = {TEXTARRAYOID, TEXTARRAYOID},
	.fields = (const SqlField[]){SQL_FIELD(Ran, due), SQL_FIELD(Ran, place)}};
static SqlStatement run_alone =
	{.locks = true,
	 .on_jobs = true,
	 .text = "SELECT due, place, failed FROM idemq_internal.run_or_note($1, $2)",
	 .types = {TEXTOID, TEXTOID},
	 .fields =
		 (const SqlField[]){SQL_FIELD(Ran, due), SQL_FIELD(Ran, place), SQL_FIELD(Ran, failed)}};

static MemoryContext tick_context = NULL;
static KnownSchedule *known = NULL;
static int known_count = 0;
/* When (wall clock) the first of them is due, and when (mono) they are read at the latest. */
static TimestampTz next_tick = DT_NOEND;
static int64 list_by = 0;

/* Begins anew: nothing is known of the schedules. */
void
idemq_tick_begin(void)
{
	known_count = 0;
	next_tick = DT_NOEND;
	list_by = 0;
}

/* Returns when (mono) there is something to do: due_at of task "tick". */
int64
idemq_tick_due_at(const QueueStateView *view)
{
	int64 now = idemq_mono_now();
	TimestampTz wall = idemq_wall_now();

	if (idemq_worker_is_asked(WORKER_ASKED_SCHEDULES, false) || next_tick <= wall)
		return 0;
	if (next_tick - wall < list_by - now)
		return now + (next_tick - wall);
	return list_by;
}

/* Reads all schedules. */
static void
list(void)
{
	Datum now = TimestampTzGetDatum(idemq_wall_now());
	MemoryContext old;

	if (tick_context == NULL)
		tick_context =
			AllocSetContextCreate(TopMemoryContext, "idemq ticks", ALLOCSET_DEFAULT_SIZES);
	/* If this fails, they are read again. */
	idemq_tick_begin();
	MemoryContextReset(tick_context);
	/* Before they are read: a change from here on asks again. */
	(void) idemq_worker_is_asked(WORKER_ASKED_SCHEDULES, true);
	old = MemoryContextSwitchTo(tick_context);
	known = idemq_spi_rows(&list_schedules, &now, sizeof(KnownSchedule), &known_count);
	MemoryContextSwitchTo(old);
	list_by = idemq_mono_now() + (known_count == 0 ? NO_SCHEDULES_PAUSE : LIST_PAUSE);
}

/* Notes when a schedule that has run is due again, and where its row is. */
static void
has_run(KnownSchedule *schedule, const Ran *ran)
{
	schedule->at = ran->due == 0 ? DT_NOEND : ran->due;
	schedule->place = ran->place;
	schedule->alone = ran->failed;
}

static Datum
text_array(Datum *texts, int count)
{
	return PointerGetDatum(construct_array(texts, count, TEXTOID, -1, false, TYPALIGN_INT));
}

/* Runs schedules that are due in one subtransaction; if one fails, each is to run alone. */
static void
run_batch(KnownSchedule **batch, int count)
{
	Datum names[TICK_BATCH];
	Datum places[TICK_BATCH];
	Datum values[2];
	MemoryContext old;
	Ran *ran;
	int rows;

	for (int i = 0; i < count; i++)
	{
		names[i] = batch[i]->name;
		places[i] = batch[i]->place;
	}
	values[0] = text_array(names, count);
	values[1] = text_array(places, count);
	/* The places stay until all are read again, in a minute at the latest. */
	old = MemoryContextSwitchTo(tick_context);
	ran = idemq_spi_rows(&run_together, values, sizeof(Ran), &rows);
	MemoryContextSwitchTo(old);
	for (int i = 0; i < count; i++)
	{
		if (i < rows)
			has_run(batch[i], &ran[i]);
		else
			batch[i]->alone = true;
	}
}

/* Runs a schedule that is due in its own subtransaction. */
static void
run_one(KnownSchedule *schedule, MemoryContext context)
{
	Datum values[] = {schedule->name, schedule->place};
	MemoryContext old = MemoryContextSwitchTo(context);
	Ran ran;

	(void) idemq_spi_row(&run_alone, values, &ran, sizeof(ran));
	MemoryContextSwitchTo(old);
	has_run(schedule, &ran);
}

/* Runs all schedules that are due, for a session that does the work of the worker. */
void
idemq_tick_all(void)
{
	Datum now = TimestampTzGetDatum(idemq_wall_now());
	int count;
	KnownSchedule *due = idemq_spi_rows(&list_due, &now, sizeof(KnownSchedule), &count);

	for (int i = 0; i < count; i++)
		run_one(&due[i], CurrentMemoryContext);
}

/* Returns the names of the schedules that were due by a time and have not run; NULL if all have. */
char *
idemq_tick_overdue(TimestampTz by)
{
	Datum values[] = {TimestampTzGetDatum(by)};
	Datum overdue = (Datum) 0;

	(void) idemq_spi_row(&list_overdue, values, &overdue, sizeof(overdue));
	return overdue == (Datum) 0 ? NULL : TextDatumGetCString(overdue);
}

/* Runs those that are due and run alone, as many as fit into the slice, but one at least. */
static void
run_alone_ones(TimestampTz now)
{
	Slice slice;

	idemq_slice_begin(&slice, SLICE_OF_TASK);
	for (int i = 0; i < known_count; i++)
	{
		if (known[i].at > now || !known[i].alone)
			continue;
		run_one(&known[i], tick_context);
		if (idemq_slice_is_over(&slice))
			break;
	}
}

/*
 * Task "tick": reads the schedules if need be, and runs a batch of those that are due, or else those
 * that run alone.
 */
void
idemq_tick_some(void)
{
	KnownSchedule *batch[TICK_BATCH];
	int count = 0;
	TimestampTz now;

	if (idemq_worker_is_asked(WORKER_ASKED_SCHEDULES, false) || list_by <= idemq_mono_now())
		list();
	now = idemq_wall_now();
	for (int i = 0; i < known_count && count < TICK_BATCH; i++)
	{
		if (known[i].at <= now && !known[i].alone)
			batch[count++] = &known[i];
	}
	if (count > 0)
		run_batch(batch, count);
	else
		run_alone_ones(now);
	next_tick = DT_NOEND;
	for (int i = 0; i < known_count; i++)
		next_tick = Min(next_tick, known[i].at);
}

/* After the transaction: what was rolled back is not done. */
void
idemq_tick_ended(const QueueStateView *view, bool done)
{
	if (!done)
		idemq_tick_begin();
}
