/*
 * job/kin.h
 *		Children whose parents have finished.
 */
#ifndef IDEMQ_JOB_KIN_H
#define IDEMQ_JOB_KIN_H

#include "job/transition.h"
#include "table/jobs.h"
#include "queue/queue_settings.h"
#include "shared/kin.h"

/* What has become of a mark, of a group or of a job that has kin. */
typedef enum Promotion
{
	PROMOTED,			/* there is a pending job now, which is not committed yet */
	PROMOTED_FOR_LATER, /* the same, but it is not due yet; or what it waits for was written */
	JOINED,				/* a child has joined its group, which is to be promoted next */
	AT_LIMIT,			/* all places of its group are taken, and there is a next job */
	HAS_HEAD,			/* there is nothing to do until it is marked again */
	HELD,				/* a row is held, or a head is made but not committed */
	NOT_FOR_US,			/* it changes all the time, or our snapshot must not see it */
	LOOK_AGAIN			/* its row has changed; inside job/kin.c */
} Promotion;

extern Promotion idemq_kin_promote(JobsTable *table, const QueueInfo *queue, KinMark mark, int64 id,
								   Datum *group);
extern void idemq_kin_learn(const QueueInfo *queue);
extern JobEvent idemq_rerun_event(const Job *job);
extern JobEvent idemq_redrive_event(const Job *job);
extern void idemq_kin_gone(int64 id, JobStatus status);

#endif
