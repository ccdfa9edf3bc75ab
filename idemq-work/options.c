/*
 * options.c: the command line.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "say.h"
#include "text.h"

#define USAGE 2

struct options options = {
	.jobs = 1,
	.later = 60 * 1000,
	.grace = 30 * 1000,
	.kill_after = 5 * 1000,
	.max_output = 1024 * 1024,
};

static const char *const help =
	"idemq-work has each job of an idemq queue carried out, and tells the server how it ended.\n"
	"\n"
	"  idemq-work -d DSN -q QUEUE... [OPTION]... -- PROGRAM [ARGUMENT]...\n"
	"  idemq-work -d DSN -q QUEUE... [OPTION]... --http=URL\n"
	"  idemq-work -d DSN -q QUEUE... [OPTION]... --lines -- PROGRAM [ARGUMENT]...\n"
	"\n"
	"  -d, --dsn=DSN         connection string; without it PGHOST, PGSERVICE ... say where\n"
	"      --cluster=DSN     in place of -d: the router of a cluster; works for all its shards\n"
	"      --home=N,N...     its shards that come first; --only-home: no others\n"
	"      --shard-options=DSN  goes before what the cluster's map says, such as port=5432\n"
	"  -q, --queue=QUEUE     more than one: in the order given\n"
	"  -j, --jobs=N          so many at a time (1)\n"
	"      --http=URL        each job is a POST there\n"
	"      --unix-socket=PATH  by this socket, in place of the URL's host\n"
	"      --sign-key-file=FILE  signed as Standard Webhooks say, with the keys there (whsec_...)\n"
	"      --lines           a program that stays is given one job after the other\n"
	"      --result          stdout, or the body of the answer, is the job's result, as JSON\n"
	"      --timeout=TIME    what takes longer is ended, the job has failed\n"
	"                        (the queue's job_timeout, or 1h)\n"
	"      --later=TIME      delay after exit status 75, or \"later\": true (1min)\n"
	"      --grace=TIME      after SIGTERM what runs has so long (30s)\n"
	"      --kill-after=TIME from SIGTERM of a program to SIGKILL (5s)\n"
	"      --lease=TIME      a lease, in place of the queue's\n"
	"      --attach          leases end with the connection; not behind a pooler\n"
	"      --wait-dsn=DSN    another way to the same database, for the connection that waits\n"
	"      --max-output=N    bytes of a result, or of an answer (1048576)\n"
	"      --worker=NAME     as idemq.running_jobs shows it\n"
	"      --once            do what is ready, then end\n"
	"  -v, --verbose         a line for each job\n"
	"  -h, --help\n"
	"  -V, --version\n"
	"\n"
	"A program for each job: the payload is on stdin; IDEMQ_QUEUE, IDEMQ_ID, IDEMQ_KEY, IDEMQ_KIND,\n"
	"IDEMQ_TOKEN, IDEMQ_ATTEMPT and IDEMQ_DEADLINE are in the environment.  Exit status 0: the job is\n"
	"committed; 75: later; 65: dead; all else: failed, with the end of stderr.\n"
	"\n"
	"HTTP: the payload is the body; Idemq-Queue, -Id, -Token, -Attempt, -Key and others, and an\n"
	"Idempotency-Key, are headers.  2xx: committed; 422: dead; 429 and 503 with Retry-After: later,\n"
	"for all jobs; all else: failed, with the start of the body.\n"
	"\n"
	"Lines: the program reads {\"id\": \"7\", \"token\": ..., \"queue\", \"key\", \"kind\", \"attempt\", \"payload\",\n"
	"...} and answers by a line, {\"id\": \"7\", \"result\": ...}, or with \"error\" (\"retry_in\", \"dead\"),\n"
	"or with \"later\".  What does not begin with { is a line of its log.  Flush stdout.\n"
	"\n"
	"TIME is 500ms, 10s, 5min, 2h; seconds without a unit.  SIGTERM: finish what runs, then end.\n"
	"More: man idemq-work.\n";

enum
{
	OPT_RESULT = 256,
	OPT_TIMEOUT,
	OPT_LATER,
	OPT_GRACE,
	OPT_KILL_AFTER,
	OPT_LEASE,
	OPT_ATTACH,
	OPT_WAIT_DSN,
	OPT_MAX_OUTPUT,
	OPT_WORKER,
	OPT_ONCE,
	OPT_CLUSTER,
	OPT_HOME,
	OPT_ONLY_HOME,
	OPT_SHARD_OPTIONS,
	OPT_HTTP,
	OPT_UNIX_SOCKET,
	OPT_SIGN_KEY_FILE,
	OPT_LINES
};

static const struct option long_options[] = {
	{"dsn", required_argument, NULL, 'd'},
	{"cluster", required_argument, NULL, OPT_CLUSTER},
	{"home", required_argument, NULL, OPT_HOME},
	{"shard-options", required_argument, NULL, OPT_SHARD_OPTIONS},
	{"only-home", no_argument, NULL, OPT_ONLY_HOME},
	{"queue", required_argument, NULL, 'q'},
	{"jobs", required_argument, NULL, 'j'},
	{"http", required_argument, NULL, OPT_HTTP},
	{"unix-socket", required_argument, NULL, OPT_UNIX_SOCKET},
	{"sign-key-file", required_argument, NULL, OPT_SIGN_KEY_FILE},
	{"lines", no_argument, NULL, OPT_LINES},
	{"result", no_argument, NULL, OPT_RESULT},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"later", required_argument, NULL, OPT_LATER},
	{"grace", required_argument, NULL, OPT_GRACE},
	{"kill-after", required_argument, NULL, OPT_KILL_AFTER},
	{"lease", required_argument, NULL, OPT_LEASE},
	{"attach", no_argument, NULL, OPT_ATTACH},
	{"wait-dsn", required_argument, NULL, OPT_WAIT_DSN},
	{"max-output", required_argument, NULL, OPT_MAX_OUTPUT},
	{"worker", required_argument, NULL, OPT_WORKER},
	{"once", no_argument, NULL, OPT_ONCE},
	{"verbose", no_argument, NULL, 'v'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{NULL, 0, NULL, 0},
};

static int64_t
read_time(const char *name, const char *text, int64_t least)
{
	int64_t ms;

	if (text_time(text, &ms) && ms >= least)
		return ms;
	die(USAGE, "--%s takes a time of at least %d ms, such as 500ms, 10s, 5min or 2h: not \"%s\"",
		name, (int) least, text);
}

static long
options_read_number(const char *name, const char *text, long least, long most)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || value < least || value > most)
		die(USAGE, "--%s takes a number from %ld to %ld: not \"%s\"", name, least, most, text);
	return value;
}

/* Numbers of shards, and -1. */
static int *
read_shards(const char *text)
{
	int *shards = memory(NULL, (strlen(text) + 2) * sizeof(*shards));
	int count = 0;
	char *copy = copy_text(text);

	for (char *word = strtok(copy, ","); word != NULL; word = strtok(NULL, ","))
		shards[count++] = (int) options_read_number("home", word, 0, 1023);
	if (count == 0)
		die(USAGE, "--home takes numbers of shards, such as 0,1,2");
	shards[count] = -1;
	free(copy);
	return shards;
}

