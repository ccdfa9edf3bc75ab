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
	.holds = true,
};

static const char *const help =
	"idemq-work runs the jobs of an idemq queue, and reports to the server how each job ended.\n"
	"\n"
	"  idemq-work -d DSN -q QUEUE... [OPTION]... -- PROGRAM [ARGUMENT]...\n"
	"  idemq-work -d DSN -q QUEUE... [OPTION]... --http=URL\n"
	"  idemq-work -d DSN -q QUEUE... [OPTION]... --lines -- PROGRAM [ARGUMENT]...\n"
	"\n"
	"  -d, --dsn=DSN         connection string (default: PGHOST, PGSERVICE and so on)\n"
	"      --cluster=DSN     router of a cluster, instead of -d; serves all its shards\n"
	"      --home=N,N...     shards to serve first; with --only-home, serve no others\n"
	"      --shard-options=DSN  options to add to each address in the map, such as port=5432\n"
	"  -q, --queue=QUEUE     queue to claim from; repeat it for more, in order of preference\n"
	"  -j, --jobs=N          maximum number of jobs to run at once (default: 1)\n"
	"      --http=URL        send each job to this URL as a POST request\n"
	"      --unix-socket=PATH  connect to this socket instead of the URL's host\n"
	"      --sign-key-file=FILE  sign requests with these keys (whsec_..., Standard Webhooks)\n"
	"      --hold=WHAT       what to hold back after 429 with Retry-After: group, queue or none\n"
	"                        (default: the job's group, or its queue if it has no group)\n"
	"      --lines           keep the program running, and pass it one job after another\n"
	"      --result          store stdout, or the body of the response, as the job's result (JSON)\n"
	"      --timeout=TIME    stop a job that takes longer; it fails\n"
	"                        (default: the queue's job_timeout, or 1h)\n"
	"      --later=TIME      delay after exit status 75, or \"later\": true (default: 1min)\n"
	"      --grace=TIME      time that running jobs have after SIGTERM (default: 30s)\n"
	"      --kill-after=TIME time from a program's SIGTERM to SIGKILL (default: 5s)\n"
	"      --lease=TIME      length of leases (default: the queue's)\n"
	"      --attach          end leases with the connection; do not use it behind a pooler\n"
	"      --wait-dsn=DSN    direct connection to the same database, for waiting\n"
	"      --max-output=N    maximum bytes of a result or response (default: 1048576)\n"
	"      --worker=NAME     name to show in idemq.running_jobs\n"
	"      --once            run the ready jobs, then exit\n"
	"  -v, --verbose         print a line for each job\n"
	"  -h, --help\n"
	"  -V, --version\n"
	"\n"
	"A program per job: stdin is the payload; the environment has IDEMQ_QUEUE, IDEMQ_ID, IDEMQ_KEY,\n"
	"IDEMQ_KIND, IDEMQ_TOKEN, IDEMQ_ATTEMPT and IDEMQ_DEADLINE.  Exit status 0 commits the job,\n"
	"75 releases it for later, 65 makes it dead, and any other status fails it, with the end of stderr\n"
	"as the error message.\n"
	"\n"
	"HTTP: the body is the payload; headers are Idemq-Queue, -Id, -Token, -Attempt, -Key and others, and\n"
	"an Idempotency-Key.  2xx commits the job, 422 makes it dead, 429 with Retry-After holds back the\n"
	"job's group or queue, 503 with Retry-After postpones all jobs, and any other response fails it.\n"
	"\n"
	"Lines: the program reads {\"id\": \"7\", \"token\": ..., \"queue\", \"key\", \"kind\", \"attempt\", \"payload\",\n"
	"...} and writes one line, {\"id\": \"7\", \"result\": ...}, or with \"error\" (and \"retry_in\" or \"dead\"), or\n"
	"with \"later\".  Lines that do not begin with { are log lines.  The program must flush stdout.\n"
	"\n"
	"TIME is 500ms, 10s, 5min or 2h; the default unit is seconds.  On SIGTERM, idemq-work finishes the\n"
	"running jobs, then exits.  See also man idemq-work.\n";

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
	OPT_HOLD,
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
	{"hold", required_argument, NULL, OPT_HOLD},
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
	die(USAGE, "--%s requires a time of at least %d ms, such as 500ms, 10s, 5min or 2h, not \"%s\"",
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
		die(USAGE, "--%s requires a number from %ld to %ld, not \"%s\"", name, least, most, text);
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
		die(USAGE, "--home requires shard numbers, such as 0,1,2");
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
	die(USAGE, "cannot run \"%s\": not found in PATH", program);
}

/* What a 429 holds back. */
static void
read_hold(const char *value)
{
	if (strcmp(value, "none") != 0 && strcmp(value, "group") != 0 && strcmp(value, "queue") != 0)
		die(USAGE, "--hold requires group, queue or none, not \"%s\"", value);
	options.holds = strcmp(value, "none") != 0;
	options.hold = options.holds ? value : NULL;
	options.hold_given = true;
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
		case OPT_HOLD:
			read_hold(value);
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
			die(USAGE, "try idemq-work --help");
	}
}

/* What carries out the jobs: a program, or an endpoint. */
static void
check_what(bool program)
{
	if (options.http == NULL &&
		(options.unix_socket != NULL || options.sign_key_file != NULL || options.hold_given))
		die(USAGE, "--unix-socket, --sign-key-file and --hold require --http");
	if (options.http == NULL)
	{
		if (!program)
			die(USAGE, "no program specified: pass -- PROGRAM (try idemq-work --help)");
		must_be_there(options.program[0]);
		return;
	}
	if (program || options.lines)
		die(USAGE, "--http cannot be used with --lines or a program");
#ifdef HAVE_CURL
	if (strncmp(options.http, "http://", 7) != 0 && strncmp(options.http, "https://", 8) != 0)
		die(USAGE, "--http requires a URL, such as http://127.0.0.1:3000/jobs, not \"%s\"",
			options.http);
#else
	die(USAGE, "this idemq-work was built without libcurl, so --http is not available");
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
		die(USAGE, "no queue specified: pass -q QUEUE (try idemq-work --help)");
	options.program = argv + optind;
	options.queues = text_array(queues, count);
	options.queue = count == 1 ? queues[0] : NULL;
	free(queues);
	check_what(optind < argc);
	if (options.cluster != NULL && (options.dsn != NULL || options.wait_dsn != NULL))
		die(USAGE, "--cluster cannot be used with --dsn or --wait-dsn");
	if (options.cluster == NULL &&
		(options.home != NULL || options.only_home || options.shard_options != NULL))
		die(USAGE, "--home, --only-home and --shard-options require --cluster");
	if (options.only_home && options.home == NULL)
		die(USAGE, "--only-home requires --home");
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
