/*
 * text.c: a program's bytes, made into text that a server takes.
 *
 * What cannot be is a question mark: an error is kept for people, and a failure that cannot be
 * reported would be worse than one that is spelt wrongly.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"
#include "text.h"

/* Bytes of a line that a message shows. */
#define EXCERPT_MOST 200

/* The length of the valid character that begins here, or 0. */
static size_t
character(const unsigned char *s, size_t left)
{
	size_t length = s[0] < 0x80	  ? 1
					: s[0] < 0xC2 ? 0
					: s[0] < 0xE0 ? 2
					: s[0] < 0xF0 ? 3
					: s[0] < 0xF5 ? 4
								  : 0;

	if (s[0] == 0 || length == 0 || length > left)
		return 0;
	for (size_t i = 1; i < length; i++)
	{
		if ((s[i] & 0xC0) != 0x80)
			return 0;
	}
	/* Longer than it need be, half of a pair, beyond the last one. */
	if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
		(s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
		return 0;
	return length;
}

void
text_clean(char *text, size_t size)
{
	size_t i = 0;

	while (i < size)
	{
		size_t length = character((const unsigned char *) text + i, size - i);

		if (length == 0)
		{
			text[i] = '?';
			length = 1;
		}
		i += length;
	}
	while (size > 0 && strchr(" \t\r\n", text[size - 1]) != NULL)
		size--;
	text[size] = '\0';
}

/* The beginning of a text, made valid, for a message. */
char *
text_excerpt(const char *text)
{
	size_t size = strnlen(text, EXCERPT_MOST + 1);
	bool cut = size > EXCERPT_MOST;
	char *excerpt;

	if (cut)
		size = EXCERPT_MOST;
	excerpt = memory(NULL, size + sizeof("..."));
	memcpy(excerpt, text, size);
	text_clean(excerpt, size);
	if (cut)
		strcat(excerpt, "...");
	return excerpt;
}

/* The value of four hexadecimal digits, or -1. */
static int
hex4(const char *digits)
{
	int value = 0;

	for (int i = 0; i < 4; i++)
	{
		const char *found = digits[i] == '\0' ? NULL : strchr("0123456789abcdef", digits[i] | 0x20);

		if (found == NULL || !isxdigit((unsigned char) digits[i]))
			return -1;
		value = value * 16 + (int) (found - "0123456789abcdef");
	}
	return value;
}

/*
 * JSON in which what no server's text can hold is a question mark: bytes that are not UTF-8, \u0000, and
 * halves of surrogate pairs.
 */
char *
text_clean_json(const char *json)
{
	char *clean = copy_text(json);
	char *at = clean;

	text_clean(clean, strlen(clean));
	while ((at = strchr(at, '\\')) != NULL)
	{
		int code = at[1] == 'u' ? hex4(at + 2) : -1;
		int next = code >= 0xD800 && code < 0xDC00 && at[6] == '\\' && at[7] == 'u' ? hex4(at + 8)
																					: -1;

		if (next >= 0xDC00 && next < 0xE000)
			at += 12;
		else if (code == 0 || (code >= 0xD800 && code < 0xE000))
		{
			memcpy(at, "?     ", 6);
			memmove(at + 1, at + 6, strlen(at + 6) + 1);
			at++;
		}
		else
			at += code >= 0 ? 6 : at[1] != '\0' ? 2 : 1;
	}
	return clean;
}

void
text_to_ascii(char *text)
{
	char *to = text;

	for (; *text != '\0'; text++)
	{
		/* One for each character, at its first byte. */
		if (((unsigned char) *text & 0xC0) != 0x80)
			*to++ = (unsigned char) *text > 0x7E ? '?' : *text;
	}
	*to = '\0';
}

char *
text_array(const char *const *values, int count)
{
	size_t size = 3;
	char *array;
	char *to;

	for (int i = 0; i < count; i++)
		size += values[i] != NULL ? 2 * strlen(values[i]) + 3 : sizeof("NULL");
	to = array = memory(NULL, size);
	*to++ = '{';
	for (int i = 0; i < count; i++)
	{
		if (i > 0)
			*to++ = ',';
		if (values[i] == NULL)
		{
			to = stpcpy(to, "NULL");
			continue;
		}
		*to++ = '"';
		for (const char *from = values[i]; *from != '\0'; from++)
		{
			if (*from == '"' || *from == '\\')
				*to++ = '\\';
			*to++ = *from;
		}
		*to++ = '"';
	}
	*to++ = '}';
	*to = '\0';
	return array;
}

char *
text_json_ascii(const char *json)
{
	/* A character of one byte or two becomes six, one of four twelve. */
	char *ascii = memory(NULL, 6 * strlen(json) + 1);
	char *to = ascii;

	while (*json != '\0')
	{
		const unsigned char *s = (const unsigned char *) json;
		size_t length = character(s, strlen(json) < 4 ? strlen(json) : 4);
		unsigned code;

		if (length == 0 || (length == 1 && s[0] != 0x7F))
		{
			*to++ = length == 1 ? *json : '?';
			json++;
			continue;
		}
		code = s[0] & (length == 1 ? 0x7F : length == 2 ? 0x1F : length == 3 ? 0x0F : 0x07);
		for (size_t i = 1; i < length; i++)
			code = code << 6 | (s[i] & 0x3F);
		/* Beyond 16 bits it is a pair. */
		if (length == 4)
			to += sprintf(to, "\\u%04x", 0xD7C0 + (code >> 10));
		to += sprintf(to, "\\u%04x", length == 4 ? 0xDC00 + (code & 0x3FF) : code);
		json += length;
	}
	*to = '\0';
	return ascii;
}

bool
text_time(const char *text, int64_t *ms)
{
	static const struct
	{
		const char *unit;
		double ms;
	} units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"min", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
	char *end;
	double value = strtod(text, &end);

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
	{
		/* Not a number fails both comparisons; a year is enough for everybody. */
		if (end != text && strcmp(end, units[i].unit) == 0 && value * units[i].ms >= 0 &&
			value * units[i].ms <= 366 * 86400e3)
		{
			*ms = (int64_t) (value * units[i].ms);
			return true;
		}
	}
	return false;
}
