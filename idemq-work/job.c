/*
 * job.c: an attempt: its lease, its time, and how it ends.
 *
 * A slot in the table of jobs goes through three states:
 *   free         id is NULL
 *   running      the executor has it; it may be being ended (ending)
 *   to be settled (verdict): the server is asked until it has answered (settle.c)
 *
 * A lease is counted from before the question that began or renewed it, so it never ends later
 * here than in the server.  When it has ended here, and the server cannot be asked, the attempt
 * is ended: another may begin.  One that has succeeded by then is still committed
 * when the server is back, which accepts that as long as nobody else has the job.
 *
 * An attempt may commit its job itself, with an effect in this database.  Then a heartbeat calls
 * it stale, as it calls one whose lease is lost: so try_commit is asked before anything is ended,
 * and tells the two apart.  What it does is rolled back: a claim that had made the attempt stale may
 * have been undone meanwhile, and then it would commit a job that is still being carried out.
 *
 * An attempt may also fail or release its job itself, or await an event.  idemq.attempts says so.
 * Whichever way it has ended itself, it runs on, and nothing is said about it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "job.h"
#include "options.h"
#include "text.h"

/* To settle: between two errors, and for how long at least. */
#define FIRST_WAIT 1000
#define LEAST_PATIENCE 60000
/* ms that an attempt may take, where neither --timeout nor the queue says. */
#define DEFAULT_TIMEOUT (3600 * 1000)

const char *
task_value(const struct task *task, int column)
{
	if (PQgetisnull(task->rows, task->row, column))
		return NULL;
	return PQgetvalue(task->rows, task->row, column);
}

int64_t jobs_ended;

void
job_free(struct job *job)
{
	int slot = job->slot;

	jobs_ended++;
	free(job->id);
	free(job->token);
	free(job->queue);
	free(job->attempt);
	free(job->max_attempts);
	free(job->text);
	free(job->checkpoint);
	memset(job, 0, sizeof(*job));
	job->slot = slot;
}

static void
job_decide(struct job *job, enum verdict verdict)
{
	job->verdict = verdict;
	job->settle_at = now_ms();
	job->settle_wait = FIRST_WAIT;
	job->give_up_at = later(job->end_at, job->settle_at + LEAST_PATIENCE);
	if (verdict == NOTHING)
		job_free(job);
}

/*
 * How long an attempt may take, in ms: --timeout, and the queue's job_timeout if that is less.  At
 * job_timeout the server takes the job back: so before that the attempt is asked to end, has some time to, and
 * is reported as failed.
 */
static void
set_timeout(struct job *job, const char *job_timeout)
{
	int64_t limit = job_timeout != NULL ? strtoll(job_timeout, NULL, 10) : NEVER;

	job->of_queue = limit < (options.timeout != 0 ? options.timeout : NEVER);
	job->kill_after = options.kill_after;
	if (job->of_queue)
	{
		job->kill_after = sooner(options.kill_after, limit / 10);
		job->timeout = limit - sooner(1000, limit / 10) - job->kill_after;
	}
	else
		job->timeout = options.timeout != 0 ? options.timeout : DEFAULT_TIMEOUT;
	job->begun_at = now_ms();
	job->end_at = job->begun_at + job->timeout;
}

void
job_begin(struct job *job, const PGresult *result, int row, int64_t asked_at)
{
	char deadline[32];
	struct task task = {.rows = result, .row = row, .deadline = deadline};

	set_timeout(job, task_value(&task, COL_TIMEOUT_MS));
	task.timeout = job->timeout;
	snprintf(deadline, sizeof(deadline), "%lld",
			 (long long) time(NULL) + (long long) (job->timeout + 999) / 1000);
	job->queue = copy_text(task_value(&task, COL_QUEUE));
	job->id = copy_text(task_value(&task, COL_ID));
	job->token = copy_text(task_value(&task, COL_TOKEN));
	job->attempt = copy_text(task_value(&task, COL_ATTEMPT));
	job->max_attempts = copy_text(task_value(&task, COL_MAX_ATTEMPTS));
	job->lease_ms = strtoll(task_value(&task, COL_LEASE_MS), NULL, 10);
	job->kill_at = NEVER;
	job_heard(job, "current", asked_at);
	job->running = executor->start(job->slot, &task);
	if (!job->running)
	{
		say("%s %s: could not start a %s: %s; the job is released", job->queue, job->id,
			executor->noun, strerror(errno));
		job->delay = 5000;
		job_decide(job, RELEASE);
	}
	else if (options.verbose)
		say("%s %s: started, attempt %s of %s", job->queue, job->id, job->attempt,
			job->max_attempts);
}

