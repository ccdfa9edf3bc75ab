/*
 * lines.c: jobs as lines to a program that stays.
 *
 * Each slot has a program of its own, which is started with the first job and given one at a time:
 * an object of JSON in a line, as the server has made it.  Its next line that begins with { is the
 * answer, which the server reads; every other line is one of its log.  So a logger that writes JSON has
 * to write to stderr: its line would be taken for the answer, and the message shows it.
 *
 * A program that ends, closes its stdin or stdout, says a line that is too long, or an answer that
 * nobody waits for, is ended, and started again with its next job: after 0.1 s, twice as long each
 * time until it has answered a job, 10 s at most.  Meanwhile its slot takes none; the others do.
 *
 * A drain closes its stdin, after the answer that is owed; so it ends by itself, or else by SIGTERM
 * after --kill-after and by SIGKILL after another.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "executor.h"
#include "options.h"
#include "program.h"
#include "signals.h"

#define FDS_EACH 3
#define START_FIRST 100
#define START_MOST 10000
/* Bytes of a line of its log that are shown. */
#define LOG_MOST 1900
/* The same for an answer that is wrong. */
#define SHOWN_MOST 200
/* ms before the time by which the runner must have ended. */
#define LAST_KILL 2000
/* Bytes of an answer beside its result. */
#define FRAME_MOST 16384
/* Bytes that may be read before lines are looked for again. */
#define READ_MOST (1024 * 1024)

struct worker
{
	struct program program;
	bool busy;		 /* it has a job */
	bool leaving;	 /* it was told to end, or is not believed any more */
	bool wanted;	 /* that it ends: no line about it, and no wait */
	const char *why; /* it is ended, as the job's error; NULL: by itself */
	char *line;		 /* its answer */
	size_t line_size;
	size_t searched; /* so much of its output has no end of a line */
	bool dropping;	 /* the rest of a line */
	int64_t kill_at;
	int next_signal; /* then */
	int64_t start_at;
	int64_t start_wait;
	bool over;
	struct answer answer;
};

static struct worker *workers;
static bool lines_draining;

static int
lines_open(void)
{
	workers = memory(NULL, (size_t) options.jobs * sizeof(*workers));
	memset(workers, 0, (size_t) options.jobs * sizeof(*workers));
	for (int i = 0; i < options.jobs; i++)
	{
		workers[i].kill_at = NEVER;
		workers[i].start_wait = START_FIRST;
	}
	return FDS_EACH * options.jobs;
}

static bool
lines_ready(int slot, int others)
{
	struct worker *worker = &workers[slot];

	(void) others;
	return !worker->busy && !worker->leaving && !lines_draining &&
		   (worker->program.pid != 0 || now_ms() >= worker->start_at);
}

/* Has it end, for this reason: by a signal, or 0: by the end of its stdin. */
static void
lines_leave(struct worker *worker, const char *why, int number)
{
	if (worker->program.pid == 0 || worker->leaving)
		return;
	worker->leaving = true;
	worker->why = why;
	worker->kill_at = now_ms() + options.kill_after;
	worker->next_signal = number == 0 ? SIGTERM : SIGKILL;
	if (number != 0)
		program_kill(&worker->program, number);
	else
		close_fd(&worker->program.in);
}

/* It does not read what it was given. */
static bool
is_deaf(const struct worker *worker)
{
	return worker->program.in < 0 && worker->program.input_sent < worker->program.input_size;
}

/* The line of a job: the server's, and its end. */
static char *
line_of(const struct task *task)
{
	const char *object = task_value(task, COL_TASK);
	size_t size = strlen(object) + strlen(task->deadline) + 32;
	char *line = memory(NULL, size);

	snprintf(line, size, "%.*s, \"deadline\": %s}\n", (int) strlen(object) - 1, object,
			 task->deadline);
	return line;
}

static bool
lines_start(int slot, const struct task *task)
{
	static const struct variable none[] = {{NULL, NULL}};
	struct worker *worker = &workers[slot];
	struct program *program = &worker->program;
	char *line = line_of(task);
	size_t left;

	if (program->pid == 0)
	{
		if (!program_start(program, NULL, options.max_output + FRAME_MOST + READ_MOST, none))
		{
			free(line);
			return false;
		}
		program->stays = true;
		worker->leaving = worker->wanted = worker->dropping = false;
		worker->searched = 0;
	}
	/* It may have answered before it has read the end of the last one. */
	left = program->input_size - program->input_sent;
	if (left > 0)
		memmove(program->input, program->input + program->input_sent, left);
	program->input_size = left + strlen(line);
	program->input = memory(program->input, program->input_size);
	memcpy(program->input + left, line, program->input_size - left);
	program->input_sent = 0;
	free(line);
	program->tail_size = 0;
	worker->busy = true;
	/* It may have closed its stdin while it had nothing to do. */
	if (is_deaf(worker))
		lines_leave(worker, NULL, 0);
	return true;
}

