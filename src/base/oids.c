/*
 * base/oids.c
 *		The OIDs of idemq's own objects, looked up once, and again whenever a schema
 *		or idemq.jobs may have changed (DROP EXTENSION, ALTER OWNER).
 *
 * Indexes are not here: they are read from the table's relcache entry at every
 * call, since REINDEX CONCURRENTLY replaces them.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/base.h"
#include "base/compat.h"

/* In the order of JobStatus and of Outcome. */
static const char *const status_names[] = {"blocked",	"pending", "running",  "retrying",
										   "completed", "dead",	   "cancelled"};
static const char *const outcome_names[] =
	{"accepted", "duplicate", "rerun",	   "claimed",			"claimed_again",
	 "locked",	 "completed", "dead",	   "cancelled",			"blocked",
	 "not_due",	 "not_found", "committed", "already_committed", "stale",
	 "current",	 "expired",	  "retrying",  "released",			"added",
	 "already"};
StaticAssertDecl(lengthof(status_names) == JOB_STATUS_COUNT, "a status has no name");
StaticAssertDecl(lengthof(outcome_names) == OUTCOME_COUNT, "an outcome has no name");

static ObjectOids catalog;
/*
 * The catalog holds while these are equal; oids_loaded_at is 0 before the first load.  A
 * change during a load is read at the next call.
 */
static uint64 oids_invalidations = 1;
static uint64 oids_loaded_at = 0;

/* Returns the OID of a relation of one of our schemas; raises when it is not there. */
static Oid
relation_oid(const char *name, Oid schema)
{
	Oid oid = get_relname_relid(name, schema);

	if (!OidIsValid(oid))
		ereport(ERROR, errcode(ERRCODE_UNDEFINED_TABLE),
				errmsg("table \"%s.%s\" does not exist",
					   schema == catalog.internal ? IDEMQ_INTERNAL_SCHEMA : IDEMQ_SCHEMA, name),
				errhint("Run CREATE EXTENSION idemq in this database."));
	return oid;
}

/* Returns the OID of an enum of schema idemq; *values: the OIDs of its values, in order. */
static Oid
load_enum(const char *type, const char *const *names, int count, Oid *values)
{
	Oid type_oid = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum(type),
								   ObjectIdGetDatum(catalog.schema));

	for (int i = 0; i < count; i++)
	{
		values[i] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid, ObjectIdGetDatum(type_oid),
									CStringGetDatum(names[i]));
		if (!OidIsValid(values[i]))
			elog(ERROR, "enum %s.%s has no value \"%s\"", IDEMQ_SCHEMA, type, names[i]);
	}
	return type_oid;
}

/* Returns whether the extension is here, and fits the library; also within its scripts. */
IdemqPresence
idemq_presence(void)
{
	Oid schema;

	if (oids_loaded_at == oids_invalidations)
		return IDEMQ_HERE;
	schema = get_namespace_oid(IDEMQ_SCHEMA, true);
	if (!OidIsValid(schema) || !OidIsValid(get_relname_relid("jobs", schema)))
		return IDEMQ_ABSENT;
	return idemq_sql_presence();
}

/* Raises 55000: the SQL objects are of an earlier version. */
void
idemq_refuse_outdated(void)
{
	ereport(
		ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		errmsg("idemq's SQL objects in this database are older than the loaded library, version %s",
			   idemq_version),
		errhint("Run ALTER EXTENSION idemq UPDATE in this database."));
}

/*
 * Returns the OIDs.  Raises 42P01 when the extension is not in this database, 55000 when its
 * SQL objects are too old or too new for the library.  The result is valid until the next call.
 */
const ObjectOids *
idemq_oids(void)
{
	if (oids_loaded_at != oids_invalidations)
	{
		uint64 before = oids_invalidations;
		IdemqPresence presence;
		HeapTuple tuple;

		catalog.schema = get_namespace_oid(IDEMQ_SCHEMA, true);
		catalog.internal = get_namespace_oid(IDEMQ_INTERNAL_SCHEMA, true);
		catalog.jobs = relation_oid("jobs", catalog.schema);
		presence = idemq_sql_presence();
		if (presence == IDEMQ_NEWER)
			ereport(
				ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("idemq's SQL objects in this database are newer than the loaded library, "
					   "version %s",
					   idemq_version),
				errhint(
					"Install the version of the library that matches the SQL objects, and restart "
					"the server."));
		if (presence != IDEMQ_HERE)
			idemq_refuse_outdated();
		catalog.queues = relation_oid("queues", catalog.schema);
		catalog.queues_seq = compat_identity_sequence(catalog.queues, 1);
		catalog.queue_grants = relation_oid("queue_grants", catalog.internal);
		catalog.steps = get_relname_relid("steps", catalog.schema);
		catalog.dependencies = get_relname_relid("dependencies", catalog.schema);
		catalog.children = get_relname_relid("children", catalog.schema);
		catalog.paused_groups = get_relname_relid("paused_groups", catalog.schema);
		catalog.jobs_seq = compat_identity_sequence(catalog.jobs, 1);
		tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(catalog.jobs));
		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "cache lookup failed for relation %u", catalog.jobs);
		catalog.owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
		catalog.status_type = load_enum("status", status_names, JOB_STATUS_COUNT, catalog.status);
		(void) load_enum("outcome", outcome_names, OUTCOME_COUNT, catalog.outcome);
		oids_loaded_at = before;
	}
	return &catalog;
}

/* Returns a function of schema idemq that has a name of its own.  Raises 55000 if there is none. */
Oid
idemq_function_oid(const char *name)
{
	Oid schema = idemq_oids()->schema;
	CatCList *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	Oid found = InvalidOid;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc function = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (function->pronamespace == schema)
			found = function->oid;
	}
	ReleaseSysCacheList(list);
	if (!OidIsValid(found))
		idemq_refuse_outdated();
	return found;
}

static void
oids_forget_by_syscache(Datum arg, int cacheid, uint32 hashvalue)
{
	oids_invalidations++;
}

static void
oids_forget_by_relcache(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == catalog.jobs)
		oids_invalidations++;
}

/* Registers the invalidation callbacks; called once, from _PG_init. */
void
idemq_oids_install(void)
{
	CacheRegisterSyscacheCallback(NAMESPACEOID, oids_forget_by_syscache, (Datum) 0);
	CacheRegisterRelcacheCallback(oids_forget_by_relcache, (Datum) 0);
}

/* Returns the status that an enum value stands for. */
JobStatus
idemq_status_from_oid(Oid value)
{
	const ObjectOids *c = idemq_oids();

	for (int i = 0; i < JOB_STATUS_COUNT; i++)
	{
		if (c->status[i] == value)
			return (JobStatus) i;
	}
	elog(ERROR, "unknown value %u of %s.status", value, IDEMQ_SCHEMA);
}

const char *
idemq_status_name(JobStatus status)
{
	return status_names[status];
}

/* Returns an outcome as a value of idemq.outcome. */
Datum
idemq_outcome_datum(Outcome outcome)
{
	return ObjectIdGetDatum(idemq_oids()->outcome[outcome]);
}
