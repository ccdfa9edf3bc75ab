/*
 * job/promote_one.h
 *		One group that this session owns: its head, or its next job with a place.
 */
#ifndef IDEMQ_JOB_PROMOTE_ONE_H
#define IDEMQ_JOB_PROMOTE_ONE_H

#include "job/kin.h"
#include "table/jobs.h"
#include "queue/queue_settings.h"

extern Promotion idemq_promote_one(JobsTable *table, const QueueInfo *queue, const GroupKey *key,
								   Datum name, GroupFloor *floor);
extern void idemq_promote_asked(JobsTable *table, const QueueInfo *queue, const Job *job);

#endif
