/*
 * cluster.c: a cluster: a runner for each shard, and the supervisor of all.
 *
 * The supervisor starts a process that reads the map (map.c), and for each shard in it a runner, which
 * is what idemq-work is for one server; it has no connection, so no server can hold it up.  A runner
 * whose server does not answer is waited for by nobody else.
 *
 * It gives out the slots for programs, --jobs in all: to the runner that has asked first, where one
 * of a home shard counts as asking HOME_FIRST earlier.  So home shards come first, the others get what
 * they leave over, and are not forgotten when home is always busy.  A runner asks anew for each program.
 *
 * A shard that moves: its runner is told the new address, connects there, and settles there what
 * it has begun at the old one, since the rows have moved with their tokens.
 *
 * When the supervisor is gone, whatever ended it, each runner notices the end of its line and ends; its
 * keeper ends the programs.  A runner that has ended is started again.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"
#include "map.h"
#include "options.h"
#include "slots.h"
#include "say.h"
#include "signals.h"

#define HOME_FIRST 5000
#define START_AGAIN 5000

struct runner
{
	int shard;
	bool home;
	char *address;
	pid_t pid; /* 0: none */
	int fd;	   /* our end of the line */
	int held;  /* slots */
	int asked;
	int64_t asked_at;
	int64_t start_at;
};

static struct runner *runners;
static int runner_count;
static int slots;	 /* that are free */
static bool claimed; /* by any shard, ever */
static int status;
static pid_t map_pid;
static int map_fd;

/* A process with a line to this one: its end is set in both.  In a group of its own, so that a
 * terminal tells the supervisor alone. */
static pid_t
branch(int *fd)
{
	int ends[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0 || (pid = fork()) < 0)
		die(1, "could not start a process: %m");
	if (pid == 0)
	{
		close(ends[0]);
		*fd = ends[1];
		setpgid(0, 0);
		signals_leave();
		for (int i = 0; i < runner_count; i++)
			close_fd(&runners[i].fd);
		return 0;
	}
	close(ends[1]);
	never_block(ends[0]);
	*fd = ends[0];
	return pid;
}

/* Whether this is the runner. */
static bool
start_runner(struct runner *runner)
{
	int fd;
	pid_t pid = branch(&fd);

	if (pid == 0)
	{
		static char who[32];

		close_fd(&map_fd);
		never_block(fd);
		slots_fd = fd;
		snprintf(who, sizeof(who), "shard %d: ", runner->shard);
		say_who = who;
		options.dsn = options.wait_dsn = runner->address;
		return true;
	}
	runner->pid = pid;
	runner->fd = fd;
	runner->held = runner->asked = 0;
	runner->start_at = NEVER;
	return false;
}

/* False: it was not told, since it is stopped, or has ended; what it holds is its until it ends. */
static bool
cluster_tell(struct runner *runner, const char *text)
{
	return runner->fd < 0 || write(runner->fd, text, strlen(text)) == (ssize_t) strlen(text);
}

static struct runner *
runner_of(int shard)
{
	bool home = options.home == NULL;

	for (int i = 0; i < runner_count; i++)
	{
		if (runners[i].shard == shard)
			return &runners[i];
	}
	for (const int *h = options.home; h != NULL && *h >= 0; h++)
		home |= *h == shard;
	if (!home && options.only_home)
		return NULL;
	runners = memory(runners, (size_t) (runner_count + 1) * sizeof(*runners));
	runners[runner_count] = (struct runner){.shard = shard, .home = home, .fd = -1};
	return &runners[runner_count++];
}

/* A line of the map. */
static void
heard(char *line)
{
	char *where = strchr(line, ' ');
	struct runner *runner = where == NULL ? NULL : runner_of(atoi(line));

	if (runner == NULL)
		return;
	where++;
	if (runner->address != NULL && strcmp(runner->address, where) == 0)
		return;
	if (runner->address != NULL)
	{
		char *text = memory(NULL, strlen(where) + 3);

		bool told;

		sprintf(text, "%c%s\n", SAY_ADDRESS, where);
		told = cluster_tell(runner, text);
		free(text);
		/* The next map is another try. */
		if (!told)
			return;
	}
	free(runner->address);
	runner->address = copy_text(where);
}

/* Reads the map, in lines; false when who reads it has ended. */
static bool
read_map(void)
{
	static char *line = NULL;
	static size_t size = 0;
	char text[4096];
	ssize_t got;

	while ((got = read(map_fd, text, sizeof(text))) > 0)
	{
		line = memory(line, size + (size_t) got + 1);
		for (ssize_t i = 0; i < got; i++)
		{
			line[size++] = text[i] == '\n' ? '\0' : text[i];
			if (text[i] == '\n')
			{
				heard(line);
				size = 0;
			}
		}
	}
	return got < 0;
}

