/*
 * schedule/cron.c
 *		Parses the expressions of schedules: cron expressions and intervals.  Pure functions, which
 *		can be tested without a server.
 *
 * A cron expression is what Vixie cron reads: five fields (minute, hour, day of month, month and
 * day of week, where 0 and 7 are Sunday), or @hourly and similar names.  A field is a list of *,
 * numbers and ranges, with optional steps; months and days of the week also have names.  If both
 * fields of days are restricted, that is, if neither begins with *, then a day needs to match only
 * one of them.
 *
 * The parser is stricter than Vixie cron where that accepts what cannot be meant: a step must fit
 * into its field.  So "*" + "/90 * * * *" is an error, while Vixie cron takes it for once per hour.
 *
 * An interval consists of the word every, a whole number and a unit, with blanks between them:
 * "every 10 s", "every 5 min", "every 12 h".  Only the unit names in the table below are allowed,
 * and an interval lasts from one second to one day.  We are strict because a mistake in a schedule
 * is noticed late: "every 5 m" might mean minutes or months, and it is hard to tell from a
 * calendar when "every 1.5 h" ticks.
 *
 * The ticks of an interval are its whole multiples since 1970-01-01 00:00 UTC.  Like the ticks of
 * a cron expression, they depend only on the expression, and not on when the schedule was created
 * or on earlier ticks.  That is why the same tick has the same key on every server, and why the
 * ticks of "every 7 s" do not restart at midnight.  An interval has no time zone, because local
 * time would only determine where the multiples start.
 *
 * Case does not matter in either form.
 */
#include "postgres.h"

#include <ctype.h>

#include "schedule/schedule.h"

#define EVERY_MIN 1
#define EVERY_MAX SECS_PER_DAY

static const char blanks[] = " \t";
static const char digits[] = "0123456789";

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

typedef struct Field
{
	const char *name;
	int low;
	int high;
	const char *const *names; /* of low and the following values; NULL: numbers only */
	int nnames;
} Field;

static const char *const month_names[] = {"jan", "feb", "mar", "apr", "may", "jun",
										  "jul", "aug", "sep", "oct", "nov", "dec"};