bool
job_holds(const struct job *job)
{
	return job->id != NULL && job->ending != LEASE_LOST && job->ending != CANCELLED && !job->done;
}

/* The attempt has ended itself. */
static void
job_is_done(struct job *job, const char *outcome)
{
	job->done = true;
	job->doubted = false;
	if (options.verbose)
		say("%s %s: already %s by the %s", job->queue, job->id, outcome, executor->noun);
}

static void
lose(struct job *job, const char *why)
{
	job->doubted = false;
	say("%s %s: %s, so the %s is being stopped", job->queue, job->id, why, executor->noun);
	job_end(job, LEASE_LOST);
}

void
job_heard(struct job *job, const char *outcome, int64_t asked_at)
{
	job->beat_at = asked_at + job->lease_ms / 3;
	if (strcmp(outcome, "current") == 0)
		job->lease_until = asked_at + job->lease_ms;
	else if (job->running && strcmp(outcome, "stale") == 0 && job->ending == ITS_OWN)
		job->doubted = true;
	else if (job->running && strcmp(outcome, "cancelled") == 0)
	{
		say("%s %s: the job is being cancelled, so the %s is being stopped", job->queue, job->id,
			executor->noun);
		job_end(job, CANCELLED);
	}
	else if (job->running)
		lose(job, "the lease was lost");
}

/* Asks the server who has ended an attempt that is neither current nor committed. */
static void
ask_who_ended(struct job *job, struct server *server)
{
	const char *values[] = {job->id, job->token};
	PGresult *result = server_ask(server,
								  "SELECT outcome, error IS NULL FROM idemq.attempts"
								  " WHERE job_id = $1::bigint AND token = $2::bigint",
								  2, values);
	const char *outcome = "";
	bool revoked = false;

	/* The connection is lost. */
	if (result == NULL)
		return;
	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
	{
		outcome = PQgetvalue(result, 0, 0);
		revoked = strcmp(outcome, "released") == 0 && strcmp(PQgetvalue(result, 0, 1), "f") == 0;
	}
	if (strcmp(outcome, "failed") == 0 || (strcmp(outcome, "released") == 0 && !revoked))
		job_is_done(job, outcome);
	else
		lose(job, strcmp(outcome, "cancelled") == 0 ? "the job was cancelled"
				  : revoked							? "the lease was revoked"
													: "the lease was lost");
	PQclear(result);
}

void
job_doubt(struct job *job, struct server *server)
{
	const char *values[] = {job->id, job->token};
	const char *outcome = "";
	PGresult *result;

	if (!job->doubted || !job->running || !server_ready(server))
		return;
	result = server_try(server, "SELECT idemq.try_commit($1::bigint, $2::bigint)", 2, values);
	if (result == NULL)
		return;
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		outcome = PQgetvalue(result, 0, 0);
	if (strcmp(outcome, "committed") == 0)
	{
		job->doubted = false;
		job->beat_at = now_ms();
	}
	else if (strcmp(outcome, "already_committed") == 0)
		job_is_done(job, "committed");
	else
		ask_who_ended(job, server);
	PQclear(result);
}

