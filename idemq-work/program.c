/*
 * program.c: a program that runs, with its process group and its pipes.
 *
 * The group is the program and what it starts, but for what makes a group or a session of its
 * own.  When the program ends the rest of its group is killed, while the program is still there
 * as a zombie: so the number of the group cannot be another's.  Nobody waits for the end of a
 * pipe, which a process that has left the group may hold open for ever.
 *
 * No pipe blocks the runner, and none the program: output beyond what is kept is read, and
 * thrown away.  A program need not read its input.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* environ and the like; compilers for PostgreSQL often say so already */
#endif
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "keeper.h"
#include "options.h"
#include "program.h"

/* Bytes of one pipe at a time, so that no program keeps us from the others. */
#define PORTION 131072

/* In the new process.  pipes: their ends. */
static void __attribute__((noreturn))
become_program(pid_t runner, const int *pipes, const struct variable *variables)
{
	static const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGCHLD, SIGPIPE};
	int error;

	setpgid(0, 0);
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	/* It ended before that. */
	if (getppid() != runner)
		_exit(1);
	keeper_watch(getpid());
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		signal(signals[i], SIG_DFL);
	for (int fd = 0; fd < 3; fd++)
	{
		if (pipes[fd] >= 0 && dup2(pipes[fd], fd) < 0)
			_exit(126);
	}
	for (; variables->name != NULL; variables++)
	{
		if (variables->value == NULL)
			unsetenv(variables->name);
		else
			setenv(variables->name, variables->value, 1);
	}
	execvp(options.program[0], options.program);
	error = errno;
	fprintf(stderr, "cannot run \"%s\": %s\n", options.program[0], strerror(error));
	_exit(error == ENOENT ? 127 : 126);
}

static void
close_pipe(int *ends)
{
	close_fd(&ends[0]);
	close_fd(&ends[1]);
}

bool
program_start(struct program *program, char *input, size_t output_most,
			  const struct variable *variables)
{
	int in[2] = {-1, -1};
	int out[2] = {-1, -1};
	int err[2] = {-1, -1};
	pid_t runner = getpid();
	pid_t pid = -1;

	if (open_pipe(in) && open_pipe(err) && (output_most == 0 || open_pipe(out)))
		pid = fork();
	if (pid == 0)
	{
		int pipes[3] = {in[0], out[1], err[1]};

		become_program(runner, pipes, variables);
	}
	if (pid < 0)
	{
		int error = errno;

		close_pipe(in);
		close_pipe(out);
		close_pipe(err);
		free(input);
		errno = error;
		return false;
	}
	/* Whoever is first: a signal for the group must find it. */
	setpgid(pid, pid);
	close_fd(&in[0]);
	close_fd(&out[1]);
	close_fd(&err[1]);
	never_block(in[1]);
	never_block(err[0]);
	if (out[0] >= 0)
		never_block(out[0]);
	memset(program, 0, sizeof(*program));
	program->pid = pid;
	program->in = in[1];
	program->out = out[0];
	program->err = err[0];
	program->input = input;
	program->input_size = input != NULL ? strlen(input) : 0;
	program->output_most = output_most;
	return true;
}

static void
keep_output(struct program *program, const char *data, size_t size)
{
	size_t room = program->output_most - program->output_size;

	if (size > room)
	{
		program->output_cut = true;
		size = room;
	}
	program->output = memory(program->output, program->output_size + size + 1);
	memcpy(program->output + program->output_size, data, size);
	program->output_size += size;
	program->output[program->output_size] = '\0';
}

static void
keep_tail(struct program *program, const char *data, size_t size)
{
	if (program->tail_size + size > TAIL_SIZE)
	{
		size_t kept = program->tail_size < TAIL_SIZE / 2 ? program->tail_size : TAIL_SIZE / 2;

		memmove(program->tail, program->tail + program->tail_size - kept, kept);
		program->tail_size = kept;
	}
	memcpy(program->tail + program->tail_size, data, size);
	program->tail_size += size;
}

