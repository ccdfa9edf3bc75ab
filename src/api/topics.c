/*
 * api/topics.c
 *		SQL functions topic_matches and ensure_topic; and what the functions of sql/parts/47_topics.sql ask of C:
 *		topic_space, topic, topic_may (api/wrapper.c).
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "api/api.h"
#include "base/base.h"
#include "queue/queue.h"
#include "table/table.h"

/* topic_matches(pattern, topic) -> whether a queue bound by pattern gets jobs of topic; 22023. */
SQL_FUNCTION(idemq_sql_topic_matches)
{
	TopicWords pattern;
	TopicWords topic;

	idemq_topic_split("pattern", idemq_arg_text(fcinfo, 0, "pattern", TOPIC_MAX), true, &pattern);
	idemq_topic_split("topic", idemq_arg_text(fcinfo, 1, "topic", TOPIC_MAX), false, &topic);
	PG_RETURN_BOOL(idemq_topic_matches(&pattern, &topic));
}

/* Returns whether there is a space.  Raises 42501 for one on which the role holds no privilege. */
static bool
is_usable_topic(const char *name)
{
	TopicSpace space;

	if (!idemq_topic_find(name, &space))
		return false;
	idemq_topic_open(name, TOPIC_ALL, &space);
	return true;
}

/*
 * ensure_topic(topic) -> whether it was created; 22004, 22023, 42501, 25006.  As ensure_queue
 * (api/ensure_queue.c): a call that finds the space reads only, and of two that create it at once the
 * second finds the space of the first.
 */
SQL_FUNCTION(idemq_sql_ensure_topic)
{
	char *name = idemq_arg_text(fcinfo, 0, "topic", IDEMQ_MAX_NAME_ARG);
	const char *outcome = "unchanged";

	if (!is_usable_topic(name))
	{
		Oid creator = idemq_ensure_may_call("create_topic", "create the topic", name);

		idemq_jobs_check_writable();
		idemq_topic_lock_name(name);
		if (!is_usable_topic(name))
		{
			(void) OidFunctionCall1(creator, PG_GETARG_DATUM(0));
			outcome = "created";
		}
	}
	PG_RETURN_TEXT_P(cstring_to_text(outcome));
}

/* check_space(topic) -> void; 22004, 22023. */
SQL_FUNCTION(idemq_sql_internal_check_space)
{
	(void) idemq_wrapper_caller();
	idemq_topic_check_space(idemq_arg_text(fcinfo, 0, "topic", IDEMQ_MAX_NAME_ARG));
	PG_RETURN_VOID();
}

/* lock_topic(topic) -> void; idemq_topic_lock_name. */
SQL_FUNCTION(idemq_sql_internal_lock_topic)
{
	(void) idemq_wrapper_caller();
	idemq_topic_lock_name(TextDatumGetCString(PG_GETARG_DATUM(0)));
	PG_RETURN_VOID();
}

/* topic_space(pattern) -> its space; 22004, 22023. */
SQL_FUNCTION(idemq_sql_internal_topic_space)
{
	TopicWords words;

	(void) idemq_wrapper_caller();
	idemq_topic_split("pattern", idemq_arg_text(fcinfo, 0, "pattern", TOPIC_MAX), true, &words);
	PG_RETURN_TEXT_P(cstring_to_text(idemq_topic_space(&words)));
}

/* Returns the TopicPrivilege bits that a word stands for. */
static int
topics_privileges_named(const char *word)
{
	return strcmp(word, "publish") == 0 ? TOPIC_PUBLISH
		   : strcmp(word, "bind") == 0	? TOPIC_BIND
										: TOPIC_ADMIN;
}

/*
 * topic(topic, privilege, keep) -> void; 42704; 42501 unless the caller has the privilege, NULL
 * for none.  keep: the space cannot be dropped, to the end of the transaction.
 */
SQL_FUNCTION(idemq_sql_internal_topic)
{
	int level = idemq_wrapper_become_caller();
	const char *name = TextDatumGetCString(PG_GETARG_DATUM(0));
	TopicSpace space;

	if (!PG_ARGISNULL(1))
		idemq_topic_open(name, topics_privileges_named(TextDatumGetCString(PG_GETARG_DATUM(1))),
						 &space);
	else if (!idemq_topic_find(name, &space))
		idemq_topic_refuse_unknown(name);
	if (PG_GETARG_BOOL(2))
		idemq_topic_keep(name);
	idemq_wrapper_become_owner(level);
	PG_RETURN_VOID();
}

/* topic_may(topic, role, privilege) -> whether it may; false for no such topic, or no role. */
SQL_FUNCTION(idemq_sql_internal_topic_may)
{
	TopicSpace space;

	(void) idemq_wrapper_caller();
	PG_RETURN_BOOL(!PG_ARGISNULL(1) &&
				   idemq_topic_find(TextDatumGetCString(PG_GETARG_DATUM(0)), &space) &&
				   (idemq_topic_privileges(&space, PG_GETARG_OID(1)) &
					topics_privileges_named(TextDatumGetCString(PG_GETARG_DATUM(2)))) != 0);
}
