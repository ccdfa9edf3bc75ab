/*
 * observe/check_rows.c
 *		The audit of what one snapshot shows: rows, tokens, indexes, triggers.
 *
 * Every version of a row that is ever visible keeps the rules below, so one query
 * under one snapshot finds no race.  The last issued token is read after it: whatever
 * token the snapshot shows had been issued by then.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "base/base.h"
#include "base/compat.h"
#include "job/job.h"
#include "observe/observe.h"
#include "shared/leases/leases.h"

/* Tokens are below this, for JSON and JavaScript. */
#define TOKEN_END (INT64CONST(1) << 53)

/* Each rule: its name, what is wrong with a row that breaks it, and whether one does. */
#define ROW_RULES                                                                                  \
	"('jobs.queue', 'of a queue that does not exist', q.queue_id IS NULL), "                       \
	"('jobs.priority', 'with a priority outside of 0 to 9', j.priority NOT BETWEEN 0 AND 9), "     \
	"('jobs.ready_at', 'pending, failed or processing without ready_at, or with one otherwise', "  \
	"(j.status IN ('pending', 'failed', 'processing')) <> (j.ready_at IS NOT NULL)), "             \
	"('jobs.finished_at', 'completed, dead or cancelled without finished_at, or with one "         \
	"otherwise', (j.status IN ('completed', 'dead', 'cancelled')) <> "                             \
	"(j.finished_at IS NOT NULL)), "                                                               \
	"('jobs.dead_at', 'dead without dead_at, or with one otherwise', "                             \
	"(j.status = 'dead') <> (j.dead_at IS NOT NULL)), "                                            \
	"('jobs.lease', 'processing without claimed_at, or without a later deadline', "                \
	"j.status = 'processing' AND (j.deadline > j.claimed_at) IS NOT TRUE), "                       \
	"('jobs.attempt', 'with an attempt that its status does not allow, or above max_attempts', "   \
	"NOT (CASE j.status WHEN 'processing' THEN j.attempt BETWEEN 1 AND j.max_attempts "            \
	"WHEN 'failed' THEN j.attempt BETWEEN 1 AND j.max_attempts - 1 "                               \
	"WHEN 'pending' THEN j.attempt BETWEEN 0 AND j.max_attempts - 1 "                              \
	"WHEN 'blocked' THEN j.attempt BETWEEN 0 AND j.max_attempts - 1 "                              \
	"ELSE j.attempt BETWEEN 0 AND j.max_attempts END)), "                                          \
	"('jobs.token', 'with a token below zero, of 2^53 or more, or processing without one', "       \
	"j.token NOT BETWEEN 0 AND 9007199254740991 OR j.token = 0 AND j.status = 'processing'), "     \
	"('jobs.rerun', 'to run once more without being in processing, or without a payload for it', " \
	"j.rerun_at IS NOT NULL AND (j.status <> 'processing' OR j.rerun_payload IS NULL)), "          \
	"('jobs.blocked', 'blocked without a group_key or a row in idemq.children', "                  \
	"j.status = 'blocked' AND j.group_key IS NULL AND NOT EXISTS (SELECT FROM idemq.children k "   \
	"WHERE k.job_id = j.id))"

static SqlStatement broken_rows =
	{.text = "SELECT invariant, what, n, id FROM "
			 "(SELECT r.invariant, r.what, j.id, count(*) OVER every AS n, "
			 "row_number() OVER (every ORDER BY j.id) AS place "
			 "FROM idemq.jobs j LEFT JOIN idemq.queues q USING (queue_id) CROSS JOIN LATERAL "
			 "(VALUES " ROW_RULES ") r(invariant, what, is_broken) WHERE r.is_broken "
			 "WINDOW every AS (PARTITION BY r.invariant, r.what)) x "
			 "WHERE place <= $1 ORDER BY invariant, id",
	 .nargs = 1,
	 .types = {INT8OID}};

static SqlStatement history_tokens =
	{.text = "SELECT j.id FROM idemq.jobs j WHERE EXISTS (SELECT FROM idemq.attempts a "
			 "WHERE a.job_id = j.id AND a.token > j.token) ORDER BY j.id LIMIT $1",
	 .nargs = 1,
	 .types = {INT8OID}};