void
job_end(struct job *job, enum ending ending)
{
	/* Already being ended: but what is to be told may have changed. */
	if (job->ending == ITS_OWN)
	{
		executor->cancel(job->slot, false);
		job->kill_at = now_ms() + (ending == TIME_OVER ? job->kill_after : options.kill_after);
	}
	job->ending = ending;
}

void
job_watch(struct job *job)
{
	int64_t now = now_ms();

	if (!job->running)
	{
		if (now >= job->give_up_at)
			job_give_up(job);
		return;
	}
	if (now >= job->kill_at)
	{
		executor->cancel(job->slot, true);
		job->kill_at = NEVER;
	}
	if (job->ending != ITS_OWN)
		return;
	if (now >= job->end_at)
		job_end(job, TIME_OVER);
	else if (now >= job->lease_until && !job->done)
	{
		say("%s %s: the lease could not be extended, so the %s is being stopped", job->queue,
			job->id, executor->noun);
		job_end(job, CUT_OFF);
	}
}

int64_t
job_next(const struct job *job, int64_t server_at)
{
	int64_t next = job_holds(job) ? later(job->beat_at, server_at) : NEVER;

	if (!job->running)
		return sooner(next, sooner(later(job->settle_at, server_at), job->give_up_at));
	next = sooner(next, job->kill_at);
	if (job->doubted)
		next = sooner(next, server_at);
	if (job->ending != ITS_OWN)
		return next;
	return sooner(next, job->done ? job->end_at : sooner(job->end_at, job->lease_until));
}

/* The error of a failure: what happened, and what was said of it. */
static void
job_describe(struct job *job, struct answer *answer)
{
	size_t size = strlen(answer->what);
	size_t said = 0;

	if (answer->said != NULL)
	{
		text_clean(answer->said, answer->said_size);
		said = strlen(answer->said);
	}
	job->text = memory(NULL, size + said + 3);
	strcpy(job->text, answer->what);
	if (said > 0)
	{
		strcat(job->text, size > 0 ? ": " : "");
		strcat(job->text, answer->said);
	}
}

/* The result, when there is one that can be asked of the server. */
static void
take_result(struct job *job, struct answer *answer)
{
	const char *wrong = NULL;

	if (answer->result == NULL)
		return;
	if (answer->result_cut)
		wrong = "is longer than --max-output";
	else if (strlen(answer->result) != answer->result_size)
		wrong = "contains a NUL byte";
	if (wrong != NULL)
	{
		say("%s %s: %s %s: committed without a result", job->queue, job->id, executor->answer,
			wrong);
		return;
	}
	job->text = answer->result;
	answer->result = NULL;
}

/* What becomes of a job that was ended by us. */
static void
judge_ending(struct job *job, struct answer *answer)
{
	switch (job->ending)
	{
		case TIME_OVER:
			answer->verdict = FAIL;
			answer->delay = BY_POLICY;
			snprintf(answer->what, sizeof(answer->what), "stopped after %g s (%s)",
					 (double) job->timeout / 1000, job->of_queue ? "job_timeout" : "--timeout");
			snprintf(answer->details, sizeof(answer->details), "{\"timeout\": %g}",
					 (double) job->timeout / 1000);
			break;
		case LEASE_LOST:
			answer->verdict = NOTHING;
			break;
		default:
			answer->verdict = RELEASE;
			answer->delay = 0;
	}
}

void
job_collect(struct job *job)
{
	struct answer answer;

	if (!job->running || !executor->over(job->slot, &answer))
		return;
	job->running = job->doubted = false;
	if (job->ending != ITS_OWN)
		judge_ending(job, &answer);
	if (job->done)
		answer.verdict = NOTHING;
	if (answer.verdict == COMMIT)
		take_result(job, &answer);
	else if (answer.verdict == LINE)
	{
		job->text = answer.result;
		answer.result = NULL;
	}
	else
		job_describe(job, &answer);
	memcpy(job->details, answer.details, sizeof(job->details));
	job->delay = answer.delay;
	free(answer.result);
	free(answer.said);
	job_decide(job, answer.verdict);
}
