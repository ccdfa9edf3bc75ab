/*
 * keeper.c: a program and all that it started die with the runner, whatever ends the runner.
 *
 * PR_SET_PDEATHSIG reaches the program alone, not what it started, and Linux alone has it.
 * So one more process reads from a pipe which process groups there are.  The end of the pipe is
 * the end of the runner, by kill -9 too: the keeper then kills all groups, and ends.
 *
 * A program's process writes its own number before exec, so there is no moment in which it runs
 * unwatched; the runner writes that it has ended before it reaps it, so the keeper never has a
 * number that can be another's.  Notes are short enough to be written whole.  Programs do not
 * inherit the pipe.  The keeper has a group of its own and ignores the signals by which groups
 * and terminals are ended.  If the keeper itself is killed, PR_SET_PDEATHSIG is what is left.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "keeper.h"
#include "say.h"

#define NOTE_SIZE 12

static int notes = -1;
static pid_t keeper = -1;

static void
keeper_note(char what, pid_t group)
{
	char text[NOTE_SIZE + 1];

	snprintf(text, sizeof(text), "%c%010d\n", what, (int) group);
	/* EPIPE: the keeper was killed. */
	if (write(notes, text, NOTE_SIZE) < 0)
		return;
}

/* Reads a whole note; false at the end of the runner. */
static bool
next_note(int fd, char *text)
{
	size_t got = 0;

	while (got < NOTE_SIZE)
	{
		ssize_t n = read(fd, text + got, NOTE_SIZE - got);

		if (n <= 0)
			return false;
		got += (size_t) n;
	}
	text[NOTE_SIZE] = '\0';
	return true;
}

static void
keeper_keep(int fd)
{
	char text[NOTE_SIZE + 1];
	pid_t *groups = NULL;
	size_t count = 0;

	while (next_note(fd, text))
	{
		pid_t group = (pid_t) atoi(text + 1);

		if (text[0] == '+')
		{
			groups = memory(groups, (count + 1) * sizeof(*groups));
			groups[count++] = group;
			continue;
		}
		for (size_t i = 0; i < count; i++)
		{
			if (groups[i] == group)
			{
				groups[i] = groups[--count];
				break;
			}
		}
	}
	for (size_t i = 0; i < count; i++)
		kill(-groups[i], SIGKILL);
	_exit(0);
}

void
keeper_start(void)
{
	int ends[2];

	if (!open_pipe(ends) || (keeper = fork()) < 0)
		die(1, "could not start a process: %m");
	if (keeper == 0)
	{
		close(ends[1]);
		setpgid(0, 0);
		signal(SIGHUP, SIG_IGN);
		signal(SIGINT, SIG_IGN);
		signal(SIGQUIT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
#ifdef __linux__
		prctl(PR_SET_NAME, "idemq-keeper");
#endif
		keeper_keep(ends[0]);
	}
	close(ends[0]);
	notes = ends[1];
}

void
keeper_watch(pid_t group)
{
	keeper_note('+', group);
}

void
keeper_forget(pid_t group)
{
	keeper_note('-', group);
}

void
keeper_stop(void)
{
	close_fd(&notes);
	waitpid(keeper, NULL, 0);
}
