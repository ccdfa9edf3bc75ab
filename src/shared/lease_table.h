/*
 * shared/lease_table.h
 *		The hash of lease entries, for shared/leases.c.
 */
#ifndef IDEMQ_SHARED_LEASE_TABLE_H
#define IDEMQ_SHARED_LEASE_TABLE_H

#include "storage/lwlock.h"

#include "base/idemq.h"

#define NO_SESSION (-1)

typedef struct LeaseKey
{
	Oid database;
	uint32 unused; /* zero: the key is hashed as bytes */
	int64 job_id;
} LeaseKey;

/* One job in flight.  Every field is under its partition's lock. */
typedef struct Lease
{
	LeaseKey key;
	int64 token;
	int64 deadline; /* mono; of no meaning while claiming */
	int64 length;	/* microseconds */
	int32 queue_id;
	int32 session;	  /* who claimed: proc number, NO_SESSION after a restart */
	int32 pid;		  /* of that session: a proc number goes to another one after it */
	int32 ender;	  /* whose open transaction ends this lease, or NO_SESSION */
	bool claiming;	  /* the claim's transaction is still open */
	bool attached;	  /* ends with its session */
	bool lost;		  /* it was attached, and its session has ended */
	bool reaping;	  /* the ender is a reaper: no heartbeat may win any more */
	bool borrowed;	  /* runs in place of an attempt that its transaction ends (job/limits.c) */
	bool credited;	  /* the ender may run another job in its place */
	uint8 undone;	  /* times that a reaper took back its mark */
	int32 slot;		  /* by index: where it is counted as running, */
	uint32 life;	  /* in which of its lives, */
	uint32 units;	  /* and as how many: 0, or 1; more until a claim that took it over ends */
	bool turned_away; /* since it has an ender, a claimer passed the job because of it, */
	int16 priority;	  /* in this priority */
	ReadyKey passed;  /* at this key, the least */
} Lease;

extern Lease *idemq_lease_lock_entry(const LeaseKey *key, LWLockMode mode, LWLock **lock,
									 uint32 *hash);
extern Lease *idemq_lease_enter(const LeaseKey *key, uint32 hash);
extern void idemq_lease_remove(Lease *lease, uint32 hash);
extern Size idemq_leases_shmem_size(void);
extern Size idemq_leases_hash_size(void);
extern void idemq_leases_shmem_init(void *area, bool found);
extern int64 idemq_lease_issue_token(int64 row_token);
extern int64 idemq_lease_last_token(void);
extern int idemq_lease_count(void);
extern bool idemq_lease_table_is_full(void);
extern void idemq_leases_usage(int *used, int64 *refused);
extern void idemq_leases_visit_all(LWLockMode mode, bool (*visit)(Lease *lease, void *arg),
								   void (*last)(void *arg), void *arg);
extern void idemq_leases_visit(LWLockMode mode, bool (*visit)(Lease *lease, void *arg), void *arg);

#endif
