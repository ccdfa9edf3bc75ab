/*
 * shared/leases.h
 *		The lease table in shared memory.
 */
#ifndef IDEMQ_SHARED_LEASES_H
#define IDEMQ_SHARED_LEASES_H

#include "storage/lwlock.h"

#include "shared/lease.h"
#include "shared/slots.h"

/* A lease that cannot be reaped is checked again after so many LEASE_BUSY_RETRY at most. */
#define LEASE_MAX_UNDONE 100

typedef enum LeaseTake
{
	LEASE_TAKEN,
	LEASE_BUSY,
	LEASE_FULL,
	LEASE_LIMIT /* the queue's max_running is reached */
} LeaseTake;

/* How an entry keeps a session from claiming its job. */
typedef enum LeaseHold
{
	LEASE_HOLDS_NOT,   /* there is none, or this transaction ends the attempt itself */
	LEASE_HOLDS,	   /* claimed, or in processing */
	LEASE_HOLDS_ENDING /* another transaction ends the attempt, or has just done so */
} LeaseHold;

/* A claim that wants an entry. */
typedef struct LeaseClaim
{
	int64 job_id;
	int64 token;
	int32 queue_id;
	QueueSlot *slot;	/* the queue's, or NULL */
	uint32 max_running; /* 0: no limit */
	bool borrow;		/* its transaction ends another attempt, and this one replaces it */
	int64 length;		/* microseconds */
	int64 timeout;		/* microseconds that the attempt may last; 0: no limit */
	bool attached;
	RowPlace row_place; /* of the job's row */
} LeaseClaim;

/*
 * An entry that a claim took over from the end of an attempt by its own transaction,
 * but for its key, and for where it is counted, which goes on.
 */
typedef struct PriorLease
{
	int64 token;
	int64 deadline; /* mono */
	int64 length;	/* microseconds */
	int64 limit;	/* as Lease's */
	PassedBy passed_by;
	int32 queue_id;
	int32 session;
	int32 pid;
	Ending ending;
	bool claiming;
	bool attached;
	uint8 loss; /* LeaseLoss */
	bool borrowed;
	RowPlace row_place;
	uint32 owner_life;
} PriorLease;

/* The queue of an entry that is adopted. */
typedef struct AdoptingQueue
{
	int32 id;
	bool limited; /* it has max_running */
} AdoptingQueue;

/* How long a lease that is adopted lasts. */
typedef struct LeaseTimes
{
	int64 deadline; /* mono */
	int64 length;	/* microseconds */
	int64 limit;	/* mono */
} LeaseTimes;

extern bool idemq_lease_busy(int64 job_id);
extern LeaseHold idemq_lease_hold(int64 job_id);
extern bool idemq_lease_turns_away(int64 job_id, int priority, ReadyKey key);
extern bool idemq_lease_get(int64 job_id, Lease *copy);
extern RowPlace idemq_lease_row_place(int64 job_id);
extern LeaseTake idemq_lease_take(const LeaseClaim *claim, PriorLease *prior, bool *has_prior);
extern void idemq_lease_settle_loan(int64 job_id, int64 token);
extern int64 idemq_lease_activate(int64 job_id, int64 token);
extern bool idemq_lease_drop(int64 job_id, int64 token, Lease *dropped);
extern void idemq_lease_restore(int64 job_id, int64 token, const PriorLease *prior);
extern bool idemq_lease_begin_end(int64 job_id, int64 token);
extern bool idemq_lease_begin_reap(int64 job_id, int64 token, LeaseLoss *loss);
extern int64 idemq_lease_cancel_end(int64 job_id, int64 token);
extern LeaseTake idemq_lease_adopt(int64 job_id, int64 token, const AdoptingQueue *queue,
								   const LeaseTimes *times);

#endif