/* A line of its log, and of the error if its job fails. */
static void
show(int slot, const char *line, size_t size)
{
	if (size > 0)
		say("%s %d: %.*s", options.program[0], slot + 1, (int) (size < LOG_MOST ? size : LOG_MOST),
			line);
}

/* A whole line of its stdout, or the beginning of one that is too long. */
static void
take_line(int slot, const char *line, size_t size)
{
	struct worker *worker = &workers[slot];

	if (size == 0 || line[0] != '{')
	{
		show(slot, line, size);
		return;
	}
	if (!worker->busy || worker->line != NULL)
	{
		say("%s %d: response does not belong to a running job, so the program is being stopped: "
			"%.*s (a line on stdout that begins with { is a response, so write logs to stderr)",
			options.program[0], slot + 1, (int) (size < SHOWN_MOST ? size : SHOWN_MOST), line);
		lines_leave(worker, "the program has responded twice", SIGTERM);
		return;
	}
	worker->line = memory(NULL, size + 1);
	memcpy(worker->line, line, size);
	worker->line[size] = '\0';
	worker->line_size = size;
}

/* Looks for lines in what it has said. */
static void
take_lines(int slot)
{
	struct worker *worker = &workers[slot];
	struct program *program = &worker->program;
	char *begin = program->output;
	char *end = begin + program->output_size;
	char *at = begin + worker->searched;
	char *newline;
	size_t left;

	if (worker->searched == program->output_size)
		return;
	for (; (newline = memchr(at, '\n', (size_t) (end - at))) != NULL; at = begin = newline + 1)
	{
		if (!worker->dropping)
			take_line(slot, begin, (size_t) (newline - begin));
		worker->dropping = false;
	}
	left = (size_t) (end - begin);
	if (left > LOG_MOST && (worker->dropping || begin[0] != '{'))
	{
		if (!worker->dropping)
			show(slot, begin, left);
		worker->dropping = true;
		left = 0;
	}
	else if (left > options.max_output + FRAME_MOST)
	{
		lines_leave(worker, "the program's line is longer than --max-output", SIGTERM);
		worker->dropping = true;
		left = 0;
	}
	memmove(program->output, begin, left);
	program->output_size = worker->searched = left;
}

static void
describe_exit(struct answer *answer, const char *why, int status)
{
	char what[64];

	if (WIFEXITED(status))
	{
		snprintf(what, sizeof(what), "exit status %d", WEXITSTATUS(status));
		snprintf(answer->details, sizeof(answer->details), "{\"exit_status\": %d}",
				 WEXITSTATUS(status));
	}
	else
	{
		snprintf(what, sizeof(what), "killed by signal %d", WTERMSIG(status));
		snprintf(answer->details, sizeof(answer->details), "{\"signal\": %d}", WTERMSIG(status));
	}
	if (why != NULL)
		answer->details[0] = '\0';
	snprintf(answer->what, sizeof(answer->what), "%s", why != NULL ? why : what);
}

/* Collects a program that has ended, with the job that it had. */
static void
lines_bury(int slot)
{
	struct worker *worker = &workers[slot];
	struct program *program = &worker->program;
	struct answer exit = {.verdict = FAIL, .delay = BY_POLICY};
	int status;

	if (program->pid == 0 || !program_ended(program, &status))
		return;
	take_lines(slot);
	describe_exit(&exit, worker->why, status);
	if (!worker->wanted && !lines_draining)
	{
		say("%s %d: %s; the program will be restarted", options.program[0], slot + 1, exit.what);
		worker->start_at = now_ms() + worker->start_wait;
		worker->start_wait = sooner(worker->start_wait * 2, START_MOST);
	}
	if (worker->busy && worker->line == NULL)
	{
		worker->answer = exit;
		program_said(program, &worker->answer);
		worker->over = true;
	}
	program_free(program);
	worker->leaving = worker->wanted = worker->dropping = false;
	worker->why = NULL;
	worker->searched = 0;
	worker->kill_at = NEVER;
}

static bool
lines_over(int slot, struct answer *answer)
{
	struct worker *worker = &workers[slot];

	if (worker->line != NULL)
	{
		memset(answer, 0, sizeof(*answer));
		answer->verdict = LINE;
		answer->delay = BY_POLICY;
		if (strlen(worker->line) != worker->line_size)
		{
			answer->verdict = FAIL;
			snprintf(answer->what, sizeof(answer->what), "the program's line contains a NUL byte");
			answer->said = worker->line;
			answer->said_size = worker->line_size < SHOWN_MOST ? worker->line_size : SHOWN_MOST;
			worker->line = NULL;
		}
		else
		{
			answer->result = worker->line;
			worker->line = NULL;
			worker->start_wait = START_FIRST;
		}
		free(worker->line);
		worker->line = NULL;
	}
	else if (worker->over)
		*answer = worker->answer;
	else
		return false;
	worker->busy = worker->over = false;
	if (lines_draining)
		lines_leave(worker, NULL, 0);
	return true;
}

