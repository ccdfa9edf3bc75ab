/*
 * schedule/worker_tick.c
 *		Ticks of schedules, by the background worker: it sleeps until the first is due, lists
 *		the schedules that are due, and enqueues for one after the other, in slices.  Listing
 *		and enqueueing are SQL (sql/parts/80_schedules.sql).
 *
 * All schedules are listed when one has changed (a statement trigger says so), when the first
 * comes due, and once a minute at least while there are any: a wall clock that was set ahead is
 * noticed then.  The worker is not told of what it writes itself: otherwise a tick that fails
 * would be tried without a pause.  It is tried again after a minute, as a driver would.
 *
 * A tick that fails undoes no other (idemq_internal.run_or_note).  Another driver that ticks as
 * well does no harm: one of the two skips the schedule's row.
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
#include "shared/waiters/waiters.h"

/* Schedules are listed that often at least, and one that failed is tried again after that. */
#define TICK_PAUSE USECS_PER_MINUTE
/* While there are no schedules, they are listed that often: a net. */
#define NO_SCHEDULES_PAUSE (10 * USECS_PER_MINUTE)

/* The names of the schedules that are due, and when the next one will be; 0 for none. */
typedef struct DueTicks
{
	Datum due;
	TimestampTz next;
} DueTicks;

static SqlStatement list_schedules =
	{.text = "SELECT array_agg(name ORDER BY failed_at NULLS FIRST, name) FILTER (WHERE at <= $1), "
			 "min(at) FILTER (WHERE at > $1) FROM idemq_internal.schedule_times($1, $2)",
	 .types = {TIMESTAMPTZOID, TIMESTAMPTZOID},
	 .fields = (const SqlField[]){SQL_FIELD(DueTicks, due), SQL_FIELD(DueTicks, next)}};
/* Those that were due by a time and have not run, whether or not they have failed since. */
static SqlStatement list_overdue =
	{.text = "SELECT string_agg(format('\"%s\"', name), ', ' ORDER BY name) "
			 "FROM idemq_internal.schedule_times($1, $1) WHERE at <= $1",
	 .types = {TIMESTAMPTZOID},
	 .fields = (const SqlField[]){{0, sizeof(Datum), NULL}}};
/* As the owner; a user's deferred triggers on idemq.jobs are to be run. */
static SqlStatement worker_tick_run_schedule = {.on_jobs = true,
												.text = "SELECT idemq_internal.run_or_note($1)",
												.types = {TEXTOID}};

/* The names of the schedules that are due; done of them have run. */
static MemoryContext tick_context = NULL;
static Datum *tick_names = NULL;
static int tick_count = 0;
static int done = 0;
/* When (wall clock) the next one is due, and when (mono) they are to be listed at the latest. */
static TimestampTz next_tick = DT_NOEND;
static int64 list_by = 0;

/* Begins anew: nothing is known of the schedules. */
void
idemq_tick_begin(void)
{
	tick_count = done = 0;
	next_tick = DT_NOEND;
	list_by = 0;
}

/* Returns when (mono) there is something to do: due_at of task "tick". */
int64
idemq_tick_due_at(const QueueStateView *view)
{
	int64 now = idemq_mono_now();
	TimestampTz wall = idemq_wall_now();

	if (done < tick_count || idemq_worker_is_asked(WORKER_ASKED_SCHEDULES, false) ||
		next_tick <= wall)
		return 0;
	if (next_tick - wall < list_by - now)
		return now + (next_tick - wall);
	return list_by;
}

/* Lists what is due. */
static void
list(void)
{
	TimestampTz now = idemq_wall_now();
	Datum values[] = {TimestampTzGetDatum(now), TimestampTzGetDatum(now - TICK_PAUSE)};
	DueTicks ticks;

	if (tick_context == NULL)
		tick_context =
			AllocSetContextCreate(TopMemoryContext, "idemq ticks", ALLOCSET_DEFAULT_SIZES);
	/* If this fails, they are listed again. */
	idemq_tick_begin();
	MemoryContextReset(tick_context);
	/* Before they are read: a change from here on asks again. */
	(void) idemq_worker_is_asked(WORKER_ASKED_SCHEDULES, true);
	(void) idemq_spi_row(&list_schedules, values, &ticks, sizeof(ticks));
	if (ticks.next != 0)
		next_tick = ticks.next;
	if (ticks.due != (Datum) 0)
	{
		MemoryContext old = MemoryContextSwitchTo(tick_context);

		deconstruct_array(DatumGetArrayTypePCopy(ticks.due), TEXTOID, -1, false, TYPALIGN_INT,
						  &tick_names, NULL, &tick_count);
		MemoryContextSwitchTo(old);
	}
	list_by = idemq_mono_now() +
			  (ticks.next == 0 && ticks.due == (Datum) 0 ? NO_SCHEDULES_PAUSE : TICK_PAUSE);
}

/* Runs all schedules that are due, for a session that does the work of the worker. */
void
idemq_tick_all(void)
{
	TimestampTz now = idemq_wall_now();
	/* No schedule failed after now, so none is postponed. */
	Datum values[] = {TimestampTzGetDatum(now), TimestampTzGetDatum(now)};
	DueTicks ticks;
	Datum *all;
	int many;

	(void) idemq_spi_row(&list_schedules, values, &ticks, sizeof(ticks));
	if (ticks.due == (Datum) 0)
		return;
	deconstruct_array(DatumGetArrayTypeP(ticks.due), TEXTOID, -1, false, TYPALIGN_INT, &all, NULL,
					  &many);
	for (int i = 0; i < many; i++)
		(void) idemq_spi_do(&worker_tick_run_schedule, &all[i], NULL);
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

/* Task "tick": lists what is due, if all listed before has run; runs what fits into the slice. */
void
idemq_tick_some(void)
{
	Slice slice;

	idemq_slice_begin(&slice, SLICE_OF_TASK);
	if (done >= tick_count)
		list();
	while (done < tick_count)
	{
		(void) idemq_spi_do(&worker_tick_run_schedule, &tick_names[done++], NULL);
		if (idemq_slice_is_over(&slice))
			break;
	}
}
