/*
 * base/args.h
 *		Arguments of SQL functions, checked; results, shaped.
 */
#ifndef IDEMQ_BASE_ARGS_H
#define IDEMQ_BASE_ARGS_H

#include "fmgr.h"
#include "funcapi.h"
#include "utils/timestamp.h"

extern void idemq_check_top_level(FunctionCallInfo fcinfo, const char *name, const char *why);
extern void idemq_arg_required(FunctionCallInfo fcinfo, int n, const char *name);
extern char *idemq_arg_text(FunctionCallInfo fcinfo, int n, const char *name, int max_bytes);
extern text *idemq_arg_worker(FunctionCallInfo fcinfo, int n);
extern int64 idemq_interval_usecs(const Interval *interval);
extern int64 idemq_check_interval(const char *name, const Interval *interval, int64 least);
extern int64 idemq_arg_interval(FunctionCallInfo fcinfo, int n, const char *name, int64 least);
extern bool idemq_arg_bool(FunctionCallInfo fcinfo, int n, const char *name);
extern int32 idemq_check_int(const char *name, int32 value, int32 min, int32 max);
extern int32 idemq_arg_int(FunctionCallInfo fcinfo, int n, const char *name, int32 min, int32 max);
extern double idemq_arg_float(FunctionCallInfo fcinfo, int n, const char *name, double min,
							  double max);
extern void idemq_check_key(const char *name, int bytes);
extern void idemq_check_kind(int bytes);

/* A one-dimensional array argument, taken apart. */
typedef struct ArrayArg
{
	int count;
	Datum *values;
	bool *nulls;
} ArrayArg;

extern void idemq_arg_array(FunctionCallInfo fcinfo, int n, const char *name, Oid element_type,
							bool nulls_allowed, ArrayArg *array);
extern void idemq_arg_array_like(FunctionCallInfo fcinfo, int n, const char *name, Oid element_type,
								 bool nulls_allowed, int count, const char *other, ArrayArg *array);

extern void idemq_arg_attempts(FunctionCallInfo fcinfo, ArrayArg *ids, ArrayArg *tokens);

extern Datum idemq_interval_datum(int64 usecs);
extern Datum idemq_row_datum(FunctionCallInfo fcinfo, Datum *values, bool *nulls);
extern Datum idemq_value_row_datum(FunctionCallInfo fcinfo, Datum value);
extern Tuplestorestate *idemq_srf_begin(FunctionCallInfo fcinfo, TupleDesc *desc);

extern int idemq_compare_int32(const void *a, const void *b);
extern int idemq_compare_int64(const void *a, const void *b);

#endif
