/*
 * api/enqueue_options.c
 *		What the functions that add jobs can be told of a job: key, time, priority, group ...
 *
 * Each option is an argument of enqueue, most are of publish and enqueue_sequenced, and each is
 * an array of enqueue_many, whose name and position the table has.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"

/* Returns enqueued_at plus an interval by the calendar, as timestamptz + interval. */
static Datum
later(const JobChange *columns, const char *name, Datum interval, int64 least)
{
	(void) idemq_check_interval(name, DatumGetIntervalP(interval), least);
	return DirectFunctionCall2(timestamptz_pl_interval, columns->values[COL_ENQUEUED_AT], interval);
}

const JobOption idemq_enqueue_options[OPTIONS] = {
	[OPTION_KEY] = {COL_KEY, "keys", TEXTOID, 2},
	[OPTION_DELAY] = {COL_READY_AT, "delays", INTERVALOID, 6},
	[OPTION_RUN_AT] = {COL_READY_AT, "run_ats", TIMESTAMPTZOID, 3},
	[OPTION_PRIORITY] = {COL_PRIORITY, "priorities", INT4OID, 4},
	[OPTION_GROUP_KEY] = {COL_GROUP_KEY, "group_keys", TEXTOID, 5},
	[OPTION_MAX_ATTEMPTS] = {COL_MAX_ATTEMPTS, "max_attempts", INT4OID, 7},
	[OPTION_HEADERS] = {COL_HEADERS, "headers", JSONBOID, 8},
	[OPTION_EXPIRES_IN] = {COL_EXPIRES_AT, "expires_ins", INTERVALOID, 9},
	[OPTION_KEY_TTL] = {COL_KEY_EXPIRES_AT, "key_ttls", INTERVALOID, 10},
	[OPTION_KIND] = {COL_KIND, "kinds", TEXTOID, 13},
};

/* Checks an option's value, and sets its column of a new job. */
static void
set_option(JobChange *columns, int option, Datum value)
{
	switch (option)
	{
		case OPTION_KEY:
			value = PointerGetDatum(DatumGetTextPP(value));
			idemq_check_key("key", VARSIZE_ANY_EXHDR(DatumGetPointer(value)));
			break;
		case OPTION_DELAY:
			value = later(columns, "delay", value, 0);
			break;
		case OPTION_RUN_AT:
			/* Such a job would never be due, or always have been. */
			if (TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(value)))
				ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("run_at must be finite"),
						errhint("Pass a time, or NULL to run the job now."));
			break;
		case OPTION_PRIORITY:
			if (DatumGetInt32(value) < 0 || DatumGetInt32(value) >= IDEMQ_PRIORITIES)
				ereport(
					ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("priority must be between 0 and %d, not %d", IDEMQ_PRIORITIES - 1,
						   DatumGetInt32(value)),
					errhint("Jobs with priority 0 are claimed first, and jobs with priority %d are "
							"claimed last.",
							IDEMQ_PRIORITIES - 1));
			value = Int16GetDatum(DatumGetInt32(value));
			break;
		case OPTION_GROUP_KEY:
			value = PointerGetDatum(DatumGetTextPP(value));
			idemq_check_key("group_key", VARSIZE_ANY_EXHDR(DatumGetPointer(value)));
			break;
		case OPTION_MAX_ATTEMPTS:
			(void) idemq_check_int("max_attempts", DatumGetInt32(value), 1, PG_INT32_MAX);
			break;
		case OPTION_HEADERS:
			idemq_check_document("headers", value, 0);
			break;
		case OPTION_EXPIRES_IN:
			value = later(columns, "expires_in", value, 1);
			break;
		case OPTION_KEY_TTL:
			value = later(columns, "key_ttl", value, 1);
			break;
		case OPTION_KIND:
			value = PointerGetDatum(DatumGetTextPP(value));
			idemq_check_kind(VARSIZE_ANY_EXHDR(DatumGetPointer(value)));
			break;
	}
	job_set(columns, idemq_enqueue_options[option].column, value);
}

/*
 * Reads the options from a call's arguments.  first: the position of delay, which the next six
 * options follow; key, key_ttl: their positions, -1 if the function does not have them.
 */
void
idemq_enqueue_read_options(FunctionCallInfo fcinfo, int key, int first, int key_ttl, int kind,
						   NullableDatum *values)
{
	const NullableDatum none = {.isnull = true};

	for (int i = OPTION_DELAY; i <= OPTION_EXPIRES_IN; i++)
		values[i] = fcinfo->args[first + i - OPTION_DELAY];
	values[OPTION_KEY] = key >= 0 ? fcinfo->args[key] : none;
	values[OPTION_KEY_TTL] = key_ttl >= 0 ? fcinfo->args[key_ttl] : none;
	values[OPTION_KIND] = fcinfo->args[kind];
	idemq_arg_required(fcinfo, first + OPTION_PRIORITY - OPTION_DELAY, "priority");
}

/*
 * Sets what the options say of a new job of a queue; NULL ones say nothing.  Where groups use
 * permits, jobs without a group form a group as well (job/permits.c).  Raises 22023 for options
 * that contradict each other.
 */
void
idemq_enqueue_set_options(JobChange *columns, const QueueInfo *queue, const NullableDatum *values)
{
	TimestampTz ready_at;
	if (!values[OPTION_DELAY].isnull && !values[OPTION_RUN_AT].isnull)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("delay and run_at cannot both be specified"),
				errhint("Pass only one of them."));
	if (!values[OPTION_KEY_TTL].isnull && values[OPTION_KEY].isnull)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("key_ttl requires a key"),
				errhint("Pass a key, or omit key_ttl."));
	for (int i = 0; i < OPTIONS; i++)
	{
		if (!values[i].isnull)
			set_option(columns, i, values[i].value);
	}
	if (values[OPTION_GROUP_KEY].isnull && !idemq_groups_use_permits(queue))
		return;
	if (values[OPTION_GROUP_KEY].isnull)
		job_set(columns, COL_GROUP_KEY, PointerGetDatum(cstring_to_text("")));
	/* Blocked until its promotion (job/promote.c), which heeds the time that was asked for. */
	ready_at = DatumGetTimestampTz(columns->values[COL_READY_AT]);
	job_set(columns, COL_STATUS, ObjectIdGetDatum(idemq_oids()->status[JOB_BLOCKED]));
	columns->set &= ~COLUMN_BIT(COL_READY_AT);
	if (ready_at > DatumGetTimestampTz(columns->values[COL_ENQUEUED_AT]))
		job_set(columns, COL_RUN_AT, TimestampTzGetDatum(ready_at));
}
