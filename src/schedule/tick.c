/*
 * schedule/tick.c
 *		What idemq.tick() and the worker call: which schedules are due, and enqueuing for one; and
 *		enqueuing for one out of turn, run_schedule_now.
 *
 * A tick is enqueued once.  The session that does it holds the schedule's row and
 * moves its done_until up to the tick in the transaction of the enqueue; another
 * that comes meanwhile skips the row.  Should the row be lost or put back (a restore, a
 * schedule ended and made again), the key, made of the schedule's name and the
 * tick's own time, answers duplicate.  That key is kept from others (job/kept_key.c).  A job
 * that had it before the schedule was made is no tick, and an error.
 *
 * Of the ticks that were missed the last one is made up for, under its own time.
 * A tick that fails stays due, and is tried again by the next call, until the next
 * one takes its place.
 *
 * It is enqueued as the role that has made the schedule: by a plain call of
 * idemq.enqueue, so that what that role may not do any more, its schedule cannot.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "schedule/schedule.h"
#include "table/table.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_due_schedules);
PG_FUNCTION_INFO_V1(idemq_sql_v2_run_schedule);
PG_FUNCTION_INFO_V1(idemq_sql_v2_schedule_failed);
PG_FUNCTION_INFO_V1(idemq_sql_v2_run_schedule_now);

/*
 * A tick does not wait: a session that drops its queue, or has its key in an open
 * transaction, is searched for first.  This is for what comes between.
 */
#define LOCK_TIMEOUT "100ms"
#define LOCK_TIMEOUT_MS 100

/* Behind one that has failed there is only what has failed since. */
static SqlStatement list_schedules = {
	.text = "SELECT name, cron, time_zone, done_until, failed_at FROM idemq.schedule_entries "
			"ORDER BY failed_at NULLS FIRST, name"};

/* In the order of these come the columns of lock_schedule, from 1. */
enum
{
	ENTRY_QUEUE = 1,
	ENTRY_QUEUE_ID,
	ENTRY_CRON,
	ENTRY_ZONE,
	ENTRY_DONE_UNTIL,
	ENTRY_CREATED_BY,
	ENTRY_CREATED_BY_OID,
	ENTRY_PAYLOAD,
	ENTRY_PRIORITY,
	ENTRY_GROUP_KEY,
	ENTRY_MAX_ATTEMPTS,
	ENTRY_HEADERS,
	ENTRY_EXPIRES_IN,
	ENTRY_CREATED_AT,
	ENTRY_KIND,
	ENTRY_END
};

#define SELECT_ENTRY                                                                               \
	"SELECT q.name, e.queue_id, e.cron, e.time_zone, e.done_until, e.created_by, "                 \
	"e.created_by_oid, e.payload, e.priority, e.group_key, e.max_attempts, e.headers, "            \
	"e.expires_in, e.created_at, e.kind FROM idemq.schedule_entries e "                            \
	"JOIN idemq.queues q ON q.queue_id = e.queue_id WHERE e.name = $1"

static SqlStatement read_schedule = {.text = SELECT_ENTRY, .nargs = 1, .types = {TEXTOID}};
static SqlStatement lock_schedule = {.text = SELECT_ENTRY " FOR UPDATE OF e SKIP LOCKED",
									 .nargs = 1,
									 .types = {TEXTOID}};

static SqlStatement enqueue = {
	.text =
		"SELECT id, outcome::pg_catalog.text FROM idemq.enqueue($1, $2, key => $3, priority => $4, group_key => $5, "
		"max_attempts => $6, headers => coalesce($7, '{}') || pg_catalog.jsonb_build_object('schedule', $9, "
		"'tick', $10), expires_in => $8, on_duplicate => 'ignore', kind => $11)",
	.nargs = 11,
	.types = {TEXTOID, JSONBOID, TEXTOID, INT4OID, TEXTOID, INT4OID, JSONBOID, INTERVALOID, TEXTOID,
			  TEXTOID, TEXTOID}};

static SqlStatement is_older = {.text = "SELECT FROM idemq.jobs WHERE id = $1 AND created_at < $2",
								.nargs = 2,
								.types = {INT8OID, TIMESTAMPTZOID}};

