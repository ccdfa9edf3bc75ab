/*
 * queue/declared.c
 *		The settings that idemq.ensure_queue was called with: idemq.queues.declared, a jsonb object
 *		of names and values, where null is "none".
 *
 * A declaration is a FunctionCallInfo as alter_queue has it: argument 0 is the name of the queue,
 * and argument i + 1 is setting i.  NULL means that the setting is not named; 0 and '' mean "none".
 *
 * A call adds the settings that it names to those of earlier calls.  So two programs, or two
 * versions of a program, that name different settings of a queue do not undo each other's
 * declarations.  A call with exact names every setting: those without an argument get their
 * defaults.
 *
 * Values are compared as their types compare them, so '1 day' and '24 h' are the same interval.
 * Everything is read by one statement under the latest snapshot, which takes no lock.  The writer
 * takes the lock on the queue's name first, and then the lock on its row.
 *
 * The defaults are those of create_queue's arguments.  They are read from the catalog, because they
 * are defined only there.  The SQL objects may be older than this library, so the call determines
 * the number of settings.
 */
#include "postgres.h"

#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"

/*
 * For each setting: its bit, its name, whether the call names it, whether its declaration is new,
 * whether the queue has another value, the queue's value, and the declared value.
 */
#define COMPARE_TEXT                                                                               \
	"SELECT s.* FROM idemq.queues q CROSS JOIN LATERAL (SELECT "                                   \
	"coalesce(bit_or(bit) FILTER (WHERE is_new), 0), "                                             \
	"coalesce(bit_or(bit) FILTER (WHERE differs), 0), "                                            \
	"coalesce(string_agg(name, ', ' ORDER BY bit) FILTER (WHERE is_new), ''), "                    \
	"coalesce(string_agg(name, ', ' ORDER BY bit) FILTER (WHERE differs AND NOT is_new), ''), "    \
	"coalesce(string_agg(format('%%s is %%s instead of %%s', name, coalesce(current, 'none'), "    \
	"coalesce(value, 'none')), ', ' ORDER BY bit) FILTER (WHERE differs AND NOT is_new), '') "     \
	"FROM (VALUES %s) v (bit, name, is_named, is_new, differs, current, value) "                   \
	"WHERE is_named) s WHERE q.queue_id = $1"
#define STORE_TEXT                                                                                 \
	"UPDATE idemq.queues SET declared = coalesce(declared, '{}') || (SELECT "                      \
	"coalesce(jsonb_object_agg(name, value), '{}') FROM (VALUES %s) v (name, is_named, value) "    \
	"WHERE is_named) WHERE queue_id = $1"

static const SqlField declared_fields[] = {SQL_FIELD(DeclaredDifference, is_new),
										   SQL_FIELD(DeclaredDifference, differs),
										   SQL_FIELD(DeclaredDifference, new_names),
										   SQL_FIELD(DeclaredDifference, kept_names),
										   SQL_FIELD(DeclaredDifference, kept_details)};

/* The text is made by declared_build, for built_for settings. */
static SqlStatement compare_declared = {.few = true, .types = {INT4OID}};
static SqlStatement store_declared = {.latest = true, .types = {INT4OID}};
static int built_for = 0;

/* Returns the number of settings that a declaration has. */
static int
setting_count(FunctionCallInfo settings)
{
	return settings->nargs - 1;
}

/*
 * Adds what the two statements say about a setting.  Values of one type have one form in jsonb,
 * except for intervals.  Anything that was written to declared by hand counts as another value,
 * except that a text that is not an interval raises 22007.
 */
static void
add_setting(int i, StringInfo compared, StringInfo stored)
{
	SettingKind kind = idemq_queue_settings[i].kind;
	const char *name = idemq_queue_settings[i].name;
	const char *none = idemq_setting_nones[kind];
	const char *comma = i > 0 ? ", " : "";
	char *value = none != NULL ? psprintf("nullif($%d, %s)", i + 2, none) : psprintf("$%d", i + 2);
	char *last = psprintf("q.declared->'%s'", name);
	char *declared = psprintf("coalesce(to_jsonb(%s), 'null')", value);
	char *is_new;

	if (idemq_setting_types[kind] == INTERVALOID)
		is_new = psprintf("CASE WHEN %s = %s THEN false WHEN jsonb_typeof(%s) = 'string' "
						  "THEN (q.declared->>'%s')::interval IS DISTINCT FROM %s ELSE true END",
						  last, declared, last, name, value);
	else
		is_new = psprintf("%s IS DISTINCT FROM %s", last, declared);

	/* The declared value of a setting that the call does not name is not read. */
	appendStringInfo(compared,
					 "%s(%lld::bigint, '%s', $%d IS NOT NULL, "
					 "CASE WHEN $%d IS NOT NULL THEN %s ELSE false END, "
					 "q.%s IS DISTINCT FROM %s, q.%s::text, %s::text)",
					 comma, 1LL << i, name, i + 2, i + 2, is_new, name, value, name, value);
	appendStringInfo(stored, "%s('%s', $%d IS NOT NULL, to_jsonb(%s))", comma, name, i + 2, value);
	compare_declared.types[i + 1] = store_declared.types[i + 1] = idemq_setting_types[kind];
}

