/*
 * job.c: an attempt: its lease, its program, and what the server is to be told of its end.
 *
 * A place in the table of jobs goes through three states:
 *   free         id is NULL
 *   its program runs (program.pid), or is being ended (ending)
 *   to be settled (verdict): the server is asked until it has answered
 *
 * An answer that is lost is asked for again: try_commit then says already_committed when it was
 * done, and stale when the lease was lost.  fail and release say stale for both, and either way
 * the attempt has ended.  The token makes all of that harmless.  Any other error - a lock, a
 * full disk, a trigger - is said and tried again, while heartbeats keep the lease, until
 * its time; then the job is left to its lease, and runs again.
 *
 * A lease is counted from before the question that began or renewed it, so it never ends later
 * here than in the server.  When it has ended here, and the server cannot be asked, the program
 * is ended: another attempt may begin.  A program that has succeeded by then is still committed
 * when the server is back, which accepts that as long as nobody else has the job.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "job.h"
#include "options.h"
#include "text.h"

#define EXIT_DEAD 65  /* EX_DATAERR of sysexits.h */
#define EXIT_LATER 75 /* EX_TEMPFAIL */

/* To settle: between two errors, and for how long at least. */
#define FIRST_WAIT 1000
#define LAST_WAIT 30000
/* ms that a program may run, where neither --timeout nor the queue says. */
#define DEFAULT_TIMEOUT (3600 * 1000)
#define LEAST_PATIENCE 60000

const char *const job_claim_sql =
	"SELECT queue, id, token, attempt, max_attempts, key, payload,"
	" greatest((extract(epoch FROM deadline - clock_timestamp()) * 1000)::bigint, 100),"
	" (SELECT (extract(epoch FROM q.job_timeout) * 1000)::bigint FROM idemq.queues q"
	" WHERE q.name = c.queue), kind"
	" FROM idemq.claim_any($1::text[], $2::int, $3::interval, $4::text, $5::boolean) c";

static void
job_free(struct job *job)
{
	program_free(&job->program);
	free(job->id);
	free(job->token);
	free(job->queue);
	free(job->attempt);
	free(job->max_attempts);
	free(job->text);
	memset(job, 0, sizeof(*job));
}

static void
decide(struct job *job, enum verdict verdict)
{
	job->verdict = verdict;
	job->settle_at = now_ms();
	job->settle_wait = FIRST_WAIT;
	job->give_up_at = later(job->end_at, job->settle_at + LEAST_PATIENCE);
	if (verdict == NOTHING)
		job_free(job);
}

/* The payload, and the end of a line for programs that read lines. */
static char *
input_of(const char *payload)
{
	size_t size = strlen(payload);
	char *input = memory(NULL, size + 2);

	memcpy(input, payload, size);
	memcpy(input + size, "\n", 2);
	return input;
}

/*
 * How long a program may run, in ms: --timeout, and the queue's job_timeout if that is less.  At
 * job_timeout the server takes the job back; we end it a little before, and say so first.
 */
static void
set_timeout(struct job *job, const char *job_timeout)
{
	int64_t limit = job_timeout[0] != '\0' ? strtoll(job_timeout, NULL, 10) : NEVER;

	job->of_queue = limit < (options.timeout != 0 ? options.timeout : NEVER);
	if (job->of_queue)
		job->timeout = limit - (limit > 10000 ? 1000 : limit / 10);
	else
		job->timeout = options.timeout != 0 ? options.timeout : DEFAULT_TIMEOUT;
	job->end_at = now_ms() + job->timeout;
}

