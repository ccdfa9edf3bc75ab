/*
 * shared/lease_table.h
 *		The hash of lease entries in shared memory.
 */
#ifndef IDEMQ_SHARED_LEASE_TABLE_H
#define IDEMQ_SHARED_LEASE_TABLE_H

#include "storage/lwlock.h"

#include "shared/running.h"

#define NO_SESSION (-1)

typedef struct LeaseKey
{
	Oid database;
	uint32 unused; /* zero: the key is hashed as bytes */
	int64 job_id;
} LeaseKey;

/* The end of a lease by a transaction that is open; only undone outlives its ender. */
typedef struct Ending
{
	int32 ender;   /* proc number, or NO_SESSION */
	bool reaping;  /* the ender is a reaper: no heartbeat may win any more */
	bool credited; /* the ender may run another job in its place (txn/borrowed.c) */
	uint8 undone;  /* times that a reaper took back its mark; LEASE_MAX_UNDONE at most */
} Ending;

/* The claimers that passed a job because of its entry, since the entry has an ender. */
typedef struct PassedBy
{
	TimestampTz least; /* the least ready_at at which one found the job; if any */
	int16 priority;	   /* the job's then; if any */
	bool any;		   /* there was one */
} PassedBy;

/* One job in flight.  Every field is under its partition's lock; key never changes. */
typedef struct Lease
{
	LeaseKey key;
	int64 token;		 /* of the claim; changes when a transaction claims what it ends */
	int64 deadline;		 /* mono; PG_INT64_MAX while claiming */
	int64 length;		 /* microseconds */
	int32 queue_id;		 /* the job's queue */
	int32 session;		 /* that claimed: proc number, NO_SESSION after a restart */
	int32 pid;			 /* of that session: a proc number goes to another one after it */
	Ending ending;		 /* its end, while that is not committed */
	RunningMark running; /* where it is counted */
	bool claiming;		 /* the claim's transaction is still open */
	bool attached;		 /* ends with its session */
	bool lost;			 /* it was attached, and its session has ended */
	bool borrowed;		 /* runs, uncounted, in place of an attempt that its transaction ends */
	PassedBy passed_by;	 /* where claimers passed the job because of it */
	RowPlace place;		 /* the row's at the claim; a hint */
} Lease;

extern Lease *idemq_lease_lock_entry(const LeaseKey *key, LWLockMode mode, LWLock **lock,
									 uint32 *hash);
extern Lease *idemq_lease_enter(const LeaseKey *key, uint32 hash);
extern void idemq_lease_remove(Lease *lease, uint32 hash);
extern Size idemq_leases_shmem_size(void);
extern Size idemq_leases_hash_size(void);
extern void idemq_leases_shmem_init(void *area, bool found);
extern int64 idemq_lease_issue_token(int64 row_token, int64 base);
extern int64 idemq_lease_last_token(void);
extern int idemq_lease_count(void);
extern bool idemq_lease_table_is_full(void);
extern void idemq_leases_usage(int *used, int64 *refused);
extern void idemq_leases_visit_all(LWLockMode mode, bool (*visit)(Lease *lease, void *arg),
								   void (*last)(void *arg), void *arg);
extern void idemq_leases_visit(LWLockMode mode, bool (*visit)(Lease *lease, void *arg), void *arg);

#endif
