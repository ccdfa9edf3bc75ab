/*
 * shared/leases/leases.h
 *		Which session is working on which job, and until when.
 */
#ifndef IDEMQ_SHARED_LEASES_LEASES_H
#define IDEMQ_SHARED_LEASES_LEASES_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "storage/lwlock.h"

#include "shared/queue_states/queue_states.h"

/*
 * running.c
 *		How many jobs of a queue are running.
 */

/*
 * Where a lease entry is counted as running.  Every field is under the lock of the entry's
 * partition.
 */
typedef struct RunningCounted
{
	int32 qstate_index; /* index of the queue state; meaningless if units is 0 */
	uint32 life;		/* life of that queue state */
	uint32 units;		/* 0 or 1; more until the end of a claim that has taken over the entry */
} RunningCounted;

/* A queue state whose count of running jobs has fallen, for idemq_running_freed. */
typedef struct RunningFreed
{
	int32 qstate_index; /* -1: none */
	int32 queue_id;
} RunningFreed;

#define NOTHING_FREED ((RunningFreed){-1, 0})

/* for leases.c and lease_table.c, with the entry's partition locked */
extern bool idemq_running_count_in(RunningCounted *counted, QueueState *qstate, int32 queue_id,
								   uint32 max);
extern RunningFreed idemq_running_count_out(RunningCounted *counted, int32 queue_id, uint32 keep);
extern bool idemq_running_is_counted(const RunningCounted *counted);

extern void idemq_running_freed(RunningFreed freed);
extern void idemq_running_wake_refused(QueueState *qstate, int32 queue_id);
extern int idemq_running_count(const QueueState *qstate);

/*
 * An entry of the lease table.
 */

#define NO_SESSION (-1)

/* The hash value of an entry determines its partition. */
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
	LOSS_SESSION, /* it was attached, and its session has ended */
	LOSS_TIMEOUT, /* the attempt has reached job_timeout */
	/* The worker has ended the attempt, but could not write the row (idemq_lease_hand_over): */
	LOSS_RETURNED, /* it released the job */
	LOSS_FAILED	   /* the attempt failed */
} LeaseLoss;

/* The end of a lease by an open transaction.  Only undone outlives the finisher. */
typedef struct Ending
{
	int32 finisher; /* proc number, or NO_SESSION */
	bool reaping;	/* the finisher is a reaper, so heartbeats are refused */
	bool credited; /* the finisher may transfer the permit of this attempt (txn/pending_queues.c) */
	bool undone;   /* a reaper has undone its mark */
} Ending;

/* Claims that have passed the job because of its entry since the entry got its finisher. */
typedef struct PassedBy
{
	TimestampTz least; /* if any: the least ready_at with which such a claim found the job */
	int16 priority;	   /* if any: the priority with which it found the job */
	bool any;		   /* there was such a claim */
} PassedBy;

/*
 * The lease of one running job.  Every field is under the lock of the entry's partition.  key never
 * changes; queue_id, session, attached and due do not change while the entry is placed.
 */
typedef struct Lease
{
	LeaseKey key;
	/* its terms, up to tid_hint: what a claim by the attempt's own finisher overwrites */
	int64 token;		 /* of the claim; changes when the finisher claims the job again */
	int64 deadline;		 /* mono; PG_INT64_MAX while claiming */
	int64 length;		 /* microseconds */
	int64 limit;		 /* mono, greatest deadline; PG_INT64_MAX: none; while claiming, a length */
	PassedBy passed_by;	 /* claims that passed the job because of this entry */
	int32 queue_id;		 /* the job's queue */
	int32 session;		 /* proc number of the session that claimed; NO_SESSION after a restart */
	int32 pid;			 /* of that session, because a later one may have its proc number */
	Ending ending;		 /* its end, while that is not committed */
	bool claiming;		 /* the end of the claim's transaction has not been processed yet */
	bool attached : 1;	 /* it ends with its session */
	bool handler : 1;	 /* a handler's process claimed the job */
	bool restored : 1;	 /* found through its row after a restart, and no heartbeat since */
	uint8 loss;			 /* LeaseLoss; if not LOSS_EXPIRED, the deadline was set because of it */
	bool transferred;	 /* has the permit of an attempt that its transaction ends; not counted */
	uint32 session_life; /* life of its session at the claim (lease_sessions.c), while attached */
	TidHint tid_hint;	 /* of the row at the claim; a hint */
	RunningCounted running; /* where it is counted */
	uint16 cancels;			/* open transactions that are cancelling the job (lease_beat.c) */
	bool marked : 1;		/* one of them has not aborted, */
	bool told : 1;			/* and has told the process */
	bool placed;			/* it is in the order and, if attached, in the list of its session */
	uint64
		process; /* key of the process that has the attempt (waiters/listeners.c); 0: not known */
	/* for shared/leases/lease_table.c */
	int16 share; /* the share in which it is counted (counts/lease_shares.c); never changes */
	uint32 hash; /* of the key; never changes */
	int64 ended; /* greatest token of an attempt that has ended while a later one is here */
	int64 due;	 /* mono: when a reaper must look at it */
	struct Lease *before; /* in the tree of its partition (lease_order.c): the subtree before it */
	struct Lease *after;  /* the subtree after it */
	dlist_node owned;	  /* in the list of its session (lease_sessions.c) */
} Lease;

/*
 * The fields of an entry that a claim overwrites when its own transaction ends the former attempt.
 * PriorLease keeps them, so that a rollback can restore them.
 */
#define LEASE_TERMS(lease) ((char *) (lease) + offsetof(Lease, token))