static void
lines_cancel(int slot, bool again)
{
	struct worker *worker = &workers[slot];

	worker->wanted = true;
	if (again && worker->program.pid != 0)
		program_kill(&worker->program, SIGKILL);
	else
		lines_leave(worker, NULL, SIGTERM);
}

static void
lines_distrust(int slot)
{
	lines_leave(&workers[slot], "the program has responded with another id", SIGTERM);
}

static int
lines_poll(struct pollfd *fds)
{
	int count = 0;

	for (int i = 0; i < options.jobs; i++)
	{
		if (workers[i].program.pid != 0)
			count += program_poll(&workers[i].program, fds + count);
	}
	return count;
}

/* The latest time when one that was told to end is killed: in a drain the runner must also end in time. */
static int64_t
last_kill(const struct worker *worker)
{
	int64_t deadline = signals_deadline();

	return deadline == NEVER || !worker->leaving || worker->kill_at == NEVER ? NEVER
																			 : deadline - LAST_KILL;
}

/* What is due with one: its lines, its end, SIGTERM or SIGKILL. */
static void
watch(int slot)
{
	struct worker *worker = &workers[slot];
	struct program *program = &worker->program;

	take_lines(slot);
	/* It may be ending; if not, SIGTERM follows. */
	if (program->out < 0 || is_deaf(worker))
		lines_leave(worker, NULL, 0);
	if (now_ms() >= last_kill(worker))
	{
		worker->kill_at = now_ms();
		worker->next_signal = SIGKILL;
	}
	if (now_ms() >= worker->kill_at)
	{
		if (program->out < 0 && worker->why == NULL)
			worker->why = "the program has closed its stdout";
		else if (is_deaf(worker) && worker->why == NULL)
			worker->why = "the program has closed its stdin";
		program_kill(program, worker->next_signal);
		worker->kill_at = worker->next_signal == SIGTERM ? now_ms() + options.kill_after : NEVER;
		worker->next_signal = SIGKILL;
	}
	lines_bury(slot);
}

static void
lines_serve(const struct pollfd *fds, int count)
{
	for (int i = 0; i < options.jobs; i++)
	{
		int own;

		if (workers[i].program.pid == 0)
			continue;
		own = program_serve(&workers[i].program, fds, count);
		fds += own;
		count -= own;
		watch(i);
	}
}

static int64_t
lines_next(void)
{
	int64_t next = NEVER;
	int64_t now = now_ms();

	for (int i = 0; i < options.jobs; i++)
	{
		/* To be collected. */
		if (workers[i].line != NULL || workers[i].over)
			return now;
		next = sooner(next, sooner(workers[i].kill_at, last_kill(&workers[i])));
		if (workers[i].program.pid == 0 && workers[i].start_at > now)
			next = sooner(next, workers[i].start_at);
	}
	return next;
}

static void
lines_drain(void)
{
	lines_draining = true;
	for (int i = 0; i < options.jobs; i++)
	{
		if (!workers[i].busy)
			lines_leave(&workers[i], NULL, 0);
	}
}

static bool
lines_alive(void)
{
	for (int i = 0; i < options.jobs; i++)
	{
		if (workers[i].program.pid != 0)
			return true;
	}
	return false;
}

static void
lines_close(void)
{
	struct pollfd *fds = memory(NULL, FDS_EACH * (size_t) options.jobs * sizeof(*fds));

	for (int i = 0; i < options.jobs; i++)
		lines_leave(&workers[i], NULL, 0);
	lines_draining = true;
	while (lines_alive())
	{
		int count = lines_poll(fds);

		poll(fds, (nfds_t) count, 20);
		lines_serve(fds, count);
	}
	free(fds);
	free(workers);
}

const struct executor lines_executor = {
	.noun = "program",
	.answer = "its line",
	.columns =
		"CASE WHEN c.payload IS NOT NULL THEN pg_catalog.json_build_object('id', c.id::text, "
		"'token', c.token::text, 'queue', c.queue,"
		" 'key', c.key, 'kind', c.kind, 'attempt', c.attempt,"
		" 'max_attempts', c.max_attempts, 'headers', c.headers,"
		" 'checkpoint', c.checkpoint, 'payload', c.payload) END",
	.open = lines_open,
	.ready = lines_ready,
	.start = lines_start,
	.over = lines_over,
	.cancel = lines_cancel,
	.distrust = lines_distrust,
	.poll = lines_poll,
	.serve = lines_serve,
	.next = lines_next,
	.drain = lines_drain,
	.close = lines_close,
};
