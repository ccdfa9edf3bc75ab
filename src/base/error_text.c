/*
 * base/error_text.c
 *		What errors have in common: a message without what differs from job to job.
 *
 * 500 jobs that died of one cause have 500 messages, for each names its own order, host or
 * time.  A pattern has a question mark in place of each such part:
 *
 *	 - the text in quotes ('...', "...", `...`); the quotes stay.  A quote that follows a
 *	   letter or digit is an apostrophe, and one that is never closed stays as it is;
 *	 - a number: 12, -7, 0x1f, 12.5, 1e-6, 10:32:05, 2026-11-22T10:32, 10.0.0.7;
 *	 - a uuid; eight hex digits or more with one of 0 to 9 among them; sixteen letters and
 *	   digits or more with two digits among them;
 *	 - within another word each row of digits: db17 is db?, part_2026_11 is part_?_?.
 *
 * White space of any kind and length is one blank.  The pattern of a pattern is the pattern
 * itself, so that one copied from a view finds its errors again; hence a quote behind a
 * question mark opens nothing, and one before a digit closes.  (Of 200,000 strings made of
 * quotes, digits and signs one broke this.)
 *
 * Bytes above 127 are letters: in no encoding of a server are they parts of anything else.
 * All is arithmetic on bytes, one pass, and no locale: an index, a replica and the next
 * major version agree on it.
 */
#include "postgres.h"

#include "base/base.h"

/* A message that is read, and its pattern, which is never longer. */
typedef struct Reader
{
	const char *text;
	int length;
	int at;
	char *out;
	int written;
} Reader;

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool
is_hex(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool
error_text_is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IS_HIGHBIT_SET(c);
}

static bool
is_word(char c)
{
	return error_text_is_letter(c) || is_digit(c);
}

static bool
error_text_is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Returns the byte so many ahead, 0 behind the end. */
static char
peek(const Reader *reader, int ahead)
{
	int at = reader->at + ahead;

	return at < reader->length ? reader->text[at] : '\0';
}

static void
error_text_put(Reader *reader, char c)
{
	reader->out[reader->written++] = c;
}

/* Returns the length of a uuid that begins here; 0 when none does. */
static int
uuid_length(const Reader *reader)
{
	static const int groups[] = {8, 4, 4, 4, 12};
	int length = 0;

	for (int i = 0; i < (int) lengthof(groups); i++)
	{
		if (i > 0 && peek(reader, length++) != '-')
			return 0;
		for (int n = 0; n < groups[i]; n++)
		{
			if (!is_hex(peek(reader, length++)))
				return 0;
		}
	}
	return is_word(peek(reader, length)) ? 0 : length;
}

/* Returns whether a number goes on with the byte so many ahead. */
static bool
number_goes_on(const Reader *reader, int ahead)
{
	char c = peek(reader, ahead);
	char next = peek(reader, ahead + 1);

	if (is_digit(c))
		return true;
	if (strchr(".,:-/+TeE", c) == NULL || c == '\0')
		return false;
	return is_digit(next) || ((c == 'e' || c == 'E') && (next == '-' || next == '+') &&
							  is_digit(peek(reader, ahead + 2)));
}

/* Returns the length of a number that begins here with a digit. */
static int
number_length(const Reader *reader)
{
	bool is_hexadecimal = peek(reader, 0) == '0' && (peek(reader, 1) | 0x20) == 'x' &&
						  is_hex(peek(reader, 2));
	int length = is_hexadecimal ? 3 : 1;

	while (is_hexadecimal && is_hex(peek(reader, length)))
		length++;
	while (!is_hexadecimal && number_goes_on(reader, length))
	{
		char c = peek(reader, length);

		/* In 1e-6 it takes e and the sign, so that a digit follows again. */
		length += (c == 'e' || c == 'E') && !is_digit(peek(reader, length + 1)) ? 2 : 1;
	}
	return length;
}

/* Writes a question mark in place of so many bytes, and of a sign before them. */
static void
skip_number(Reader *reader, int length)
{
	const char *sign = reader->written > 0 ? &reader->out[reader->written - 1] : NULL;

	if (sign != NULL && *sign == '-' &&
		(reader->written == 1 || (!is_word(sign[-1]) && sign[-1] != '?' && sign[-1] != '_')))
		reader->written--;
	error_text_put(reader, '?');
	reader->at += length;
}

