/*
 * signals.c: signals that wake poll().
 *
 * Each writes a byte into a pipe that a loop polls.  SIGTERM, SIGINT and SIGHUP, which ask the process to
 * end, are counted; SIGCHLD only wakes.
 */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "say.h"
#include "signals.h"

static int alarm_pipe[2];
static volatile sig_atomic_t told;

static void
on_signal(int number)
{
	int error = errno;

	if (number != SIGCHLD)
		told++;
	/* Full: the loop will wake as it is. */
	if (write(alarm_pipe[1], "", 1) < 0)
		errno = error;
	errno = error;
}

static void
handle_by(void (*handler)(int))
{
	static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
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
		die(1, "cannot make a pipe: %m");
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
	told = 0;
}

/* How often the process was asked to end. */
int
signals_told(void)
{
	return told;
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
