/*
 * text.c: a program's bytes, made into text that a server takes.
 *
 * What cannot be is a question mark: an error is kept for people, and a failure that cannot be
 * reported would be worse than one that is spelt wrongly.
 */
#include <string.h>

#include "say.h"
#include "text.h"

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
		size += 2 * strlen(values[i]) + 3;
	to = array = memory(NULL, size);
	*to++ = '{';
	for (int i = 0; i < count; i++)
	{
		if (i > 0)
			*to++ = ',';
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
