/*
 * job/reap.h
 *		Taking back leases that ended.
 */
#ifndef IDEMQ_JOB_REAP_H
#define IDEMQ_JOB_REAP_H

#include "table/jobs.h"
#include "queue/queue_settings.h"
#include "shared/lease.h"
#include "base/slice.h"

/* Expired leases that are collected in one go. */
#define REAP_BATCH 256

extern bool idemq_reap_row(JobsTable *table, const Job *job, const QueueInfo *queue,
						   LeaseLoss loss);
extern bool idemq_reap_job(JobsTable *table, const QueueInfo *queue, int64 job_id, int64 token);
extern int64 idemq_reap_batch(const QueueInfo *queue, const Slice *slice, bool *more);
extern int64 idemq_reap_in(const QueueInfo *queue, const Slice *slice);
extern void idemq_reap_expired(const QueueInfo *queue);

#endif
