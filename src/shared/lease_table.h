/*
 * shared/lease_table.h
 *		The hash of lease entries in shared memory.
 */
#ifndef IDEMQ_SHARED_LEASE_TABLE_H
#define IDEMQ_SHARED_LEASE_TABLE_H

#include "storage/lwlock.h"

#include "shared/lease.h"

extern Size idemq_leases_shmem_size(void);
extern Size idemq_leases_hash_size(void);
extern void idemq_leases_shmem_init(void *area, bool found);
extern int64 idemq_lease_issue_token(int64 row_token, int64 base);
extern int64 idemq_lease_last_token(void);
extern void idemq_leases_lock(int partition, LWLockMode mode);
extern void idemq_leases_unlock(int partition);
extern void idemq_leases_lock_all(LWLockMode mode);
extern void idemq_leases_unlock_all(void);
extern void idemq_leases_visit(LWLockMode mode, int32 queue_id, LeaseVisit visit, void *arg);
extern void idemq_leases_visit_locked(int32 queue_id, LeaseVisit visit, void *arg);
extern void idemq_lease_forget_database(Oid database);

extern LeaseKey idemq_lease_key(int64 job_id);

/* with the entry's partition locked */
extern Lease *idemq_lease_lock_entry(const LeaseKey *key, LWLockMode mode, LWLock **lock,
									 uint32 *hash);
extern Lease *idemq_lease_lock_entry_of(int64 job_id, int64 token, LWLock **lock);
extern Lease *idemq_lease_enter(const LeaseKey *key, uint32 hash, bool limited);
extern void idemq_lease_place(Lease *lease);
extern void idemq_lease_unplace(Lease *lease);
extern int64 idemq_lease_set_deadline(Lease *lease, int64 deadline);
extern void idemq_lease_remove(Lease *lease);

#endif
