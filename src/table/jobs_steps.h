/*
 * table/jobs_steps.h
 *		All steps of a job, or of a queue.
 */
#ifndef IDEMQ_TABLE_JOBS_STEPS_H
#define IDEMQ_TABLE_JOBS_STEPS_H

#include "datatype/timestamp.h"

/* What a job has of steps that are open, for a person. */
typedef struct OpenStep
{
	char *name;
	int64 token;
	TimestampTz begun_at;
	TimestampTz call_until;
} OpenStep;

/* Steps of a queue that are begun, and not answered. */
typedef struct StepCount
{
	int32 queue_id;
	int64 open;	   /* of attempts in processing */
	int64 unknown; /* of others */
} StepCount;

extern int idemq_steps_open_of(int64 job_id, OpenStep *steps, int most);
extern StepCount *idemq_steps_count(int *count);
extern void idemq_steps_void(int64 job_id);
extern void idemq_steps_forget(int64 job_id);
extern void idemq_steps_forget_all(const int64 *job_ids, int count);

#endif