static SqlStatement note_run =
	{.text = "UPDATE idemq.schedule_entries SET done_until = $2, last_run = $2, last_job = $3, "
			 "failed_at = NULL, last_error = NULL WHERE name = $1",
	 .nargs = 3,
	 .types = {TEXTOID, TIMESTAMPTZOID, INT8OID}};

static SqlStatement note_missed =
	{.text = "UPDATE idemq.schedule_entries SET done_until = $2, failed_at = $3, "
			 "last_error = 'the tick came later than its expires_in' WHERE name = $1",
	 .nargs = 3,
	 .types = {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}};

static SqlStatement wind_back =
	{.text = "UPDATE idemq.schedule_entries SET done_until = $2 WHERE name = $1",
	 .nargs = 2,
	 .types = {TEXTOID, TIMESTAMPTZOID}};

static SqlStatement note_failure =
	{.text = "UPDATE idemq.schedule_entries SET failed_at = $2, last_error = $3 WHERE name = "
			 "(SELECT name FROM idemq.schedule_entries WHERE name = $1 FOR UPDATE SKIP LOCKED)",
	 .nargs = 3,
	 .types = {TEXTOID, TIMESTAMPTZOID, TEXTOID}};

/* A schedule's row, locked; values are valid until the end of the SQL scope. */
typedef struct Entry
{
	const char *name;
	Datum values[ENTRY_END];
	bool nulls[ENTRY_END];
	TimestampTz tick; /* that is due */
	char tick_text[sizeof("2026-11-21T12:37:00Z")];
} Entry;

/* Writes an instant, in UTC, as ISO 8601 has it. */
static void
write_tick(Entry *entry)
{
	pg_time_t seconds = timestamptz_to_time_t(entry->tick);

	pg_strftime(entry->tick_text, sizeof(entry->tick_text), "%Y-%m-%dT%H:%M:%SZ",
				pg_gmtime(&seconds));
}

/*
 * Returns the names of the schedules that idemq_schedule_run is for, as an array in the current
 * memory context; sets *next to when (wall clock) the first of the others is; DT_NOEND: never.
 * Those that have failed after a time are left out, and come again when that is over.
 */
ArrayType *
idemq_schedules_due(TimestampTz now, TimestampTz failed_after, TimestampTz *next)
{
	MemoryContext caller = CurrentMemoryContext;
	ArrayBuildState *names = initArrayResult(TEXTOID, caller, false);
	SqlScope scope;
	uint64 rows;

	*next = DT_NOEND;
	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&list_schedules, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		bool isnull;
		Datum name = idemq_spi_value(i, 1, &isnull);
		TimestampTz done_until = idemq_spi_int64(i, 4, &isnull);
		TimestampTz failed_at = idemq_spi_int64(i, 5, &isnull);
		Calendar calendar;
		TimestampTz tick;

		CHECK_FOR_INTERRUPTS();
		if (!isnull && failed_at > failed_after && failed_at <= now)
		{
			*next = Min(*next, failed_at + (now - failed_after));
			continue;
		}
		/* One that cannot be read says so when it is run. */
		if (!idemq_calendar_read(TextDatumGetCString(idemq_spi_value(i, 2, &isnull)),
								 TextDatumGetCString(idemq_spi_value(i, 3, &isnull)), false,
								 &calendar) ||
			idemq_calendar_is_ahead(done_until, now) ||
			idemq_calendar_due(&calendar, done_until, now, &tick))
			names = accumArrayResult(names, name, false, TEXTOID, caller);
		else if (idemq_calendar_next_run(&calendar, done_until, &tick))
			*next = Min(*next, tick);
	}
	idemq_spi_end(&scope);
	return DatumGetArrayTypeP(makeArrayResult(names, caller));
}

/* due_schedules() -> names of schedules that run_schedule is for; notes the call. */
Datum
idemq_sql_v2_due_schedules(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next; /* not asked for */

	idemq_jobs_check_writable();
	idemq_driver_note_call(now);
	PG_RETURN_ARRAYTYPE_P(idemq_schedules_due(now, DT_NOEND, &next));
}

