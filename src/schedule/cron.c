/*
 * schedule/cron.c
 *		Cron expressions as Vixie's cron reads them: no state, no clock, testable
 *		without a server.
 *
 * Five fields, minute, hour, day of the month, month and day of the week (0 and 7
 * are Sunday), or @hourly and the like.  A field is a list of *, numbers and
 * ranges, with steps; months and days of the week have names as well.  When both
 * days are restricted, that is, neither field begins with *, one of them is enough.
 *
 * It is stricter than Vixie's where that accepts what cannot be meant: a step must fit
 * into its field, so that "*" + "/90 * * * *" is an error and not once an hour.  Every 90 minutes is
 * an interval (schedule/every.c), which is read here, too.
 */
#include "postgres.h"

#include "schedule/schedule.h"

typedef struct Field
{
	const char *name;
	int low;
	int high;
	const char *const *names; /* of low and the following; NULL: numbers only */
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

/* Where the parser stands, and in which field; error: what is wrong, for people. */
typedef struct Parser
{
	const char *at;
	const Field *field;
	char *error;
} Parser;

/* Says what is wrong with the present field; returns false. */
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

static bool
cron_is_space(char c)
{
	return c == ' ' || c == '\t';
}

static bool
cron_is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Reads a number of up to six digits. */
static bool
read_digits(Parser *parser, int *value)
{
	int length = (int) strspn(parser->at, "0123456789");

	if (length == 0)
		return fail(parser, "expected a number before \"%.20s\"", parser->at);
	if (length > 6)
		return fail(parser, "%.20s is too large", parser->at);
	*value = 0;
	for (; length > 0; length--)
		*value = *value * 10 + (*parser->at++ - '0');
	return true;
}

/* Reads a number of the field's range, or a name. */
static bool
cron_read_value(Parser *parser, int *value)
{
	const Field *field = parser->field;
	/* Up to the character that ends a value. */
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
	if (cron_is_letter(*parser->at))
		return fail(parser, "%.*s is not a number%s", Min(length, 20), parser->at,
					field->nnames > 0 ? " or the first three letters of a name" : "");
	if (!read_digits(parser, value))
		return false;
	if (*value < field->low || *value > field->high)
		return fail(parser, "%d is not between %d and %d", *value, field->low, field->high);
	return true;
}

/* Reads a value, or * or a range, perhaps with a step, and adds it to a set. */
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

/* Reads a field into a set; any: whether it begins with *. */
static bool
cron_read_field(Parser *parser, const Field *field, uint64 *set, bool *any)
{
	parser->field = field;
	*set = 0;
	while (cron_is_space(*parser->at))
		parser->at++;
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
	if (*parser->at != '\0' && !cron_is_space(*parser->at))
		return fail(parser, "syntax error at \"%.20s\"", parser->at);
	return true;
}

/* Returns the five fields that a shorthand stands for; the text itself when it is none. */
static const char *
expand(const char *text)
{
	size_t length;

	while (cron_is_space(*text))
		text++;
	length = strcspn(text, " \t");
	for (int i = 0; i < (int) lengthof(shorthands); i++)
	{
		if (strlen(shorthands[i].name) == length &&
			pg_strncasecmp(text, shorthands[i].name, length) == 0 &&
			text[length + strspn(text + length, " \t")] == '\0')
			return shorthands[i].text;
	}
	return text;
}

/*
 * Reads a cron expression, or an interval.  Returns false, and what is wrong in error, which has
 * CRON_MAX_ERROR bytes.
 */
bool
idemq_cron_parse(const char *text, Cron *cron, char *error)
{
	Parser parser = {.at = expand(text), .error = error};
	bool ignored;

	memset(cron, 0, sizeof(*cron));
	/* Only ASCII: the quotes below may be cut anywhere, but not within a character. */
	for (const char *c = text; *c != '\0'; c++)
	{
		if (!cron_is_space(*c) && (*c <= ' ' || *c > '~'))
		{
			snprintf(error, CRON_MAX_ERROR, "syntax error at byte %d", (int) (c - text) + 1);
			return false;
		}
	}
	if (idemq_is_every(text))
		return idemq_every_parse(text, &cron->every, error);
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
	while (cron_is_space(*parser.at))
		parser.at++;
	if (*parser.at != '\0')
	{
		snprintf(error, CRON_MAX_ERROR, "too many fields (expected five): \"%.20s\"", parser.at);
		return false;
	}
	/* Sunday is 0, and 7. */
	if (cron->weekdays & (UINT64CONST(1) << 7))
		cron->weekdays = (cron->weekdays | 1) & 0x7F;
	return true;
}

/* Returns whether a day has ticks, if its month, day and weekday (0: Sunday) are these. */
bool
idemq_cron_has_day(const Cron *cron, int month, int day, int weekday)
{
	bool by_day = (cron->days >> day & 1) != 0;
	bool by_weekday = (cron->weekdays >> weekday & 1) != 0;

	if ((cron->months >> month & 1) == 0)
		return false;
	if (cron->any_day || cron->any_weekday)
		return by_day && by_weekday;
	return by_day || by_weekday;
}

/* Returns whether an expression goes by the minutes of every hour. */
bool
idemq_cron_every_hour(const Cron *cron)
{
	return cron->hours == (UINT64CONST(1) << 24) - 1;
}
