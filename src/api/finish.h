/*
 * api/finish.h
 *		Ending attempts: what commit, fail and release share.
 */
#ifndef IDEMQ_API_FINISH_H
#define IDEMQ_API_FINISH_H

#include "fmgr.h"

#include "job/attempt.h"
#include "job/transition.h"
#include "table/jobs_write.h"

typedef enum FinishKind
{
	FINISH_COMMIT,
	FINISH_FAIL,
	FINISH_RELEASE
} FinishKind;

/* How attempts are to end. */
typedef struct Finish
{
	FinishKind kind;
	bool permanent; /* fail: no further attempt */
	bool uncounted; /* a token that is not current is no refusal of a worker's call */
	bool has_delay;
	JobWait wait; /* for who holds the row, or drops its dead queue; JOB_WAITS unless it is set */
	int64 delay;  /* fail, release: microseconds until the job is ready again */
	EventArgs
		args; /* result; error, details; of a release: error, why its worker was interrupted */
} Finish;

/* Takes one answer of a batch; ord: the element's position in the arguments, from 0. */
typedef void (*FinishAnswer)(const Attempt *attempt, int32 ord, Outcome outcome, void *arg);

extern Outcome idemq_finish_by_token(int64 id, int64 token, Finish *finish, bool raise,
									 Attempt *attempt);
extern Outcome idemq_finish_attempt(FunctionCallInfo fcinfo, Finish *finish, bool raise,
									Attempt *attempt);
extern void idemq_finish_batch(FunctionCallInfo fcinfo, Finish *finish, FinishAnswer answer,
							   void *arg);
extern Datum idemq_finish_one(FunctionCallInfo fcinfo, Finish *finish, bool raise);
extern Datum idemq_finish_many(FunctionCallInfo fcinfo, Finish *finish);

#endif
