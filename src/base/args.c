/*
 * base/args.c
 *		Reads and checks the arguments of SQL functions, and builds their results.
 *
 * Every error names the argument.  Its SQLSTATE is 22004 for NULL and 22023 for an invalid value,
 * and its hint says which values are valid.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "base/base.h"

/*
 * Raises 2D000 if a procedure was called in a transaction block, a function or an EXCEPTION block,
 * where it must not end transactions.  why: a sentence for DETAIL.
 */
void
idemq_check_top_level(FunctionCallInfo fcinfo, const char *name, const char *why)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		((CallContext *) fcinfo->context)->atomic || IsSubTransaction())
		ereport(
			ERROR, errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
			errmsg("idemq.%s cannot run inside a transaction block", name), errdetail("%s", why),
			errhint(
				"CALL the procedure outside a transaction block. If your driver opens transactions "
				"by default, turn on autocommit."));
}

/* Raises 22004 if an argument is NULL. */
void
idemq_arg_required(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR, errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be NULL", name),
				errhint("Pass a non-NULL value for %s.", name));
}

/* Raises 22023 if a text is empty or longer than max_bytes; hint: for a text that is too long. */
static void
check_length(const char *name, int bytes, int max_bytes, const char *hint)
{
	if (bytes == 0 || bytes > max_bytes)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s must be 1 to %d bytes long, not %d", name, max_bytes, bytes),
				errhint("%s", bytes == 0 ? "Pass a non-empty value." : hint));
}

/* Returns a text argument of 1 to max_bytes bytes. */
char *
idemq_arg_text(FunctionCallInfo fcinfo, int n, const char *name, int max_bytes)
{
	text *value;

	idemq_arg_required(fcinfo, n, name);
	value = PG_GETARG_TEXT_PP(n);
	check_length(name, VARSIZE_ANY_EXHDR(value), max_bytes, "Pass a shorter value.");
	return text_to_cstring(value);
}

/*
 * Returns an optional argument with the name of a worker, or NULL.  Raises 22023 for a name like
 * those of handler processes, because a restart ends the leases of jobs with such names at once.
 */
text *
idemq_arg_worker(FunctionCallInfo fcinfo, int n)
{
	char *name;

	if (PG_ARGISNULL(n))
		return NULL;
	name = idemq_arg_text(fcinfo, n, "worker", IDEMQ_MAX_WORKER);
	if (strncmp(name, IDEMQ_HANDLER_WORKER, sizeof(IDEMQ_HANDLER_WORKER) - 1) == 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("worker name must not begin with \"%s\"", IDEMQ_HANDLER_WORKER),
				errdetail("This prefix is reserved for idemq's own processes."),
				errhint("Choose another name."));
	return cstring_to_text(name);
}

/* Raises 22023 if an idempotency key is empty, or too long for the index. */
void
idemq_check_key(const char *name, int bytes)
{
	check_length(name, bytes, IDEMQ_MAX_KEY, "Pass a hash of the value instead.");
}

/* Raises 22023 if a kind is empty or too long. */
void
idemq_check_kind(int bytes)
{
	if (bytes == 0 || bytes > IDEMQ_MAX_KIND)
		ereport(
			ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("kind must be 1 to %d bytes long, not %d", IDEMQ_MAX_KIND, bytes),
			errhint(
				"A kind is a label shared by many jobs. Put data that differs from job to job in "
				"the payload."));
}

/*
 * Returns an interval in microseconds, computed like extract(epoch FROM ...): a year has 365.25
 * days, a month 30 days, and a day 24 hours.  If the result does not fit, returns the nearest
 * int64.
 */
int64
idemq_interval_usecs(const Interval *interval)
{
	int64 days = (int64) (interval->month % MONTHS_PER_YEAR) * DAYS_PER_MONTH + interval->day;
	int64 usecs;
	int64 day_usecs;

	if (pg_mul_s64_overflow(interval->month / MONTHS_PER_YEAR, SECS_PER_YEAR * USECS_PER_SEC,
							&usecs) ||
		pg_mul_s64_overflow(days, USECS_PER_DAY, &day_usecs) ||
		pg_add_s64_overflow(usecs, day_usecs, &usecs) ||
		pg_add_s64_overflow(usecs, interval->time, &usecs))
		return interval->month < 0 || interval->day < 0 ? PG_INT64_MIN : PG_INT64_MAX;
	return usecs;
}