void
job_begin(struct job *job, const PGresult *result, int row, int64_t asked_at)
{
	char deadline[32];
	struct variable variables[] = {
		{"IDEMQ_QUEUE", PQgetvalue(result, row, 0)},
		{"IDEMQ_ID", PQgetvalue(result, row, 1)},
		{"IDEMQ_TOKEN", PQgetvalue(result, row, 2)},
		{"IDEMQ_ATTEMPT", PQgetvalue(result, row, 3)},
		{"IDEMQ_KEY", PQgetisnull(result, row, 5) ? NULL : PQgetvalue(result, row, 5)},
		{"IDEMQ_KIND", PQgetisnull(result, row, 9) ? NULL : PQgetvalue(result, row, 9)},
		{"IDEMQ_DEADLINE", deadline},
		{NULL, NULL},
	};

	memset(job, 0, sizeof(*job));
	set_timeout(job, PQgetvalue(result, row, 8));
	snprintf(deadline, sizeof(deadline), "%lld",
			 (long long) time(NULL) + (long long) (job->timeout + 999) / 1000);
	job->queue = copy_text(PQgetvalue(result, row, 0));
	job->id = copy_text(PQgetvalue(result, row, 1));
	job->token = copy_text(PQgetvalue(result, row, 2));
	job->attempt = copy_text(PQgetvalue(result, row, 3));
	job->max_attempts = copy_text(PQgetvalue(result, row, 4));
	job->lease_ms = strtoll(PQgetvalue(result, row, 7), NULL, 10);
	job->kill_at = NEVER;
	job_heard(job, "current", asked_at);
	if (!program_start(&job->program, input_of(PQgetvalue(result, row, 6)), variables))
	{
		say("%s %s: cannot start a process: %s; given back", job->queue, job->id, strerror(errno));
		job->delay = 5000;
		decide(job, RELEASE);
	}
	else if (options.verbose)
		say("%s %s: started, attempt %s of %s, process %d", job->queue, job->id, job->attempt,
			job->max_attempts, (int) job->program.pid);
}

bool
job_holds(const struct job *job)
{
	return job->id != NULL && job->ending != LEASE_LOST;
}

void
job_heard(struct job *job, const char *outcome, int64_t asked_at)
{
	job->beat_at = asked_at + job->lease_ms / 3;
	if (strcmp(outcome, "current") == 0)
		job->lease_until = asked_at + job->lease_ms;
	else if (job->program.pid != 0)
	{
		say("%s %s: the lease is lost; the program is ended", job->queue, job->id);
		job_end(job, LEASE_LOST);
	}
}

void
job_end(struct job *job, enum ending ending)
{
	/* Already being ended: but what is to be told may have changed. */
	if (job->ending == ITS_OWN)
	{
		program_kill(&job->program, SIGTERM);
		/* One that was stopped would not see it. */
		program_kill(&job->program, SIGCONT);
		job->kill_at = now_ms() + options.kill_after;
	}
	job->ending = ending;
}

void
job_watch(struct job *job)
{
	int64_t now = now_ms();

	if (job->program.pid == 0)
	{
		if (now >= job->give_up_at)
			job_give_up(job);
		return;
	}
	if (now >= job->kill_at)
	{
		program_kill(&job->program, SIGKILL);
		job->kill_at = NEVER;
	}
	if (job->ending != ITS_OWN)
		return;
	if (now >= job->end_at)
		job_end(job, TIME_OVER);
	else if (now >= job->lease_until)
	{
		say("%s %s: the lease could not be kept; the program is ended", job->queue, job->id);
		job_end(job, CUT_OFF);
	}
}

int64_t
job_next(const struct job *job, int64_t server_at)
{
	int64_t next = job_holds(job) ? later(job->beat_at, server_at) : NEVER;

	if (job->program.pid == 0)
		return sooner(next, sooner(later(job->settle_at, server_at), job->give_up_at));
	next = sooner(next, job->kill_at);
	return job->ending == ITS_OWN ? sooner(next, sooner(job->end_at, job->lease_until)) : next;
}

/* The error of a failure: what happened, and the end of stderr. */
static void
describe(struct job *job, const char *what)
{
	struct program *program = &job->program;
	size_t size = strlen(what);
	char *tail = program->tail;
	size_t left = program->tail_size;

	/* It may begin within a character. */
	while (left > 0 && ((unsigned char) *tail & 0xC0) == 0x80)
		tail++, left--;
	text_clean(tail, left);
	job->text = memory(NULL, size + strlen(tail) + 3);
	strcpy(job->text, what);
	if (*tail != '\0')
	{
		strcat(job->text, ": ");
		strcat(job->text, tail);
	}
}

/* The result, when there is one that can be asked of the server. */
static void
take_result(struct job *job)
{
	struct program *program = &job->program;
	const char *wrong = NULL;

	if (program->output == NULL)
		return;
	if (program->output_cut)
		wrong = "is longer than --max-output";
	else if (strlen(program->output) != program->output_size)
		wrong = "has a NUL in it";
	if (wrong != NULL)
	{
		say("%s %s: stdout %s: committed without a result", job->queue, job->id, wrong);
		return;
	}
	job->text = program->output;
	program->output = NULL;
}

