/*
 * schedule/tick.c
 *		Enqueues the ticks that are due: as a task of the background worker, and in the procedure
 *		tick(), for drivers where the worker is off.
 *
 * Finding the schedules that are due, and enqueueing their ticks, is done in SQL
 * (sql/parts/80_schedules.sql).
 *
 * The worker keeps in its memory when each schedule is due.  It reads all schedules when one has
 * changed (a statement trigger tells it), and at least once per minute while there are any, so
 * that it notices a change of the wall clock.  In between, each run returns when the schedules
 * that ran are due again.  The cost of a second therefore depends on the number of ticks in that
 * second, not on the number of schedules.  A run also returns the new TIDs (ctid) of the rows,
 * where the next run looks for them.  A search by name would visit all dead versions of a row, and
 * while an old snapshot keeps these, a row that is updated every second gets one more each second.
 * None of this is stored: the ticks of a schedule follow from its expression, and its row contains
 * the time up to which they are done.  If a worker starts after an outage, the last tick of each
 * schedule is due.
 *
 * The worker runs up to TICK_BATCH due schedules in one subtransaction.  If one of them fails, the
 * whole batch is rolled back, and each schedule then runs in its own subtransaction, so that a
 * failed tick does not roll back others.  A schedule whose last tick failed will probably fail
 * again, so it runs by itself from the start, after the others.  It is tried again with its next
 * tick, or after a minute if that is earlier (schedule/calendar.c).  The same applies to a
 * schedule whose row is locked by another session.
 *
 * The statement trigger does not tell the worker of its own writes.  Another driver may run at the
 * same time; one of the two then skips the row of a schedule.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "schedule/schedule.h"
#include "shared/processes/processes.h"

/* Maximum time between two reads of all schedules. */
#define LIST_PAUSE USECS_PER_MINUTE
/* The same while there are no schedules, in case the worker was not told of a new one. */
#define NO_SCHEDULES_PAUSE (10 * USECS_PER_MINUTE)
/* Maximum number of ticks in one subtransaction.  Other tasks wait meanwhile. */
#define TICK_BATCH 128

/* A schedule, as the worker remembers it. */
typedef struct KnownSchedule
{
	Datum name;		/* text */
	Datum place;	/* text: last known ctid of its row; (0,0): search by name */
	TimestampTz at; /* wall clock: when it is due; DT_NOEND: dropped, paused, or no more ticks */
	bool alone;		/* its last run has failed, or the batch of that run: it runs by itself */
} KnownSchedule;

/* The result of running a schedule. */
typedef struct Ran
{
	TimestampTz due; /* when it is due again; 0: never */
	Datum place;
	bool failed;
} Ran;

/* Why a schedule's tick was not enqueued; zeros if it was. */
typedef struct Failure
{
	Datum state;
	Datum message;
} Failure;

static SqlStatement list_schedules =
	{.text = "SELECT name, place, at, failed_at IS NOT NULL "
			 "FROM idemq_internal.schedule_times($1, false) ORDER BY name",
	 .types = {TIMESTAMPTZOID},
	 .fields = (const SqlField[]){SQL_FIELD(KnownSchedule, name), SQL_FIELD(KnownSchedule, place),
								  SQL_FIELD(KnownSchedule, at), SQL_FIELD(KnownSchedule, alone)}};
/* The names of the schedules that are due at a time, including those whose retry should wait. */
static SqlStatement list_overdue =
	{.text = "SELECT string_agg(format('\"%s\"', name), ', ' ORDER BY name) "
			 "FROM idemq_internal.schedule_times($1, true) WHERE at <= $1",
	 .types = {TIMESTAMPTZOID},
	 .fields = SQL_SCALAR(Datum)};
/* Returns no row if one of the schedules has failed.  on_jobs: it fires a user's triggers. */
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

/* The names of the schedules that are due, for idemq.tick(), which then runs one at a time. */
static SqlStatement list_due_names = {.locks = true,
									  .text = "SELECT idemq_internal.due_schedules()",
									  .fields = SQL_SCALAR(Datum)};
static SqlStatement try_run = {.locks = true,
							   .on_jobs = true,
							   .text =
								   "SELECT state, failure FROM idemq_internal.try_run_schedule($1)",
							   .types = {TEXTOID},
							   .fields = (const SqlField[]){SQL_FIELD(Failure, state),
															SQL_FIELD(Failure, message)}};

/* The worker's memory of the schedules, in tick_context. */
static MemoryContext tick_context = NULL;
static KnownSchedule *known = NULL;
static int known_count = 0;
/* When the first of them is due (wall clock), and when they are read again at the latest (mono). */
static TimestampTz next_tick = DT_NOEND;
static int64 list_by = 0;

/* Forgets the schedules, so that the next run of the task reads them. */
void
idemq_tick_begin(void)
{
	known_count = 0;
	next_tick = DT_NOEND;
	list_by = 0;
}

/* due_at of task "tick": returns when (mono) it must run. */
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

/* Reads all schedules into the worker's memory. */
static void
tick_read_all(void)
{
	Datum now = TimestampTzGetDatum(idemq_wall_now());
	MemoryContext old;

	if (tick_context == NULL)
		tick_context =
			AllocSetContextCreate(TopMemoryContext, "idemq ticks", ALLOCSET_DEFAULT_SIZES);
	/* First, because the query may raise an error. */
	idemq_tick_begin();
	MemoryContextReset(tick_context);
	/* Before the query, so that a change that it does not see is noticed. */
	(void) idemq_worker_is_asked(WORKER_ASKED_SCHEDULES, true);
	old = MemoryContextSwitchTo(tick_context);
	known = idemq_spi_rows(&list_schedules, &now, sizeof(KnownSchedule), &known_count);
	MemoryContextSwitchTo(old);
	list_by = idemq_mono_now() + (known_count == 0 ? NO_SCHEDULES_PAUSE : LIST_PAUSE);
}

