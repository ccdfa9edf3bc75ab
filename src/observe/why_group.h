/*
 * observe/why_group.h
 *		What idemq.why says of a job's group.
 */
#ifndef IDEMQ_OBSERVE_WHY_GROUP_H
#define IDEMQ_OBSERVE_WHY_GROUP_H

#include "lib/stringinfo.h"

#include "table/jobs.h"
#include "queue/queue_settings.h"

extern bool idemq_why_group(StringInfo answer, JobsTable *table, const QueueInfo *queue,
							const Job *job);
extern bool idemq_why_group_rate(StringInfo answer, const QueueInfo *queue, const Job *job,
								 TimestampTz now);

#endif
