/*
 * map.c: the process that reads a cluster's map.
 *
 * A process of its own, since a router that does not answer holds up whoever connects to it, and
 * nobody else is to wait for that.  While it is down the map that was read last holds.  It is read when the
 * router says that it has changed, when a runner asks, and once a minute: a connection that is silent says
 * nothing.
 *
 * A shard is reached as the router is - user, password, TLS - except its address: what the map
 * says overrides what --cluster says, of which host, hostaddr, port and dbname are left out;
 * --shard-options overrides both.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "map.h"
#include "options.h"
#include "server.h"

/* ms after which the map is read again, whatever the router says. */
#define MAP_MAX_AGE 60000

static bool
is_address(const char *keyword)
{
	static const char *const words[] = {"host", "hostaddr", "port", "dbname"};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
	{
		if (strcmp(keyword, words[i]) == 0)
			return true;
	}
	return false;
}

/* Appends keyword='value', in which a new line is a space: an address is a line. */
static char *
append(char *text, const char *keyword, const char *value)
{
	size_t size = text == NULL ? 0 : strlen(text);
	char *to;

	text = memory(text, size + strlen(keyword) + 2 * strlen(value) + 5);
	to = text + size;
	to += sprintf(to, "%s='", keyword);
	for (; *value != '\0'; value++)
	{
		if (*value == '\'' || *value == '\\')
			*to++ = '\\';
		*to++ = *value == '\n' ? ' ' : *value;
	}
	strcpy(to, "' ");
	return text;
}

static char *
append_all(char *text, const PQconninfoOption *o, bool addresses)
{
	for (; o != NULL && o->keyword != NULL; o++)
	{
		if (o->val != NULL && (addresses || !is_address(o->keyword)))
			text = append(text, o->keyword, o->val);
	}
	return text;
}

/* A new connection string; NULL, and a line, where the map's is none. */
static char *
address(const char *dsn)
{
	char *error = NULL;
	PQconninfoOption *of_router = PQconninfoParse(options.cluster, NULL);
	PQconninfoOption *of_shard = PQconninfoParse(dsn, &error);
	PQconninfoOption *given =
		options.shard_options == NULL ? NULL : PQconninfoParse(options.shard_options, NULL);
	char *text = NULL;

	if (of_shard == NULL)
		say("the map: %s", error != NULL ? error : "out of memory");
	else
	{
		/* Of two that name the same the last one holds. */
		text = append_all(text, of_router, false);
		text = append_all(text, of_shard, true);
		text = append_all(text, given, true);
	}
	PQconninfoFree(given);
	PQconninfoFree(of_router);
	PQconninfoFree(of_shard);
	PQfreemem(error);
	return text;
}

/* Writes all of it; the reader is there, or the process ends by SIGPIPE. */
static void
map_tell(int fd, const char *shard, const char *where)
{
	size_t size = strlen(shard) + strlen(where) + 3;
	char *line = memory(NULL, size);
	size_t sent = 0;

	size = (size_t) snprintf(line, size, "%s %s\n", shard, where);
	while (sent < size)
	{
		ssize_t n = write(fd, line + sent, size - sent);

		if (n < 0)
			_exit(1);
		sent += (size_t) n;
	}
	free(line);
}

static void
must_be_dsn(const char *option, const char *dsn)
{
	char *error = NULL;
	PQconninfoOption *parsed = dsn == NULL ? NULL : PQconninfoParse(dsn, &error);

	if (dsn != NULL && parsed == NULL)
		die(2, "--%s: %s", option, error != NULL ? error : "out of memory");
	PQconninfoFree(parsed);
}

void
map_check_options(void)
{
	must_be_dsn("cluster", options.cluster);
	must_be_dsn("shard-options", options.shard_options);
}

static bool
ask_once(struct server *router, int fd)
{
	static int seen = 0;
	PGresult *result;

	if (!server_ready(router))
		return false;
	if (router->connections != seen)
	{
		result = server_ask(router, "LISTEN cluster_map", 0, NULL);
		if (result == NULL)
			return false;
		PQclear(result);
		seen = router->connections;
	}
	result = server_ask(router, "SELECT shard, dsn FROM cluster.map() ORDER BY shard", 0, NULL);
	if (result == NULL)
		return false;
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		say("the map: %s", PQresultErrorMessage(result));
		PQclear(result);
		router->retry_at = now_ms() + 5000;
		return false;
	}
	for (int row = 0; row < PQntuples(result); row++)
	{
		char *where = address(PQgetvalue(result, row, 1));

		if (where != NULL)
			map_tell(fd, PQgetvalue(result, row, 0), where);
		free(where);
	}
	PQclear(result);
	return true;
}

void
map_read(int fd)
{
	struct server router = {.name = "router", .dsn = options.cluster};
	bool known = false;

	signal(SIGPIPE, SIG_DFL);
	for (;;)
	{
		bool done = now_ms() >= router.retry_at && ask_once(&router, fd);
		struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
		char drop[64];
		PGnotify *notify;

		known |= done;
		if (!known && options.once)
			_exit(1);
		if (done)
			fds[1].fd = PQsocket(router.conn);
		/* What has come with the answer is a reason, too. */
		if (done && (notify = PQnotifies(router.conn)) != NULL)
		{
			for (; notify != NULL; notify = PQnotifies(router.conn))
				PQfreemem(notify);
			continue;
		}
		if (poll(fds, 2, done ? MAP_MAX_AGE : (int) later(router.retry_at - now_ms(), 10)) <= 0)
			continue;
		if (fds[0].revents != 0 && read(fd, drop, sizeof(drop)) <= 0)
			_exit(0);
		if (fds[1].revents == 0)
			continue;
		if (!PQconsumeInput(router.conn))
			server_lost(&router, PQerrorMessage(router.conn));
		while (router.conn != NULL && (notify = PQnotifies(router.conn)) != NULL)
			PQfreemem(notify);
	}
}