typedef struct PriorLease
{
	char terms[offsetof(Lease, running) - offsetof(Lease, token)];
} PriorLease;

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

/* How an entry keeps a transaction from claiming the job. */
typedef enum LeaseHold
{
	LEASE_HOLDS_NOT,   /* there is none, or this transaction itself is ending the attempt */
	LEASE_HOLDS,	   /* the job is being claimed, or is running */
	LEASE_HOLDS_ENDING /* another transaction is ending the attempt, or has just ended it */
} LeaseHold;

/* A claim for which an entry is added. */
typedef struct LeaseClaim
{
	int64 job_id;
	int64 token;
	int32 queue_id;
	QueueState *qstate; /* the queue's */
	uint32 max_running; /* 0: no limit */
	bool transfer;		/* it takes over the permit of an attempt that its transaction ends */
	int64 length;		/* microseconds */
	int64 timeout;		/* job_timeout in microseconds; 0: none */
	bool attached;
	bool handler;
	TidHint tid_hint; /* of the job's row */
} LeaseClaim;

/* The queue of a lease that is adopted. */
typedef struct AdoptingQueue
{
	int32 id;
	bool limited; /* it has max_running */
} AdoptingQueue;

/* What the row of a job says about the lease that is adopted. */
typedef struct AdoptedLease
{
	int64 deadline; /* mono */
	int64 length;	/* microseconds */
	int64 limit;	/* mono */
	bool handler;
	bool restored; /* no heartbeat since the server started */
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
 *		The hash table of lease entries, and walks over them.
 */

/* An expired lease, as a reaper collects it. */
typedef struct ExpiredLease
{
	int64 job_id;
	int64 token;
	int32 queue_id;
} ExpiredLease;

extern const ShmemPart idemq_leases_part;
extern int64 idemq_lease_issue_token(int64 row_token, int64 base);
extern int64 idemq_lease_last_token(void);
extern int idemq_lease_collect_expired(int32 queue_id, ExpiredLease *found, int max,
									   int64 *next_deadline);
extern Lease *idemq_lease_copy_all(int *count);
extern void idemq_lease_forget_database(Oid database);
extern void idemq_leases_lock(int partition, LWLockMode mode);
extern void idemq_leases_unlock(int partition);

/* with the entry's partition locked */
extern Lease *idemq_lease_first(int partition, int32 queue_id);
extern Lease *idemq_lease_next(const Lease *lease, int32 queue_id);
extern Lease *idemq_lease_lock(int64 job_id, LWLockMode mode, LWLock **lock);
extern Lease *idemq_lease_lock_of(int64 job_id, int64 token, LWLock **lock);
extern Lease *idemq_lease_enter(int64 job_id, bool limited);
extern bool idemq_lease_waits_for_cancel(const Lease *lease);
extern void idemq_lease_place(Lease *lease);
extern void idemq_lease_unplace(Lease *lease);
extern int64 idemq_lease_set_deadline(Lease *lease, int64 deadline);
extern RunningFreed idemq_lease_remove(Lease *lease);

/*
 * lease_order.c
 *		The order of a partition's lease entries: by database, queue, due time and job.
 */

extern void idemq_lease_order_add(Lease **root, Lease *lease);
extern void idemq_lease_order_remove(Lease **root, Lease *lease);
extern Lease *idemq_lease_order_first(Lease *root, Oid database, int32 queue_id);
extern Lease *idemq_lease_order_next(Lease *root, const Lease *lease, int32 queue_id);

/*
 * lease_sessions.c
 *		Which attached leases a session has, and how they end with the session.
 */

extern const ShmemPart idemq_lease_sessions_part;
extern void idemq_lease_attach_session(void);
extern void idemq_lease_orphan_session(void);
extern int idemq_session_pid(int32 session);
extern int idemq_lease_pid(const Lease *lease);

/* with the entry's partition locked */
extern uint32 idemq_lease_session_life(const Lease *lease);
extern void idemq_lease_session_add(Lease *lease);
extern void idemq_lease_orphan(Lease *lease, LeaseLoss loss, int64 now);

/*
 * lease_beat.c
 *		Heartbeats, how a worker ends its own lease, and how it is told that its job is being
 *		cancelled.
 */

typedef enum LeaseBeat
{
	LEASE_BEAT_DONE,
	LEASE_BEAT_STALE,
	LEASE_BEAT_CANCELLED, /* an open transaction is cancelling the job */
	LEASE_BEAT_OVER,	  /* the attempt has reached job_timeout */
	LEASE_BEAT_UNKNOWN	  /* there is no entry: see the row */
} LeaseBeat;

extern LeaseBeat idemq_lease_beat(int64 job_id, int64 token, int64 length);
extern void idemq_lease_hand_over(int64 job_id, int64 token, LeaseLoss loss);
extern bool idemq_lease_mark_cancel(int64 job_id, int64 token, bool at_once);
extern void idemq_lease_unmark_cancel(int64 job_id, int64 token, bool aborted);
extern uint64 idemq_lease_process(int64 job_id, int64 token);
extern bool idemq_lease_is_cancelled(int64 job_id, int64 token);

/*
 * recovery_point.c
 *		How far the search for running jobs without a lease entry has come.
 */

extern void idemq_qstate_begin_recovery(QueueState *qstate, int64 not_before);
extern void idemq_qstate_need_recovery(QueueState *qstate, int32 queue_id);
extern bool idemq_qstate_recovery_point(QueueState *qstate, int32 queue_id, bool whole,
										RecoveryPoint *point);
extern void idemq_qstate_recovered_to(QueueState *qstate, int32 queue_id,
									  const RecoveryPoint *point);

#endif
