/*
 * base/version.c
 *		The version of this library, and the versions of the SQL objects that it works with.
 *
 * Between a restart with a new library and ALTER EXTENSION idemq UPDATE, a database has the SQL
 * objects of the previous version.  The library works with SQL objects of version oldest_sql
 * (idemq.control) or later; src/README.md has the rules that ensure this.  It does not work with
 * SQL objects newer than itself, because they may rely on features that it does not have.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "base/base.h"

static const char oldest_sql[] = CppAsString2(IDEMQ_OLDEST_SQL);

const char idemq_version[] = CppAsString2(IDEMQ_VERSION);

/* A part of a version, which ends before a dot, hyphen or plus. */
typedef struct Part
{
	const char *text;
	int length;
	bool is_number;
} Part;

/*
 * Reads the next part from *at, and skips the dot after it.  is_core: the part also ends at a
 * letter.
 */
static Part
next_part(const char **at, bool is_core)
{
	Part part = {.text = *at, .is_number = true};

	while (**at != '\0' && **at != '.' && **at != '+' &&
		   (!is_core || isdigit((unsigned char) **at)))
	{
		part.is_number &= isdigit((unsigned char) **at) != 0;
		(*at)++;
	}
	part.length = (int) (*at - part.text);
	if (**at == '.')
		(*at)++;
	return part;
}

/*
 * Compares two parts: two numbers, of any length, by value, and other parts as bytes.  A number is
 * less than any other part.
 */
static int
compare_parts(Part a, Part b)
{
	int result;

	if (a.is_number != b.is_number)
		return a.is_number ? -1 : 1;
	while (a.is_number && a.length > 0 && *a.text == '0')
		a = (Part){a.text + 1, a.length - 1, true};
	while (b.is_number && b.length > 0 && *b.text == '0')
		b = (Part){b.text + 1, b.length - 1, true};
	if (a.is_number && a.length != b.length)
		return a.length - b.length;
	result = memcmp(a.text, b.text, Min(a.length, b.length));
	return result != 0 ? result : a.length - b.length;
}

/*
 * Compares two versions by the rules of SemVer 2.0.0: below 0, 0 or above 0, as for strcmp.  A
 * pre-release (1.2.0-beta.2) is earlier than its release (1.2.0), and build metadata (+...) does
 * not count.  A suffix without a hyphen (1.2.0rc1) is a pre-release as well.
 */
static int
version_compare(const char *a, const char *b)
{
	int result = 0;

	while (result == 0 && (isdigit((unsigned char) *a) || isdigit((unsigned char) *b)))
		result = compare_parts(next_part(&a, true), next_part(&b, true));
	a += *a == '-';
	b += *b == '-';
	/* A version without a suffix is the release itself. */
	if (result == 0 && (*a == '\0' || *a == '+') != (*b == '\0' || *b == '+'))
		return *a == '\0' || *a == '+' ? 1 : -1;
	/* If all parts are equal, the version with more of them is the later one. */
	while (result == 0 && *a != '\0' && *a != '+' && *b != '\0' && *b != '+')
		result = compare_parts(next_part(&a, false), next_part(&b, false));
	if (result == 0)
		result = (*a != '\0' && *a != '+') - (*b != '\0' && *b != '+');
	return result;
}

/*
 * compare_versions(a, b) -> below 0, 0 or above 0.  The install script calls it first, and fails
 * if the server still has an older library in memory.  Therefore, every later version of the
 * library must keep this symbol.
 */
SQL_FUNCTION(idemq_sql_compare_versions)
{
	PG_RETURN_INT32(version_compare(text_to_cstring(PG_GETARG_TEXT_PP(0)),
									text_to_cstring(PG_GETARG_TEXT_PP(1))));
}

/*
 * Returns the version of the extension in this database, or NULL if it does not have the
 * extension.
 */
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

/*
 * Returns whether this database has SQL objects, and whether the library works with their version.
 * It scans pg_extension.
 */
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

/* Returns the version of the SQL objects if it is older than the library; otherwise NULL. */
char *
idemq_update_waits(void)
{
	char *version = sql_version();

	return version != NULL && version_compare(version, idemq_version) < 0 ? version : NULL;
}
