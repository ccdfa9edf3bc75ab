/*
 * base/topic_pattern.h
 *		Topics and patterns of them: words between dots.
 */
#ifndef IDEMQ_BASE_TOPIC_PATTERN_H
#define IDEMQ_BASE_TOPIC_PATTERN_H

#define TOPIC_MAX 255 /* bytes, as AMQP's short strings */
#define TOPIC_MAX_WORDS ((TOPIC_MAX + 1) / 2)
#define TOPIC_MAX_SPACE 48 /* bytes of the first word */

/* A topic or a pattern, taken apart; its words point into the string. */
typedef struct TopicWords
{
	int count;
	const char *words[TOPIC_MAX_WORDS];
	int lengths[TOPIC_MAX_WORDS];
} TopicWords;

extern void idemq_topic_split(const char *name, const char *string, bool pattern,
							  TopicWords *words);
extern char *idemq_topic_space(const TopicWords *words);
extern void idemq_topic_check_space(const char *space);
extern bool idemq_topic_matches(const TopicWords *pattern, const TopicWords *topic);

#endif
