/*
 * shared/lease_shares.h
 *		Who may have how many entries of the lease table.
 */
#ifndef IDEMQ_SHARED_LEASE_SHARES_H
#define IDEMQ_SHARED_LEASE_SHARES_H

/* Databases with a share of their own, and one of the others. */
#define LEASE_SHARES 256

/* What is used of the lease table, or of this database's share of it. */
typedef struct LeaseUsage
{
	int used;
	int room;
	int64 refused; /* entries that found no room */
} LeaseUsage;

extern Size idemq_lease_shares_shmem_size(void);
extern void idemq_lease_shares_shmem_init(void *area, bool found);
extern int idemq_lease_share_mine(void);
extern int idemq_lease_share_take(bool limited);
extern void idemq_lease_share_give_back(int share);
extern bool idemq_lease_share_is_full(bool limited);
extern void idemq_lease_share_forget(Oid database);
extern void idemq_lease_shares_usage(LeaseUsage *table, LeaseUsage *mine);

#endif
