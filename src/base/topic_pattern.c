/*
 * base/topic_pattern.c
 *		Topics, and patterns that match them, like those of AMQP's topic exchanges: words separated
 *		by dots.  In a pattern, * matches one word, and # matches any number of words, including
 *		none.
 *
 * The first word of a topic is its topic space, which has owners.  Therefore, the first word of a
 * pattern must not be a wildcard.
 *
 * A pattern is compared from left to right.  If a word does not match, the last # takes one more
 * word.  An earlier # never needs to take more: the words between the two were matched at the first
 * possible position, and any words after that which the earlier # could take, the last # can take
 * as well.  Therefore, the number of steps is at most the product of both lengths.
 */
#include "postgres.h"

#include "base/base.h"

/* Returns whether word n is that wildcard. */
static bool
is_wildcard(const TopicWords *words, int n, char wildcard)
{
	return words->lengths[n] == 1 && words->words[n][0] == wildcard;
}

/* Raises 22023 if word n is not valid in a topic, or in a pattern. */
static void
check_word(const char *name, const TopicWords *words, int n, bool pattern)
{
	const char *word = words->words[n];
	int length = words->lengths[n];

	if (length == 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s must not contain an empty word", name),
				errhint("Separate words with single dots, for example orders.eu.paid."));
	if (pattern && n > 0 && (is_wildcard(words, n, '*') || is_wildcard(words, n, '#')))
		return;
	for (int i = 0; i < length; i++)
	{
		if (word[i] == '*' || word[i] == '#')
			ereport(
				ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				pattern
					? errmsg(
						  "in %s, * and # must each stand alone between dots and must not be the "
						  "first word",
						  name)
					: errmsg("%s must not contain * or #", name),
				pattern
					? errhint(
						  "Begin with the name of the topic space, for example orders.*.paid or "
						  "orders.#.")
					: errhint(
						  "Wildcards are allowed only in patterns passed to idemq.bind_topic."));
	}
}

/*
 * Splits a topic or a pattern of at most TOPIC_MAX bytes into words; raises 22023 if it is
 * invalid.  name: the name of the argument, for messages.
 */
void
idemq_topic_split(const char *name, const char *string, bool pattern, TopicWords *words)
{
	const char *at = string;

	words->count = 0;
	for (;;)
	{
		const char *end = at + strcspn(at, ".");

		words->words[words->count] = at;
		words->lengths[words->count] = (int) (end - at);
		check_word(name, words, words->count++, pattern);
		if (*end == '\0')
			break;
		at = end + 1;
	}
	idemq_topic_check_space(idemq_topic_space(words));
}

/* Returns the topic space of a topic or a pattern, palloc'ed. */
char *
idemq_topic_space(const TopicWords *words)
{
	return pnstrdup(words->words[0], words->lengths[0]);
}

/* Raises 22023 if a name is not valid for a topic space. */
void
idemq_topic_check_space(const char *space)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
	static const char others[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789-";

	if (strspn(space, letters) > 0 && space[strspn(space, others)] == '\0' &&
		strlen(space) <= TOPIC_MAX_SPACE)
		return;
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("invalid first word \"%s\" in topic", space),
			errhint("Begin with a letter or _, then use letters, digits, _ and -, up to %d bytes.",
					TOPIC_MAX_SPACE));
}

/* Returns whether a pattern matches a topic. */
bool
idemq_topic_matches(const TopicWords *pattern, const TopicWords *topic)
{
	int i = 0;
	int j = 0;
	int last = -1; /* position of the last # so far */
	int taken = 0; /* the first word of the topic that it has not taken */

	while (j < topic->count)
	{
		if (i < pattern->count && is_wildcard(pattern, i, '#'))
		{
			last = i++;
			taken = j;
		}
		else if (i < pattern->count &&
				 (is_wildcard(pattern, i, '*') ||
				  (pattern->lengths[i] == topic->lengths[j] &&
				   memcmp(pattern->words[i], topic->words[j], topic->lengths[j]) == 0)))
		{
			i++;
			j++;
		}
		else if (last >= 0)
		{
			i = last + 1;
			j = ++taken;
		}
		else
			return false;
	}
	while (i < pattern->count && is_wildcard(pattern, i, '#'))
		i++;
	return i == pattern->count;
}
