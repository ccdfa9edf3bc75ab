/*
 * shared/leases.h
 *		The lease table in shared memory.
 */
#ifndef IDEMQ_SHARED_LEASES_H
#define IDEMQ_SHARED_LEASES_H

#include "storage/lwlock.h"

#include "shared/slots.h"

#define NO_SESSION (-1)
/* A lease whose row somebody holds is looked at again after so many microseconds. */
#define LEASE_BUSY_RETRY INT64CONST(100000)
/* A lease that cannot be reaped is looked at no less often than after so many of these. */
#define LEASE_MAX_UNDONE 100

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

typedef enum LeaseTake
{
	LEASE_TAKEN,
	LEASE_BUSY,
	LEASE_FULL,
	LEASE_LIMIT /* the queue's max_running is reached */
} LeaseTake;

/* A claim that wants an entry. */
typedef struct LeaseClaim
{
	int64 job_id;
	int64 token;
	int32 queue_id;
	QueueSlot *slot;	/* the queue's, or NULL */
	uint32 max_running; /* 0: no limit */
	bool borrow;		/* its transaction ends another attempt, in whose place this one runs */
	int64 length;		/* microseconds */
	bool attached;
} LeaseClaim;

typedef enum LeaseBeat
{
	LEASE_BEAT_DONE,
	LEASE_BEAT_STALE,
	LEASE_BEAT_UNKNOWN /* no entry: the row knows */
} LeaseBeat;

extern Size idemq_leases_shmem_size(void);
extern Size idemq_leases_hash_size(void);
extern void idemq_leases_shmem_init(void *area, bool found);

extern int64 idemq_lease_issue_token(int64 row_token);
extern int64 idemq_lease_last_token(void);
extern int idemq_lease_count(void);
extern bool idemq_lease_busy(int64 job_id);
extern bool idemq_lease_turns_away(int64 job_id, int priority, ReadyKey key);
extern bool idemq_lease_get(int64 job_id, Lease *copy);
extern LeaseTake idemq_lease_take(const LeaseClaim *claim, Lease *prior, bool *has_prior);
extern void idemq_lease_settle_loan(int64 job_id, int64 token);
extern int64 idemq_lease_activate(int64 job_id, int64 token);
extern bool idemq_lease_drop(int64 job_id, int64 token, Lease *dropped);
extern void idemq_lease_restore(int64 token, const Lease *prior);
extern bool idemq_lease_begin_end(int64 job_id, int64 token);
extern bool idemq_lease_begin_reap(int64 job_id, int64 token, bool *lost);
extern int64 idemq_lease_cancel_end(int64 job_id, int64 token);
extern LeaseTake idemq_lease_adopt(int64 job_id, int64 token, int32 queue_id, int64 deadline,
								   int64 length);
extern LeaseBeat idemq_lease_beat(int64 job_id, int64 token, int64 length);
extern bool idemq_lease_table_is_full(void);
extern void idemq_leases_usage(int *used, int64 *refused);
extern void idemq_leases_visit_all(LWLockMode mode, bool (*visit)(Lease *lease, void *arg),
								   void (*last)(void *arg), void *arg);
extern void idemq_leases_visit(LWLockMode mode, bool (*visit)(Lease *lease, void *arg), void *arg);

#endif