static SqlStatement tokens_below =
	{.text = "SELECT id, token FROM idemq.jobs WHERE token >= $1 AND token < $2 "
			 "ORDER BY token DESC LIMIT $3",
	 .nargs = 3,
	 .types = {INT8OID, INT8OID, INT8OID}};

static SqlStatement step_tokens =
	{.text = "SELECT j.id FROM idemq.jobs j WHERE EXISTS (SELECT FROM idemq.steps s "
			 "WHERE s.job_id = j.id AND s.token > j.token) ORDER BY j.id LIMIT $1",
	 .nargs = 1,
	 .types = {INT8OID}};

/*
 * A stored answer, also a late one, ends it; until call_until one may come by itself.  No
 * other attempt will begin the step again.
 */
static SqlStatement unknown_steps =
	{.text = "SELECT j.id FROM idemq.steps s JOIN idemq.jobs j ON j.id = s.job_id "
			 "WHERE s.state = 'open' AND s.call_until <= $2 AND j.finished_at IS NOT NULL "
			 "GROUP BY j.id ORDER BY j.id LIMIT $1",
	 .nargs = 2,
	 .types = {INT8OID, TIMESTAMPTZOID}};

/* The sender, with the name locked, answers and wakes all who sleep for an event. */
static SqlStatement missed_events =
	{.text = "SELECT j.id FROM idemq.steps s JOIN idemq.events e ON e.queue_id = s.queue_id "
			 "AND e.name = s.name JOIN idemq.jobs j ON j.id = s.job_id WHERE s.state = 'waiting' "
			 "AND e.sent_at >= s.begun_at AND j.token = s.token AND j.status = 'pending' "
			 "AND j.ready_at > $2 ORDER BY j.id LIMIT $1",
	 .nargs = 2,
	 .types = {INT8OID, TIMESTAMPTZOID}};

/* What claims, keys, redrive and groups cannot do without. */
static SqlStatement missing_indexes = {
	.text =
		"SELECT w.name, w.vital FROM (VALUES "
		"('jobs_pkey', 'id', true, NULL, true), "
		"('jobs_ready', 'queue_id, priority, ready_at, id', false, '(ready_at IS NOT NULL)', "
		"true), "
		"('jobs_key', 'queue_id, key', true, '(key IS NOT NULL)', true), "
		"('jobs_dead', 'queue_id, dead_at, id', false, '(dead_at IS NOT NULL)', false), "
		"('jobs_group', 'queue_id, group_key, ready_at, id', false, "
		"'((group_key IS NOT NULL) AND (finished_at IS NULL))', false)) "
		"w(name, columns, is_unique, predicate, vital) WHERE NOT EXISTS "
		"(SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = 'idemq.jobs'::pg_catalog.regclass "
		"AND i.indisvalid AND i.indisready AND (i.indisunique OR NOT w.is_unique) "
		"AND pg_catalog.pg_get_expr(i.indpred, i.indrelid) IS NOT DISTINCT FROM w.predicate "
		"AND w.columns = (SELECT pg_catalog.string_agg(pg_catalog.pg_get_indexdef(i.indexrelid, "
		"k, true), ', ' ORDER BY k) FROM pg_catalog.generate_series(1, i.indnatts) k))"};

/* What goes wrong without a trigger. */
#define OF_MEMORY "'shared memory does not follow'"
#define OF_QUEUES "'grants, schedules, handlers and producers do not go with'"
#define OF_ROLES "'the OIDs of roles do not follow'"

