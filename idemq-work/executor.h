/*
 * executor.h: what carries out an attempt: a process of its own, a request, a line to a program.
 *
 * job.c knows leases, verdicts and the server; an executor knows none of them.  It begins what a
 * claimed row says, tells when that is over and what was answered, and ends it when it is told to.
 * A slot is one of --jobs, from 0: what it carries out is the executor's own.
 */
#ifndef IDEMQ_WORK_EXECUTOR_H
#define IDEMQ_WORK_EXECUTOR_H

#include <libpq-fe.h>
#include <poll.h>
#include <string.h>

#include "say.h"

enum verdict
{
	UNDECIDED,
	COMMIT,
	FAIL,
	DEAD,
	RELEASE,
	BUSY, /* as RELEASE, but it counts when that has been said too often */
	HOLD, /* like BUSY, and no other job of its group or queue starts until the delay has passed */
	LINE, /* what it has answered is a line of JSON: the server is asked what it says */
	NOTHING
};

/* Of a delay: what the queue says. */
#define BY_POLICY (-1)

/* How an attempt has ended by itself; texts are its own, and any bytes. */
struct answer
{
	enum verdict verdict;
	char *result; /* of COMMIT, NULL: there is none; the line of LINE */
	size_t result_size;
	bool result_cut;  /* there was more than --max-output */
	char what[320];	  /* of FAIL and DEAD: what happened; and what was said of it */
	char *said;		  /* also of one that was ended by us */
	size_t said_size; /* it has room for a NUL */
	char details[64]; /* for programs to read: JSON */
	int64_t delay;	  /* in ms, of FAIL, RELEASE, BUSY and HOLD; or BY_POLICY */
};

/* Columns of a claimed row: c is the job, q its queue. */
enum column
{
	COL_QUEUE,
	COL_ID,
	COL_TOKEN,
	COL_ATTEMPT,
	COL_MAX_ATTEMPTS,
	COL_KEY,
	COL_KIND,
	COL_LEASE_MS,
	COL_TIMEOUT_MS,
	COL_OUTCOME,
	COL_TASK, /* and those of the executor: its columns */
	COL_MORE
};

/*
 * Columns with the trace context of a job, for programs and endpoints that continue the trace: the
 * job's headers of these names, unless they would not do as headers of HTTP.  This program emits no
 * spans of its own.
 */
#define TRACE_COLUMNS                                                                                 \
	"substring(c.headers->>'traceparent' FROM '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$')" \
	", substring(c.headers->>'tracestate' FROM '^[ -~]+$')"                                           \
	", substring(c.headers->>'baggage' FROM '^[ -~]+$')"
#define TRACESTATE_MOST 512
#define BAGGAGE_MOST 4096

struct task
{
	const PGresult *rows;
	int row;
	const char *deadline; /* when it will be ended, in seconds since 1970 */
	int64_t timeout;	  /* and how long that is, in ms */
};

/* The value of a task's column; NULL for NULL. */
extern const char *task_value(const struct task *task, int column);

/* A value that is left out if it is too long. */
static inline const char *
task_short_value(const struct task *task, int column, size_t most)
{
	const char *value = task_value(task, column);

	return value == NULL || strlen(value) > most ? NULL : value;
}

struct executor
{
	const char *noun;	 /* of what it begins, in lines */
	const char *answer;	 /* where results come from, in lines */
	const char *columns; /* SQL: what it asks of c and q, from COL_TASK on */

	/* Before the first attempt; the number of descriptors that it polls at most. */
	int (*open)(void);

	/* Whether a slot can take a job now, besides the given number that are about to have one. */
	bool (*ready)(int slot, int others);

	/* Begins; false, with errno, when nothing has begun. */
	bool (*start)(int slot, const struct task *task);

	/* Whether it is over, and the answer then; that of one which was ended has what it said. */
	bool (*over)(int slot, struct answer *answer);

	/* Ends it: asks for its end, and the second time has it. */
	void (*cancel)(int slot, bool again);

	/* Its line was not an answer to what it was given.  NULL: there are no lines. */
	void (*distrust)(int slot);

	/*
	 * What is to be polled; what is to be done about it, whether or not something happened.  Also
	 * while the server is waited for, so that neither may ask it.
	 */
	int (*poll)(struct pollfd *fds);
	void (*serve)(const struct pollfd *fds, int count);

	/* When something is to be done, if nothing happens before: at once, when one is over. */
	int64_t (*next)(void);

	/* There will be no more attempts; and: there is none.  What it keeps is ended. */
	void (*drain)(void);
	void (*close)(void);
};

extern const struct executor program_executor;
extern const struct executor lines_executor;
#ifdef HAVE_CURL
extern const struct executor http_executor;
#endif

/* The one of the command line. */
extern const struct executor *executor;

/* What all attempts need is not there: --once does not wait for it. */
extern bool executor_lost;

#endif
