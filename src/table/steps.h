/*
 * table/steps.h
 *		What attempts have done, or may have: the rows of idemq.steps.
 */
#ifndef IDEMQ_TABLE_STEPS_H
#define IDEMQ_TABLE_STEPS_H

#include "datatype/timestamp.h"

#define STEP_MAX_NAME 256 /* bytes */

typedef enum StepState
{
	STEP_NONE, /* no row */
	STEP_OPEN, /* begun, and not answered */
	STEP_DONE,
	STEP_REFUSED, /* the other side did not do it */
	STEP_VOID,	  /* of an earlier payload of the job */
	STEP_WAITING, /* of an event (table/waits.c), as the two below */
	STEP_ARRIVED,
	STEP_TIMED_OUT
} StepState;

/* Returns whether a step is a wait for an event, and was not begun or done. */
static inline bool
step_is_wait(StepState state)
{
	return state >= STEP_WAITING;
}

/* Which step, and the attempt that asks. */
typedef struct StepName
{
	int64 job_id;
	Datum name; /* text */
	int64 token;
} StepName;

/* A row, locked; its values are in the memory context of the caller. */
typedef struct Step
{
	StepState state;
	int32 round; /* refusals, and payloads of the job */
	int64 token; /* of the attempt that began it last */
	bool mine;	 /* the attempt that asks has begun it in this round */
	bool inside; /* done in a transaction here: never begun */
	bool same_request;
	TimestampTz begun_at; /* with call_until: unless inside */
	TimestampTz call_until;
	Datum request; /* jsonb; 0 is none */
	Datum response;
	char *effect_key; /* NULL: inside */
} Step;

/* A call that begins. */
typedef struct StepCall
{
	Datum request;
	TimestampTz begun_at;
	TimestampTz call_until;
} StepCall;

extern void idemq_step_database_uuid(unsigned char *uuid);
extern void idemq_step_lock(const StepName *name, Datum request, Step *step);
extern bool idemq_step_insert_open(const StepName *name, int32 queue_id, const StepCall *call,
								   Step *step);
extern void idemq_step_begin_again(const StepName *name, const StepCall *call, Step *step);
extern void idemq_step_take_over(const StepName *name, const StepCall *call);
extern bool idemq_step_insert_done(const StepName *name, int32 queue_id, Datum response);
extern void idemq_step_do_inside(const StepName *name, Datum response);
extern void idemq_step_answer(const StepName *name, Datum response);
extern void idemq_step_refuse(const StepName *name, Datum error);

#endif
