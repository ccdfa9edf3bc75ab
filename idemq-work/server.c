/*
 * server.c: a connection that comes back.
 *
 * Whatever ends it - a crash, a restart, a failover, a pooler, an idle timeout - is one line on
 * stderr, and its return another.  In between it is tried again, after 0.1 s, twice as long each
 * time, 10 s at most.  A server that has become a standby (25006) is left like one that is gone;
 * with several hosts in the DSN target_session_attrs finds the new primary.
 *
 * A host that does not answer at all holds up the caller for CONNECT_SECONDS, and a statement for
 * server_limit: programs run on meanwhile, but their heartbeats wait.  So the limit is a third of the
 * shortest lease that is to be kept: a heartbeat is sent when a third of a lease is over, its connection is
 * given up after another third, and the last third is left for a new one.  More than ANSWER_MS would help
 * no lease, and keep those who claim waiting.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"
#include "signals.h"

#define CONNECT_SECONDS "3"
#define ANSWER_MS 10000
/* At least: less could be a busy server, which would be given up and asked again for ever. */
#define SHORTEST_LIMIT_MS 2000
/* The same when the process is to end. */
#define LEAST_ANSWER_MS 1000
#define FIRST_BACKOFF 100
#define LAST_BACKOFF 10000
/* How often a lost connection is reported. */
#define SAY_AGAIN 60000
/* A shard that moves is fenced for about so long. */
#define FENCED_PAUSE 500

static bool wait_alone(int fd, int ms);

bool server_of_cluster;
int server_losses;
const char *server_process = "";
static int64_t server_limit = ANSWER_MS;
bool (*server_wait)(int fd, int ms) = wait_alone;

/* A WARNING of the server, as one line. */
static void
notice(void *arg, const char *message)
{
	struct server *server = arg;

	say("%s: %s", server->name, message);
}

static void
try_again_later(struct server *server)
{
	int64_t backoff = server->backoff;

	/* Not all runners at the same instant. */
	server->retry_at = now_ms() + backoff / 2 + rand() % (backoff / 2 + 1);
	server->backoff = sooner(backoff * 2, LAST_BACKOFF);
}

/* Says why, once a minute until there is a connection again. */
static void
close_lost(struct server *server, const char *why)
{
	bool first = server->lost_at == 0;

	if (first)
	{
		server->lost_at = now_ms();
		server->backoff = FIRST_BACKOFF;
	}
	if (first || now_ms() - server->said_at >= SAY_AGAIN)
	{
		server->said_at = now_ms();
		say("%s: %s%s", server->name, why, first ? "" : " (still)");
	}
	PQfinish(server->conn);
	server->conn = NULL;
	server_losses++;
	try_again_later(server);
}

void
server_lost(struct server *server, const char *why)
{
	char *text = copy_text(why);

	/* The message is the connection's. */
	close_lost(server, *text != '\0' ? text : "the connection was lost");
	free(text);
}

/*
 * The text of a database in SQL_ASCII may be anything, and the server refuses to send what is no UTF-8: a claim
 * of such a payload, and of its neighbours, would fail for ever.  So it is sent, and taken, as it is: a program
 * gets the bytes.  False: the connection is lost.
 */
static bool
take_bytes(struct server *server)
{
	const char *encoding = PQparameterStatus(server->conn, "server_encoding");
	PGresult *result;

	if (encoding == NULL || strcmp(encoding, "SQL_ASCII") != 0)
		return true;
	result = server_ask(server,
						"SELECT pg_catalog.set_config('client_encoding', 'SQL_ASCII', false)", 0,
						NULL);
	PQclear(result);
	return result != NULL;
}

/*
 * Finds out how long a statement may take, and says whose session it is.  A session of one's own may be idle from now on while
 * its job is elsewhere; a pooler's, which tells a number that is not the process's, is others'.
 */
