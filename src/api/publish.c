/*
 * api/publish.c
 *		SQL functions publish, which adds a job to each queue that is bound to a topic,
 *		topic_matches and ensure_topic; and the C functions that sql/parts/47_topics.sql calls.
 *
 * All jobs are added in the caller's transaction, in the order of the queues' ids, so two
 * publishers do not deadlock.  A queue that several bindings name gets one job.
 *
 * The publisher needs the privilege publish on the topic, and none on the queues.  A binding counts
 * if its role may now bind to the topic and enqueue to the queue, according to what is committed at
 * the call: a privilege that was revoked, or was lost with its role, ends at once.  Other bindings
 * are skipped, and never raise an error for the publisher; idemq.topic_bindings shows why, and when
 * one was last skipped.  That time is written at most once a minute, only if no other transaction
 * holds the row, and not above READ COMMITTED, so publishers neither wait for each other nor fail
 * because of it.
 *
 * The key of the job in each queue is the publisher's key followed by the topic's space.  So a
 * publisher uses no key of the queue's own producers, and none of a schedule's tick, which ends
 * differently; and they use none of its keys (job/kept_key.c).  A publisher that repeats its call
 * gets the first jobs.  Their payloads are not compared, because otherwise a job with that key and
 * another payload, in one of the queues, would raise an error for the publisher.
 *
 * A full queue or group never raises an error for the publisher: the queue gets the job
 * nevertheless, or gets none if when_full of the binding is skip.  The binding's row has an exact
 * count of the jobs that were added over the limit.  Publishers do not wait for each other to
 * update it: a publisher that cannot lock the row at once, or that runs above READ COMMITTED,
 * inserts a row for the job into topic_over_limit.  The next publisher that gets the lock, or the
 * next pass of retention, adds these rows to the count.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "api/api.h"
#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
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

/* Returns whether a space exists.  Raises 42501 if the role has no privilege on it. */
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
 * ensure_topic(topic) -> whether it was created; 22004, 22023, 42501, 25006.  Like ensure_queue
 * (api/create_queue.c), it only reads if the space exists, and if two calls create the space at the
 * same time, the second one finds it.
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

/* Returns the TopicPrivilege bits for the name of a privilege. */
static int
topic_privileges_named(const char *word)
{
	return strcmp(word, "publish") == 0 ? TOPIC_PUBLISH
		   : strcmp(word, "bind") == 0	? TOPIC_BIND
										: TOPIC_ADMIN;
}

/*
 * topic(topic, privilege, keep) -> void; 42704; 42501 unless the caller has the privilege (NULL:
 * none is required). keep: the space cannot be dropped until the end of the transaction.
 */
SQL_FUNCTION(idemq_sql_internal_topic)
{
	int level = idemq_wrapper_become_caller();
	const char *name = TextDatumGetCString(PG_GETARG_DATUM(0));
	TopicSpace space;

	if (!PG_ARGISNULL(1))
		idemq_topic_open(name, topic_privileges_named(TextDatumGetCString(PG_GETARG_DATUM(1))),
						 &space);
	else if (!idemq_topic_find(name, &space))
		idemq_topic_refuse_unknown(name);
	if (PG_GETARG_BOOL(2))
		idemq_topic_keep(name);
	idemq_wrapper_become_owner(level);
	PG_RETURN_VOID();
}

/*
 * topic_may(topic, role, privilege) -> whether the role has it; false if there is no such topic or
 * role.
 */
SQL_FUNCTION(idemq_sql_internal_topic_may)
{
	TopicSpace space;

	(void) idemq_wrapper_caller();
	PG_RETURN_BOOL(!PG_ARGISNULL(1) &&
				   idemq_topic_find(TextDatumGetCString(PG_GETARG_DATUM(0)), &space) &&
				   (idemq_topic_privileges(&space, PG_GETARG_OID(1)) &
					topic_privileges_named(TextDatumGetCString(PG_GETARG_DATUM(2)))) != 0);
}

/* Arguments of publish. */
enum
{
	ARG_TOPIC,
	ARG_PAYLOAD,
	ARG_KEY,
	ARG_DELAY,
	ARG_KIND = 10
};

/* A binding of the topic's space. */
typedef struct Binding
{
	Datum pattern;
	int32 queue_id;
	NameData role;
	Oid role_oid;
	bool skips; /* the queue gets no job if the queue or the group is full */
} Binding;

static SqlStatement read_bindings =
	{.text = "SELECT pattern, queue_id, role_name, role_oid, when_full = 'skip' "
			 "FROM idemq_internal.topic_binding_entries "
			 "WHERE topic = $1 ORDER BY queue_id, pattern, role_name",
	 .types = {TEXTOID},
	 .fields = (const SqlField[]){SQL_FIELD(Binding, pattern), SQL_FIELD(Binding, queue_id),
								  SQL_FIELD(Binding, role), SQL_FIELD(Binding, role_oid),
								  SQL_FIELD(Binding, skips)}};