/*
 * Locks a schedule's row and reads it; false when it is not there, held, or not due.
 * Winds a done_until back that is ahead of the clock.
 */
static bool
lock_due(Datum name, TimestampTz now, Entry *entry)
{
	Calendar calendar;
	TimestampTz done_until;

	if (idemq_spi_run(&lock_schedule, &name, NULL, SPI_OK_SELECT) == 0)
		return false;
	for (int i = 1; i < ENTRY_END; i++)
		entry->values[i] = idemq_spi_value(0, i, &entry->nulls[i]);
	(void) idemq_calendar_read(TextDatumGetCString(entry->values[ENTRY_CRON]),
							   TextDatumGetCString(entry->values[ENTRY_ZONE]), true, &calendar);
	done_until = DatumGetTimestampTz(entry->values[ENTRY_DONE_UNTIL]);
	if (idemq_calendar_is_ahead(done_until, now))
	{
		Datum values[] = {name, TimestampTzGetDatum(now)};

		(void) idemq_spi_run(&wind_back, values, NULL, SPI_OK_UPDATE);
		return false;
	}
	return idemq_calendar_due(&calendar, done_until, now, &entry->tick);
}

/* Begins SQL as the role that has made a schedule; raises 42704, 42501 if it may not enqueue. */
static void
begin_as_creator(const Entry *entry, SqlScope *scope)
{
	const char *creator = NameStr(*DatumGetName(entry->values[ENTRY_CREATED_BY]));
	const char *queue_name = TextDatumGetCString(entry->values[ENTRY_QUEUE]);
	Oid role = idemq_role_of(creator, entry->nulls[ENTRY_CREATED_BY_OID]
										  ? InvalidOid
										  : DatumGetObjectId(entry->values[ENTRY_CREATED_BY_OID]));
	QueueInfo queue;

	if (!OidIsValid(role))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\", which made the schedule, does not exist any more", creator),
				 errhint("Let a role that may enqueue to queue \"%s\" call idemq.schedule "
						 "again.",
						 queue_name)));
	idemq_spi_begin_as(scope, role);
	if (!idemq_queue_allows(DatumGetInt32(entry->values[ENTRY_QUEUE_ID]), PRIVILEGE_ENQUEUE,
							&queue))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\", which made the schedule, may not enqueue to queue \"%s\" any "
						"more",
						creator, queue_name),
				 errhint("Let an administrator of the queue run %s, or call idemq.schedule again.",
						 idemq_grant_text(queue_name, creator, "enqueue"))));
	if (LockTimeout == 0 || LockTimeout > LOCK_TIMEOUT_MS)
		(void) set_config_option("lock_timeout", LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Returns whether a tick is too late for its expires_in, or how much of that is
 * left, in remaining.
 */
static bool
is_too_late(const Entry *entry, TimestampTz now, Interval *remaining)
{
	TimestampTz ends;

	if (entry->nulls[ENTRY_EXPIRES_IN])
		return false;
	ends = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
												   TimestampTzGetDatum(entry->tick),
												   entry->values[ENTRY_EXPIRES_IN]));
	memset(remaining, 0, sizeof(*remaining));
	remaining->time = ends - now;
	return ends <= now;
}

/*
 * Raises 55P03 when the enqueue of a tick would wait: for a session that drops the queue,
 * or has the key in an open transaction.
 */
static void
refuse_to_wait(const Entry *entry, Datum key)
{
	int32 queue_id = DatumGetInt32(entry->values[ENTRY_QUEUE_ID]);
	JobsTable table;
	bool held;

	if (!idemq_queue_try_lock(queue_id, AccessShareLock))
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("an open transaction drops queue \"%s\"",
							   TextDatumGetCString(entry->values[ENTRY_QUEUE])),
						errhint("The tick is tried again with the next call of idemq.tick().")));
	idemq_jobs_open_to_read(&table);
	held = idemq_jobs_key_in_doubt(&table, queue_id, key);
	idemq_jobs_close(&table);
	if (held)
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("an open transaction has the key of the tick"),
						errhint("The tick is tried again with the next call of idemq.tick().")));
}

