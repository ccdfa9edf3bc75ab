/*
 * base/version.c
 *		The version of this library, and which versions of the SQL objects it works with.
 *
 * Between a restart with a new library and ALTER EXTENSION idemq UPDATE a database has the SQL
 * objects of the version before.  The library works with them from oldest_sql of idemq.control
 * on; src/README.md has the rule that makes it so.  It refuses SQL objects newer than itself:
 * they may count on what it does not know.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "base/base.h"

static const char oldest_sql[] = CppAsString2(IDEMQ_OLDEST_SQL);

const char idemq_version[] = CppAsString2(IDEMQ_VERSION);

/* Compares two versions, number by number: below 0, 0 or above 0, as for strcmp. */
static int
version_compare(const char *a, const char *b)
{
	while (*a != '\0' || *b != '\0')
	{
		char *end_a;
		char *end_b;
		long part_a = strtol(a, &end_a, 10);
		long part_b = strtol(b, &end_b, 10);

		if (part_a != part_b)
			return part_a < part_b ? -1 : 1;
		/* What follows the numbers is compared as text: a version without it is the earlier one. */
		if (*end_a != '.' || *end_b != '.')
			return strcmp(end_a, end_b);
		a = end_a + 1;
		b = end_b + 1;
	}
	return 0;
}

/* Returns the version of the extension in this database; NULL when it is not there. */
static char *
sql_version(void)
{
	Relation rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;
	char *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum(IDEMQ_EXTENSION));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool isnull;

		version = TextDatumGetCString(
			heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(rel), &isnull));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

/* Returns whether this database has SQL objects, and they fit the library; scans pg_extension. */
IdemqPresence
idemq_sql_presence(void)
{
	char *version = sql_version();

	if (version == NULL)
		return IDEMQ_ABSENT;
	if (version_compare(version, oldest_sql) < 0)
		return IDEMQ_OUTDATED;
	return version_compare(version, idemq_version) > 0 ? IDEMQ_NEWER : IDEMQ_HERE;
}

/* Returns the version of SQL objects that wait for ALTER EXTENSION idemq UPDATE; NULL: none. */
char *
idemq_update_waits(void)
{
	char *version = sql_version();

	return version != NULL && version_compare(version, idemq_version) < 0 ? version : NULL;
}