static SqlStatement missing_triggers = {
	.text =
		"SELECT w.rel, w.name, w.firing, w.what FROM (VALUES "
		"('idemq.jobs', 'idemq_jobs_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.jobs', 'idemq_jobs_truncated', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.dependencies', 'idemq_kin_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.children', 'idemq_kin_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.queues', 'idemq_settings_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.queues', 'idemq_settings_truncated', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.queues', 'idemq_queue_gone', '', " OF_QUEUES "), "
		"('idemq.queues', 'idemq_queues_gone', '', " OF_QUEUES "), "
		"('idemq.queue_grants', 'idemq_settings_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.queue_grants', 'idemq_settings_truncated', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.followers', 'idemq_followers_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.followers', 'idemq_followers_truncated', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.followers', 'idemq_followers_local', 'REPLICA ', "
		"'rows of the publisher replace those of'), "
		"('idemq.clusters', 'idemq_settings_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.shard', 'idemq_shard_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.shard', 'idemq_shard_truncated', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.queue_grants', 'idemq_role_named', 'ALWAYS ', " OF_ROLES "), "
		"('idemq.schedule_entries', 'idemq_role_named', 'ALWAYS ', " OF_ROLES "), "
		"('idemq.queues', 'idemq_role_named', 'ALWAYS ', " OF_ROLES "), "
		"('idemq.schedule_entries', 'idemq_schedules_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.handler_entries', 'idemq_settings_changed', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.handler_entries', 'idemq_settings_truncated', 'ALWAYS ', " OF_MEMORY "), "
		"('idemq.handler_entries', 'idemq_role_named', 'ALWAYS ', " OF_ROLES "), "
		"('idemq.handler_entries', 'idemq_owner_named', 'ALWAYS ', " OF_ROLES "), "
		"('idemq.topic_grants', 'idemq_role_named', 'ALWAYS ', " OF_ROLES "), "
		"('idemq.topic_binding_entries', 'idemq_role_named', 'ALWAYS ', " OF_ROLES ")) "
		"w(rel, name, firing, what) WHERE NOT EXISTS "
		"(SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = w.rel::pg_catalog.regclass "
		"AND t.tgname = w.name AND t.tgenabled = coalesce(nullif(pg_catalog.left(w.firing, 1), ''), 'O')::\"char\")"};

static SqlStatement open_tables = {
	.text =
		"SELECT c.relname::text FROM pg_catalog.pg_class c WHERE c.oid IN "
		"('idemq.jobs'::pg_catalog.regclass, 'idemq.attempts'::pg_catalog.regclass, "
		"'idemq.dependencies'::pg_catalog.regclass, 'idemq.children'::pg_catalog.regclass, "
		"'idemq.steps'::pg_catalog.regclass, 'idemq.database_uuid'::pg_catalog.regclass, 'idemq.producers'::pg_catalog.regclass, "
		"'idemq.queues'::pg_catalog.regclass, 'idemq.queue_grants'::pg_catalog.regclass, "
		"'idemq.seen'::pg_catalog.regclass, 'idemq.schedule_entries'::pg_catalog.regclass, "
		"'idemq.ticker'::pg_catalog.regclass, 'idemq.handler_entries'::pg_catalog.regclass, "
		"'idemq.events'::pg_catalog.regclass, 'idemq.topic_entries'::pg_catalog.regclass, "
		"'idemq.topic_grants'::pg_catalog.regclass, "
		"'idemq.topic_binding_entries'::pg_catalog.regclass) AND NOT c.relrowsecurity"};

static char *
text_value(uint64 row, int column)
{
	bool isnull;

	return TextDatumGetCString(idemq_spi_value(row, column, &isnull));
}

static int64
int64_value(uint64 row, int column)
{
	bool isnull;

	return DatumGetInt64(idemq_spi_value(row, column, &isnull));
}

/* Checks what a single row says. */
void
idemq_check_rows(CheckCall *call)
{
	Datum named = Int64GetDatum(CHECK_NAMED);
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	rows = idemq_spi_query_latest(&broken_rows, &named, NULL);
	for (uint64 i = 0; i < rows;)
	{
		char *invariant = text_value(i, 1);
		char *what = text_value(i, 2);
		IdList jobs = {0};
		int64 count = int64_value(i, 3);

		while (i < rows && jobs.count < Min(count, CHECK_NAMED))
			idemq_id_list_add(&jobs, int64_value(i++, 4));
		jobs.count = count;
		idemq_check_report_jobs(call, CHECK_ERROR, invariant, &jobs, what);
	}
	idemq_spi_end(&scope);
}

/* Returns a token that none issued so far in this database is greater than. */
static int64
greatest_token(void)
{
	return idemq_token_next(0, idemq_lease_last_token(), idemq_now(), compat_timeline(),
							idemq_generation_latest_base());
}

