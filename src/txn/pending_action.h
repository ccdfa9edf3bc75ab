/*
 * txn/pending_action.h
 *		What shared memory does for one change, once its transaction has ended.
 */
#ifndef IDEMQ_TXN_PENDING_ACTION_H
#define IDEMQ_TXN_PENDING_ACTION_H

#include "shared/leases.h"
#include "shared/notify_ring.h"

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
	bool attached;
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

#endif
