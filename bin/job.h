/*
 * job.h: an attempt: its lease, its program, and what the server is to be told of its end.
 */
#ifndef IDEMQ_WORK_JOB_H
#define IDEMQ_WORK_JOB_H

#include "program.h"
#include "server.h"

/* Why the runner has ended a program. */
enum ending
{
	ITS_OWN, /* it has not */
	TIME_OVER,
	LEASE_LOST, /* the server said so */
	CUT_OFF,	/* the server cannot be asked, and the lease may have ended */
	DRAINED
};

enum verdict
{
	UNDECIDED,
	COMMIT,
	FAIL,
	DEAD,
	RELEASE,
	NOTHING
};

struct job
{
	/* Of the claim; id NULL: this place is free. */
	char *id;
	char *token;
	char *queue;
	char *attempt;
	char *max_attempts;
	int64_t lease_ms;

	struct program program;
	int fds; /* how many of its pipes are polled */
	enum ending ending;
	int64_t lease_until; /* as far as is known here: never later than the server's */
	int64_t beat_at;
	int64_t timeout; /* ms that the program may run: --timeout, or job_timeout */
	bool of_queue;	 /* which */
	int64_t end_at;
	int64_t kill_at; /* after SIGTERM */

	enum verdict verdict;
	bool asked; /* the server may have done it: an answer was lost */
	char *text; /* the result, or the error */
	char details[64];
	int64_t delay; /* of a release */
	int64_t settle_at;
	int64_t settle_wait;
	int64_t give_up_at;
};

/* Begins the attempt of a row of claim_sql, which was asked for at this time. */
extern const char *const job_claim_sql;
extern void job_begin(struct job *job, const PGresult *result, int row, int64_t asked_at);

/* A heartbeat that was asked for at this time has answered so. */
extern void job_heard(struct job *job, const char *outcome, int64_t asked_at);

/* Begins to end the program; it has kill_after to do so. */
extern void job_end(struct job *job, enum ending ending);

/* What is due by time; and when that will be, if the server can be asked from server_at on. */
extern void job_watch(struct job *job);
extern int64_t job_next(const struct job *job, int64_t server_at);

/* Notices that the program has ended. */
extern void job_collect(struct job *job);

/* Tells the server of a job whose program has ended; frees its place when that is settled. */
extern void job_settle(struct job *job, struct server *server);

/* Leaves a job to its lease; says so. */
extern void job_give_up(struct job *job);

/* Whether its lease is to be kept. */
extern bool job_holds(const struct job *job);

#endif
