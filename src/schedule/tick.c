/*
 * schedule/tick.c
 *		idemq.tick(): enqueues the ticks that are due, for a driver where the worker is off.
 *
 * The procedure runs as its caller and ends transactions.  In PL/pgSQL it could not name anything
 * in schema idemq_internal; a procedure with a body of standard SQL, or with SECURITY DEFINER,
 * cannot end transactions.  So this one is in C.  Listing and enqueueing are SQL, as for the
 * worker (schedule/worker_tick.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/base.h"

/* Why a schedule's tick could not be enqueued; 0 if it was. */
typedef struct Failure
{
	Datum state;
	Datum message;
} Failure;

static SqlStatement list_due = {.locks = true,
								.text = "SELECT idemq_internal.due_schedules()",
								.fields = (const SqlField[]){{0, sizeof(Datum), NULL}}};
/* A user's deferred triggers on idemq.jobs run. */
static SqlStatement tick_run_schedule =
	{.locks = true,
	 .on_jobs = true,
	 .text = "SELECT state, failure FROM idemq_internal.try_run_schedule($1)",
	 .types = {TEXTOID},
	 .fields = (const SqlField[]){SQL_FIELD(Failure, state), SQL_FIELD(Failure, message)}};

/*
 * Begins the work of a transaction in which nothing has been done.  It is READ COMMITTED, whatever
 * the role's default: a 40001 would be no fault of the schedule.
 */
static void
tick_begin(void)
{
	XactIsoLevel = XACT_READ_COMMITTED;
	PushActiveSnapshot(GetTransactionSnapshot());
}

/* Commits what was done since tick_begin. */
static void
tick_commit(void)
{
	PopActiveSnapshot();
	SPI_commit();
}

/* Raises the first failure. */
pg_noreturn static void
raise_failure(const Failure *first, int failed)
{
	const char *state = TextDatumGetCString(first->state);

	ereport(
		ERROR, errcode(MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4])),
		errmsg_internal("%s", TextDatumGetCString(first->message)),
		errdetail_plural("%d tick was not enqueued.", "%d ticks were not enqueued.", failed,
						 failed),
		errhint(
			"Check last_error in idemq.schedules. The next call to idemq.tick() will retry these "
			"ticks."));
}

/*
 * tick(); 2D000, and the first failure's SQLSTATE when all are tried.  A transaction for each
 * schedule, so that one that fails undoes no other.
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
	tick_begin();
	(void) idemq_spi_row(&list_due, NULL, &due, sizeof(due));
	tick_commit();
	deconstruct_array(DatumGetArrayTypeP(due), TEXTOID, -1, false, TYPALIGN_INT, &names, NULL,
					  &count);
	for (int i = 0; i < count; i++)
	{
		Failure failure;

		tick_begin();
		(void) idemq_spi_row(&tick_run_schedule, &names[i], &failure, sizeof(failure));
		tick_commit();
		if (failure.message != (Datum) 0 && failed++ == 0)
			first = failure;
	}
	if (failed > 0)
		raise_failure(&first, failed);
	SPI_finish();
	PG_RETURN_VOID();
}
