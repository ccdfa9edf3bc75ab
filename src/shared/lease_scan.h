/*
 * shared/lease_scan.h
 *		Scans of the whole lease table.
 */
#ifndef IDEMQ_SHARED_LEASE_SCAN_H
#define IDEMQ_SHARED_LEASE_SCAN_H

#include "shared/lease.h"

/* Jobs as a reaper collects them. */
typedef struct ExpiredLease
{
	int64 job_id;
	int64 token;
	int32 queue_id;
} ExpiredLease;

extern int idemq_lease_collect_expired(int32 queue_id, ExpiredLease *found, int max,
									   int64 *next_deadline);
extern Lease *idemq_lease_copy_all(int *count);
extern void idemq_lease_count_in_queue(int32 queue_id);
extern int idemq_lease_count_queue(int32 queue_id);
extern int idemq_session_pid(int32 session);
extern int idemq_lease_pid(const Lease *lease);
extern void idemq_lease_attach_session(void);
extern void idemq_lease_orphan_session(void);

#endif
