/*
 * table/waits.h
 *		Waits of jobs for events: rows of idemq.steps.
 */
#ifndef IDEMQ_TABLE_WAITS_H
#define IDEMQ_TABLE_WAITS_H

#include "table/events.h"
#include "table/steps.h"

/* A job that waits. */
typedef struct Waiter
{
	int64 job_id;
	int64 token; /* of the attempt that began to wait, or waited on, last */
} Waiter;

/* What a job waits for. */
typedef struct WaitView
{
	char *name;
	TimestampTz begun_at;
} WaitView;

extern void idemq_wait_write(const StepName *name, int32 queue_id, const Step *wait);
extern Waiter *idemq_waits_for(const EventName *event, int *count);
extern void idemq_waits_arrived(const EventName *event, const int64 *job_ids, int count,
								Datum payload);
extern bool idemq_wait_of(int64 job_id, int64 token, WaitView *view);

#endif
