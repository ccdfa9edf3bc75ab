/*
 * base/documents.c
 *		The length of a JSON document as text, and the limit on it (idemq.max_document); whether two
 *		documents are equal.
 *
 * A document is stored as jsonb and sent as text, which may be much longer: a string of \u0001 is
 * 6 times as long, and the number 1e131071 has 12 bytes as jsonb.  PostgreSQL cannot send a row of
 * 1 GB, and a job that cannot be sent could not be claimed, and would block all jobs behind it.
 * Therefore the limit applies to the text form.
 *
 * Proof that every job can be sent: a claimed row has three documents, payload, headers and
 * checkpoint.  Each of them is within the limit, but the payload may also be a dead-letter record
 * (job/dead_letter.c).  Such a record contains:
 *	- payload, headers and checkpoint of the dead job, with DOCUMENT_MOST bytes together
 *	- 100 attempts, each with an error of 10,000 characters (of at most 6 bytes), details of 10,000
 *	  characters (4 bytes), and a worker's name of 256 characters (6 bytes)
 *	- 100 steps, each with such an error, request and response of 10,000 characters (4 bytes), and a
 *	  name of 256 characters (6 bytes)
 *
 * Attempts and steps have at most 26 MB, so the three documents have at most 3 * 64 + 26 = 218 MB,
 * and a few kB.  When the row is sent, each byte becomes at most 4 bytes: a quote or backslash
 * inside a composite value is doubled, and a conversion to another encoding makes a character at
 * most MAX_CONVERSION_GROWTH times as long, but does not change ASCII characters.  Four times
 * 218 MB is less than 1 GB.
 *
 * To measure a document by writing its text would cost as much as sending it.  Therefore, most
 * documents are only compared with an upper bound:
 *
 *	- The text is less than SPREAD times as long as the jsonb.  A stored number has at most 131,072
 *	  digits before the decimal point and 16,383 after it.  With sign, point and separator, these
 *	  are 147,461 characters, from at least 14 bytes (JEntry 4, length 4, header 4, one digit 2).
 *	  A number of at most 256 digits before the point and 63 after it may have a header of 2 bytes:
 *	  323 characters, from at least 10 bytes, if it has no digits.  A string of n bytes has at most
 *	  6 n + 4 characters, including quotes and separator, from n + 4 bytes.  A container adds 4
 *	  characters, from 4 bytes; "false" has 7, from 4.  The largest ratio is 147,461 / 14 < SPREAD.
 *	- If the document may be too long by that bound, we count 6 characters for each byte of a
 *	  string, and write out the numbers.
 *	- Only if it may still be too long, we look at every byte.
 *
 * There are no locks.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/base.h"

#define SPREAD 10600

/* Returns the length of a scalar as text, or an upper bound of it. */
static Size
scalar_length(const JsonbValue *value, bool exactly)
{
	char *number;
	Size length = 2; /* quotes */

	switch (value->type)
	{
		case jbvString:
			if (!exactly)
				return length + (Size) value->val.string.len * 6;
			for (int i = 0; i < value->val.string.len; i++)
			{
				unsigned char c = value->val.string.val[i];

				/* As escape_json writes it. */
				if (c != '\0' && strchr("\"\\\b\f\n\r\t", c) != NULL)
					length += 2;
				else
					length += c < ' ' ? 6 : 1;
			}
			return length;
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

/* Returns the length of the brackets and separators of a container. */
static Size
frame_length(int elements)
{
	return 2 + 2 * (Size) Max(elements - 1, 0);
}

/*
 * Returns the length of a document as text, or an upper bound of it.  If the length exceeds the
 * limit, returns some number above the limit.
 */
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
 * Returns whether the text forms of jsonb documents have at most limit bytes together; 0 is NULL.
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

/* Raises 54000 for an argument. */
pg_noreturn static void
refuse_document(const char *name, Size limit)
{
	ereport(
		ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
		errmsg("text form of %s exceeds the maximum length of %zu bytes", name, limit),
		errhint(
			"Store the value elsewhere and pass a reference to it, or raise idemq.max_document."));
}

/*
 * Raises 54000 if the text form of a jsonb argument is longer than idemq.max_document minus
 * reserve, the number of bytes that will be added to it.  0 is NULL.
 */
void
idemq_check_document(const char *name, Datum document, Size reserve)
{
	Size limit = (Size) idemq_max_document * 1024 - reserve;

	if (!idemq_documents_fit(&document, 1, limit))
		refuse_document(name, limit);
}

/* Raises 54000 if a text argument is longer than idemq.max_document; 0 is NULL. */
void
idemq_check_text(const char *name, Datum value)
{
	Size limit = (Size) idemq_max_document * 1024;

	if (value != (Datum) 0 && toast_raw_datum_size(value) - VARHDRSZ > limit)
		refuse_document(name, limit);
}

/* Returns whether two documents are equal as jsonb, which ignores the order of keys. */
bool
idemq_same_document(Datum first, Datum second)
{
	return compareJsonbContainers(&DatumGetJsonbP(first)->root, &DatumGetJsonbP(second)->root) == 0;
}
