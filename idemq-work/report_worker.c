/*
 * report_worker.c: reports the runner to the server every 30 s, for people to see; no promise
 * depends on it.
 *
 * A report that fails is not sent again.  Reports go through the connection of the heartbeats, so
 * the commit of a report waits for no disk and no standby, and the server waits for no lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report_worker.h"
#include "options.h"
#include "text.h"

/* In ms: between two reports, and after a refusal, since the server's SQL may be older. */
#define REPORT_INTERVAL 30000
#define REFUSED_INTERVAL 600000
/* A runner that ends sooner reports nothing. */
#define FIRST_REPORT 1000

static int64_t report_at = NEVER; /* when to report next; NEVER: not begun */
static bool reported;
static char id[37];

/* Whether it will be refused again: there is no such function, or no such right. */
static bool
is_refused(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state != NULL && strncmp(state, "42", 2) == 0;
}

const char *
report_process(void)
{
	unsigned char bytes[16];

	if (id[0] != '\0')
		return id;
	if (getentropy(bytes, sizeof(bytes)) != 0)
		memset(bytes, 0, sizeof(bytes)); /* it is one of its role's that has none */
	bytes[6] = (bytes[6] & 0x0f) | 0x40;
	bytes[8] = (bytes[8] & 0x3f) | 0x80;
	for (int i = 0, at = 0; i < 16; i++)
		at += snprintf(id + at, sizeof(id) - (size_t) at,
					   i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
	return id;
}

/* Reports; waiter: the process of a session whose wait must end, or 0. */
static void
report(struct server *server, const struct job *jobs, bool stopping, int waiter)
{
	const char **ids;
	const char *values[10];
	char host[256] = "";
	char slots[16];
	char done[32];
	char waits[32] = "{}";
	int count = 0;
	PGresult *result;

	ids = memory(NULL, (size_t) options.jobs * sizeof(*ids));
	for (int i = 0; i < options.jobs; i++)
	{
		if (jobs[i].id != NULL)
			ids[count++] = jobs[i].id;
	}
	gethostname(host, sizeof(host) - 1);
	snprintf(slots, sizeof(slots), "%d", options.jobs);
	snprintf(done, sizeof(done), "%lld", (long long) jobs_ended);
	values[0] = report_process();
	values[1] = options.worker;
	values[2] = options.queues;
	values[3] = PROGRAM_VERSION;
	values[4] = host;
	values[5] = slots;
	values[6] = text_array(ids, count);
	values[7] = done;
	values[8] = stopping ? "t" : "f";
	if (waiter != 0)
		snprintf(waits, sizeof(waits), "{%d}", waiter);
	values[9] = waits;
	result = server_ask(
		server,
		"SELECT pg_catalog.set_config('synchronous_commit', 'off', true), "
		"idemq.report_worker($1::uuid, $2, $3::text[], program => 'idemq-work', version => $4, "
		"host => $5, concurrency => $6::int, running => $7::bigint[], "
		"done => $8::bigint, stopping => $9::bool, end_waits => $10::int[])",
		10, values);
	if (result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		reported = true;
		report_at = now_ms() + REPORT_INTERVAL;
	}
	else if (result != NULL)
		report_at = now_ms() + (is_refused(result) ? REFUSED_INTERVAL : REPORT_INTERVAL);
	PQclear(result);
	free((char *) values[6]);
	free(ids);
}

void
report_worker(struct server *server, const struct job *jobs, bool stopping)
{
	if (options.once)
		return;
	if (report_at == NEVER)
		report_at = now_ms() + FIRST_REPORT;
	if (stopping ? !reported : now_ms() < report_at)
		return;
	report_at = now_ms() + FIRST_REPORT;
	if (server->conn != NULL)
		report(server, jobs, stopping, 0);
}

void
report_end_of_wait(struct server *server, const struct job *jobs, int waiter)
{
	bool busy = false;

	for (int i = 0; i < options.jobs; i++)
		busy |= jobs[i].id != NULL;
	report(server, jobs, !busy, waiter);
}

int64_t
next_report(void)
{
	return report_at;
}
