/*
 * server.h: a connection that comes back.
 */
#ifndef IDEMQ_WORK_SERVER_H
#define IDEMQ_WORK_SERVER_H

#include <libpq-fe.h>

#include "say.h"

struct server
{
	const char *name; /* in lines on stderr */
	const char *dsn;
	PGconn *conn;	  /* NULL: none */
	int64_t retry_at; /* not to be tried before */
	int64_t backoff;
	int64_t lost_at;  /* 0: connected, or not yet tried */
	int64_t said_at;  /* when that was last said */
	int connections;  /* so far */
	bool own;		  /* a session that is ours, not a pooler's: it can keep statements */
	bool hears;		  /* its waits end when an attempt of this runner is cancelled or taken back */
	unsigned kept;	  /* those that it has, by bit */
	int64_t patience; /* milliseconds that a statement may take there (statement_timeout); 0: any */
};

/*
 * Whether the server is a cluster's shard: then 55000 says that its jobs are elsewhere, or will soon
 * be, and the connection is lost like one that has ended.  How often any was.
 */
extern bool server_of_cluster;
extern int server_losses;

/* What identifies this runner in all its sessions. */
extern const char *server_process;

/*
 * Waits until a descriptor is readable, or so many ms: whether it is.  Who has something else to
 * serve meanwhile sets it, and asks no server there.
 */
extern bool (*server_wait)(int fd, int ms);

/* The shortest lease that is to be kept, in ms; NEVER: there is none.  Answers are waited for accordingly. */
extern void server_keeps(int64_t lease_ms);

/* Whether there is a connection; tries to make one where it is time to. */
extern bool server_ready(struct server *server);

/*
 * Runs a statement and waits for its answer, for some seconds at most.  NULL: the connection is
 * lost, and whether the statement has been done is not known.  Other errors are in the result,
 * which the caller clears.
 */
extern PGresult *server_ask(struct server *server, const char *sql, int count,
							const char *const *values);

/* The same, in a transaction that is rolled back. */
extern PGresult *server_try(struct server *server, const char *sql, int count,
							const char *const *values);

/* The same, of one of the statements that are asked often: the session is to keep it, by number. */
enum often
{
	OFTEN_CLAIM,
	OFTEN_COMMIT,
	OFTEN_COMMIT_AND_CLAIM,
	OFTEN_LINES,
	OFTEN_ONE
};

extern PGresult *server_ask_often(struct server *server, enum often which, const char *sql,
								  int count, const char *const *values);

/* Closes a connection that is of no use, says why, and has it tried again. */
extern void server_lost(struct server *server, const char *why);

/* Has it connect to another address, at once. */
extern void server_move(struct server *server, const char *dsn);

/* Whether an error means that another connection is wanted, not another statement. */
extern bool server_gone(struct server *server, const PGresult *result);

/* Whether the SQLSTATE of a result begins so. */
extern bool server_state(const PGresult *result, const char *begin);

/* Closes it.  What it waits for is not cancelled: its session ends when that is over. */
extern void server_close(struct server *server);

#endif