static bool
greet(struct server *server)
{
	char pid[16];
	const char *values[] = {pid, server_process};
	PGresult *result;

	snprintf(pid, sizeof(pid), "%d", PQbackendPID(server->conn));
	result = server_ask(server,
						"SELECT setting, CASE WHEN pg_catalog.pg_backend_pid() = $1::int"
						" THEN pg_catalog.set_config('array_nulls', 'on', false)"
						" || pg_catalog.set_config('idle_session_timeout', '0', false) END"
						" IS NOT NULL,"
						" CASE WHEN pg_catalog.pg_backend_pid() = $1::int"
						" AND pg_catalog.current_setting('idemq.process', true) IS NOT NULL"
						" THEN pg_catalog.set_config('idemq.process', $2, false) END"
						" FROM pg_catalog.pg_settings WHERE name = 'statement_timeout'",
						2, values);
	if (result == NULL)
		return false;
	server->own = PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 1), "t") == 0;
	server->hears = PQntuples(result) == 1 && PQgetvalue(result, 0, 2)[0] != '\0';
	server->kept = 0;
	server->patience = PQntuples(result) == 1 ? strtoll(PQgetvalue(result, 0, 0), NULL, 10) : 0;
	PQclear(result);
	return take_bytes(server);
}

bool
server_ready(struct server *server)
{
	const char *keywords[12];
	const char *values[12];
	int n = 0;

	if (server->conn != NULL)
		return true;
	if (now_ms() < server->retry_at)
		return false;
	/* Too late for a new connection.  One that hangs is ended by the alarm (signals.c). */
	if (signals_deadline() - now_ms() < LEAST_ANSWER_MS)
		return false;
#define GIVE(keyword, value) (keywords[n] = (keyword), values[n++] = (value))
	/* What the DSN says comes later, and holds. */
	GIVE("fallback_application_name", "idemq-work");
	if (getenv("PGCONNECT_TIMEOUT") == NULL)
		GIVE("connect_timeout", CONNECT_SECONDS);
	/* A cut cable is noticed in 25 s, not in two hours. */
	GIVE("keepalives_idle", "10");
	GIVE("keepalives_interval", "5");
	GIVE("keepalives_count", "3");
	if (getenv("PGTARGETSESSIONATTRS") == NULL)
		GIVE("target_session_attrs", "read-write");
	GIVE("dbname", server->dsn);
	/* What text_clean makes. */
	GIVE("client_encoding", "UTF8");
	GIVE(NULL, NULL);
#undef GIVE
	server->conn = PQconnectdbParams(keywords, values, 1);
	if (server->conn == NULL)
		die(1, "out of memory");
	if (PQstatus(server->conn) != CONNECTION_OK)
	{
		server_lost(server, PQerrorMessage(server->conn));
		return false;
	}
	PQsetNoticeProcessor(server->conn, notice, server);
	if (!greet(server))
		return false;
	if (server->lost_at != 0)
		say("%s: reconnected after %.1f s", server->name,
			(double) (now_ms() - server->lost_at) / 1000);
	server->lost_at = 0;
	server->connections++;
	return true;
}

bool
server_state(const PGresult *result, const char *begin)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state != NULL && strncmp(state, begin, strlen(begin)) == 0;
}

/* Each new connection to a shard that moves would be told the same. */
static bool
fenced(struct server *server, const PGresult *result)
{
	if (!server_of_cluster || !server_state(result, "55000"))
		return false;
	server_lost(server, PQresultErrorMessage(result));
	server->retry_at = now_ms() + FENCED_PAUSE;
	return true;
}

void
server_move(struct server *server, const char *dsn)
{
	/* What it waits for need not be cancelled: the session ends with the connection. */
	PQfinish(server->conn);
	server->conn = NULL;
	server->dsn = dsn;
	server->retry_at = 0;
	server->backoff = FIRST_BACKOFF;
}

bool
server_gone(struct server *server, const PGresult *result)
{
	return PQstatus(server->conn) != CONNECTION_OK || server_state(result, "25006") ||
		   server_state(result, "57P") || server_state(result, "08");
}