/* Makes the text of the statements, at their first use. */
static void
declared_build(int nsettings)
{
	StringInfoData compared;
	StringInfoData stored;

	if (built_for == nsettings)
		return;
	/* Only an update of the extension in this session gets here twice; the old plans stay. */
	built_for = 0;
	initStringInfo(&compared);
	initStringInfo(&stored);
	for (int i = 0; i < nsettings; i++)
		add_setting(i, &compared, &stored);
	compare_declared.plan = store_declared.plan = NULL;
	compare_declared.nargs = store_declared.nargs = nsettings + 1;
	compare_declared.by_reference = store_declared.by_reference = 0;
	compare_declared.text =
		MemoryContextStrdup(TopMemoryContext, psprintf(COMPARE_TEXT, compared.data));
	store_declared.text = MemoryContextStrdup(TopMemoryContext, psprintf(STORE_TEXT, stored.data));
	built_for = nsettings;
}

/* Makes the parameters of the statements. */
static void
statement_arguments(FunctionCallInfo settings, int32 queue_id, Datum *values, char *nulls)
{
	Assert(settings->nargs <= SQL_MAX_ARGS);
	values[0] = Int32GetDatum(queue_id);
	nulls[0] = ' ';
	for (int i = 1; i < settings->nargs; i++)
	{
		values[i] = settings->args[i].value;
		nulls[i] = settings->args[i].isnull ? 'n' : ' ';
	}
}

/*
 * Compares a declaration with the last one, and with the settings of the queue, as they are now.
 * Returns false if the queue no longer exists.  Takes only AccessShareLock.
 */
bool
idemq_declared_compare(FunctionCallInfo settings, int32 queue_id, DeclaredDifference *difference)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum values[SQL_MAX_ARGS];
	char nulls[SQL_MAX_ARGS];
	SqlScope scope;
	bool found;

	declared_build(setting_count(settings));
	statement_arguments(settings, queue_id, values, nulls);
	memset(difference, 0, sizeof(*difference));
	idemq_spi_begin(&scope);
	found = idemq_spi_query_latest(&compare_declared, values, nulls) > 0;
	if (found)
		idemq_spi_read(0, declared_fields, difference, caller);
	idemq_spi_end(&scope);
	return found;
}

/* Adds a declaration to idemq.queues.declared. */
void
idemq_declared_store(FunctionCallInfo settings, int32 queue_id)
{
	Datum values[SQL_MAX_ARGS];
	char nulls[SQL_MAX_ARGS];

	declared_build(setting_count(settings));
	statement_arguments(settings, queue_id, values, nulls);
	(void) idemq_spi_do(&store_declared, values, nulls);
}

/* Returns the defaults of create_queue's settings, as constants. */
static List *
creator_defaults(void)
{
	HeapTuple tuple =
		SearchSysCache1(PROCOID, ObjectIdGetDatum(idemq_function_oid("create_queue")));
	bool isnull = true;
	Datum tree = 0;
	List *defaults;

	if (HeapTupleIsValid(tuple))
		tree = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proargdefaults, &isnull);
	if (isnull)
		elog(ERROR, "create_queue has no defaults");
	defaults = (List *) stringToNode(TextDatumGetCString(tree));
	ReleaseSysCache(tuple);
	return defaults;
}

/* Returns the value that stands for "none". */
static Datum
none_datum(SettingKind kind)
{
	return kind == SETTING_LIMIT	 ? Int32GetDatum(0)
		   : kind == SETTING_TIMEOUT ? idemq_interval_datum(0)
									 : CStringGetTextDatum("");
}

/* Returns whether a value stands for "none". */
static bool
is_none(SettingKind kind, Datum value)
{
	switch (kind)
	{
		case SETTING_LIMIT:
			return DatumGetInt32(value) == 0;
		case SETTING_TIMEOUT:
			return idemq_interval_usecs(DatumGetIntervalP(value)) == 0;
		case SETTING_QUEUE:
			return VARSIZE_ANY_EXHDR(DatumGetTextPP(value)) == 0;
		default:
			return false;
	}
}

/* Names every setting that a declaration does not name, with its default. */
void
idemq_declared_name_all(FunctionCallInfo settings)
{
	List *defaults = creator_defaults();

	if (list_length(defaults) < setting_count(settings))
		elog(ERROR, "create_queue has %d defaults", list_length(defaults));
	for (int i = 0; i < setting_count(settings); i++)
	{
		NullableDatum *setting = &settings->args[i + 1];
		Const *value;

		if (!setting->isnull)
			continue;
		value = castNode(Const, eval_const_expressions(NULL, list_nth(defaults, i)));
		setting->value = value->constisnull ? none_datum(idemq_queue_settings[i].kind)
											: value->constvalue;
		setting->isnull = false;
	}
}

/* Makes the arguments of create_queue from a declaration. */
void
idemq_declared_for_create(FunctionCallInfo settings)
{
	idemq_declared_name_all(settings);
	for (int i = 0; i < setting_count(settings); i++)
		settings->args[i + 1].isnull =
			is_none(idemq_queue_settings[i].kind, settings->args[i + 1].value);
}
