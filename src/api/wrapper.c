/*
 * api/wrapper.c
 *		The wrappers of functions in SQL: the function NAME is a C function of this file, which
 *		calls the implementation, NAME_impl of schema idemq_internal, with the same arguments,
 *		in SQL or PL/pgSQL.  Two of them act as SECURITY DEFINER would; the third runs the
 *		implementation as the caller.
 *
 * It serves functions that are not on a hot path and are little more than SQL.  The implementation
 * runs as the owner of idemq's tables, and no other role may call it.  A frame remembers the role
 * that called: each check of rights, each row of idemq.audit, and each call of a function of schema
 * idemq is made as that role, by the functions of api/internal.c, which raise when no frame is
 * open.  (current_user is the owner, to whom everything is allowed.)
 *
 *		idemq_sql_wrapper		in a security-restricted context: for what does not write idemq.jobs
 *		idemq_sql_wrapper_jobs	the DBA may have put deferred triggers on idemq.jobs, which such
 *								a context does not allow
 *
 * A STABLE implementation only reads, also on a standby: all of it under one snapshot, the
 * latest, at each isolation level.  For a VOLATILE one the wrapper raises 25006 and 55000 before
 * the call, unless it is called as a trigger.  Above READ COMMITTED its statements have the
 * transaction's snapshot, and it reads what was committed since through idemq_internal.latest.
 *
 * PostgreSQL may plan its statements while the tables have no rows yet, and each reads
 * few rows.  So they get generic plans without sequential scans.  JIT is off: the cost of 1e10
 * that such a plan may have would start it.
 *
 * The third wrapper (idemq_sql_wrapper_as_caller) is for functions that read as their caller, under
 * row-level security.  The implementation runs as that role, under its snapshot, may name nothing
 * in idemq_internal, and sets its own plans (SET ... of CREATE FUNCTION).  A function in SQL alone
 * would do, except that the settings of a role or database would decide how it is read and what it
 * prints, and that its errors would show its statements.
 *
 * An error (RAISE, with ERRCODE and HINT) leaves a wrapper as an error of a C function does:
 * without the lines of the implementation in its CONTEXT, and without the DETAIL in which
 * PostgreSQL shows a row that the caller may not read.
 *
 * test/sql/wrapper.sql, test/specs/wrapper-levels.spec and test/t/fuzz.pl take the functions from
 * the catalog.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "api/api.h"
#include "base/base.h"
#include "table/table.h"

/* The name of an implementation, made from the name of its wrapper. */
#define IMPLEMENTATION "%s_impl"

/* A wrapper's call; on the stack of that call. */
typedef struct Frame
{
	struct Frame *outer;
	Oid caller;
	int caller_context;		 /* the caller's security context flags */
	const char *search_path; /* the caller's */
	Oid owner;
	int owner_context;
	SubTransactionId away_in; /* in which the role was changed; invalid: it was not */
	ErrorContextCallback *callers_context;
} Frame;

static Frame *frames = NULL; /* the innermost first */

/* What a call looks up once for as long as its FmgrInfo lives. */
typedef struct Implementation
{
	FmgrInfo function;
	bool reads;
	bool is_void;
} Implementation;