static SqlStatement note_refusal =
	{.text = "UPDATE idemq_internal.topic_binding_entries b SET refused_at = $5 FROM "
			 "(SELECT ctid FROM idemq_internal.topic_binding_entries WHERE topic = $1 "
			 "AND pattern = $2 AND queue_id = $3 AND role_name = $4 AND (refused_at IS NULL OR "
			 "refused_at < $5 - interval '1 minute') FOR NO KEY UPDATE SKIP LOCKED) free "
			 "WHERE b.ctid = free.ctid",
	 .types = {TEXTOID, TEXTOID, INT4OID, NAMEOID, TIMESTAMPTZOID}};

/* Parameters of the statements that count a job over the limit: $1 to $4: binding, $5: job. */
#define BINDING_TYPES                                                                              \
	{                                                                                              \
		TEXTOID, TEXTOID, INT4OID, NAMEOID, INT8OID                                                \
	}
#define IS_BINDING "topic = $1 AND pattern = $2 AND queue_id = $3 AND role_name = $4"

static SqlStatement lock_binding = {.text = "SELECT 1 FROM idemq_internal.topic_binding_entries "
											"WHERE " IS_BINDING " AND $5 > 0 "
											"FOR NO KEY UPDATE SKIP LOCKED",
									.locks = true,
									.types = BINDING_TYPES};
/* Run while this transaction holds the lock on the binding's row. */
static SqlStatement count_over_limit = {
	.text = "WITH left_over AS (DELETE FROM idemq_internal.topic_over_limit WHERE " IS_BINDING
			" RETURNING 1) UPDATE idemq_internal.topic_binding_entries SET over_limit = over_limit "
			"+ (SELECT pg_catalog.count(*) FROM left_over) + 1 WHERE " IS_BINDING " AND $5 > 0",
	.types = BINDING_TYPES};
static SqlStatement leave_over_limit =
	{.text = "INSERT INTO idemq_internal.topic_over_limit (topic, pattern, queue_id, role_name, "
			 "job_id) VALUES ($1, $2, $3, $4, $5)",
	 .types = BINDING_TYPES};

typedef struct Published
{
	TopicWords topic;
	TopicSpace space;
	NullableDatum options[OPTIONS];
	Datum payload;
	TimestampTz now;
	ReturnSetInfo *set;
	int jobs;
	int skipped;
	bool of_others; /* an answer depends on another transaction's commit */
} Published;

/* Returns whether a binding currently applies; reads its queue. */
static bool
binding_counts(const Published *call, const Binding *binding, QueueInfo *queue)
{
	Oid role = idemq_role_of(NameStr(binding->role), binding->role_oid);

	return OidIsValid(role) && (idemq_topic_privileges(&call->space, role) & TOPIC_BIND) != 0 &&
		   idemq_queue_allows_role(binding->queue_id, role, PRIVILEGE_ENQUEUE, queue);
}

/* Counts that a binding was skipped, if this is possible without waiting. */
static void
skip_binding(Published *call, Binding *binding)
{
	Datum values[] = {CStringGetTextDatum(call->space.name), binding->pattern,
					  Int32GetDatum(binding->queue_id), NameGetDatum(&binding->role),
					  TimestampTzGetDatum(call->now)};
	call->skipped++;
	if (!IsolationUsesXactSnapshot())
		(void) idemq_spi_do(&note_refusal, values, NULL);
}

/* Counts a job that a binding has added although the queue or the group was full. */
static void
note_over_limit(const Published *call, Binding *binding, int64 job_id)
{
	Datum values[] = {CStringGetTextDatum(call->space.name), binding->pattern,
					  Int32GetDatum(binding->queue_id), NameGetDatum(&binding->role),
					  Int64GetDatum(job_id)};

	if (!IsolationUsesXactSnapshot() && idemq_spi_do(&lock_binding, values, NULL) > 0)
		(void) idemq_spi_do(&count_over_limit, values, NULL);
	else
		(void) idemq_spi_do(&leave_over_limit, values, NULL);
}

/*
 * Adds a job to a queue, and a row to the result.  Returns false if the queue was full and skipped.
 */
