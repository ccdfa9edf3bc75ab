/*
 * shared/leases/leases.h
 *		Who works on which job, until when.
 */
#ifndef IDEMQ_SHARED_LEASES_LEASES_H
#define IDEMQ_SHARED_LEASES_LEASES_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "storage/lwlock.h"

#include "shared/queue_states/queue_states.h"

/*
 * What an entry of the lease table is.
 */

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

/* Why a lease ends. */
typedef enum LeaseLoss
{
	LOSS_EXPIRED,
	LOSS_SESSION, /* it was attached, and its session ended */
	LOSS_TIMEOUT, /* the attempt has run for as long as it may */
	/* Its worker has ended it, and could not write the row (idemq_lease_hand_over): */
	LOSS_RETURNED, /* the job was given back */
	LOSS_FAILED	   /* the attempt has failed */
} LeaseLoss;

/* The end of a lease by a transaction that is open; only undone outlives its finisher. */
typedef struct Ending
{
	int32 finisher; /* proc number, or NO_SESSION */
	bool reaping;	/* the finisher is a reaper: no heartbeat may win any more */
	bool credited;	/* the finisher may run another job in its place (txn/pending_queues.c) */
	bool undone;	/* a reaper has taken back its mark */
} Ending;

/* Claimers that have passed a job because of its entry since the entry got its finisher. */
typedef struct PassedBy
{
	TimestampTz least; /* if any: the least ready_at at which one found the job */
	int16 priority;	   /* if any: the job's then */
	bool any;		   /* there was one */
} PassedBy;

/*
 * One job in flight.  Every field is under its partition's lock; key never changes, and
 * queue_id, session, attached and due not while it is placed.
 */
typedef struct Lease
{
	LeaseKey key;
	/* its terms, up to tid_hint: what a claim by the attempt's own finisher overwrites */
	int64 token;		 /* of the claim; changes when a transaction claims what it ends */
	int64 deadline;		 /* mono; PG_INT64_MAX while claiming */
	int64 length;		 /* microseconds */
	int64 limit;		 /* mono: no deadline is beyond; PG_INT64_MAX: none; claiming: a length */
	PassedBy passed_by;	 /* where claimers passed the job because of it */
	int32 queue_id;		 /* the job's queue */
	int32 session;		 /* that claimed: proc number, NO_SESSION after a restart */
	int32 pid;			 /* of that session: a proc number goes to another one after it */
	Ending ending;		 /* its end, while that is not committed */
	bool claiming;		 /* the claim's transaction is open, or its end not yet followed */
	bool attached : 1;	 /* ends with its session */
	bool handler : 1;	 /* a handler's process claimed it */
	bool restored : 1;	 /* found by its row after a restart; no heartbeat since */
	uint8 loss;			 /* LeaseLoss; if not LOSS_EXPIRED, the deadline was set for it */
	bool transferred;	 /* has the permit of an attempt that its transaction ends; uncounted */
	uint32 session_life; /* of its session (lease_sessions.c) when it claimed; while attached */
	TidHint tid_hint;	 /* the row's at the claim; a hint */
	RunningCounted running; /* where it is counted */
	uint16 cancels;			/* open transactions that cancel the job (lease_beat.c) */
	bool marked : 1;		/* one of them has not aborted, */
	bool told : 1;			/* and has told the process */
	bool placed;			/* it is in the order, and, attached, in its session's list */
	uint64 process; /* key of the process that has the attempt (listeners.c); 0: not known */
	/* for shared/leases/lease_table.c */
	int16 share;		  /* that it is counted in (lease_shares.c); never changes */
	uint32 hash;		  /* of the key; never changes */
	int64 ended;		  /* the greatest token whose attempt has ended while a later one is here */
	int64 due;			  /* mono: a reaper looks at it from then on */
	struct Lease *before; /* in the tree of its partition (lease_order.c): below it, before it */
	struct Lease *after;  /* below it, after it */
	dlist_node owned;	  /* in the list of its session (lease_sessions.c) */
} Lease;

