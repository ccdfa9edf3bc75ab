/*
 * each.c: a program for each job.
 *
 * The payload is on its stdin, the attempt in its environment; its exit status, or the signal that
 * ended it, is the answer.  With --result stdout is the job's result.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "executor.h"
#include "options.h"
#include "program.h"

#define EXIT_DEAD 65  /* EX_DATAERR of sysexits.h */
#define EXIT_LATER 75 /* EX_TEMPFAIL */

#define FDS_EACH 3

/* Columns of its own. */
enum
{
	COL_TRACEPARENT = COL_MORE,
	COL_TRACESTATE,
	COL_BAGGAGE
};

static struct program *programs;

static int
each_open(void)
{
	programs = memory(NULL, (size_t) options.jobs * sizeof(*programs));
	memset(programs, 0, (size_t) options.jobs * sizeof(*programs));
	return FDS_EACH * options.jobs;
}

static bool
each_ready(int slot, int others)
{
	(void) slot;
	(void) others;
	return true;
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

static bool
each_start(int slot, const struct task *task)
{
	struct variable variables[] = {
		{"IDEMQ_QUEUE", task_value(task, COL_QUEUE)},
		{"IDEMQ_ID", task_value(task, COL_ID)},
		{"IDEMQ_TOKEN", task_value(task, COL_TOKEN)},
		{"IDEMQ_ATTEMPT", task_value(task, COL_ATTEMPT)},
		{"IDEMQ_KEY", task_value(task, COL_KEY)},
		{"IDEMQ_KIND", task_value(task, COL_KIND)},
		{"IDEMQ_DEADLINE", task->deadline},
		/* The names that OpenTelemetry has given them. */
		{"TRACEPARENT", task_value(task, COL_TRACEPARENT)},
		{"TRACESTATE", task_short_value(task, COL_TRACESTATE, TRACESTATE_MOST)},
		{"BAGGAGE", task_short_value(task, COL_BAGGAGE, BAGGAGE_MOST)},
		{NULL, NULL},
	};

	return program_start(&programs[slot], input_of(task_value(task, COL_TASK)),
						 options.result ? options.max_output : 0, variables);
}

static void
judge_exit(struct answer *answer, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

	answer->delay = BY_POLICY;
	if (code == 0)
		answer->verdict = COMMIT;
	else if (code == EXIT_LATER)
	{
		answer->verdict = RELEASE;
		answer->delay = options.later;
	}
	else if (code > 0)
	{
		answer->verdict = code == EXIT_DEAD ? DEAD : FAIL;
		snprintf(answer->what, sizeof(answer->what), "exit status %d", code);
		snprintf(answer->details, sizeof(answer->details), "{\"exit_status\": %d}", code);
	}
	else
	{
		answer->verdict = FAIL;
		snprintf(answer->what, sizeof(answer->what), "killed by signal %d", WTERMSIG(status));
		snprintf(answer->details, sizeof(answer->details), "{\"signal\": %d}", WTERMSIG(status));
	}
}

static bool
each_over(int slot, struct answer *answer)
{
	struct program *program = &programs[slot];
	int status;

	if (!program_ended(program, &status))
		return false;
	memset(answer, 0, sizeof(*answer));
	judge_exit(answer, status);
	answer->result = program->output;
	answer->result_size = program->output_size;
	answer->result_cut = program->output_cut;
	program->output = NULL;
	program_said(program, answer);
	program_free(program);
	return true;
}

static void
each_cancel(int slot, bool again)
{
	program_kill(&programs[slot], again ? SIGKILL : SIGTERM);
}

static int
each_poll(struct pollfd *fds)
{
	int count = 0;

	for (int i = 0; i < options.jobs; i++)
	{
		if (programs[i].pid != 0)
			count += program_poll(&programs[i], fds + count);
	}
	return count;
}

static void
each_serve(const struct pollfd *fds, int count)
{
	for (int i = 0; i < options.jobs && count > 0; i++)
	{
		int own = programs[i].pid != 0 ? program_serve(&programs[i], fds, count) : 0;

		fds += own;
		count -= own;
	}
}

static int64_t
each_next(void)
{
	return NEVER;
}

static void
each_end(void)
{
}

const struct executor program_executor = {
	.noun = "program",
	.answer = "stdout",
	.columns = "c.payload, " TRACE_COLUMNS,
	.open = each_open,
	.ready = each_ready,
	.start = each_start,
	.over = each_over,
	.cancel = each_cancel,
	.poll = each_poll,
	.serve = each_serve,
	.next = each_next,
	.drain = each_end,
	.close = each_end,
};
