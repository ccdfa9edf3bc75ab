/*
 * api/claim_call.h
 *		Claiming from queues: what claim, claim_any and commit_and_claim share.
 */
#ifndef IDEMQ_API_CLAIM_CALL_H
#define IDEMQ_API_CLAIM_CALL_H

#include "fmgr.h"
#include "nodes/pg_list.h"
#include "utils/tuplestore.h"

#include "job/ready_scan.h"

/* One call that claims. */
typedef struct ClaimCall
{
	ReadyScan scan; /* of the queue at hand; first, for consider */
	/* what is asked for */
	int32 wanted;
	int64 lease; /* microseconds, 0 for the queue's */
	text *worker;
	bool attach;
	/* where the answer goes */
	Tuplestorestate *store;
	TupleDesc desc;
	bool with_outcome; /* the first column is an outcome; the last may be the queue's name */
	int32 claimed;
	/* of the last scan, where groups have places */
	bool round_ended;	/* it stopped before a priority: see claim_rounds */
	int round_priority; /* of the last job that it took or left */
	int32 parked;		/* jobs that it made blocked, or put off */
	List *groups;		/* names whose next job is to be promoted */
} ClaimCall;

extern void idemq_claim_begin(ClaimCall *call, int wanted);
extern void idemq_claim_args(FunctionCallInfo fcinfo, int n, ClaimCall *call);
extern void idemq_claim_from_queue(ClaimCall *call);

#endif
