/*
 * job/recover.h
 *		Finding leases that memory lost: jobs in processing without a lease entry.
 */
#ifndef IDEMQ_JOB_RECOVER_H
#define IDEMQ_JOB_RECOVER_H

#include "table/jobs.h"
#include "queue/queue_settings.h"
#include "shared/leases.h"

/* Jobs in flight that a scan met without a lease entry. */
typedef struct LostLeases
{
	MemoryContext context; /* of the list: lives until it is settled */
	List *found;		   /* of LostLease */
	bool dropped;		   /* one of them had moved on, or is held: another search */
} LostLeases;

extern TimestampTz idemq_row_limit(const Job *job, const QueueInfo *queue);
extern TimestampTz idemq_row_deadline(const Job *job, const QueueInfo *queue);
extern bool idemq_lost_lease_note(LostLeases *lost, const Job *job, const QueueInfo *queue);
extern LeaseTake idemq_lost_lease_renew(LostLeases *lost, const Job *job, const QueueInfo *queue,
										int64 length);
extern int64 idemq_lost_leases_settle(LostLeases *lost, JobsTable *table, const QueueInfo *queue);
extern void idemq_recover_some(const QueueInfo *queue, int budget);
extern bool idemq_recover_for_limits(const QueueInfo *queue);
extern bool idemq_reap_some(const QueueInfo *queue);
extern bool idemq_before_claim(const QueueInfo *queue);
extern int64 idemq_reap_all(const QueueInfo *queue);

#endif