static const char *const weekday_names[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat"};

enum
{
	FIELD_MINUTE,
	FIELD_HOUR,
	FIELD_DAY,
	FIELD_MONTH,
	FIELD_WEEKDAY,
	FIELD_COUNT
};

static const Field fields[FIELD_COUNT] = {{"minute", 0, 59, NULL, 0},
										  {"hour", 0, 23, NULL, 0},
										  {"day of month", 1, 31, NULL, 0},
										  {"month", 1, 12, month_names, lengthof(month_names)},
										  {"day of week", 0, 7, weekday_names,
										   lengthof(weekday_names)}};

static const struct
{
	const char *name;
	const char *text;
} shorthands[] = {{"@hourly", "0 * * * *"},	 {"@daily", "0 0 * * *"},	{"@midnight", "0 0 * * *"},
				  {"@weekly", "0 0 * * 0"},	 {"@monthly", "0 0 1 * *"}, {"@yearly", "0 0 1 1 *"},
				  {"@annually", "0 0 1 1 *"}};

typedef struct Parser
{
	const char *at; /* the next character */
	const Field *field;
	char *error; /* buffer of CRON_MAX_ERROR bytes for a message */
} Parser;

/* Returns the next word and its length, which is 0 at the end of the text; moves *at past it. */
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

/* Parses an interval, for which idemq_is_every is true, into seconds; like idemq_cron_parse. */
static bool
parse_every(const char *text, int *seconds, char *error)
{
	const char *word;
	int length;
	int64 number;
	int unit = 0;

	(void) next_word(&text, &length);
	word = next_word(&text, &length);
	if (length == 0 || (int) strspn(word, digits) < length)
	{
		snprintf(error, CRON_MAX_ERROR, "Expected a whole number after every, not \"%.*s\"",
				 Min(length, 20), word);
		return false;
	}
	/* A larger number is out of range, whatever its unit. */
	number = Min(strtoll(word, NULL, 10), EVERY_MAX + 1);
	word = next_word(&text, &length);
	for (int i = 0; i < (int) lengthof(units); i++)
	{
		if ((int) strlen(units[i].name) == length &&
			pg_strncasecmp(word, units[i].name, length) == 0)
			unit = units[i].seconds;
	}
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

/* Writes a message about the current field into the error buffer; returns false. */
static bool fail(Parser *parser, const char *format, ...) pg_attribute_printf(2, 3);

static bool
fail(Parser *parser, const char *format, ...)
{
	int used = snprintf(parser->error, CRON_MAX_ERROR, "%s: ", parser->field->name);
	va_list args;

	va_start(args, format);
	vsnprintf(parser->error + used, CRON_MAX_ERROR - used, format, args);
	va_end(args);
	return false;
}

/* Reads a number of at most six digits. */
static bool
read_digits(Parser *parser, int *value)
{
	int length = (int) strspn(parser->at, digits);

	if (length == 0)
		return fail(parser, "expected a number before \"%.20s\"", parser->at);
	if (length > 6)
		return fail(parser, "%.20s is too large", parser->at);
	*value = 0;
	for (; length > 0; length--)
		*value = *value * 10 + (*parser->at++ - '0');
	return true;
}

/* Reads a number in the range of the field, or a name. */
static bool
cron_read_value(Parser *parser, int *value)
{
	const Field *field = parser->field;
	int length = (int) strcspn(parser->at, " \t,-/*");

	for (int i = 0; length == 3 && i < field->nnames; i++)
	{
		if (pg_strncasecmp(parser->at, field->names[i], 3) == 0)
		{
			*value = field->low + i;
			parser->at += length;
			return true;
		}
	}
	if (isalpha((unsigned char) *parser->at))
		return fail(parser, "%.*s is not a number%s", Min(length, 20), parser->at,
					field->nnames > 0 ? " or the first three letters of a name" : "");
	if (!read_digits(parser, value))
		return false;
	if (*value < field->low || *value > field->high)
		return fail(parser, "%d is not between %d and %d", *value, field->low, field->high);
	return true;
}

/* Reads a value, or * or a range with an optional step, and adds its values to a set. */
static bool
read_item(Parser *parser, uint64 *set)
{
	int low = parser->field->low;
	int high = parser->field->high;
	int most = high - low + 1;
	bool range = true;
	int step = 1;

	if (*parser->at == '*')
		parser->at++;
	else
	{
		if (!cron_read_value(parser, &low))
			return false;
		high = low;
		range = *parser->at == '-';
		if (range)
		{
			parser->at++;
			if (!cron_read_value(parser, &high))
				return false;
		}
	}
	if (high < low)
		return fail(parser, "the range %d-%d is in descending order", low, high);
	if (*parser->at == '/')
	{
		if (!range)
			return fail(parser, "a step requires * or a range, for example %d-%d/2", low,
						parser->field->high);
		parser->at++;
		if (!read_digits(parser, &step))
			return false;
		if (step < 1 || step > most)
			return fail(parser, "a step of %d is not between 1 and %d", step, most);
	}
	for (int value = low; value <= high; value += step)
		*set |= UINT64CONST(1) << value;
	return true;
}

/* Reads a field into an empty set; *any: the field begins with *. */
static bool
cron_read_field(Parser *parser, const Field *field, uint64 *set, bool *any)
{
	parser->field = field;
	parser->at += strspn(parser->at, blanks);
	if (*parser->at == '\0')
		return fail(parser, "the field is missing");
	*any = *parser->at == '*';
	for (;;)
	{
		if (!read_item(parser, set))
			return false;
		if (*parser->at != ',')
			break;
		parser->at++;
	}
	if (strcspn(parser->at, blanks) > 0)
		return fail(parser, "syntax error at \"%.20s\"", parser->at);
	return true;
}

/* Returns the five fields that a shorthand stands for; the text itself if it is not a shorthand. */
static const char *
expand_shorthand(const char *text)
{
	const char *rest = text;
	int length;
	const char *word = next_word(&rest, &length);

	for (int i = 0; i < (int) lengthof(shorthands); i++)
	{
		if ((int) strlen(shorthands[i].name) == length &&
			pg_strncasecmp(word, shorthands[i].name, length) == 0 &&
			rest[strspn(rest, blanks)] == '\0')
			return shorthands[i].text;
	}
	return word;
}

/*
 * Parses an expression.  Returns false if it is invalid, and writes the reason into error, a buffer
 * of CRON_MAX_ERROR bytes.
 */
bool
idemq_cron_parse(const char *text, Cron *cron, char *error)
{
	Parser parser = {.at = expand_shorthand(text), .error = error};
	bool ignored;

	memset(cron, 0, sizeof(*cron));
	/* Only ASCII, because a message cuts off what it quotes, which must not split a character. */
	for (const char *c = text; *c != '\0'; c++)
	{
		if (*c != '\t' && (*c < ' ' || *c > '~'))
		{
			snprintf(error, CRON_MAX_ERROR, "syntax error at byte %d", (int) (c - text) + 1);
			return false;
		}
	}
	if (idemq_is_every(text))
		return parse_every(text, &cron->every, error);
	if (*parser.at == '@')
	{
		snprintf(error, CRON_MAX_ERROR, "%.20s is not recognized", parser.at);
		return false;
	}
	if (!cron_read_field(&parser, &fields[FIELD_MINUTE], &cron->minutes, &ignored) ||
		!cron_read_field(&parser, &fields[FIELD_HOUR], &cron->hours, &ignored) ||
		!cron_read_field(&parser, &fields[FIELD_DAY], &cron->days, &cron->any_day) ||
		!cron_read_field(&parser, &fields[FIELD_MONTH], &cron->months, &ignored) ||
		!cron_read_field(&parser, &fields[FIELD_WEEKDAY], &cron->weekdays, &cron->any_weekday))
		return false;
	parser.at += strspn(parser.at, blanks);
	if (*parser.at != '\0')
	{
		snprintf(error, CRON_MAX_ERROR, "too many fields (expected five): \"%.20s\"", parser.at);
		return false;
	}
	/* 7 is Sunday, as is 0. */
	if (cron->weekdays & (UINT64CONST(1) << 7))
		cron->weekdays = (cron->weekdays | 1) & 0x7F;
	return true;
}
