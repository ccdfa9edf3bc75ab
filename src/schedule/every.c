/*
 * schedule/every.c
 *		Intervals, the other form of a schedule's expression: "every 10 s".  Pure functions: no
 *		state, no clock.
 *
 * An interval consists of the word every, a whole number and a unit, with blanks between them:
 * "every 10 s", "every 5 min", "every 12 h".  Only the unit names in the table below are allowed,
 * and an interval lasts from one second to one day.  As in a cron expression, case does not matter.
 * We are strict because a mistake in a schedule is noticed late: "every 5 m" might mean minutes or
 * months, and it is hard to tell from a calendar when "every 1.5 h" ticks.
 *
 * Ticks are the whole multiples of the interval since 1970-01-01 00:00 UTC.  As with a cron
 * expression, they depend only on the expression, and not on when the schedule was created or on
 * earlier ticks.  That is why the same tick has the same key on every server, and why the ticks of
 * "every 7 s" do not restart at midnight.  An interval has no time zone, because local time would
 * only determine where the multiples start.
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

/* Returns whether an expression is an interval, even an invalid one. */
bool
idemq_is_every(const char *text)
{
	int length;
	const char *word = next_word(&text, &length);

	return length == 5 && pg_strncasecmp(word, "every", 5) == 0;
}

/* Returns the length of a unit in seconds; 0 if the word is not a unit. */
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
