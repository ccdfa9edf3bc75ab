/*
 * txn/txn.h
 *		What a transaction owes shared memory at its end.
 */
#ifndef IDEMQ_TXN_TXN_H
#define IDEMQ_TXN_TXN_H

#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/slots/slots.h"

/*
 * at_end.c
 *		What shared memory follows at the end of a transaction.
 */

extern bool idemq_at_end_is_pending(void);
extern void idemq_at_end_install(void);

/*
 * pending.c
 *		What shared memory does once this transaction has ended.
 */

extern void idemq_pending_reserve(void);
extern void idemq_pending_reserve_claim(void);
extern void idemq_pending_note_claim(const LeaseClaim *claim, int32 priority, ReadyKey key,
									 bool rowonly, bool once, const PriorLease *prior);
extern void idemq_pending_note_end(QueueSlot *slot, int32 queue_id, int64 job_id, int64 token);
extern void idemq_pending_note_cancel(int32 queue_id, int64 job_id, int64 token);
extern void idemq_pending_note_recovery(QueueSlot *slot, int32 queue_id);
extern void idemq_pending_note_create_queue(int32 queue_id);
extern void idemq_pending_note_drop_queue(int32 queue_id);
extern void idemq_pending_note_forget(void);
extern void idemq_pending_note_event(QueueSlot *slot, int32 queue_id, EventKind kind, int64 job_id,
									 int32 attempt);
extern void idemq_pending_note_finished(QueueSlot *slot, int32 queue_id, int64 job_id);
extern void idemq_pending_note_rows(void);
extern void idemq_pending_note_gone(void);
extern void idemq_pending_note_settings(int32 queue_id);
extern void idemq_pending_note_groups(int32 queue_id);
extern void idemq_pending_note_switch(void);
extern void idemq_pending_note_schedules(void);
extern void idemq_pending_note_resume(int32 queue_id);
extern void idemq_pending_note_extension(Oid database);
extern void idemq_pending_undo_last(void);
extern bool idemq_pending_any(void);
extern void idemq_pending_apply(void);
extern void idemq_pending_undo(SubTransactionId from);
extern void idemq_pending_before_prepare(void);
extern void idemq_pending_prepare(void);
extern void idemq_pending_forget(void);

/*
 * pending_action.c
 *		What shared memory does for one change, once its transaction has ended.
 */

typedef enum ActionKind
{
	ACTION_CLAIM,		  /* commit: the lease starts; abort: the entry goes, the cursor lowers */
	ACTION_CLAIM_ROWONLY, /* commit: a job is in flight without an entry; abort: as above */
	ACTION_END,			  /* commit: the entry goes; abort: the lease goes on */
	ACTION_CANCEL,		  /* at the end: the worker of that token is told no more */
	ACTION_RECOVER,		  /* commit: a job may be in flight without an entry */
	ACTION_CREATE_QUEUE,  /* abort: the queue's slot is free */
	ACTION_DROP_QUEUE,	  /* commit: the queue's slot is free */
	ACTION_FORGET,	  /* commit: nothing of this database is known any more; abort: cursors unset */
	ACTION_EVENT,	  /* commit: there is something to NOTIFY */
	ACTION_FINISHED,  /* commit: a job that was in no attempt has its result */
	ACTION_GONE,	  /* commit: some jobs are gone that were not finished */
	ACTION_SETTINGS,  /* commit: a queue, 0 for all, is read again by all; abort: by this session */
	ACTION_GROUPS,	  /* commit: all groups of a queue are checked anew */
	ACTION_SWITCH,	  /* at the end: sessions look whether their database follows another */
	ACTION_SCHEDULES, /* commit: the worker lists the schedules again */
	ACTION_RESUME,	  /* commit: a queue hands out jobs again */
	ACTION_ROWS,	  /* commit: rows have changed that memory does not know of: it is unset */
	ACTION_EXTENSION, /* commit: a worker visits the database */
} ActionKind;

/* The token of a lease entry goes with its job, so that no later entry is meant. */
typedef struct LeaseName
{
	int64 job_id;
	int64 token;
} LeaseName;

typedef struct PendingClaim
{
	LeaseName lease;
	TimestampTz ready_at; /* with the priority, its place in the ready index */
	int32 priority;
	bool has_prior; /* it took an entry over: see txn/pending.c */
	bool once;	   /* it is the attempt's end as well */
	bool borrowed; /* its entry takes the place of one that this transaction ends */
} PendingClaim;

typedef struct PendingEnd
{
	LeaseName lease;
	bool frees; /* the attempt was counted as running */
} PendingEnd;