/* Raises IQ004 when the job that has the key of a tick is older than the schedule. */
static void
check_twin(const Entry *entry, int64 id)
{
	Datum values[] = {Int64GetDatum(id), entry->values[ENTRY_CREATED_AT]};

	if (idemq_spi_query_latest(&is_older, values, NULL) > 0)
		ereport(ERROR, (errcode(ERRCODE_IDEMQ_DUPLICATE_KEY),
						errmsg("the key of the tick is taken by job %lld, which is older than the "
							   "schedule",
							   (long long) id),
						errhint("Let an administrator of the queue purge the job, or make the "
								"schedule under another name.")));
}

/* Enqueues a schedule's job, with the key of a tick or, 0, without one; returns its id. */
static int64
enqueue_job(const Entry *entry, Datum key, Interval *remaining)
{
	Datum values[] = {entry->values[ENTRY_QUEUE],
					  entry->values[ENTRY_PAYLOAD],
					  key,
					  entry->values[ENTRY_PRIORITY],
					  entry->values[ENTRY_GROUP_KEY],
					  entry->values[ENTRY_MAX_ATTEMPTS],
					  entry->values[ENTRY_HEADERS],
					  IntervalPGetDatum(remaining),
					  CStringGetTextDatum(entry->name),
					  CStringGetTextDatum(entry->tick_text),
					  entry->values[ENTRY_KIND]};
	char nulls[] = {' ',
					' ',
					key == (Datum) 0 ? 'n' : ' ',
					' ',
					entry->nulls[ENTRY_GROUP_KEY] ? 'n' : ' ',
					entry->nulls[ENTRY_MAX_ATTEMPTS] ? 'n' : ' ',
					entry->nulls[ENTRY_HEADERS] ? 'n' : ' ',
					entry->nulls[ENTRY_EXPIRES_IN] ? 'n' : ' ',
					' ',
					' ',
					entry->nulls[ENTRY_KIND] ? 'n' : ' '};
	SqlScope scope;
	bool isnull;
	bool duplicate;
	int64 id;

	if (key != (Datum) 0)
		refuse_to_wait(entry, key);
	begin_as_creator(entry, &scope);
	if (idemq_spi_run(&enqueue, values, nulls, SPI_OK_SELECT) != 1)
		elog(ERROR, "idemq.enqueue has not answered");
	id = idemq_spi_int64(0, 1, &isnull);
	duplicate = strcmp(TextDatumGetCString(idemq_spi_value(0, 2, &isnull)), "duplicate") == 0;
	idemq_spi_end(&scope);
	if (duplicate)
		check_twin(entry, id);
	return id;
}

/* Enqueues the job of a tick; returns its id. */
static int64
enqueue_tick(const Entry *entry, Interval *remaining)
{
	return enqueue_job(entry, CStringGetTextDatum(psprintf("%s@%s", entry->name, entry->tick_text)),
					   remaining);
}

/*
 * Enqueues the tick of a schedule that is due; false when there is none to enqueue, or another
 * session is about it.  Raises 42501, 42704, 55P03, and what enqueue raises.
 */
bool
idemq_schedule_run(Datum name)
{
	TimestampTz now = GetCurrentTimestamp();
	Datum values[3] = {name};
	Entry entry = {0};
	Interval remaining;
	SqlScope scope;
	bool enqueued = false;

	idemq_jobs_check_writable();
	entry.name = TextDatumGetCString(values[0]);
	/* A user's deferred triggers on idemq.jobs are to be. */
	idemq_spi_begin_on_jobs(&scope);
	if (lock_due(values[0], now, &entry))
	{
		write_tick(&entry);
		values[1] = TimestampTzGetDatum(entry.tick);
		enqueued = !is_too_late(&entry, now, &remaining);
		values[2] = enqueued ? Int64GetDatum(enqueue_tick(&entry, &remaining))
							 : TimestampTzGetDatum(now);
		(void) idemq_spi_run(enqueued ? &note_run : &note_missed, values, NULL, SPI_OK_UPDATE);
	}
	idemq_spi_end(&scope);
	return enqueued;
}