static void
judge_exit(struct job *job, int status)
{
	char what[64];
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

	if (code == 0)
	{
		take_result(job);
		decide(job, COMMIT);
		return;
	}
	if (code == EXIT_LATER)
	{
		job->delay = options.later;
		decide(job, RELEASE);
		return;
	}
	if (code > 0)
	{
		snprintf(what, sizeof(what), "exit status %d", code);
		snprintf(job->details, sizeof(job->details), "{\"exit_status\": %d}", code);
	}
	else
	{
		snprintf(what, sizeof(what), "ended by signal %d", WTERMSIG(status));
		snprintf(job->details, sizeof(job->details), "{\"signal\": %d}", WTERMSIG(status));
	}
	describe(job, what);
	decide(job, code == EXIT_DEAD ? DEAD : FAIL);
}

void
job_collect(struct job *job)
{
	int status;
	char what[64];

	if (job->program.pid == 0 || !program_ended(&job->program, &status))
		return;
	job->fds = 0;
	switch (job->ending)
	{
		case ITS_OWN:
			judge_exit(job, status);
			break;
		case TIME_OVER:
			snprintf(what, sizeof(what), "ended after %g s (%s)", (double) job->timeout / 1000,
					 job->of_queue ? "job_timeout" : "--timeout");
			snprintf(job->details, sizeof(job->details), "{\"timeout\": %g}",
					 (double) job->timeout / 1000);
			describe(job, what);
			decide(job, FAIL);
			break;
		case LEASE_LOST:
			decide(job, NOTHING);
			break;
		case CUT_OFF:
		case DRAINED:
			decide(job, RELEASE);
			break;
	}
}

/* Asks for what has been decided; NULL as of server_ask. */
static PGresult *
ask(struct job *job, struct server *server)
{
	char delay[64];
	const char *values[5] = {job->id, job->token, job->text};

	switch (job->verdict)
	{
		case COMMIT:
			return server_ask(server, "SELECT idemq.try_commit($1::bigint, $2::bigint, $3::jsonb)",
							  3, values);
		case FAIL:
		case DEAD:
			values[3] = job->verdict == DEAD ? "true" : "false";
			values[4] = job->details;
			return server_ask(server,
							  "SELECT idemq.fail($1::bigint, $2::bigint, $3::text,"
							  " permanent => $4::boolean, details => $5::jsonb)",
							  5, values);
		default:
			snprintf(delay, sizeof(delay), "%lld milliseconds", (long long) job->delay);
			values[2] = delay;
			return server_ask(server, "SELECT idemq.release($1::bigint, $2::bigint, $3::interval)",
							  3, values);
	}
}

/* The server has answered so: what is worth a line? */
static void
say_outcome(const struct job *job, const char *outcome)
{
	bool stale = strcmp(outcome, "stale") == 0 || strcmp(outcome, "not_found") == 0;

	if (job->verdict == COMMIT && stale)
	{
		/* Deleted by the commit whose answer was lost, in a queue that keeps no jobs. */
		if (job->asked && strcmp(outcome, "not_found") == 0)
			return;
		say("%s %s: exit status 0, but the lease was lost: not committed (%s)", job->queue, job->id,
			outcome);
	}
	/* A program that says "later" may have given its job back itself, by idemq.await_event. */
	else if (stale && !job->asked &&
			 !(job->verdict == RELEASE && job->ending == ITS_OWN && !options.verbose))
		say("%s %s: the lease was lost (%s)%s%s", job->queue, job->id, outcome,
			job->verdict != RELEASE && job->text ? ": " : "",
			job->verdict != RELEASE && job->text ? job->text : "");
	else if (job->verdict == FAIL || job->verdict == DEAD)
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
		say("%s %s: stdout is no result: committed without: %s", job->queue, job->id,
			PQresultErrorMessage(result));
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

void
job_settle(struct job *job, struct server *server)
{
	PGresult *result;

	if (job->verdict == UNDECIDED || now_ms() < job->settle_at || !server_ready(server))
		return;
	result = ask(job, server);
	if (result == NULL)
	{
		job->asked = true;
		return;
	}
	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
	{
		say_outcome(job, PQgetvalue(result, 0, 0));
		job_free(job);
	}
	else if (!ask_less(job, result))
	{
		say("%s %s: %s; trying again", job->queue, job->id, PQresultErrorMessage(result));
		job->settle_at = now_ms() + job->settle_wait;
		job->settle_wait = sooner(job->settle_wait * 2, LAST_WAIT);
	}
	PQclear(result);
}

void
job_give_up(struct job *job)
{
	say("%s %s: the server could not be told that %s; the job is left to its lease", job->queue,
		job->id, job->verdict == COMMIT ? "the program has succeeded" : "the attempt has ended");
	job_free(job);
}
