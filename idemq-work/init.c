/*
 * init.c: idemq-work as the first process of a container.
 *
 * The first process of a PID namespace inherits every process whose parent has ended, such as what a
 * job's program has left behind, and has to reap it: otherwise each stays as a zombie, until
 * the container has no more numbers for processes.  The runner waits for the programs that it
 * knows, and for nothing else.  So the first process only reaps and passes signals on, and the
 * runner is its child: as with "docker run --init".
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init.h"
#include "say.h"

/* Reaps what has ended; ends with the runner, as it has. */
static void
init_reap(pid_t runner)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
	{
		if (pid == runner)
			exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	}
}

void
init_start(void)
{
	static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
	sigset_t set;
	sigset_t before;
	pid_t runner;
	int number;

	if (getpid() != 1)
		return;
	/* They are blocked and waited for: the kernel would drop those that the first process does not handle. */
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		sigaddset(&set, numbers[i]);
	sigprocmask(SIG_BLOCK, &set, &before);
	runner = fork();
	if (runner < 0)
		die(1, "could not start a process: %m");
	if (runner == 0)
	{
		/* A terminal's ^C is for the first process, which passes it on: the runner must get it only once. */
		setpgid(0, 0);
		sigprocmask(SIG_SETMASK, &before, NULL);
		return;
	}
	for (;;)
	{
		if (sigwait(&set, &number) != 0)
			continue;
		if (number == SIGCHLD)
			init_reap(runner);
		else
			kill(runner, number);
	}
}