/* The terms of an entry that a claim took over: its own transaction ends the attempt. */
#define LEASE_TERMS(lease) ((char *) (lease) + offsetof(Lease, token))

typedef struct PriorLease
{
	char terms[offsetof(Lease, running) - offsetof(Lease, token)];
} PriorLease;

/* Called for an entry; returns false to end the walk. */
typedef bool (*LeaseVisit)(Lease *lease, void *arg);

/*
 * leases.c
 *		The lease table in shared memory.
 */

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
	LEASE_HOLDS,	   /* claimed, or running */
	LEASE_HOLDS_ENDING /* another transaction ends the attempt, or has just done so */
} LeaseHold;

/* A claim that wants an entry. */
typedef struct LeaseClaim
{
	int64 job_id;
	int64 token;
	int32 queue_id;
	QueueState *qstate; /* the queue's */
	uint32 max_running; /* 0: no limit */
	bool transfer;		/* its transaction ends another attempt, and this one replaces it */
	int64 length;		/* microseconds */
	int64 timeout;		/* microseconds that the attempt may last; 0: no limit */
	bool attached;
	bool handler;
	TidHint tid_hint; /* of the job's row */
} LeaseClaim;

/* The queue of an entry that is adopted. */
typedef struct AdoptingQueue
{
	int32 id;
	bool limited; /* it has max_running */
} AdoptingQueue;

/* What an adopted lease is, according to the job's row. */
typedef struct AdoptedLease
{
	int64 deadline; /* mono */
	int64 length;	/* microseconds */
	int64 limit;	/* mono */
	bool handler;
	bool restored; /* no worker has been heard from since the server started */
} AdoptedLease;

extern LeaseHold idemq_lease_hold(int64 job_id);
extern bool idemq_lease_turns_away(int64 job_id, int priority, ReadyKey key);
extern bool idemq_lease_get(int64 job_id, Lease *copy);
extern LeaseTake idemq_lease_take(const LeaseClaim *claim, PriorLease *prior, bool *has_prior);
extern void idemq_lease_count_transferred(int64 job_id, int64 token);
extern int64 idemq_lease_activate(int64 job_id, int64 token);
extern bool idemq_lease_drop(int64 job_id, int64 token, Lease *dropped);
extern bool idemq_lease_restore(int64 job_id, int64 token, const PriorLease *prior);
extern bool idemq_lease_begin_end(int64 job_id, int64 token);
extern bool idemq_lease_begin_reap(int64 job_id, int64 token, LeaseLoss *loss);
extern int64 idemq_lease_cancel_end(int64 job_id, int64 token);
extern LeaseTake idemq_lease_adopt(int64 job_id, int64 token, const AdoptingQueue *queue,
								   const AdoptedLease *adopted);

/*
 * lease_table.c
 *		The hash of lease entries in shared memory.
 */

extern const ShmemPart idemq_leases_part;
extern int64 idemq_lease_issue_token(int64 row_token, int64 base);
extern int64 idemq_lease_last_token(void);
extern void idemq_leases_lock(int partition, LWLockMode mode);
extern void idemq_leases_unlock(int partition);
extern void idemq_leases_lock_all(LWLockMode mode);
extern void idemq_leases_unlock_all(void);
extern void idemq_leases_visit(LWLockMode mode, int32 queue_id, LeaseVisit visit, void *arg);
extern void idemq_leases_visit_locked(int32 queue_id, LeaseVisit visit, void *arg);
extern void idemq_lease_forget_database(Oid database);