typedef struct PendingAction
{
	ActionKind kind;
	SubTransactionId subid;
	QueueSlot *slot;
	int32 queue_id;
	union
	{
		PendingClaim claim;	 /* ACTION_CLAIM, ACTION_CLAIM_ROWONLY */
		PendingEnd end;		 /* ACTION_END */
		LeaseName cancelled; /* ACTION_CANCEL; token 0: nobody was told */
		JobNews news;		 /* ACTION_EVENT */
		int64 job_id;		 /* ACTION_FINISHED */
		Oid database;		 /* ACTION_EXTENSION */
	} u;
} PendingAction;

extern void idemq_action_settle_loan(const PendingAction *action);
extern void idemq_action_apply(const PendingAction *action);
extern void idemq_action_undo(const PendingAction *action, const PriorLease *prior);
extern void idemq_action_prepare(const PendingAction *action);

/*
 * pending_ready.c
 *		The keys that this transaction makes claimable.
 */

extern void idemq_pending_ready_note(QueueSlot *slot, int32 queue_id, int priority, ReadyKey key);
extern void idemq_pending_ready_note_taken(QueueSlot *slot, int32 queue_id, int priority,
										   ReadyKey key);
extern void idemq_pending_ready_note_expiry(QueueSlot *slot, int32 queue_id, int priority,
											TimestampTz expires_at);
extern void idemq_pending_ready_view(int32 queue_id, CursorView *view);
extern void idemq_pending_ready_apply(SubTransactionId from, bool committed);
extern bool idemq_pending_ready_any(void);
extern void idemq_pending_ready_forget(void);

/*
 * pending_groups.c
 *		What this transaction does to FIFO groups.
 */

extern void idemq_pending_groups_note(QueueSlot *slot, int32 queue_id, Datum name, int64 id);
extern void idemq_pending_groups_reserve(int count);
extern void idemq_pending_groups_note_owned(QueueSlot *slot, const GroupTaken *group);
extern bool idemq_pending_groups_owns(const GroupKey *key);
extern TimestampTz idemq_pending_groups_last(const GroupKey *key);
extern void idemq_pending_groups_note_floor(const GroupTaken *group, GroupFloor floor);
extern void idemq_pending_groups_done(QueueSlot *slot, const GroupTaken *group, GroupRelease how);
extern void idemq_pending_groups_note_scan(QueueSlot *slot, int32 queue_id);
extern GroupFloor idemq_pending_groups_floor(QueueSlot *slot, const GroupKey *key);
extern bool idemq_pending_groups_owns_any(void);
extern bool idemq_pending_groups_any(void);
extern void idemq_pending_groups_before_commit(void);
extern void idemq_pending_groups_apply(void);
extern void idemq_pending_groups_undo(SubTransactionId from);
extern void idemq_pending_groups_forget(void);

/*
 * pending_kin.c
 *		Jobs with parents or children that this transaction's commit marks.
 */

extern void idemq_pending_kin_note(QueueSlot *slot, int32 queue_id, KinMark mark, int64 job_id);
extern void idemq_pending_kin_note_blocked(QueueSlot *slot, int32 queue_id, int64 job_id);

/*
 * pending_window.c
 *		The windows of groups that this transaction is in.
 */

extern void idemq_pending_window_enter(const QueueSlot *slot, Oid database, int64 id);
extern void idemq_pending_window_leave(void);

/*
 * pending_counts.c
 *		What this transaction counts.
 */

/* In place of a status: the row is new, or gone. */
#define NO_ROW (-1)

extern void idemq_pending_counts_row(int32 queue_id, int from, int to);
extern void idemq_pending_counts_event(int32 queue_id, uint32 counters);
extern void idemq_pending_counts_timing(int32 queue_id, Timing which, TimestampTz from,
										TimestampTz to);
extern void idemq_pending_counts_apply(void);
extern void idemq_pending_counts_release(SubTransactionId subid, SubTransactionId parent);
extern void idemq_pending_counts_undo(SubTransactionId from);
extern void idemq_pending_counts_forget(void);

/*
 * borrowed.c
 *		The attempts that this transaction ends, in whose place it may claim.
 */

extern void idemq_borrowed_reserve(int32 queue_id);
extern void idemq_borrowed_note_end(int32 queue_id, bool frees, int count);
extern void idemq_borrowed_note_claim(int32 queue_id, int count);
extern int idemq_borrowed_free(int32 queue_id);
extern bool idemq_borrowed_uncounted(int32 queue_id);
extern void idemq_borrowed_forget(void);

/*
 * pending_away.c
 *		Databases from which this transaction keeps the worker away.
 */

extern pid_t idemq_pending_away_keep(Oid database);
extern void idemq_pending_away_let_back(void);

/*
 * growing.c
 *		Arrays in TopTransactionContext that grow.
 */

extern void *idemq_grow(void *array, int *max, int64 wanted, Size size);

#endif
