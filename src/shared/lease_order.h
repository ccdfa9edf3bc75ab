/*
 * shared/lease_order.h
 *		The order of a partition's lease entries: by database, queue, and when due.
 */
#ifndef IDEMQ_SHARED_LEASE_ORDER_H
#define IDEMQ_SHARED_LEASE_ORDER_H

#include "shared/lease.h"

extern void idemq_lease_order_add(Lease **root, Lease *lease);
extern void idemq_lease_order_remove(Lease **root, Lease *lease);
extern Lease *idemq_lease_order_first(Lease *root, Oid database);
extern bool idemq_lease_order_walk(Lease *root, Oid database, int32 queue_id, LeaseVisit visit,
								   void *arg);

#endif
