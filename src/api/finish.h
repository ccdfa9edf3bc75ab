/*
 * api/finish.h
 *		Ending attempts: what commit, fail and release share.
 */
#ifndef IDEMQ_API_FINISH_H
#define IDEMQ_API_FINISH_H

#include "fmgr.h"

#include "job/transition.h"

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
	bool has_delay;
	int64 delay;	/* fail, release: microseconds until the job is ready again */
	EventArgs args; /* result; error, details */
} Finish;

extern Datum idemq_finish_one(FunctionCallInfo fcinfo, Finish *finish, bool raise);
extern Datum idemq_finish_many(FunctionCallInfo fcinfo, Finish *finish);

#endif
