/*
 * settle.c: what the server is asked for and told: claims, and how attempts have ended.
 *
 * An answer that is lost is asked for again: a commit then says already_committed when it was
 * done, and stale when the lease was lost.  fail and release say stale for both, and either way
 * the attempt has ended.  The token makes all of that harmless.  Any other error - a lock, a
 * full disk, a trigger - is said and tried again, while heartbeats keep the lease, until
 * its time; then the job is left to its lease, and runs again.
 *
 * What has succeeded by the same moment is committed by one statement, which claims the next jobs
 * too where there is one queue.  When the server refuses that statement, whatever for, each of
 * these jobs is settled by itself, so that what is wrong with one keeps back no other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "options.h"
#include "text.h"

#define LAST_WAIT 30000

/* A job is released so often because its other side is busy; from then on that is a failure. */
#define BUSY_MOST "10"
/* Maximum number of consecutive releases of a job that holds back others; after that, it fails. */
#define HOLD_MOST "100"

/* What lines say.  Each is parsed once, by the server: so no digit of a result is lost. */
static const char *const lines_sql =
	"SELECT a->>'id', nullif(a->'result', 'null'), a->>'error',"
	" coalesce(a->'dead' = 'true', false), nullif(a->>'later', 'false'), a->>'retry_in',"
	" nullif(a->'checkpoint', 'null') FROM pg_catalog.unnest($1::jsonb[]) WITH ORDINALITY AS l(a, "
	"n)"
	" ORDER BY n";

enum
{
	SAID_ID,
	SAID_RESULT,
	SAID_ERROR,
	SAID_DEAD,
	SAID_LATER,
	SAID_RETRY_IN,
	SAID_CHECKPOINT
};

/* Releases a job that asked for a hold. */
#define GIVE_BACK                                                                                  \
	"SELECT CASE WHEN (SELECT pg_catalog.count(*) FROM (SELECT a.outcome FROM idemq.attempts a"    \
	" WHERE a.job_id = $1::bigint ORDER BY a.token DESC LIMIT " HOLD_MOST ") l"                    \
	" WHERE l.outcome = 'released') < " HOLD_MOST                                                  \
	" THEN idemq.release($1::bigint, $2::bigint, $4::interval)"                                    \
	" ELSE idemq.fail($1::bigint, $2::bigint, $3::text, retry_in => $4::interval,"                 \
	" details => $5::jsonb) END"
/* Holds back, then releases the job, in one transaction. */
static const char *const hold_sql =
	"WITH held AS MATERIALIZED (SELECT idemq.hold_back($1::bigint, $2::bigint, least($4::interval,"
	" (SELECT nullif(q.max_hold_back, '0') FROM idemq.jobs j JOIN idemq.queues q USING (queue_id)"
	" WHERE j.id = $1::bigint)), scope => $6::text)) " GIVE_BACK " FROM held";

static char *claim_sql;
static char *commit_and_claim_sql;

void
job_make_sql(void)
{
	static const char *const columns =
		"SELECT c.queue, c.id, c.token, c.attempt, c.max_attempts, c.key, c.kind,"
		" greatest((extract(epoch FROM c.deadline - idemq.clock_timestamp()) * 1000)::bigint, 100),"
		" (extract(epoch FROM q.job_timeout) * 1000)::bigint, %s, %s FROM %s"
		" LEFT JOIN idemq.queues q ON q.name = c.queue";
	static const char *const claim =
		"idemq.claim_any($1::text[], $2::int, $3::interval, $4::text, $5::boolean) c";
	static const char *const commit =
		"(SELECT $1::text AS queue, m.* FROM idemq.commit_many_and_claim($6::bigint[],"
		" $7::bigint[], $8::jsonb[], $1::text, $2::int, $3::interval, $4::text, $5::boolean) m) c";
	size_t size = strlen(columns) + strlen(executor->columns) + strlen(commit) + 16;

	claim_sql = memory(NULL, size);
	snprintf(claim_sql, size, columns, "'claimed'", executor->columns, claim);
	commit_and_claim_sql = memory(NULL, size);
	snprintf(commit_and_claim_sql, size, columns, "c.outcome", executor->columns, commit);
}