static bool
wait_alone(int fd, int ms)
{
	struct pollfd it = {.fd = fd, .events = POLLIN};

	if (poll(&it, 1, ms) < 0 && errno != EINTR)
		die(1, "poll: %m");
	return it.revents != 0;
}

void
server_keeps(int64_t lease_ms)
{
	server_limit = later(sooner(lease_ms / 3, ANSWER_MS), SHORTEST_LIMIT_MS);
}

/*
 * Waits until the connection has an answer; false when it is lost, or takes too long.  When the process is to
 * end, a third of the time that is left is for one answer: then there is enough to ask on another connection.
 */
static bool
answered(struct server *server)
{
	int64_t end = now_ms() + server_limit;
	bool ending = false;

	while (PQisBusy(server->conn))
	{
		int64_t left;

		if (!ending && signals_told() > 0)
		{
			ending = true;
			end =
				sooner(end, now_ms() + later((signals_deadline() - now_ms()) / 3, LEAST_ANSWER_MS));
		}
		left = sooner(end, signals_deadline()) - now_ms();

		if (left <= 0)
		{
			server_lost(server, "the server is not responding");
			return false;
		}
		if (server_wait(PQsocket(server->conn), (int) left) && !PQconsumeInput(server->conn))
		{
			server_lost(server, PQerrorMessage(server->conn));
			return false;
		}
	}
	return true;
}

/* The answer to what was sent; sent: whether it could be. */
static PGresult *
answer_to(struct server *server, int sent)
{
	PGresult *last = NULL;

	if (!sent)
	{
		server_lost(server, PQerrorMessage(server->conn));
		return NULL;
	}
	for (;;)
	{
		PGresult *result;

		if (!answered(server))
		{
			PQclear(last);
			return NULL;
		}
		result = PQgetResult(server->conn);
		if (result == NULL)
			break;
		PQclear(last);
		last = result;
	}
	if (last != NULL && fenced(server, last))
	{
		PQclear(last);
		return NULL;
	}
	if (last == NULL || server_gone(server, last))
	{
		server_lost(server, last != NULL ? PQresultErrorMessage(last) : "");
		PQclear(last);
		return NULL;
	}
	return last;
}

PGresult *
server_ask(struct server *server, const char *sql, int count, const char *const *values)
{
	return answer_to(server,
					 PQsendQueryParams(server->conn, sql, count, NULL, values, NULL, NULL, 0));
}

PGresult *
server_try(struct server *server, const char *sql, int count, const char *const *values)
{
	PGresult *begun = server_ask(server, "BEGIN", 0, NULL);
	PGresult *result = begun != NULL ? server_ask(server, sql, count, values) : NULL;
	PGresult *ended = result != NULL ? server_ask(server, "ROLLBACK", 0, NULL) : NULL;

	PQclear(begun);
	PQclear(ended);
	return result;
}

PGresult *
server_ask_often(struct server *server, enum often which, const char *sql, int count,
				 const char *const *values)
{
	char name[32];
	PGresult *result;

	snprintf(name, sizeof(name), "idemq_work_%d", (int) which);
	if (server->own && (server->kept & (1u << which)) == 0)
	{
		result = answer_to(server, PQsendPrepare(server->conn, name, sql, 0, NULL));
		if (result == NULL)
			return NULL;
		if (PQresultStatus(result) == PGRES_COMMAND_OK)
			server->kept |= 1u << which;
		PQclear(result);
	}
	if (!server->own || (server->kept & (1u << which)) == 0)
		return server_ask(server, sql, count, values);
	result =
		answer_to(server, PQsendQueryPrepared(server->conn, name, count, values, NULL, NULL, 0));
	/* It is not there any more, or what it calls has changed. */
	if (result != NULL && (server_state(result, "26000") || server_state(result, "0A000")))
	{
		server->own = false;
		PQclear(result);
		return server_ask(server, sql, count, values);
	}
	return result;
}

void
server_close(struct server *server)
{
	PQfinish(server->conn);
	server->conn = NULL;
}