static const char *
read_interval(const char *name, const char *text)
{
	char *interval = memory(NULL, 64);

	snprintf(interval, 64, "%lld milliseconds", (long long) read_time(name, text, 1));
	return interval;
}

/* What a shell would find; a name that is wrong would use up the attempts of all jobs. */
static void
must_be_there(const char *program)
{
	const char *path = getenv("PATH");
	char file[PATH_MAX];

	if (strchr(program, '/') != NULL)
	{
		if (access(program, X_OK) != 0)
			die(USAGE, "cannot run \"%s\": %m", program);
		return;
	}
	if (path == NULL)
		path = "/usr/bin:/bin";
	while (*path != '\0')
	{
		size_t length = strcspn(path, ":");

		snprintf(file, sizeof(file), "%.*s/%s", (int) (length ? length : 1), length ? path : ".",
				 program);
		if (access(file, X_OK) == 0)
			return;
		path += length + (path[length] == ':');
	}
	die(USAGE, "cannot run \"%s\": it is not in PATH", program);
}

/* Options that take a value; false when it is none of them. */
static bool
options_read_value(int option, const char *value)
{
	switch (option)
	{
		case 'd':
			options.dsn = value;
			return true;
		case 'j':
			options.jobs = (int) options_read_number("jobs", value, 1, 1000);
			return true;
		case OPT_TIMEOUT:
			options.timeout = read_time("timeout", value, 1);
			return true;
		case OPT_LATER:
			options.later = read_time("later", value, 0);
			return true;
		case OPT_GRACE:
			options.grace = read_time("grace", value, 0);
			return true;
		case OPT_KILL_AFTER:
			options.kill_after = read_time("kill-after", value, 0);
			return true;
		case OPT_LEASE:
			options.lease = read_interval("lease", value);
			return true;
		case OPT_WAIT_DSN:
			options.wait_dsn = value;
			return true;
		case OPT_CLUSTER:
			options.cluster = value;
			return true;
		case OPT_SHARD_OPTIONS:
			options.shard_options = value;
			return true;
		case OPT_HOME:
			options.home = read_shards(value);
			return true;
		case OPT_MAX_OUTPUT:
			options.max_output =
				(size_t) options_read_number("max-output", value, 1, 64 * 1024 * 1024);
			return true;
		case OPT_WORKER:
			options.worker = value;
			return true;
		case OPT_HTTP:
			options.http = value;
			return true;
		case OPT_UNIX_SOCKET:
			options.unix_socket = value;
			return true;
		case OPT_SIGN_KEY_FILE:
			options.sign_key_file = value;
			return true;
	}
	return false;
}