PGresult *
job_claim(struct server *server, int slots)
{
	char number[16];
	const char *values[5] = {options.queues, number, options.lease, options.worker,
							 options.attach ? "true" : "false"};

	snprintf(number, sizeof(number), "%d", slots);
	return server_ask_often(server, OFTEN_CLAIM, claim_sql, 5, values);
}

/* Asks for what has been decided; NULL as of server_ask. */
static PGresult *
ask(struct job *job, struct server *server)
{
	char delay[64];
	const char *values[6] = {job->id, job->token, job->text, NULL, job->details, NULL};

	snprintf(delay, sizeof(delay), "%lld milliseconds", (long long) job->delay);
	if (job->delay != BY_POLICY)
		values[3] = delay;
	if (job->details[0] == '\0')
		values[4] = NULL;
	values[5] = job->verdict == DEAD ? "true" : "false";
	switch (job->verdict)
	{
		case COMMIT:
			return server_ask_often(server, OFTEN_ONE,
									"SELECT idemq.try_commit($1::bigint, $2::bigint, $3::jsonb)", 3,
									values);
		case FAIL:
		case DEAD:
			return server_ask(server,
							  "SELECT idemq.fail($1::bigint, $2::bigint, $3::text, $4::interval,"
							  " permanent => $6::boolean, details => $5::jsonb)",
							  6, values);
		case BUSY:
			return server_ask(
				server,
				"SELECT CASE WHEN (SELECT pg_catalog.count(*) FROM idemq.attempts WHERE job_id ="
				" $1::bigint AND outcome = 'released') < " BUSY_MOST
				" THEN idemq.release($1::bigint, $2::bigint, $4::interval)"
				" ELSE idemq.fail($1::bigint, $2::bigint, $3::text,"
				" details => $5::jsonb) END",
				5, values);
		case HOLD:
			if (job->hold_refused)
				return server_ask(server, GIVE_BACK, 5, values);
			values[5] = options.hold;
			return server_ask(server, hold_sql, 6, values);
		default:
			values[2] = values[3];
			return server_ask(server, "SELECT idemq.release($1::bigint, $2::bigint, $3::interval)",
							  3, values);
	}
}

/*
 * What has become of a job whose lease is lost, in words: it may be tried again, or be dead, or cancelled.  For a
 * line on stderr alone.
 */
