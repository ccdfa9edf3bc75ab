/*
 * observe/errors.c
 *		SQL functions that group errors, for the view idemq.errors and for redrive: error_pattern,
 *		error_sqlstate and error_fingerprint.  They read only their arguments.
 *
 * Only the first IDEMQ_ERROR_BYTES bytes of a message are detoasted and used.
 */
#include "postgres.h"

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/base.h"

/*
 * Returns at most IDEMQ_ERROR_BYTES bytes of a text argument, in whole characters, and their
 * length; "" for NULL.  The result does not end with a zero byte.
 */
static const char *
error_text(FunctionCallInfo fcinfo, int n, int *length)
{
	text *part;

	*length = 0;
	if (PG_ARGISNULL(n))
		return "";
	/* One more character, so that pg_mbcliplen sees the last one as a whole. */
	part = DatumGetTextPSlice(PG_GETARG_DATUM(n), 0, IDEMQ_ERROR_BYTES + MAX_MULTIBYTE_CHAR_LEN);
	*length = VARSIZE_ANY_EXHDR(part);
	if (*length > IDEMQ_ERROR_BYTES)
		*length = pg_mbcliplen(VARDATA_ANY(part), *length, IDEMQ_ERROR_BYTES);
	return VARDATA_ANY(part);
}

/* error_pattern(error) -> text. */
SQL_FUNCTION(idemq_sql_error_pattern)
{
	int length;
	const char *error = error_text(fcinfo, 0, &length);

	PG_RETURN_TEXT_P(cstring_to_text(idemq_error_pattern(error, length)));
}

/*
 * error_sqlstate(details, error) -> the SQLSTATE in details, or else in error; NULL if there is
 * none.
 */
SQL_FUNCTION(idemq_sql_error_sqlstate)
{
	static const char key[] = "sqlstate";
	JsonbContainer *details = PG_ARGISNULL(0) ? NULL : &PG_GETARG_JSONB_P(0)->root;
	JsonbValue buffer;
	JsonbValue *value = NULL;
	const char *state;
	int length;

	if (details != NULL && JsonContainerIsObject(details))
		value = getKeyJsonValueFromContainer(details, key, sizeof(key) - 1, &buffer);
	if (value != NULL && value->type == jbvString &&
		idemq_is_sqlstate(value->val.string.val, value->val.string.len))
		state = value->val.string.val;
	else
	{
		const char *error = error_text(fcinfo, 1, &length);

		state = idemq_error_find_sqlstate(error, length);
	}
	if (state == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text_with_len(state, IDEMQ_SQLSTATE_LENGTH));
}

/* error_fingerprint(sqlstate, error) -> text: 16 hex digits. */
SQL_FUNCTION(idemq_sql_error_fingerprint)
{
	const char *sqlstate = PG_ARGISNULL(0) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(0));
	int length;
	const char *error = error_text(fcinfo, 1, &length);
	uint64 hash = idemq_error_hash(sqlstate, idemq_error_pattern(error, length));

	PG_RETURN_TEXT_P(cstring_to_text(psprintf("%08x%08x", (uint32) (hash >> 32), (uint32) hash)));
}