/* Returns the implementation of the function that is called.  Raises 55000. */
static Implementation *
find_implementation(FmgrInfo *wrapper)
{
	Implementation *impl = wrapper->fn_extra;
	HeapTuple tuple;
	HeapTuple other;
	NameData name;
	Oid schema;

	if (impl != NULL)
		return impl;
	schema = idemq_oids()->internal; /* raises 42P01, 55000 */
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(wrapper->fn_oid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", wrapper->fn_oid);
	snprintf(NameStr(name), NAMEDATALEN, IMPLEMENTATION,
			 NameStr(((Form_pg_proc) GETSTRUCT(tuple))->proname));
	other = SearchSysCache3(PROCNAMEARGSNSP, NameGetDatum(&name),
							PointerGetDatum(&((Form_pg_proc) GETSTRUCT(tuple))->proargtypes),
							ObjectIdGetDatum(schema));
	if (!HeapTupleIsValid(other))
		idemq_refuse_outdated();
	impl = MemoryContextAllocZero(wrapper->fn_mcxt, sizeof(Implementation));
	impl->reads = ((Form_pg_proc) GETSTRUCT(other))->provolatile != PROVOLATILE_VOLATILE;
	impl->is_void = ((Form_pg_proc) GETSTRUCT(other))->prorettype == VOIDOID;
	fmgr_info_cxt(((Form_pg_proc) GETSTRUCT(other))->oid, &impl->function, wrapper->fn_mcxt);
	ReleaseSysCache(other);
	ReleaseSysCache(tuple);
	wrapper->fn_extra = impl;
	return impl;
}

/*
 * Raises the caught error again, without what the caller may not know.  by_owner: it was raised
 * by what was done as the owner, not as another role.
 */
pg_noreturn static void
raise_again(MemoryContext context, bool by_owner)
{
	ErrorData *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	error->context = NULL;
	error->internalquery = NULL;
	error->internalpos = error->cursorpos = 0;
	/* The detail of these errors contains values of rows. */
	if (by_owner &&
		(ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION ||
		 error->sqlerrcode == ERRCODE_WITH_CHECK_OPTION_VIOLATION))
		error->detail = NULL;
	ThrowErrorData(error);
	pg_unreachable();
}

/*
 * Calls the implementation as the owner.  The stack of error contexts is empty for it, so an error
 * gets only the context of the implementation; ThrowErrorData adds the callers'.
 */
static Datum
call_as_owner(FunctionCallInfo fcinfo, Implementation *impl, Frame *frame)
{
	int level = NewGUCNestLevel();
	Datum result;

	SetUserIdAndSecContext(frame->owner, frame->owner_context);
	idemq_spi_set("search_path", "pg_catalog, pg_temp");
	idemq_spi_set("plan_cache_mode", "force_generic_plan");
	idemq_spi_set("enable_seqscan", "off");
	idemq_spi_set("jit", "off");
	idemq_spi_pin_settings();
	if (impl->reads)
		PushActiveSnapshot(GetLatestSnapshot());
	fcinfo->flinfo = &impl->function;
	if (!CALLED_AS_TRIGGER(fcinfo))
		fcinfo->context = NULL;
	error_context_stack = NULL;
	result = FunctionCallInvoke(fcinfo);
	fcinfo->isnull &= !impl->is_void;
	if (impl->reads)
		PopActiveSnapshot();
	AtEOXact_GUC(true, level);
	SetUserIdAndSecContext(frame->caller, frame->caller_context);
	return result;
}

/* As call_as_owner, in a frame; after an error, the end of the subtransaction undoes the rest. */
static Datum
call_in_frame(FunctionCallInfo fcinfo, Implementation *impl, int restriction)
{
	Frame frame = {.outer = frames,
				   .search_path = pstrdup(namespace_search_path),
				   .callers_context = error_context_stack};
	MemoryContext context = CurrentMemoryContext;
	FmgrInfo *wrapper = fcinfo->flinfo;
	Node *node = fcinfo->context;
	HiddenContext own;
	Datum result;

	GetUserIdAndSecContext(&frame.caller, &frame.caller_context);
	frame.owner = idemq_oids()->owner;
	frame.owner_context = frame.caller_context | SECURITY_LOCAL_USERID_CHANGE | restriction;
	idemq_context_hide(&own, NULL);
	PG_TRY();
	{
		frames = &frame;
		result = call_as_owner(fcinfo, impl, &frame);
	}
	PG_CATCH();
	{
		idemq_context_show(&own);
		frames = frame.outer;
		/*
		 * A caller that catches the error, such as the check of a domain, may call again with the
		 * same fcinfo.
		 */
		fcinfo->flinfo = wrapper;
		fcinfo->context = node;
		raise_again(context, GetUserId() == frame.owner);
	}
	PG_END_TRY();
	idemq_context_show(&own);
	frames = frame.outer;
	fcinfo->flinfo = wrapper;
	fcinfo->context = node;
	return result;
}

/* Raises 25000 in a parallel operation, where settings and the role cannot be changed. */
static void
refuse_parallel(FunctionCallInfo fcinfo)
{
	if (IsInParallelMode())
		ereport(ERROR, errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				errmsg("%s.%s cannot be called during a parallel operation",
					   get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)),
					   get_func_name(fcinfo->flinfo->fn_oid)),
				errhint("Declare the calling function PARALLEL UNSAFE."));
}