static bool
publish_add_job(Published *call, Binding *binding, const QueueInfo *queue)
{
	Datum values[3];
	bool nulls[3] = {false};
	DuplicateRule rule = {.policy = DUPLICATE_IGNORE,
						  .is_ours = true,
						  .when_full = binding->skips ? FULL_SKIPS : FULL_ADDS};
	EnqueueAnswer answer;
	JobChange columns;
	JobsTable table;

	idemq_jobs_open(&table);
	idemq_new_job(&columns, queue, call->now, call->payload);
	idemq_enqueue_set_options(&columns, queue, call->options);
	idemq_enqueue_add(&table, NULL, queue, &columns, rule, JOB_WAITS, &answer);
	idemq_jobs_close(&table);
	if (answer.outcome == OUTCOME_LOCKED)
		return false;
	if (answer.full)
		note_over_limit(call, binding, answer.id);
	call->of_others |= answer.outcome == OUTCOME_DUPLICATE && answer.foreign;
	call->jobs += answer.outcome == OUTCOME_ACCEPTED;
	values[0] = CStringGetTextDatum(queue->name);
	values[1] = Int64GetDatum(answer.id);
	values[2] = idemq_outcome_datum(answer.outcome);
	tuplestore_putvalues(call->set->setResult, call->set->setDesc, values, nulls);
	return true;
}

/* Reads the arguments; raises 42704, 42501 for the topic. */
static void
publish_read_arguments(FunctionCallInfo fcinfo, Published *call)
{
	char *topic = idemq_arg_text(fcinfo, ARG_TOPIC, "topic", TOPIC_MAX);
	char *space;

	idemq_topic_split("topic", topic, false, &call->topic);
	space = idemq_topic_space(&call->topic);
	idemq_arg_required(fcinfo, ARG_PAYLOAD, "payload");
	call->payload = PG_GETARG_DATUM(ARG_PAYLOAD);
	idemq_enqueue_read_options(fcinfo, -1, ARG_DELAY, -1, ARG_KIND, call->options);
	/*
	 * The jobs' key consists of the call's key and the space, so no producer can pass it to
	 * enqueue.
	 */
	call->options[OPTION_KEY] = (NullableDatum){.isnull = PG_ARGISNULL(ARG_KEY)};
	if (!PG_ARGISNULL(ARG_KEY))
	{
		char *given = idemq_arg_text(fcinfo, ARG_KEY, "key", IDEMQ_MAX_KEY);
		char *full = psprintf("%s" TOPIC_KEY_MARK "%s", given, space);

		if (strlen(full) > IDEMQ_MAX_KEY)
			ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("key must be 1 to %d bytes long, not %zu",
						   IDEMQ_MAX_KEY - (int) (strlen(full) - strlen(given)), strlen(given)),
					errhint("Pass a hash of the key instead."));
		call->options[OPTION_KEY].value = CStringGetTextDatum(full);
	}
	idemq_jobs_check_writable();
	idemq_topic_open(space, TOPIC_PUBLISH, &call->space);
	idemq_check_document("payload", call->payload, 0);
}

/*
 * publish(topic, payload, key, delay, run_at, priority, group_key, max_attempts, headers,
 *		expires_in, kind) -> setof (queue, id, outcome accepted | duplicate); 42704, 42501,
 *		22004, 22023, 25006, 40001, 54000.
 */
SQL_FUNCTION(idemq_sql_publish)
{
	Published call = {0};
	MemoryContext job_context;
	int32 served = 0;
	Binding *bindings;
	Datum space;
	int count;

	publish_read_arguments(fcinfo, &call);
	call.set = idemq_srf_begin(fcinfo);
	call.now = idemq_now();
	space = CStringGetTextDatum(call.space.name);
	bindings = idemq_spi_rows(&read_bindings, &space, sizeof(Binding), &count);
	job_context =
		AllocSetContextCreate(CurrentMemoryContext, "idemq publish", ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < count; i++)
	{
		Binding *binding = &bindings[i];
		MemoryContext old;
		TopicWords pattern;
		QueueInfo queue;
		bool held;

		CHECK_FOR_INTERRUPTS();
		idemq_topic_split("pattern", TextDatumGetCString(binding->pattern), true, &pattern);
		if (!idemq_topic_matches(&pattern, &call.topic))
			continue;
		old = MemoryContextSwitchTo(job_context);
		/*
		 * Checked again with the lock that keeps the queue from being dropped until the transaction
		 * ends.
		 */
		held = binding_counts(&call, binding, &queue);
		if (held)
		{
			idemq_queue_lock(binding->queue_id, AccessShareLock);
			held = binding_counts(&call, binding, &queue);
		}
		if (!held)
			skip_binding(&call, binding);
		else if (binding->queue_id != served)
		{
			if (publish_add_job(&call, binding, &queue))
				served = binding->queue_id;
			else
				skip_binding(&call, binding);
		}
		MemoryContextSwitchTo(old);
		MemoryContextReset(job_context);
	}
	if (call.of_others)
		idemq_sync_rep_await();
	idemq_count(COUNT_PUBLISH_CALLS, 1);
	idemq_count(COUNT_PUBLISH_JOBS, call.jobs);
	idemq_count(COUNT_PUBLISH_SKIPPED, call.skipped);
	return (Datum) 0;
}