/* Checks that tokens only grow, and that none is from the future. */
void
idemq_check_tokens(CheckCall *call)
{
	IdList older = {0};
	IdList ahead = {0};
	Datum args[3];
	int64 greatest;
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	args[0] = Int64GetDatum(CHECK_SUSPECTS);
	rows = idemq_spi_query_latest(&history_tokens, args, NULL);
	for (uint64 i = 0; i < rows; i++)
		idemq_id_list_add(&older, int64_value(i, 1));
	/* A standby issues none, and has not seen what was issued. */
	if (!RecoveryInProgress())
	{
		int64 before = greatest_token();

		args[0] = Int64GetDatum(before);
		args[1] = Int64GetDatum(TOKEN_END);
		args[2] = Int64GetDatum(CHECK_SUSPECTS);
		rows = idemq_spi_query_latest(&tokens_below, args, NULL);
		greatest = greatest_token();
		for (uint64 i = 0; i < rows; i++)
		{
			if (int64_value(i, 2) > greatest)
				idemq_id_list_add(&ahead, int64_value(i, 1));
		}
	}
	idemq_spi_end(&scope);
	idemq_check_report_jobs(call, CHECK_ERROR, "tokens.grow", &older,
							"idemq.attempts has a greater token than the job");
	idemq_check_report_jobs(
		call, CHECK_WARNING, "tokens.issued", &ahead,
		"with a token greater than the last one issued and the clock: written by "
		"hand, or the clock was set back; its next token is greater still");
}

/* Collects the jobs that a query finds. */
static void
find_jobs(SqlStatement *statement, const Datum *args, IdList *jobs)
{
	uint64 rows = idemq_spi_query_latest(statement, args, NULL);

	for (uint64 i = 0; i < rows; i++)
		idemq_id_list_add(jobs, int64_value(i, 1));
}

/*
 * Checks that no step is from the future, that no job sleeps for an event that was sent,
 * and that of no finished job an effect is in doubt: nothing asks the other side by itself.
 */
void
idemq_check_steps(CheckCall *call)
{
	Datum args[] = {Int64GetDatum(CHECK_SUSPECTS), TimestampTzGetDatum(idemq_now())};
	IdList older = {0};
	IdList unknown = {0};
	IdList missed = {0};
	SqlScope scope;

	idemq_spi_begin(&scope);
	find_jobs(&step_tokens, args, &older);
	find_jobs(&missed_events, args, &missed);
	find_jobs(&unknown_steps, args, &unknown);
	idemq_spi_end(&scope);
	idemq_check_report_jobs(call, CHECK_ERROR, "steps.token", &older,
							"idemq.steps has a greater token than the job");
	idemq_check_report_jobs(call, CHECK_ERROR, "steps.event", &missed,
							"asleep for an event that was sent since: idemq.retry wakes it");
	idemq_check_report_jobs(call, CHECK_WARNING, "steps.unknown", &unknown,
							"finished, with a step that was begun and has no answer: ask the other "
							"side, then idemq.finish_step or idemq.refuse_step with the token in "
							"idemq.steps");
}

static void
report_indexes(CheckCall *call, bool *usable)
{
	uint64 rows = idemq_spi_query_latest(&missing_indexes, NULL, NULL);

	for (uint64 i = 0; i < rows; i++)
	{
		bool isnull;
		char *name = text_value(i, 1);
		bool vital = DatumGetBool(idemq_spi_value(i, 2, &isnull));

		if (strcmp(name, "jobs_ready") == 0)
			*usable = false;
		idemq_check_report(
			call, vital ? CHECK_ERROR : CHECK_WARNING, "indexes",
			"index %s of idemq.jobs is missing or not valid: REINDEX it, or create it "
			"as the install script does",
			name);
	}
}

/*
 * Checks indexes, triggers and row-level security.  Returns whether there is a ready
 * index to scan.
 */
bool
idemq_check_catalog(CheckCall *call)
{
	bool usable = true;
	SqlScope scope;
	uint64 rows;

	idemq_spi_begin(&scope);
	report_indexes(call, &usable);
	rows = idemq_spi_query_latest(&missing_triggers, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
		idemq_check_report(call, CHECK_ERROR, "triggers",
						   "%s %s: ALTER TABLE %s ENABLE %sTRIGGER %s", text_value(i, 4),
						   text_value(i, 1), text_value(i, 1), text_value(i, 3), text_value(i, 2));
	rows = idemq_spi_query_latest(&open_tables, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
		idemq_check_report(
			call, CHECK_ERROR, "row_security",
			"every role that may read idemq.%s sees all of it: ALTER TABLE idemq.%s ENABLE ROW LEVEL "
			"SECURITY",
			text_value(i, 1), text_value(i, 1));
	idemq_spi_end(&scope);
	return usable;
}
