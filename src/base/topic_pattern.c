/*
 * base/topic_pattern.c
 *		Topics and patterns of them, as AMQP's topic exchanges have them: words between dots.
 *		In a pattern * stands for one word, # for any number of words, none included.
 *
 * The first word of a topic is its space, which has owners; so a pattern's first word is no
 * wildcard.
 *
 * A pattern is compared from left to right.  Where a word does not fit, the last # takes one
 * word more.  An earlier # need never take more: the words between the two were matched
 * where they first fit, and whatever the earlier # could take beyond that place, the last
 * one can take as well.  So no pattern takes longer than the product of both lengths.
 */
#include "postgres.h"

#include "base/base.h"

static bool
is_wildcard(const TopicWords *words, int n, char wildcard)
{
	return words->lengths[n] == 1 && words->words[n][0] == wildcard;
}

/* Raises 22023 for a word that a topic, or a pattern, cannot have. */
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
 * Takes a topic, or a pattern, apart; raises 22023 when it is malformed.  name: the
 * argument's.  The string is not longer than TOPIC_MAX.
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

/* Returns the space of a topic, or of a pattern. */
char *
idemq_topic_space(const TopicWords *words)
{
	return pnstrdup(words->words[0], words->lengths[0]);
}

/* Raises 22023 for a name that no space can have. */
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

/* Returns whether a pattern stands for a topic. */
bool
idemq_topic_matches(const TopicWords *pattern, const TopicWords *topic)
{
	int i = 0;
	int j = 0;
	int last = -1; /* the last # so far */
	int taken = 0; /* the first word that it has not taken */

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
