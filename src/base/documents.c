/*
 * base/documents.c
 *		How long a document is as text; the limit for one, idemq.max_document; whether two
 *		are equal.
 *
 * A document is stored as jsonb and sent as text, which may be much longer: a string of
 * \u0001 is 6 times as long, and the number 1e131071 has 12 bytes as jsonb.  PostgreSQL
 * can send no row of 1 GB; a job that cannot be sent could not be claimed, and would keep
 * all behind it waiting.  So the limit is one for the text.
 *
 * Whatever can be claimed can be sent: a claimed row has three documents.  The payload is
 * within the limit, or a dead-letter record, which is at most DOCUMENT_MOST + 26 MB
 * (job/dead_letter.c: payload, headers and checkpoint up to DOCUMENT_MOST; 100 attempts with an
 * error of 10,000 characters at 6 bytes, details of 10,000 at 4, a worker's name of 256
 * bytes at 6; 100 steps with an error like that, request and response of 10,000 at 4, a name of
 * 256 bytes at 6); headers and checkpoint are within the limit.  That is 3 * 64 + 26 = 218 MB,
 * and a few kB.  On its way a byte becomes at most 4: as part of a composite value a quote
 * or a backslash is doubled, and to another encoding a character grows by that factor at
 * most (MAX_CONVERSION_GROWTH), but an ASCII one does not.  4 * 218 < 1,024.
 *
 * Making the text in order to measure it would cost as much as sending it, so most
 * documents are not looked into:
 *
 * - A number that PostgreSQL stores has at most 131,072 digits before the point and
 *   16,383 after it.  With sign, point and separator that is 147,461 characters, from 14
 *   bytes or more (JEntry 4, length 4, header 4, one digit 2).  A number of at most 256
 *   digits before the point and 63 after it may have a header of 2 bytes: 323 characters,
 *   from 10 bytes or more, where it has no digit.  A string of n bytes becomes at most
 *   6 n + 4 characters, with quotes and separator, from n + 4 bytes.  A container adds 4
 *   characters, from 4 bytes; "false" has 7, from 4.  So the text is at most
 *   147,461 / 14 < SPREAD times as long as the jsonb.
 * - Else strings are taken for 6 times their length, and numbers are written out.
 * - Only a document that this finds too long is looked at byte by byte.
 *
 * Locks: none.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/base.h"

#define SPREAD 10600

/* Returns the length of a string with its quotes: an upper bound, or exactly. */
static Size
string_length(const char *string, int bytes, bool exactly)
{
	Size length = 2;

	if (!exactly)
		return length + (Size) bytes * 6;
	for (int i = 0; i < bytes; i++)
	{
		unsigned char c = string[i];

		if (c == '"' || c == '\\' || c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t')
			length += 2;
		else
			length += c < ' ' ? 6 : 1;
	}
	return length;
}

/* Returns the length of a scalar. */
static Size
scalar_length(const JsonbValue *value, bool exactly)
{
	char *number;
	Size length;

	switch (value->type)
	{
		case jbvString:
			return string_length(value->val.string.val, value->val.string.len, exactly);
		case jbvNumeric:
			number = DatumGetCString(
				DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
			length = strlen(number);
			pfree(number);
			return length;
		case jbvBool:
			return value->val.boolean ? 4 : 5;
		case jbvNull:
			return 4;
		default:
			elog(ERROR, "unexpected type %d in a document", (int) value->type);
	}
}

/* Returns the length of a container's brackets and commas. */
static Size
frame_length(int elements)
{
	return 2 + 2 * (Size) Max(elements - 1, 0);
}

/* Returns the length of a document as text, an upper bound or exactly; it stops above limit. */
static Size
text_length(Jsonb *document, bool exactly, Size limit)
{
	JsonbIterator *iterator = JsonbIteratorInit(&document->root);
	JsonbIteratorToken token;
	JsonbValue value;
	Size length = 0;

	while (length <= limit && (token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		if (token == WJB_BEGIN_ARRAY)
			length += value.val.array.rawScalar ? 0 : frame_length(value.val.array.nElems);
		else if (token == WJB_BEGIN_OBJECT)
			length += frame_length(value.val.object.nPairs) + 2 * (Size) value.val.object.nPairs;
		else if (token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM)
			length += scalar_length(&value, exactly);
	}
	return length;
}

/*
 * Returns whether jsonb documents together have at most limit bytes as text; 0 is no
 * document.
 */
bool
idemq_documents_fit(const Datum *documents, int count, Size limit)
{
	Size stored = 0;

	for (int i = 0; i < count; i++)
		stored += documents[i] == (Datum) 0 ? 0 : toast_raw_datum_size(documents[i]);
	if (stored <= limit / SPREAD)
		return true;
	for (int exactly = 0; exactly <= 1; exactly++)
	{
		Size length = 0;

		for (int i = 0; i < count && length <= limit; i++)
		{
			if (documents[i] != (Datum) 0)
				length += text_length(DatumGetJsonbP(documents[i]), exactly, limit - length);
		}
		if (length <= limit)
			return true;
	}
	return false;
}

/* Raises 54000. */
pg_noreturn static void
refuse(const char *name, Size limit)
{
	ereport(
		ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
		errmsg("text form of %s exceeds the maximum length of %zu bytes", name, limit),
		errhint(
			"Store the value elsewhere and pass a reference to it, or raise idemq.max_document."));
}

/*
 * Raises 54000 for a jsonb argument that is longer as text than idemq.max_document less
 * reserve, the bytes that will be added to it.  0 is no document.
 */
void
idemq_check_document(const char *name, Datum document, Size reserve)
{
	Size limit = (Size) idemq_max_document * 1024 - reserve;

	if (!idemq_documents_fit(&document, 1, limit))
		refuse(name, limit);
}

/* Raises 54000 for a text argument that is longer than idemq.max_document; 0 is no text. */
void
idemq_check_text(const char *name, Datum value)
{
	Size limit = (Size) idemq_max_document * 1024;

	if (value != (Datum) 0 && toast_raw_datum_size(value) - VARHDRSZ > limit)
		refuse(name, limit);
}

/* Returns whether two documents are equal as jsonb: the order of their keys does not matter. */
bool
idemq_same_document(Datum first, Datum second)
{
	return compareJsonbContainers(&DatumGetJsonbP(first)->root, &DatumGetJsonbP(second)->root) == 0;
}