/* Reads what begins with a letter or digit. */
static void
read_word(Reader *reader)
{
	int uuid = uuid_length(reader);
	int length = 0;
	int digits = 0;
	int hex = 0;

	for (; is_word(peek(reader, length)); length++)
	{
		digits += is_digit(peek(reader, length));
		hex += is_hex(peek(reader, length));
	}
	if (uuid > 0)
		skip_number(reader, uuid);
	/* A word that was made by a machine. */
	else if ((length >= 8 && hex == length && digits > 0) || (length >= 16 && digits > 1))
		skip_number(reader, length);
	else if (is_digit(peek(reader, 0)))
		skip_number(reader, number_length(reader));
	else
	{
		/* Copies it, with a question mark for each row of digits; its first byte is no digit. */
		for (int i = 0; i < length; i++)
		{
			if (!is_digit(peek(reader, i)))
				error_text_put(reader, peek(reader, i));
			else if (!is_digit(peek(reader, i - 1)))
				error_text_put(reader, '?');
		}
		reader->at += length;
	}
}

/* Returns the length of a quoted string that begins here, 0 when it does not end. */
static int
quoted_length(const Reader *reader)
{
	char quote = peek(reader, 0);

	for (int i = 1; reader->at + i < reader->length; i++)
	{
		if (peek(reader, i) != quote)
			continue;
		if (peek(reader, i + 1) == quote)
			i++; /* doubled: it does not close */
		else if (quote != '\'' || !error_text_is_letter(peek(reader, i + 1)))
			return i + 1;
	}
	return 0;
}

/* Reads what is no word. */
static void
read_other(Reader *reader)
{
	char c = peek(reader, 0);
	char before = reader->written > 0 ? reader->out[reader->written - 1] : ' ';
	bool opens = (c == '\'' || c == '"' || c == '`') && !is_word(before) && before != '?';
	int length = opens ? quoted_length(reader) : 0;

	if (length > 0)
	{
		error_text_put(reader, c);
		/* An empty string says something itself, and has no room for a question mark. */
		if (length > 2)
			error_text_put(reader, '?');
		error_text_put(reader, c);
		reader->at += length;
	}
	else if (error_text_is_space(c))
	{
		error_text_put(reader, ' ');
		while (error_text_is_space(peek(reader, 0)) && reader->at < reader->length)
			reader->at++;
	}
	else
	{
		error_text_put(reader, c);
		reader->at++;
	}
}

/* Returns the pattern of a message, palloc'ed. */
char *
idemq_error_pattern(const char *message, int length)
{
	Reader reader = {message, length, 0, palloc(length + 1), 0};

	while (reader.at < reader.length)
	{
		if (is_word(message[reader.at]))
			read_word(&reader);
		else
			read_other(&reader);
	}
	while (reader.written > 0 && reader.out[reader.written - 1] == ' ')
		reader.written--;
	reader.out[reader.written] = '\0';
	return reader.out;
}

/* Returns whether a text is a SQLSTATE: five digits and capitals. */
bool
idemq_is_sqlstate(const char *text, int length)
{
	if (length != IDEMQ_SQLSTATE_LENGTH)
		return false;
	for (int i = 0; i < length; i++)
	{
		if (!is_digit(text[i]) && !(text[i] >= 'A' && text[i] <= 'Z'))
			return false;
	}
	return true;
}

/*
 * Returns the SQLSTATE in a message that calls it one, as drivers do: SQLSTATE 22012,
 * SQLSTATE[22012], (SQLSTATE: 22012).  NULL when there is none.
 */
const char *
idemq_error_find_sqlstate(const char *message, int length)
{
	static const char word[] = "SQLSTATE";
	const int word_length = sizeof(word) - 1;

	for (int i = 0; i + word_length + IDEMQ_SQLSTATE_LENGTH < length; i++)
	{
		int at = i + word_length;

		if (memcmp(message + i, word, word_length) != 0)
			continue;
		while (at < length && strchr(" :=[", message[at]) != NULL && message[at] != '\0')
			at++;
		if (length - at >= IDEMQ_SQLSTATE_LENGTH &&
			idemq_is_sqlstate(message + at, IDEMQ_SQLSTATE_LENGTH) &&
			(at + IDEMQ_SQLSTATE_LENGTH == length || !is_word(message[at + IDEMQ_SQLSTATE_LENGTH])))
			return message + at;
	}
	return NULL;
}

/*
 * Returns a number for a SQLSTATE ("" for none) and a pattern: FNV-1a of 64 bits, the same
 * on every server.
 */
uint64
idemq_error_hash(const char *sqlstate, const char *pattern)
{
	uint64 hash = UINT64CONST(0xcbf29ce484222325);

	for (const char *c = psprintf("%s\n%s", sqlstate, pattern); *c != '\0'; c++)
		hash = (hash ^ (unsigned char) *c) * UINT64CONST(0x100000001b3);
	return hash;
}