/* A set is returned as a whole: no implementation goes on once the frame is gone. */
static Datum
wrapper_call(FunctionCallInfo fcinfo, int restriction)
{
	Implementation *impl = find_implementation(fcinfo->flinfo);

	refuse_parallel(fcinfo);
	if (!impl->reads && !CALLED_AS_TRIGGER(fcinfo))
		idemq_jobs_check_writable();
	if (impl->function.fn_retset)
		idemq_srf_place(fcinfo)->allowedModes |= SFRM_Materialize_Preferred;
	return call_in_frame(fcinfo, impl, restriction);
}

/* The implementation, in a security-restricted context. */
SQL_FUNCTION(idemq_sql_wrapper)
{
	return wrapper_call(fcinfo, SECURITY_RESTRICTED_OPERATION);
}

/* The implementation, which may write idemq.jobs. */
SQL_FUNCTION(idemq_sql_wrapper_jobs)
{
	return wrapper_call(fcinfo, 0);
}

/*
 * Calls the implementation with the rights of the caller.  What is set here is restored when the
 * nest level of the settings ends, and by an error.
 */
SQL_FUNCTION(idemq_sql_wrapper_as_caller)
{
	Implementation *impl = find_implementation(fcinfo->flinfo);
	MemoryContext context = CurrentMemoryContext;
	FmgrInfo *wrapper = fcinfo->flinfo;
	HiddenContext own;
	int level;
	Datum result;

	refuse_parallel(fcinfo);
	if (impl->function.fn_retset)
		idemq_srf_place(fcinfo)->allowedModes |= SFRM_Materialize_Preferred;
	level = NewGUCNestLevel();
	idemq_spi_set("search_path", "pg_catalog, pg_temp");
	idemq_spi_pin_settings();
	idemq_context_hide(&own, NULL);
	PG_TRY();
	{
		fcinfo->flinfo = &impl->function;
		error_context_stack = NULL;
		result = FunctionCallInvoke(fcinfo);
	}
	PG_CATCH();
	{
		idemq_context_show(&own);
		fcinfo->flinfo = wrapper;
		raise_again(context, false);
	}
	PG_END_TRY();
	idemq_context_show(&own);
	fcinfo->flinfo = wrapper;
	AtEOXact_GUC(true, level);
	return result;
}

/* Returns the frame in which an implementation runs.  Raises 55000 for any other caller. */
static Frame *
open_frame(void)
{
	if (frames == NULL || SubTransactionIsActive(frames->away_in))
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("functions in schema idemq_internal can be called only by idemq"),
				errhint("Call a function in schema idemq instead."));
	return frames;
}

/* Returns the role that called the wrapper.  Raises 55000 outside a wrapper's call. */
Oid
idemq_wrapper_caller(void)
{
	return open_frame()->caller;
}

/*
 * Sends the caller a message that is no error, with the caller's context alone, as a message of a C
 * function has.  RAISE would add the lines of the implementation.  detail and hint may be NULL.
 * Raises 55000 outside a wrapper's call.
 */
void
idemq_wrapper_report(int level, const char *message, const char *detail, const char *hint)
{
	ErrorContextCallback *own = error_context_stack;

	error_context_stack = open_frame()->callers_context;
	ereport(level, errmsg_internal("%s", message),
			detail == NULL ? 0 : errdetail_internal("%s", detail),
			hint == NULL ? 0 : errhint("%s", hint));
	error_context_stack = own;
}

/*
 * Becomes a role until idemq_wrapper_become_owner; after an error the end of the subtransaction
 * undoes that.  Returns what idemq_wrapper_become_owner takes.  Raises 55000 outside a wrapper's
 * call.
 */
int
idemq_wrapper_become(Oid role)
{
	Frame *frame = open_frame();

	SetUserIdAndSecContext(role, frame->owner_context);
	frame->away_in = GetCurrentSubTransactionId();
	return NewGUCNestLevel();
}

/* As idemq_wrapper_become, for the role that has called, with its search_path. */
int
idemq_wrapper_become_caller(void)
{
	int level = idemq_wrapper_become(idemq_wrapper_caller());

	idemq_spi_set("search_path", frames->search_path);
	return level;
}

/* Becomes the owner again. */
void
idemq_wrapper_become_owner(int guc_level)
{
	AtEOXact_GUC(true, guc_level);
	SetUserIdAndSecContext(frames->owner, frames->owner_context);
	frames->away_in = InvalidSubTransactionId;
}