/*
 * Returns an interval in microseconds.  Raises 22023 if it is less than least microseconds (1:
 * must be positive; 0: must not be negative), or more than 1,000 years.
 */
int64
idemq_check_interval(const char *name, const Interval *interval, int64 least)
{
	int64 usecs = idemq_interval_usecs(interval);

	if (usecs < least)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				least > 0 ? errmsg("%s must be positive", name)
						  : errmsg("%s must not be negative", name),
				errhint("Pass an interval, for example '30 s'."));
	if (usecs > INT64CONST(365250) * USECS_PER_DAY)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s must not be longer than 1000 years", name),
				errhint("Pass an interval, for example '30 s'."));
	return usecs;
}

/* Like idemq_check_interval, for an argument; also raises 22004 for NULL. */
int64
idemq_arg_interval(FunctionCallInfo fcinfo, int n, const char *name, int64 least)
{
	idemq_arg_required(fcinfo, n, name);
	return idemq_check_interval(name, PG_GETARG_INTERVAL_P(n), least);
}

/* Returns an optional jsonb argument, or 0; raises 54000 if it is too long. */
Datum
idemq_arg_document(FunctionCallInfo fcinfo, int n, const char *name)
{
	Datum value;

	if (PG_ARGISNULL(n))
		return (Datum) 0;
	value = PointerGetDatum(PG_DETOAST_DATUM(PG_GETARG_DATUM(n)));
	idemq_check_document(name, value, 0);
	return value;
}

/* Returns a boolean argument. */
bool
idemq_arg_bool(FunctionCallInfo fcinfo, int n, const char *name)
{
	idemq_arg_required(fcinfo, n, name);
	return PG_GETARG_BOOL(n);
}

/* Returns an integer; raises 22023 if it is not between min and max. */
int32
idemq_check_int(const char *name, int32 value, int32 min, int32 max)
{
	if (value < min || value > max)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				max == PG_INT32_MAX
					? errmsg("%s must be at least %d, not %d", name, min, value)
					: errmsg("%s must be between %d and %d, not %d", name, min, max, value),
				errhint("Pass a value from %d to %d.", min, max));
	return value;
}

/* Like idemq_check_int, for an argument. */
int32
idemq_arg_int(FunctionCallInfo fcinfo, int n, const char *name, int32 min, int32 max)
{
	idemq_arg_required(fcinfo, n, name);
	return idemq_check_int(name, PG_GETARG_INT32(n), min, max);
}

/* Returns a float8 argument; raises 22023 if it is NaN or not between min and max. */
double
idemq_arg_float(FunctionCallInfo fcinfo, int n, const char *name, double min, double max)
{
	double value;

	idemq_arg_required(fcinfo, n, name);
	value = PG_GETARG_FLOAT8(n);
	if (!(value >= min && value <= max))
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s must be between %g and %g, not %g", name, min, max, value),
				errhint("Pass a value from %g to %g.", min, max));
	return value;
}

/*
 * Reads an array argument into its elements.  Raises 22004 if it is NULL, or contains NULL and
 * nulls_allowed is false; 22023 if it has more than one dimension, a lower bound other than 1, or
 * too many elements.
 */
void
idemq_arg_array(FunctionCallInfo fcinfo, int n, const char *name, Oid element_type,
				bool nulls_allowed, ArrayArg *array)
{
	ArrayType *value;
	int16 length;
	bool by_value;
	char align;

	idemq_arg_required(fcinfo, n, name);
	value = PG_GETARG_ARRAYTYPE_P(n);
	memset(array, 0, sizeof(*array));
	if (ARR_NDIM(value) == 0)
		return;
	if (ARR_NDIM(value) != 1 || ARR_LBOUND(value)[0] != 1)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s must be a one-dimensional array with a lower bound of 1", name),
				errhint("Use array_agg or ARRAY[...] to build the array."));
	if (ARR_DIMS(value)[0] > IDEMQ_MAX_ARRAY)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s must have at most %d elements, not %d", name, IDEMQ_MAX_ARRAY,
					   ARR_DIMS(value)[0]),
				errhint("Split the array, and make several calls."));
	if (!nulls_allowed && array_contains_nulls(value))
		ereport(ERROR, errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("%s must not contain NULL", name), errhint("Remove the NULL elements."));
	get_typlenbyvalalign(element_type, &length, &by_value, &align);
	deconstruct_array(value, element_type, length, by_value, align, &array->values, &array->nulls,
					  &array->count);
}

