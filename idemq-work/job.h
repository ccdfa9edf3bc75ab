/*
 * job.h: an attempt: its lease, what carries it out, and what the server is to be told of its end.
 */
#ifndef IDEMQ_WORK_JOB_H
#define IDEMQ_WORK_JOB_H

#include "executor.h"
#include "server.h"

/* Why the runner has ended it. */
enum ending
{
	ITS_OWN, /* it has not */
	TIME_OVER,
	LEASE_LOST, /* the server said so */
	CANCELLED,	/* an open transaction cancels the job: if it is rolled back, the job is released */
	CUT_OFF,	/* the server cannot be asked, and the lease may have ended */
	DRAINED
};

struct job
{
	/* Of the claim; id NULL: this slot is free. */
	char *id;
	char *token;
	char *queue;
	char *attempt;
	char *max_attempts;
	int64_t lease_ms;

	int64_t begun_at;
	int slot;	  /* its number in the table */
	bool running; /* the executor has it */
	enum ending ending;
	bool doubted;		 /* a heartbeat has called it stale: it may have committed itself */
	bool done;			 /* it has */
	int64_t lease_until; /* as far as is known here: never later than the server's */
	int64_t beat_at;
	int64_t timeout; /* ms that it may run: --timeout, or job_timeout */
	bool of_queue;	 /* which */
	int64_t end_at;
	int64_t kill_at;	/* after it was asked to end */
	int64_t kill_after; /* ms from its timeout to that */

	enum verdict verdict;
	bool asked;		   /* the server may have done it: an answer was lost */
	bool alone;		   /* to be settled by a statement of its own */
	bool hold_refused; /* the server does not allow the hold that its verdict asks for */
	char *text;		   /* the result, the error, or the line */
	char *checkpoint;  /* to be stored before that; NULL: none */
	char details[64];
	int64_t delay; /* or BY_POLICY */
	int64_t settle_at;
	int64_t settle_wait;
	int64_t give_up_at;
};

/* The statements that claim, made of the executor's columns. */
extern void job_make_sql(void);

/* Claims jobs; NULL as of server_ask. */
extern PGresult *job_claim(struct server *server, int slots);

/* Begins the attempt of a row of a claim, which was asked for at this time. */
extern void job_begin(struct job *job, const PGresult *result, int row, int64_t asked_at);

/* A heartbeat that was asked for at this time has answered so. */
extern void job_heard(struct job *job, const char *outcome, int64_t asked_at);

/* Asks whether one that is called stale has committed itself; ends it where it has not. */
extern void job_doubt(struct job *job, struct server *server);

/* Begins to end it; it has kill_after to do so. */
extern void job_end(struct job *job, enum ending ending);

/* What is due by time; and when that will be, if the server can be asked from server_at on. */
extern void job_watch(struct job *job);
extern int64_t job_next(const struct job *job, int64_t server_at);

/* Notices that it is over. */
extern void job_collect(struct job *job);

/* Whether its lease is to be kept. */
extern bool job_holds(const struct job *job);

/* Tells the server of a job that is over; frees its slot when that is settled. */
extern void job_settle(struct job *job, struct server *server);

/* Asks the server what the lines of so many jobs say. */
extern void job_read_lines(struct job *jobs, struct server *server);

/* Whether its commit can go with those of others. */
extern bool job_commits(const struct job *job);

/*
 * Commits those of so many jobs that can be committed together, and claims so many others with them.
 * Answers the rows, of which those are claimed that say so; NULL: nothing was claimed.
 */
extern PGresult *job_commit_all(struct job *jobs, struct server *server, int slots);

/* Leaves a job to its lease; says so. */
extern void job_give_up(struct job *job);

/* Frees its slot; how often that was. */
extern void job_free(struct job *job);
extern int64_t jobs_ended;

#endif