static void
listen_to(struct runner *runner)
{
	char text[4096];
	ssize_t got = read(runner->fd, text, sizeof(text));

	for (ssize_t i = 0; i < got; i++)
	{
		if (text[i] == SAY_WANT && runner->asked++ == 0)
			runner->asked_at = now_ms() - (runner->home ? HOME_FIRST : 0);
		else if (text[i] == SAY_LEAVE)
		{
			runner->held--;
			slots++;
		}
		else if (text[i] == SAY_CLAIMED)
			claimed = true;
		else if (text[i] == SAY_MAP && write(map_fd, "", 1) < 0)
			return;
	}
}

static void
give_out(void)
{
	while (slots > 0)
	{
		static const char slot[] = {SAY_SLOT, '\0'};
		struct runner *first = NULL;

		for (int i = 0; i < runner_count; i++)
		{
			if (runners[i].asked > 0 && (first == NULL || runners[i].asked_at < first->asked_at))
				first = &runners[i];
		}
		if (first == NULL)
			return;
		slots--;
		first->held++;
		first->asked--;
		/* For the next one it asks anew. */
		first->asked_at = now_ms() - (first->home ? HOME_FIRST : 0);
		cluster_tell(first, slot);
	}
}

/* Collects runners that have ended. */
static void
cluster_bury(bool ending)
{
	for (int i = 0; i < runner_count; i++)
	{
		struct runner *runner = &runners[i];
		int how;

		if (runner->pid == 0 || waitpid(runner->pid, &how, WNOHANG) != runner->pid)
			continue;
		listen_to(runner);
		slots += runner->held;
		runner->held = runner->asked = 0;
		close_fd(&runner->fd);
		runner->pid = 0;
		if (ending || options.once)
			status = how == 0 ? status : 1;
		else
		{
			say("shard %d: its process has exited (%s %d) and will be restarted", runner->shard,
				WIFSIGNALED(how) ? "signal" : "status",
				WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
			runner->start_at = now_ms() + START_AGAIN;
		}
	}
}

/* How many runners there are. */
static int
cluster_alive(void)
{
	int n = 0;

	for (int i = 0; i < runner_count; i++)
		n += runners[i].pid != 0;
	return n;
}

/* Sleeps until something happens, and hears what did; false when the map's process has ended. */
static bool
sleep_and_listen(int64_t until)
{
	struct pollfd *fds = memory(NULL, (size_t) (runner_count + 2) * sizeof(*fds));
	int64_t left = until == NEVER ? -1 : later(until - now_ms(), 0);
	int polled = runner_count;
	bool goes_on = true;

	fds[0] = (struct pollfd){.fd = signals_fd(), .events = POLLIN};
	fds[1] = (struct pollfd){.fd = map_fd, .events = POLLIN};
	for (int i = 0; i < polled; i++)
		fds[i + 2] = (struct pollfd){.fd = runners[i].fd, .events = POLLIN};
	if (poll(fds, (nfds_t) polled + 2, (int) left) > 0)
	{
		signals_heard();
		for (int i = 0; i < polled; i++)
		{
			if (fds[i + 2].revents != 0 && runners[i].fd >= 0)
				listen_to(&runners[i]);
		}
		goes_on = fds[1].revents == 0 || read_map();
	}
	free(fds);
	return goes_on;
}

/* Starts runners that are due, and answers when the next one is; 0: this is a runner. */
static int64_t
start_due(void)
{
	int64_t next = NEVER;

	for (int i = 0; i < runner_count; i++)
	{
		if (runners[i].pid != 0 || runners[i].start_at == NEVER)
			continue;
		if (runners[i].start_at > now_ms())
			next = sooner(next, runners[i].start_at);
		else if (start_runner(&runners[i]))
			return 0;
	}
	return next;
}

static void
tell_all(int number)
{
	for (int i = 0; i < runner_count; i++)
	{
		if (runners[i].pid != 0)
			kill(runners[i].pid, number);
	}
}

static void
start_map(void)
{
	map_pid = branch(&map_fd);
	if (map_pid == 0)
		map_read(map_fd);
}

/* The map's process has ended, which it does by itself with --once alone. */
static void
start_map_again(bool begun)
{
	close_fd(&map_fd);
	waitpid(map_pid, NULL, 0);
	if (options.once && !begun)
		exit(1);
	sleep(1);
	start_map();
}

void
cluster_start(void)
{
	int seen = 0;
	bool begun = false;

	if (options.cluster == NULL)
		return;
	map_check_options();
	signals_catch();
	slots = options.jobs;
	start_map();
	for (;;)
	{
		int64_t next;

		cluster_bury(signals_told() > 0);
		if (begun && cluster_alive() == 0 && (signals_told() > 0 || options.once || !claimed))
			break;
		if (signals_told() > 0 && !begun)
			break;
		next = signals_told() > 0 ? NEVER : start_due();
		if (next == 0)
			return;
		begun = begun || runner_count > 0;
		give_out();
		for (; seen < signals_told(); seen++)
			tell_all(SIGTERM);
		if (!sleep_and_listen(next))
			start_map_again(begun);
	}
	close_fd(&map_fd);
	/* It may be waiting for a server that does not answer. */
	kill(map_pid, SIGKILL);
	waitpid(map_pid, NULL, 0);
	exit(claimed || signals_told() > 0 || options.once ? status : 1);
}