/* Remembers the result of a run. */
static void
note_run(KnownSchedule *schedule, const Ran *ran)
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

/* Runs schedules in one subtransaction.  If one fails, none has run, and each will run alone. */
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
	/* In tick_context, because the places must last until all schedules are read again. */
	old = MemoryContextSwitchTo(tick_context);
	ran = idemq_spi_rows(&run_together, values, sizeof(Ran), &rows);
	MemoryContextSwitchTo(old);
	for (int i = 0; i < count; i++)
	{
		if (i < rows)
			note_run(batch[i], &ran[i]);
		else
			batch[i]->alone = true;
	}
}

/* Runs a schedule in its own subtransaction; the place of its row is allocated in context. */
static void
run_one(KnownSchedule *schedule, MemoryContext context)
{
	Datum values[] = {schedule->name, schedule->place};
	MemoryContext old = MemoryContextSwitchTo(context);
	Ran ran;

	(void) idemq_spi_row(&run_alone, values, &ran, sizeof(ran));
	MemoryContextSwitchTo(old);
	note_run(schedule, &ran);
}

/* Returns the names of the schedules that are due at a time; NULL if none is. */
char *
idemq_tick_overdue(TimestampTz by)
{
	Datum values[] = {TimestampTzGetDatum(by)};
	Datum overdue = (Datum) 0;

	(void) idemq_spi_row(&list_overdue, values, &overdue, sizeof(overdue));
	return overdue == (Datum) 0 ? NULL : TextDatumGetCString(overdue);
}

/*
 * Task "tick": reads the schedules if necessary, and runs a batch of those that are due.  If there
 * is no batch to run, it runs schedules that run alone, at least one, until its time slice is
 * over.
 */
void
idemq_tick_some(void)
{
	KnownSchedule *batch[TICK_BATCH];
	int count = 0;
	TimestampTz now;
	Slice slice;

	if (idemq_worker_is_asked(WORKER_ASKED_SCHEDULES, false) || list_by <= idemq_mono_now())
		tick_read_all();
	now = idemq_wall_now();
	for (int i = 0; i < known_count && count < TICK_BATCH; i++)
	{
		if (known[i].at <= now && !known[i].alone)
			batch[count++] = &known[i];
	}
	if (count > 0)
		run_batch(batch, count);
	else
	{
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
	next_tick = DT_NOEND;
	for (int i = 0; i < known_count; i++)
		next_tick = Min(next_tick, known[i].at);
}

/* Called at the end of the task's transaction; done: it has committed. */
void
idemq_tick_ended(const QueueStateView *view, bool done)
{
	/* The runs have been rolled back, so what we remember of them is wrong. */
	if (!done)
		idemq_tick_begin();
}

/*
 * Begins the work of a transaction of idemq.tick().  It is READ COMMITTED, regardless of the role's
 * default, because a 40001 error would not be the fault of the schedule.
 */
static void
tick_transaction_begin(void)
{
	XactIsoLevel = XACT_READ_COMMITTED;
	PushActiveSnapshot(GetTransactionSnapshot());
}

static void
tick_transaction_commit(void)
{
	PopActiveSnapshot();
	SPI_commit();
}

/*
 * tick(); 2D000.  Runs each schedule that is due in its own transaction, so that a failure does not
 * roll back other ticks.  Afterwards, it raises the first failure, with its SQLSTATE.
 *
 * The procedure runs as its caller and ends transactions, so it cannot be written in SQL.  In
 * PL/pgSQL, its caller could not use schema idemq_internal.  A procedure with SECURITY DEFINER or
 * with a body of standard SQL cannot end transactions.
 */
SQL_FUNCTION(idemq_sql_tick)
{
	Failure first = {0};
	int failed = 0;
	Datum due;
	Datum *names;
	int count;

	idemq_check_top_level(fcinfo, "tick",
						  "The procedure enqueues each tick in a separate transaction.");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	tick_transaction_begin();
	(void) idemq_spi_row(&list_due_names, NULL, &due, sizeof(due));
	tick_transaction_commit();
	deconstruct_array(DatumGetArrayTypeP(due), TEXTOID, -1, false, TYPALIGN_INT, &names, NULL,
					  &count);
	for (int i = 0; i < count; i++)
	{
		Failure failure;

		tick_transaction_begin();
		(void) idemq_spi_row(&try_run, &names[i], &failure, sizeof(failure));
		tick_transaction_commit();
		if (failure.message != (Datum) 0 && failed++ == 0)
			first = failure;
	}
	if (failed > 0)
	{
		const char *state = TextDatumGetCString(first.state);

		ereport(
			ERROR, errcode(MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4])),
			errmsg_internal("%s", TextDatumGetCString(first.message)),
			errdetail_plural("%d tick was not enqueued.", "%d ticks were not enqueued.", failed,
							 failed),
			errhint(
				"Check last_error in idemq.schedules. The next call to idemq.tick() will retry these "
				"ticks."));
	}
	SPI_finish();
	PG_RETURN_VOID();
}