static void
read_flag(int option)
{
	switch (option)
	{
		case OPT_RESULT:
			options.result = true;
			break;
		case OPT_ATTACH:
			options.attach = true;
			break;
		case OPT_LINES:
			options.lines = true;
			break;
		case OPT_ONLY_HOME:
			options.only_home = true;
			break;
		case OPT_ONCE:
			options.once = true;
			break;
		case 'v':
			options.verbose = true;
			break;
		case 'h':
			fputs(help, stdout);
			exit(fflush(stdout) == 0 ? 0 : 1);
		case 'V':
			printf("idemq-work (idemq) %s\n", PROGRAM_VERSION);
			exit(fflush(stdout) == 0 ? 0 : 1);
		default:
			die(USAGE, "see idemq-work --help");
	}
}

/* What carries out the jobs: a program, or an endpoint. */
static void
check_what(bool program)
{
	if (options.http == NULL && (options.unix_socket != NULL || options.sign_key_file != NULL))
		die(USAGE, "--unix-socket and --sign-key-file are for --http");
	if (options.http == NULL)
	{
		if (!program)
			die(USAGE, "which program? -- PROGRAM; see idemq-work --help");
		must_be_there(options.program[0]);
		return;
	}
	if (program || options.lines)
		die(USAGE, "--http takes neither --lines nor a program");
#ifdef HAVE_CURL
	if (strncmp(options.http, "http://", 7) != 0 && strncmp(options.http, "https://", 8) != 0)
		die(USAGE, "--http takes a URL, such as http://127.0.0.1:3000/jobs: not \"%s\"",
			options.http);
#else
	die(USAGE, "this idemq-work was built without libcurl, and has no --http");
#endif
}

void
options_read(int argc, char **argv)
{
	const char **queues = memory(NULL, (size_t) argc * sizeof(*queues));
	int count = 0;
	int option;

	/* +: the program's options are the program's. */
	while ((option = getopt_long(argc, argv, "+d:q:j:vhV", long_options, NULL)) != -1)
	{
		if (option == 'q')
			queues[count++] = optarg;
		else if (!options_read_value(option, optarg))
			read_flag(option);
	}
	if (count == 0)
		die(USAGE, "which queue? -q QUEUE; see idemq-work --help");
	options.program = argv + optind;
	options.queues = text_array(queues, count);
	options.queue = count == 1 ? queues[0] : NULL;
	free(queues);
	check_what(optind < argc);
	if (options.cluster != NULL && (options.dsn != NULL || options.wait_dsn != NULL))
		die(USAGE, "--cluster says where the servers are: no --dsn and no --wait-dsn with it");
	if (options.cluster == NULL &&
		(options.home != NULL || options.only_home || options.shard_options != NULL))
		die(USAGE, "--home, --only-home and --shard-options are for a --cluster");
	if (options.only_home && options.home == NULL)
		die(USAGE, "--only-home wants a --home");
	if (options.dsn == NULL)
		options.dsn = "";
	if (options.wait_dsn == NULL)
		options.wait_dsn = options.dsn;
	if (options.worker == NULL)
	{
		char host[256] = "";
		char *worker = memory(NULL, 320);

		gethostname(host, sizeof(host) - 1);
		snprintf(worker, 320, "idemq-work %s %d", host, (int) getpid());
		options.worker = worker;
	}
}