/* run_schedule(name) -> whether a tick was enqueued; as idemq_schedule_run. */
Datum
idemq_sql_v2_run_schedule(PG_FUNCTION_ARGS)
{
	idemq_arg_required(fcinfo, 0, "name");
	PG_RETURN_BOOL(idemq_schedule_run(PG_GETARG_DATUM(0)));
}

/* Notes why the tick of a schedule could not be enqueued. */
void
idemq_schedule_note_failure(Datum name, Datum error)
{
	Datum values[] = {name, TimestampTzGetDatum(GetCurrentTimestamp()), error};
	SqlScope scope;

	idemq_spi_begin(&scope);
	(void) idemq_spi_run(&note_failure, values, NULL, SPI_OK_UPDATE);
	idemq_spi_end(&scope);
}

/* Raises 42704, 42501 when there is no such schedule, or the current role may not change it. */
static void
check_own(const Entry *entry, bool found)
{
	if (found &&
		idemq_may_change_schedule(DatumGetInt32(entry->values[ENTRY_QUEUE_ID]),
								  NameStr(*DatumGetName(entry->values[ENTRY_CREATED_BY])),
								  entry->nulls[ENTRY_CREATED_BY_OID]
									  ? InvalidOid
									  : DatumGetObjectId(entry->values[ENTRY_CREATED_BY_OID])))
		return;
	if (!found)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("schedule \"%s\" does not exist", entry->name),
						errhint("SELECT name FROM idemq.schedules shows those that you may see.")));
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("permission denied for schedule \"%s\"", entry->name),
					errdetail("The role that made it and administrators of its queue may run it."),
					errhint("Ask one of them.")));
}

/*
 * run_schedule_now(name) -> id of a job that is enqueued at once, as the role that has made
 * the schedule, beside its ticks and without their key; 42704, 42501, and what enqueue raises.
 */
Datum
idemq_sql_v2_run_schedule_now(PG_FUNCTION_ARGS)
{
	Datum name = PG_GETARG_DATUM(0);
	Entry entry = {0};
	Interval remaining;
	QueueInfo queue;
	SqlScope scope;
	SqlScope caller;
	bool found;
	int64 id;

	idemq_arg_required(fcinfo, 0, "name");
	idemq_jobs_check_writable();
	entry.name = TextDatumGetCString(name);
	entry.tick = GetCurrentTimestamp();
	write_tick(&entry);
	idemq_spi_begin_on_jobs(&scope);
	/* Not locked: what a tick writes at the same time is nothing that is read here. */
	found = idemq_spi_run(&read_schedule, &name, NULL, SPI_OK_SELECT) > 0;
	for (int i = 1; found && i < ENTRY_END; i++)
		entry.values[i] = idemq_spi_value(0, i, &entry.nulls[i]);
	idemq_spi_begin_as(&caller, scope.user);
	check_own(&entry, found);
	idemq_spi_end(&caller);
	if (!entry.nulls[ENTRY_EXPIRES_IN])
		remaining = *DatumGetIntervalP(entry.values[ENTRY_EXPIRES_IN]);
	id = enqueue_job(&entry, (Datum) 0, &remaining);
	(void) idemq_queue_by_id(DatumGetInt32(entry.values[ENTRY_QUEUE_ID]), &queue);
	idemq_spi_end(&scope);
	idemq_audit(&(AuditEntry){.action = "run_schedule_now",
							  .queue = &queue,
							  .job_id = id,
							  .members = {"schedule", entry.name}});
	PG_RETURN_INT64(id);
}

/* schedule_failed(name, error) -> the error with the schedule's name; notes it. */
Datum
idemq_sql_v2_schedule_failed(PG_FUNCTION_ARGS)
{
	idemq_arg_required(fcinfo, 0, "name");
	idemq_arg_required(fcinfo, 1, "error");
	idemq_jobs_check_writable();
	idemq_schedule_note_failure(PG_GETARG_DATUM(0), PG_GETARG_DATUM(1));
	PG_RETURN_TEXT_P(
		cstring_to_text(psprintf("schedule \"%s\": %s", TextDatumGetCString(PG_GETARG_DATUM(0)),
								 TextDatumGetCString(PG_GETARG_DATUM(1)))));
}
