/*
 * signals.c: signals that wake poll().
 *
 * Each writes a byte into a pipe that a loop polls.  SIGTERM, SIGINT and SIGHUP, which ask the process to
 * end, are counted; SIGCHLD only wakes.
 */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "options.h"
#include "say.h"
#include "signals.h"

/* ms after the grace within which the process ends, whatever happens to its connections. */
#define LAST_WORDS 4500

static int alarm_pipe[2];
static volatile sig_atomic_t told;
static volatile int64_t told_at; /* the first of them */
static volatile int64_t end_at = NEVER;

/*
 * From here on the process ends by itself, in order (signals_deadline).  Should it be held up, by libpq
 * that waits for a host for instance, it is ended by the alarm: the keeper then kills what is left.
 */
static void
begin_end(void)
{
	int64_t now = now_ms();

	if (told_at == 0)
		told_at = now;
	end_at = sooner(end_at, (told == 1 ? now + options.grace : now) + LAST_WORDS);
	alarm((unsigned) ((end_at - now) / 1000 + 1));
}

static void
on_signal(int number)
{
	int error = errno;

	if (number == SIGALRM)
	{
		static const char text[] = "idemq-work: exiting because the server is not responding\n";

		if (write(STDERR_FILENO, text, sizeof(text) - 1) >= 0)
			_exit(1);
		_exit(1);
	}
	if (number != SIGCHLD)
	{
		told++;
		begin_end();
	}
	/* Full: the loop will wake as it is. */
	if (write(alarm_pipe[1], "", 1) < 0)
		errno = error;
	errno = error;
}

static void
handle_by(void (*handler)(int))
{
	static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGALRM};
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_NOCLDSTOP};

	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		sigaction(numbers[i], &action, NULL);
}

/* From here on signals wake, and a pipe without a reader is an error of write(). */
void
signals_catch(void)
{
	if (!open_pipe(alarm_pipe))
		die(1, "could not create a pipe: %m");
	never_block(alarm_pipe[0]);
	never_block(alarm_pipe[1]);
	handle_by(on_signal);
	signal(SIGPIPE, SIG_IGN);
}

/* In a child: signals do what they do by default, and those that came are the parent's. */
void
signals_leave(void)
{
	handle_by(SIG_DFL);
	close_fd(&alarm_pipe[0]);
	close_fd(&alarm_pipe[1]);
	alarm(0);
	told = 0;
	told_at = 0;
	end_at = NEVER;
}

/* How often the process was asked to end. */
int
signals_told(void)
{
	return told;
}

/* When that was first. */
int64_t
signals_told_at(void)
{
	return told_at;
}

/* By when the process has ended: some seconds after the grace; NEVER before it was asked to. */
int64_t
signals_deadline(void)
{
	return end_at;
}

/* What is readable after a signal. */
int
signals_fd(void)
{
	return alarm_pipe[0];
}

/* To be called after poll(), and before what signals tell is looked at. */
void
signals_heard(void)
{
	char drop[64];

	while (read(alarm_pipe[0], drop, sizeof(drop)) > 0)
		;
}
