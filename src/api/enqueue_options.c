/*
 * api/enqueue_options.c
 *		What the functions that add jobs can be told of a job: key, time, priority, group ...
 *
 * Each option is an argument of enqueue, and an array of enqueue_many; the table says what
 * it sets, and how that array is called.  In which place a function has it, the function says.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"

static void
set_key(JobChange *columns, Datum value)
{
	text *key = DatumGetTextPP(value);

	idemq_check_key("key", VARSIZE_ANY_EXHDR(key));
	job_set(columns, COL_KEY, PointerGetDatum(key));
}

/* Returns the job's time of birth and an interval by the calendar, as timestamptz + interval. */
static Datum
later(const JobChange *columns, const char *name, Datum interval, int64 least)
{
	(void) idemq_check_interval(name, DatumGetIntervalP(interval), least);
	return DirectFunctionCall2(timestamptz_pl_interval, columns->values[COL_CREATED_AT], interval);
}

static void
set_delay(JobChange *columns, Datum value)
{
	job_set(columns, COL_READY_AT, later(columns, "delay", value, 0));
}

/* Infinity is refused: such a job would never be due, or always have been. */
static void
set_run_at(JobChange *columns, Datum value)
{
	if (TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(value)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_at must be finite"),
						errhint("Pass a time, or NULL for now.")));
	job_set(columns, COL_READY_AT, value);
}

static void
set_priority(JobChange *columns, Datum value)
{
	int priority = DatumGetInt32(value);

	if (priority < 0 || priority >= IDEMQ_PRIORITIES)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("priority must be between 0 and %d, not %d", IDEMQ_PRIORITIES - 1,
							   priority),
						errhint("0 is claimed first, %d last.", IDEMQ_PRIORITIES - 1)));
	job_set(columns, COL_PRIORITY, Int16GetDatum(priority));
}

/*
 * Has a new job of a FIFO group wait: blocked, until it is promoted (job/promote.c), which
 * heeds the time that was asked for.
 */
static void
block(JobChange *columns)
{
	TimestampTz ready_at = DatumGetTimestampTz(columns->values[COL_READY_AT]);

	job_set(columns, COL_STATUS, ObjectIdGetDatum(idemq_oids()->status[JOB_BLOCKED]));
	columns->set &= ~COLUMN_BIT(COL_READY_AT);
	if (ready_at > DatumGetTimestampTz(columns->values[COL_CREATED_AT]))
		job_set(columns, COL_RUN_AT, TimestampTzGetDatum(ready_at));
}

static void
set_group(JobChange *columns, Datum name)
{
	text *value = DatumGetTextPP(name);

	idemq_check_key("group_key", VARSIZE_ANY_EXHDR(value));
	job_set(columns, COL_GROUP_KEY, PointerGetDatum(value));
}

static void
set_max_attempts(JobChange *columns, Datum value)
{
	job_set(columns, COL_MAX_ATTEMPTS,
			Int32GetDatum(idemq_check_int("max_attempts", DatumGetInt32(value), 1, PG_INT32_MAX)));
}

static void
set_headers(JobChange *columns, Datum value)
{
	idemq_check_document("headers", value, 0);
	job_set(columns, COL_HEADERS, value);
}

static void
set_expires_in(JobChange *columns, Datum value)
{
	job_set(columns, COL_EXPIRES_AT, later(columns, "expires_in", value, 1));
}

static void
set_key_ttl(JobChange *columns, Datum value)
{
	job_set(columns, COL_KEY_EXPIRES_AT, later(columns, "key_ttl", value, 1));
}

static void
set_kind(JobChange *columns, Datum value)
{
	text *kind = DatumGetTextPP(value);

	idemq_check_kind(VARSIZE_ANY_EXHDR(kind));
	job_set(columns, COL_KIND, PointerGetDatum(kind));
}

const JobOption idemq_enqueue_options[OPTIONS] = {
	[OPTION_KEY] = {set_key, "keys", TEXTOID},
	[OPTION_DELAY] = {set_delay, "delays", INTERVALOID},
	[OPTION_RUN_AT] = {set_run_at, "run_ats", TIMESTAMPTZOID},
	[OPTION_PRIORITY] = {set_priority, "priorities", INT4OID},
	[OPTION_GROUP_KEY] = {set_group, "group_keys", TEXTOID},
	[OPTION_MAX_ATTEMPTS] = {set_max_attempts, "max_attempts", INT4OID},
	[OPTION_HEADERS] = {set_headers, "headers", JSONBOID},
	[OPTION_EXPIRES_IN] = {set_expires_in, "expires_ins", INTERVALOID},
	[OPTION_KEY_TTL] = {set_key_ttl, "key_ttls", INTERVALOID},
	[OPTION_KIND] = {set_kind, "kinds", TEXTOID},
};

/*
 * Reads the options from a call's arguments.  args: the position of each; 0, that of the queue,
 * for one that the function does not have.
 */
void
idemq_enqueue_read_options(FunctionCallInfo fcinfo, const int *args, NullableDatum *values)
{
	for (int i = 0; i < OPTIONS; i++)
		values[i] = args[i] != 0 ? fcinfo->args[args[i]] : (NullableDatum){.isnull = true};
}

/* Raises 22023 for options that contradict each other. */
static void
check_together(const NullableDatum *values)
{
	if (!values[OPTION_DELAY].isnull && !values[OPTION_RUN_AT].isnull)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("delay and run_at cannot be used together"), errhint("Pass one of them.")));
	if (!values[OPTION_KEY_TTL].isnull && values[OPTION_KEY].isnull)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("key_ttl needs a key"),
						errhint("Pass a key, or leave key_ttl out.")));
}

/*
 * Sets what the options say of a new job of a queue; NULL ones say nothing.  Where groups take
 * turns, jobs without one do so, too (job/places.c).
 */
void
idemq_enqueue_set_options(JobChange *columns, const QueueInfo *queue, const NullableDatum *values)
{
	check_together(values);
	for (int i = 0; i < OPTIONS; i++)
	{
		if (!values[i].isnull)
			idemq_enqueue_options[i].set(columns, values[i].value);
	}
	if (values[OPTION_GROUP_KEY].isnull && !idemq_has_places(queue))
		return;
	if (values[OPTION_GROUP_KEY].isnull)
		job_set(columns, COL_GROUP_KEY, PointerGetDatum(cstring_to_text("")));
	block(columns);
}