static void
became(const struct job *job, struct server *server, char *text, size_t size)
{
	const char *values[] = {job->id, job->token};
	PGresult *result = NULL;

	if (server_ready(server))
		result = server_ask(server,
							"SELECT j.status, j.token = $2::bigint, coalesce(a.error, j.last_error)"
							" FROM idemq.job($1::bigint) j LEFT JOIN idemq.attempts a"
							" ON a.job_id = j.id AND a.token = $2::bigint",
							2, values);
	text[0] = '\0';
	if (result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
	{
		bool last = strcmp(PQgetvalue(result, 0, 1), "t") == 0;

		snprintf(text, size, "; the job is now %s%s%s%s%s", PQgetvalue(result, 0, 0),
				 last ? "" : "because of another attempt", PQgetisnull(result, 0, 2) ? "" : " (",
				 PQgetvalue(result, 0, 2), PQgetisnull(result, 0, 2) ? "" : ")");
	}
	PQclear(result);
}

/* The server has answered so: what is worth a line? */
static void
say_outcome(const struct job *job, struct server *server, const char *outcome)
{
	char now[256] = "";
	bool stale = strcmp(outcome, "stale") == 0 || strcmp(outcome, "not_found") == 0 ||
				 strcmp(outcome, "cancelled") == 0;
	bool fails =
		job->verdict == FAIL || job->verdict == DEAD ||
		((job->verdict == BUSY || job->verdict == HOLD) && strcmp(outcome, "released") != 0);

	if (stale)
		became(job, server, now, sizeof(now));
	if (job->verdict == COMMIT && stale)
	{
		/* Deleted by the commit whose answer was lost, in a queue that keeps no jobs. */
		if (job->asked && strcmp(outcome, "not_found") == 0)
			return;
		say("%s %s: the %s succeeded, but the lease was lost, so the job was not committed (%s)%s",
			job->queue, job->id, executor->noun, outcome, now);
	}
	/* A program that says "later" may have given its job back itself, by idemq.await_event. */
	else if (stale && !job->asked &&
			 !(job->verdict == RELEASE && job->ending == ITS_OWN && !options.verbose))
		say("%s %s: the lease was lost (%s%s)%s%s", job->queue, job->id, outcome, now,
			job->verdict != RELEASE && job->text ? ": " : "",
			job->verdict != RELEASE && job->text ? job->text : "");
	else if (fails)
		say("%s %s: attempt %s of %s: %s: %s", job->queue, job->id, job->attempt, job->max_attempts,
			outcome, job->text ? job->text : "");
	else if (options.verbose)
		say("%s %s: %s", job->queue, job->id, outcome);
}

/* Another question about the same, for text that the server does not take; false: there is none. */
static bool
ask_less(struct job *job, const PGresult *result)
{
	if (job->text == NULL || !(server_state(result, "22") || server_state(result, "54")))
		return false;
	if (job->verdict == COMMIT)
	{
		say("%s %s: %s is not a valid result: committed without a result: %s", job->queue, job->id,
			executor->answer, PQresultErrorMessage(result));
		free(job->text);
		job->text = NULL;
		return true;
	}
	/* The server's encoding may lack a character; it may take no such length. */
	for (const char *c = job->text; *c != '\0'; c++)
	{
		if ((unsigned char) *c > 0x7E)
		{
			text_to_ascii(job->text);
			return true;
		}
	}
	free(job->text);
	job->text = NULL;
	return true;
}

/* The server could not do it, and may be able to, later. */
static void
try_later(struct job *job, const PGresult *result)
{
	say("%s %s: %s; trying again", job->queue, job->id, PQresultErrorMessage(result));
	job->settle_at = now_ms() + job->settle_wait;
	job->settle_wait = sooner(job->settle_wait * 2, LAST_WAIT);
}

/*
 * It has printed a line that does not answer its job, perhaps a line of its log that also begins with {.  The
 * message shows it, and says where logs go.
 */
static char *
no_answer(const char *why, const char *line)
{
	char *excerpt = text_excerpt(line);
	size_t size = strlen(why) + strlen(excerpt) + 128;
	char *text = memory(NULL, size);

	snprintf(text, size,
			 "%s: %s (a line on stdout that begins with { is a response, so write logs to stderr)",
			 why, excerpt);
	free(excerpt);
	return text;
}

/* A line says so: what it decides. */
static void
read_line(struct job *job, const struct task *said)
{
	char *line = job->text;
	const char *id = task_value(said, SAID_ID);
	const char *error = task_value(said, SAID_ERROR);
	const char *later = task_value(said, SAID_LATER);
	const char *retry_in = task_value(said, SAID_RETRY_IN);
	bool dead = strcmp(task_value(said, SAID_DEAD), "t") == 0;

	job->text = NULL;
	job->delay = BY_POLICY;
	if (id == NULL || strcmp(id, job->id) != 0)
	{
		executor->distrust(job->slot);
		job->verdict = FAIL;
		job->text = no_answer(id == NULL ? "the program has responded without an id"
										 : "the program has responded with another id",
							  line);
	}
	else if (error != NULL || dead)
	{
		job->verdict = dead ? DEAD : FAIL;
		job->text = copy_text(error);
		if (retry_in != NULL && !text_time(retry_in, &job->delay))
			say("%s %s: \"retry_in\": \"%s\" is not a valid time", job->queue, job->id, retry_in);
	}
	else if (later != NULL)
	{
		job->verdict = RELEASE;
		if (!text_time(later, &job->delay))
		{
			job->delay = options.later;
			if (strcmp(later, "true") != 0)
				say("%s %s: \"later\": \"%s\" is not a valid time", job->queue, job->id, later);
		}
	}
	else
	{
		job->verdict = COMMIT;
		job->text = copy_text(task_value(said, SAID_RESULT));
	}
	if (job->verdict != COMMIT)
		job->checkpoint = copy_text(task_value(said, SAID_CHECKPOINT));
	free(line);
}

/*
 * Reads a line that the server has rejected.  If its error contains a character that PostgreSQL cannot store, such
 * as \u0000, the character is replaced, because a damaged error text is better than none.  A result is never
 * changed.
 */
static void
read_bad_line(struct job *job, struct server *server, const PGresult *refused)
{
	char *clean = text_clean_json(job->text);
	const char *lines[] = {clean};
	char *value = text_array(lines, 1);
	PGresult *result = server_ask(server, lines_sql, 1, (const char *const *) &value);
	bool is_error =
		result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1 &&
		(!PQgetisnull(result, 0, SAID_ERROR) || strcmp(PQgetvalue(result, 0, SAID_DEAD), "t") == 0);

	free(value);
	if (is_error)
		read_line(job, &(struct task){.rows = result, .row = 0});
	else if (result != NULL)
	{
		char why[512];

		snprintf(why, sizeof(why), "the program's line is not JSON that the server can store: %s",
				 PQresultErrorMessage(refused));
		text_clean(why, strlen(why));
		job->verdict = FAIL;
		value = no_answer(why, job->text);
		free(job->text);
		job->text = value;
	}
	PQclear(result);
	free(clean);
}

/* Asks about the lines of these jobs; false when the server is to be asked for each. */
static bool
read_lines(struct job **jobs, int count, struct server *server)
{
	const char **lines = memory(NULL, (size_t) count * sizeof(*lines));
	char *value;
	PGresult *result;
	bool read;

	for (int i = 0; i < count; i++)
		lines[i] = jobs[i]->text;
	value = text_array(lines, count);
	result = server_ask_often(server, OFTEN_LINES, lines_sql, 1, (const char *const *) &value);
	free(lines);
	free(value);
	if (result == NULL)
		return true;
	read = PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == count;
	for (int i = 0; read && i < count; i++)
		read_line(jobs[i], &(struct task){.rows = result, .row = i});
	if (!read && count == 1 && (server_state(result, "22") || server_state(result, "54")))
		read_bad_line(jobs[0], server, result);
	else if (!read && count == 1)
		try_later(jobs[0], result);
	PQclear(result);
	return read || count == 1;
}

void
job_read_lines(struct job *jobs, struct server *server)
{
	struct job **read = memory(NULL, (size_t) options.jobs * sizeof(struct job *));
	int count = 0;

	for (int i = 0; i < options.jobs; i++)
	{
		if (jobs[i].verdict == LINE && now_ms() >= jobs[i].settle_at)
			read[count++] = &jobs[i];
	}
	if (count > 0 && server_ready(server) && !read_lines(read, count, server))
	{
		for (int i = 0; i < count && server_ready(server); i++)
			read_lines(read + i, 1, server);
	}
	free(read);
}

/* Stores a checkpoint that goes with another end; whether that can be told. */
static bool
store_checkpoint(struct job *job, struct server *server)
{
	const char *values[] = {job->id, job->token, job->checkpoint};
	PGresult *result;

	if (job->checkpoint == NULL)
		return true;
	result =
		server_ask(server, "SELECT idemq.checkpoint($1::bigint, $2::bigint, $3::jsonb)", 3, values);
	if (result == NULL)
		return false;
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		say("%s %s: could not store the checkpoint: %s", job->queue, job->id,
			PQresultErrorMessage(result));
	PQclear(result);
	free(job->checkpoint);
	job->checkpoint = NULL;
	return true;
}

/* The server does not allow the hold: the job is released without one. */
static void
do_not_hold(struct job *job, const PGresult *result)
{
	say("%s %s: could not hold back other jobs: %s", job->queue, job->id,
		PQresultErrorMessage(result));
	job->hold_refused = true;
}

void
job_settle(struct job *job, struct server *server)
{
	PGresult *result;

	if (job->verdict == UNDECIDED || job->verdict == LINE || now_ms() < job->settle_at ||
		!server_ready(server) || !store_checkpoint(job, server))
		return;
	result = ask(job, server);
	if (result == NULL)
	{
		job->asked = true;
		return;
	}
	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
	{
		say_outcome(job, server, PQgetvalue(result, 0, 0));
		job_free(job);
	}
	else if (job->verdict == HOLD && server_state(result, "IQ00"))
	{
		say_outcome(job, server, "stale");
		job_free(job);
	}
	else if (job->verdict == HOLD && !job->hold_refused && server_state(result, "22"))
		do_not_hold(job, result);
	else if (!ask_less(job, result))
		try_later(job, result);
	PQclear(result);
}

bool
job_commits(const struct job *job)
{
	return job->id != NULL && job->verdict == COMMIT && !job->alone;
}

/* The jobs that are committed together have these outcomes. */
static void
hear_commits(struct job *jobs, struct server *server, const PGresult *result)
{
	for (int i = 0; i < options.jobs; i++)
	{
		for (int row = 0; job_commits(&jobs[i]) && row < PQntuples(result); row++)
		{
			const char *outcome = PQgetvalue(result, row, COL_OUTCOME);

			/* No two attempts have the same token. */
			if (strcmp(outcome, "claimed") != 0 &&
				strcmp(jobs[i].token, PQgetvalue(result, row, COL_TOKEN)) == 0)
			{
				say_outcome(&jobs[i], server, outcome);
				job_free(&jobs[i]);
			}
		}
		/* There is none: the server is asked in another way. */
		jobs[i].alone |= job_commits(&jobs[i]);
	}
}

PGresult *
job_commit_all(struct job *jobs, struct server *server, int slots)
{
	const char **lists = memory(NULL, 3 * (size_t) options.jobs * sizeof(*lists));
	const char **results = lists + 2 * options.jobs;
	char number[16];
	const char *values[8] = {options.queue, number, options.lease, options.worker,
							 options.attach ? "true" : "false"};
	PGresult *result;
	int count = 0;

	for (int i = 0; i < options.jobs; i++)
	{
		if (job_commits(&jobs[i]))
		{
			lists[count] = jobs[i].id;
			lists[options.jobs + count] = jobs[i].token;
			results[count++] = jobs[i].text;
		}
	}
	snprintf(number, sizeof(number), "%d", slots);
	values[5] = text_array(lists, count);
	values[6] = text_array(lists + options.jobs, count);
	values[7] = text_array(results, count);
	if (slots > 0)
		result = server_ask_often(server, OFTEN_COMMIT_AND_CLAIM, commit_and_claim_sql, 8, values);
	else
		/* In the columns of a claim. */
		result = server_ask_often(server, OFTEN_COMMIT,
								  "SELECT NULL, c.id, c.token, NULL, NULL, NULL, NULL, NULL, NULL,"
								  " c.outcome FROM idemq.commit_many($1::bigint[], $2::bigint[],"
								  " $3::jsonb[]) c",
								  3, values + 5);
	for (int i = 5; i < 8; i++)
		free((char *) values[i]);
	free(lists);
	if (result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		hear_commits(jobs, server, result);
		return result;
	}
	for (int i = 0; i < options.jobs; i++)
	{
		if (job_commits(&jobs[i]))
		{
			jobs[i].asked |= result == NULL;
			jobs[i].alone |= result != NULL;
		}
	}
	PQclear(result);
	return NULL;
}

void
job_give_up(struct job *job)
{
	say("%s %s: could not report to the server that %s; the job has to wait until its lease "
		"expires",
		job->queue, job->id,
		job->verdict == COMMIT ? "the job succeeded" : "the attempt has ended");
	job_free(job);
}
