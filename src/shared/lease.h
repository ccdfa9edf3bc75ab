/*
 * shared/lease.h
 *		What an entry of the lease table is.
 */
#ifndef IDEMQ_SHARED_LEASE_H
#define IDEMQ_SHARED_LEASE_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"

#include "shared/running.h"

#define NO_SESSION (-1)

/* The parts of the lease table, and which one an entry is in: by its hash value alone. */
#define LEASE_PARTITIONS 32
#define LEASE_PARTITION(hash) ((int) ((hash) % LEASE_PARTITIONS))

typedef struct LeaseKey
{
	Oid database;
	uint32 unused; /* zero: the key is hashed as bytes */
	int64 job_id;
} LeaseKey;

/* Why a lease has ended. */
typedef enum LeaseLoss
{
	LOSS_EXPIRED,
	LOSS_SESSION, /* it was attached, and its session ended */
	LOSS_TIMEOUT, /* the attempt has run for as long as it may */
	/* Its worker has ended it, and could not write the row (idemq_lease_hand_over): */
	LOSS_RETURNED, /* the job was given back */
	LOSS_FAILED	   /* the attempt has failed */
} LeaseLoss;

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

/*
 * One job in flight.  Every field is under its partition's lock; key never changes, and
 * queue_id, session, attached and due not while it is placed.
 */
typedef struct Lease
{
	LeaseKey key;
	int64 token;	/* of the claim; changes when a transaction claims what it ends */
	int64 deadline; /* mono; PG_INT64_MAX while claiming */
	int64 length;	/* microseconds */
	int64 limit;	/* mono: no deadline is beyond; PG_INT64_MAX: none; claiming: as a length */
	int32 queue_id; /* the job's queue */
	int32 session;	/* that claimed: proc number, NO_SESSION after a restart */
	int32 pid;		/* of that session: a proc number goes to another one after it */
	Ending ending;	/* its end, while that is not committed */
	RunningMark running; /* where it is counted */
	bool claiming;		 /* the claim's transaction is still open */
	bool attached;		 /* ends with its session */
	uint8 loss;			 /* LeaseLoss; other than LOSS_EXPIRED: its deadline was set for that */
	bool borrowed;		 /* runs, uncounted, in place of an attempt that its transaction ends */
	uint16 cancels;		 /* open transactions that cancel the job (lease_beat.c) */
	PassedBy passed_by;	 /* where claimers passed the job because of it */
	RowPlace row_place;	 /* the row\'s at the claim; a hint */
	/* for shared/lease_table.c */
	uint32 hash;		  /* of the key; never changes */
	int16 share;		  /* that it is counted in (lease_shares.c); never changes */
	bool placed;		  /* it is in the order, and, attached, in its session's list */
	uint32 owner_life;	  /* of its session (lease_owners.c) when it claimed; while attached */
	int64 due;			  /* mono: a reaper looks at it from then on */
	struct Lease *before; /* in the order of its partition (lease_order.c): what lies below it */
	struct Lease *after;  /* and comes before it, and after it */
	dlist_node owned;	  /* in the list of its session (lease_owners.c) */
} Lease;

/* Is called for an entry; false ends the walk that has come to it. */
typedef bool (*LeaseVisit)(Lease *lease, void *arg);

#endif
