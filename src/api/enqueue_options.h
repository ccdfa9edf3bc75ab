/*
 * api/enqueue_options.h
 *		What the functions that add jobs can be told of a job.
 */
#ifndef IDEMQ_API_ENQUEUE_OPTIONS_H
#define IDEMQ_API_ENQUEUE_OPTIONS_H

#include "fmgr.h"

#include "table/jobs.h"
#include "queue/queue_settings.h"

/* Options of a job; their order means nothing. */
enum
{
	OPTION_KEY,
	OPTION_DELAY,
	OPTION_RUN_AT,
	OPTION_PRIORITY,
	OPTION_GROUP_KEY,
	OPTION_MAX_ATTEMPTS,
	OPTION_HEADERS,
	OPTION_EXPIRES_IN,
	OPTION_KEY_TTL,
	OPTION_KIND,
	OPTIONS
};

/* An option of a job, and the array of it in enqueue_many. */
typedef struct JobOption
{
	void (*set)(JobChange *columns, Datum value);
	const char *plural; /* the name of the array, and its element type */
	Oid type;
} JobOption;

extern const JobOption idemq_enqueue_options[OPTIONS];

extern void idemq_enqueue_read_options(FunctionCallInfo fcinfo, const int *args,
									   NullableDatum *values);
extern void idemq_enqueue_set_options(JobChange *columns, const QueueInfo *queue,
									  const NullableDatum *values);

#endif