/* with the entry's partition locked */
extern Lease *idemq_lease_lock(int64 job_id, LWLockMode mode, LWLock **lock);
extern Lease *idemq_lease_lock_of(int64 job_id, int64 token, LWLock **lock);
extern Lease *idemq_lease_enter(int64 job_id, bool limited);
extern bool idemq_lease_waits_for_cancel(const Lease *lease);
extern void idemq_lease_place(Lease *lease);
extern void idemq_lease_unplace(Lease *lease);
extern int64 idemq_lease_set_deadline(Lease *lease, int64 deadline);
extern void idemq_lease_remove(Lease *lease);

/*
 * lease_order.c
 *		The order of a partition's lease entries: by database, queue, and when due.
 */

extern void idemq_lease_order_add(Lease **root, Lease *lease);
extern void idemq_lease_order_remove(Lease **root, Lease *lease);
extern Lease *idemq_lease_order_first(Lease *root, Oid database);
extern bool idemq_lease_order_walk(Lease *root, Oid database, int32 queue_id, LeaseVisit visit,
								   void *arg);

/*
 * lease_sessions.c
 *		Which attached leases a session has, and their end with it.
 */

extern const ShmemPart idemq_lease_sessions_part;

/* The attached leases of a session in a partition. */
typedef struct OwnedLeases
{
	dlist_head leases; /* by Lease.owned */
	uint32 life;	   /* lives that have ended */
} OwnedLeases;

/* with the entry's partition locked exclusively */
extern OwnedLeases *idemq_lease_session_owned(int partition, int32 session);
extern uint32 idemq_lease_session_life(const Lease *lease);
extern void idemq_lease_session_add(Lease *lease);
extern void idemq_lease_orphan(Lease *lease, LeaseLoss loss, int64 now);

/*
 * lease_shares.c
 *		Who may have how many entries of the lease table.
 */

/* Databases with a share of their own, and one of the others. */
#define LEASE_SHARES 256

extern const ShmemPart idemq_lease_shares_part;
extern int idemq_lease_share_mine(void);
extern int idemq_lease_share_take(bool limited);
extern void idemq_lease_share_give_back(int share);
extern bool idemq_lease_share_is_full(bool limited);
extern int idemq_lease_share_of(Oid database);
extern void idemq_lease_share_forget(Oid database);
extern TableUsage idemq_leases_usage(void);
extern TableUsage idemq_leases_usage_mine(void);

/*
 * lease_beat.c
 *		What a worker says and hears of its lease: heartbeats, how far they reach, that it has
 *		ended, and cancels.
 */

typedef enum LeaseBeat
{
	LEASE_BEAT_DONE,
	LEASE_BEAT_STALE,
	LEASE_BEAT_CANCELLED, /* an open transaction cancels the job */
	LEASE_BEAT_OVER,	  /* the attempt has run for as long as it may */
	LEASE_BEAT_UNKNOWN	  /* no entry: the row knows */
} LeaseBeat;

extern LeaseBeat idemq_lease_beat(int64 job_id, int64 token, int64 length);
extern void idemq_lease_hand_over(int64 job_id, int64 token, LeaseLoss loss);
extern bool idemq_lease_mark_cancel(int64 job_id, int64 token, bool at_once);
extern void idemq_lease_unmark_cancel(int64 job_id, int64 token, bool aborted);
extern uint64 idemq_lease_process(int64 job_id, int64 token);
extern bool idemq_lease_is_cancelled(int64 job_id, int64 token);

/*
 * lease_scan.c
 *		Walks over lease entries.
 */

/* An expired lease, as a reaper collects it. */
typedef struct ExpiredLease
{
	int64 job_id;
	int64 token;
	int32 queue_id;
} ExpiredLease;

extern int idemq_lease_collect_expired(int32 queue_id, ExpiredLease *found, int max,
									   int64 *next_deadline);
extern Lease *idemq_lease_copy_all(int *count);
extern int idemq_session_pid(int32 session);
extern int idemq_lease_pid(const Lease *lease);
extern void idemq_lease_attach_session(void);
extern void idemq_lease_orphan_session(void);

#endif