/*
 * Like idemq_arg_array, for an optional array, which must have count elements, as many as the
 * argument named other.  If the argument is NULL, array->values is NULL.
 */
void
idemq_arg_array_like(FunctionCallInfo fcinfo, int n, const char *name, Oid element_type,
					 bool nulls_allowed, int count, const char *other, ArrayArg *array)
{
	memset(array, 0, sizeof(*array));
	if (PG_ARGISNULL(n))
		return;
	idemq_arg_array(fcinfo, n, name, element_type, nulls_allowed, array);
	if (array->count != count)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s must have as many elements as %s (%d), not %d", name, other, count,
					   array->count),
				errhint("Pass arrays of equal length."));
}

/* Raises 22004 if one of the first two arguments, id and token, is NULL. */
void
idemq_arg_attempt(FunctionCallInfo fcinfo)
{
	idemq_arg_required(fcinfo, 0, "id");
	idemq_arg_required(fcinfo, 1, "token");
}

/* Reads the first two arguments: an array of ids, and an array with a token for each id. */
void
idemq_arg_attempts(FunctionCallInfo fcinfo, ArrayArg *ids, ArrayArg *tokens)
{
	idemq_arg_array(fcinfo, 0, "ids", INT8OID, false, ids);
	idemq_arg_required(fcinfo, 1, "tokens");
	idemq_arg_array_like(fcinfo, 1, "tokens", INT8OID, false, ids->count, "ids", tokens);
}

/* Returns microseconds as an interval, without days and months. */
Datum
idemq_interval_datum(int64 usecs)
{
	Interval *interval = palloc0(sizeof(Interval));

	interval->time = usecs;
	return IntervalPGetDatum(interval);
}

/* Returns a row of the function's result type, for example RowBuilder's values. */
Datum
idemq_row_datum(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/* Returns the result of a procedure that has one INOUT argument. */
Datum
idemq_value_row_datum(FunctionCallInfo fcinfo, Datum value)
{
	bool isnull = false;

	return idemq_row_datum(fcinfo, &value, &isnull);
}

/* Returns the ReturnSetInfo of a set-returning function; raises 0A000 if a set is not allowed. */
ReturnSetInfo *
idemq_srf_place(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0)
		ereport(ERROR, errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("set-returning function called in a context that cannot accept a set"),
				errhint("Call the function in the FROM clause."));
	return rsinfo;
}

/*
 * Begins the result of a set-returning function: setResult is an empty tuplestore for rows of type
 * setDesc.  Does not change the current memory context.
 */
ReturnSetInfo *
idemq_srf_begin(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = idemq_srf_place(fcinfo);
	MemoryContext old;

	old = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	if (rsinfo->expectedDesc != NULL)
		rsinfo->setDesc = CreateTupleDescCopy(rsinfo->expectedDesc);
	else if (get_call_result_type(fcinfo, NULL, &rsinfo->setDesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult = tuplestore_begin_heap((rsinfo->allowedModes & SFRM_Materialize_Random) != 0,
											  false, work_mem);
	MemoryContextSwitchTo(old);
	return rsinfo;
}

/* Compares two int32, or two structs that begin with an int32; for qsort and bsearch. */
int
idemq_compare_int32(const void *a, const void *b)
{
	int32 x = *(const int32 *) a;
	int32 y = *(const int32 *) b;

	return (x > y) - (x < y);
}

/* Like idemq_compare_int32, for int64. */
int
idemq_compare_int64(const void *a, const void *b)
{
	int64 x = *(const int64 *) a;
	int64 y = *(const int64 *) b;

	return (x > y) - (x < y);
}
