/*
 * job/new_child.h
 *		A new job that waits for its parents.
 */
#ifndef IDEMQ_JOB_NEW_CHILD_H
#define IDEMQ_JOB_NEW_CHILD_H

#include "table/jobs.h"
#include "table/jobs_kin_write.h"
#include "queue/queue_settings.h"

extern void idemq_new_child(JobChange *columns, NewKin *kin);
extern void idemq_new_child_add(JobsTable *table, const QueueInfo *queue, int64 id, NewKin *kin);

#endif