/* Reads what is there, up to so many bytes; closes a pipe that has ended. */
static void
read_pipe(struct program *program, int *fd, bool is_error, size_t most)
{
	char data[TAIL_SIZE / 2];

	while (*fd >= 0 && most > 0)
	{
		ssize_t n = read(*fd, data, most < sizeof(data) ? most : sizeof(data));

		if (n > 0)
			most -= (size_t) n;
		if (n > 0 && is_error)
		{
			keep_tail(program, data, (size_t) n);
			/* Nobody reads it: there is nowhere to say so. */
			if (program->stays && write(STDERR_FILENO, data, (size_t) n) < 0)
				continue;
		}
		else if (n > 0)
			keep_output(program, data, (size_t) n);
		else if (n < 0 && errno == EINTR)
			continue;
		else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		else
			close_fd(fd);
	}
}

static void
write_input(struct program *program)
{
	ssize_t n = write(program->in, program->input + program->input_sent,
					  program->input_size - program->input_sent);

	if (n > 0)
		program->input_sent += (size_t) n;
	/* EPIPE: it does not want to know. */
	if ((n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) ||
		(program->input_sent == program->input_size && !program->stays))
		close_fd(&program->in);
}

/* Nobody will read its input: what lies in the pipe was not given to it. */
static void
take_back_input(struct program *program)
{
	int unread;

	if (ioctl(program->in, FIONREAD, &unread) == 0)
		program->input_sent -= (size_t) unread < program->input_sent ? (size_t) unread
																	 : program->input_sent;
	close_fd(&program->in);
}

int
program_poll(const struct program *program, struct pollfd *fds)
{
	int count = 0;

	/* All sent: is there somebody who reads? */
	if (program->in >= 0)
		fds[count++] =
			(struct pollfd){.fd = program->in,
							.events = program->input_sent < program->input_size ? POLLOUT : 0};
	if (program->out >= 0)
		fds[count++] = (struct pollfd){.fd = program->out, .events = POLLIN};
	if (program->err >= 0)
		fds[count++] = (struct pollfd){.fd = program->err, .events = POLLIN};
	return count;
}

int
program_serve(struct program *program, const struct pollfd *fds, int count)
{
	int in = program->in;
	int out = program->out;
	int err = program->err;
	int i;

	for (i = 0; i < count && (fds[i].fd == in || fds[i].fd == out || fds[i].fd == err); i++)
	{
		if (fds[i].revents == 0)
			continue;
		if (fds[i].fd == in && fds[i].events == 0)
			take_back_input(program);
		else if (fds[i].fd == in)
			write_input(program);
		else if (fds[i].fd == out)
			read_pipe(program, &program->out, false, PORTION);
		else
			read_pipe(program, &program->err, true, PORTION);
	}
	return i;
}

void
program_kill(const struct program *program, int number)
{
	kill(-program->pid, number);
	/* One that was stopped would not see it. */
	if (number == SIGTERM)
		kill(-program->pid, SIGCONT);
}

/*
 * Reads what a program has left in a pipe.  A process that holds the other end may go on writing
 * for ever: that is not the program's.
 */
static void
read_rest(struct program *program, int *fd, bool is_error)
{
	int left;

	if (*fd >= 0 && ioctl(*fd, FIONREAD, &left) == 0)
		read_pipe(program, fd, is_error, (size_t) left);
}

bool
program_ended(struct program *program, int *status)
{
	siginfo_t info;

	memset(&info, 0, sizeof(info));
	if (waitid(P_PID, (id_t) program->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
		info.si_pid == 0)
		return false;
	program_kill(program, SIGKILL);
	keeper_forget(program->pid);
	while (waitpid(program->pid, status, 0) < 0 && errno == EINTR)
		;
	program->pid = 0;
	read_rest(program, &program->out, false);
	read_rest(program, &program->err, true);
	close_fd(&program->in);
	close_fd(&program->out);
	close_fd(&program->err);
	return true;
}

void
program_said(struct program *program, struct answer *answer)
{
	const char *tail = program->tail;
	size_t left = program->tail_size;

	/* It may begin within a character. */
	while (left > 0 && ((unsigned char) *tail & 0xC0) == 0x80)
		tail++, left--;
	answer->said = memory(NULL, left + 1);
	answer->said_size = left;
	memcpy(answer->said, tail, left);
}

void
program_free(struct program *program)
{
	free(program->input);
	free(program->output);
	program->input = program->output = NULL;
	program->input_size = program->input_sent = program->output_size = 0;
}
