/*
 * shared/lease_table.h
 *		The hash of lease entries, for shared/leases.c.
 */
#ifndef IDEMQ_SHARED_LEASE_TABLE_H
#define IDEMQ_SHARED_LEASE_TABLE_H

#include "shared/leases.h"

extern Lease *idemq_lease_lock_entry(const LeaseKey *key, LWLockMode mode, LWLock **lock,
									 uint32 *hash);
extern Lease *idemq_lease_enter(const LeaseKey *key, uint32 hash);
extern void idemq_lease_remove(Lease *lease, uint32 hash);

#endif
