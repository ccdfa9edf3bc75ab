/*
 * schedule/every.c
 *		Intervals, the other form of a schedule's expression: "every 10 s".  Pure functions: no
 *		state, no clock.
 *
 * An interval is the word every, a whole number and a unit, with blanks between them: "every 10 s",
 * "every 5 min", "every 12 h".  The units have no other names than those in the table below, and
 * an interval lasts from a second to a day.  As in a cron expression, the case of letters does not
 * matter.  We are strict because a mistake in a schedule shows late: "every 5 m" might mean
 * minutes or months, and "every 1.5 h" has ticks whose distance nobody can predict from a calendar.
 *
 * Ticks are the whole multiples of the interval since 1970-01-01 00:00 UTC.  So they depend on
 * nothing but the interval, as those of a cron expression do: not on when the schedule was made,
 * nor on which ticks there were.  That is why the same tick has the same key on every server, and
 * why "every 7 s" does not begin anew at midnight.  An interval has no time zone, since the local
 * clock would only be asked for a beginning.
 */
#include "postgres.h"

#include "schedule/schedule.h"

#define EVERY_MIN 1
#define EVERY_MAX SECS_PER_DAY

static const char blanks[] = " \t";

static const struct
{
	const char *name;
	int seconds;
} units[] = {{"s", 1},
			 {"second", 1},
			 {"seconds", 1},
			 {"min", SECS_PER_MINUTE},
			 {"minute", SECS_PER_MINUTE},
			 {"minutes", SECS_PER_MINUTE},
			 {"h", SECS_PER_HOUR},
			 {"hour", SECS_PER_HOUR},
			 {"hours", SECS_PER_HOUR}};

/* Returns the next word, and its length, 0 at the end; moves behind it. */
static const char *
next_word(const char **at, int *length)
{
	const char *word = *at + strspn(*at, blanks);

	*length = (int) strcspn(word, blanks);
	*at = word + *length;
	return word;
}

/* Returns whether an expression is an interval, if perhaps a wrong one. */
bool
idemq_is_every(const char *text)
{
	int length;
	const char *word = next_word(&text, &length);

	return length == 5 && pg_strncasecmp(word, "every", 5) == 0;
}

/* Returns the seconds of a unit; 0 for what is none. */
static int
unit_seconds(const char *word, int length)
{
	for (int i = 0; i < (int) lengthof(units); i++)
	{
		if ((int) strlen(units[i].name) == length &&
			pg_strncasecmp(word, units[i].name, length) == 0)
			return units[i].seconds;
	}
	return 0;
}

/* Reads a whole number, and stops above most; false if the word is none. */
static bool
read_whole(const char *word, int length, int64 most, int64 *value)
{
	*value = 0;
	for (int i = 0; i < length; i++)
	{
		if (word[i] < '0' || word[i] > '9')
			return false;
		if (*value <= most)
			*value = *value * 10 + (word[i] - '0');
	}
	return length > 0;
}

/*
 * Reads an interval, for which idemq_is_every is true, into seconds.  Returns false, and what is
 * wrong in error, which has CRON_MAX_ERROR bytes.
 */
bool
idemq_every_parse(const char *text, int *seconds, char *error)
{
	const char *word;
	int length;
	int64 number;
	int unit;

	(void) next_word(&text, &length);
	word = next_word(&text, &length);
	if (!read_whole(word, length, EVERY_MAX, &number))
	{
		snprintf(error, CRON_MAX_ERROR, "Expected a whole number after every, not \"%.*s\"",
				 Min(length, 20), word);
		return false;
	}
	word = next_word(&text, &length);
	unit = unit_seconds(word, length);
	if (unit == 0)
	{
		snprintf(error, CRON_MAX_ERROR, "Expected s, min or h after the number, not \"%.*s\"",
				 Min(length, 20), word);
		return false;
	}
	if (number * unit < EVERY_MIN || number * unit > EVERY_MAX)
	{
		snprintf(error, CRON_MAX_ERROR, "The interval is not between 1 s and 24 h");
		return false;
	}
	word = next_word(&text, &length);
	if (length > 0)
	{
		snprintf(error, CRON_MAX_ERROR, "Syntax error at \"%.*s\"", Min(length, 20), word);
		return false;
	}
	*seconds = (int) (number * unit);
	return true;
}
