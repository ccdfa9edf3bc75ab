/*
 * shared/lease_owners.h
 *		Which attached leases a session has.
 */
#ifndef IDEMQ_SHARED_LEASE_OWNERS_H
#define IDEMQ_SHARED_LEASE_OWNERS_H

#include "shared/lease.h"

extern Size idemq_lease_owners_shmem_size(void);
extern void idemq_lease_owners_shmem_init(void *area, bool found);

/* with the entry's partition locked exclusively */
extern uint32 idemq_lease_owner_life(const Lease *lease);
extern void idemq_lease_owner_add(Lease *lease);
extern void idemq_lease_owner_remove(Lease *lease);
extern Lease *idemq_lease_owner_first(int partition);
extern Lease *idemq_lease_owner_next(const Lease *lease);
extern void idemq_lease_orphan(Lease *lease, LeaseLoss loss, int64 now);
extern void idemq_lease_owner_end_life(int partition);

#endif
