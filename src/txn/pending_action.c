/*
 * txn/pending_action.c
 *		What shared memory does for one change, once its transaction has ended: by kind,
 *		after commit, abort and PREPARE.
 *
 * PREPARE TRANSACTION: the entries of attempts that it ends are removed; its row locks
 * alone keep others off, and a claimer that meets such a row does not pass it.  When it
 * ends, the utility hook (hooks/utility.c) unsets the cursors and asks for recovery.
 *
 * A transaction may change a million jobs, so an action is small.
 *
 * All of it is called at the end of a (sub)transaction, and neither allocates nor
 * raises.  No locks of its own.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"
#include "txn/txn.h"

#define MAX_ACTION_SIZE 64 /* bytes; with what idemq_grow leaves empty, at most 72 */

StaticAssertDecl(sizeof(PendingAction) <= MAX_ACTION_SIZE, "a pending action is too large");

/* Makes a job visible again that other claimers may have passed. */
static void
show_again(const PendingAction *action, int priority, ReadyKey key)
{
	idemq_cursor_lower(action->slot, action->queue_id, priority, key);
	idemq_wake_perhaps(action->slot, action->queue_id, 1);
}

/* Removes an entry, and makes its job visible again to claimers that it turned away. */
static void
drop_lease(const PendingAction *action, LeaseName lease)
{
	Lease dropped;

	if (idemq_lease_drop(lease.job_id, lease.token, &dropped) && dropped.passed_by.any)
		show_again(action, dropped.passed_by.priority,
				   (ReadyKey){dropped.passed_by.least, lease.job_id});
}

/* Ends a cancel's mark, if there is one. */
static void
unmark_cancel(const PendingAction *action)
{
	LeaseName lease = action->u.cancelled;

	if (lease.token != 0)
		idemq_lease_unmark_cancel(lease.job_id, lease.token);
}

/* A queue's settings have changed, or, with 0, those of all. */
static void
follow_settings(int32 queue_id)
{
	QueueSlot *slot = queue_id == 0 ? NULL : idemq_slot_find(MyDatabaseId, queue_id);

	idemq_version_move(queue_id);
	idemq_due_by(slot, DUE_HANDLER, 0);
	/* The worker may have found a queue that was not there yet. */
	if (queue_id == 0)
		idemq_worker_need_all();
	else if (slot != NULL)
	{
		idemq_worker_need_slot(slot, 0);
		/* A pause may have an end (job/pausing.c). */
		idemq_due_by(slot, DUE_READY, 0);
	}
	if (queue_id == 0)
		idemq_wake_database(MyDatabaseId, false);
	else
		idemq_wake_queue(slot, queue_id);
}

/* Nothing of this database is known any more. */
static void
forget_database(void)
{
	idemq_version_move(0);
	/* In this order: no entry is left that another slot would have to count. */
	idemq_slots_forget_database(MyDatabaseId);
	idemq_lease_forget_database(MyDatabaseId);
	/* After that: who looked before it sleeps where nobody wakes it any more. */
	idemq_wake_database(MyDatabaseId, false);
	idemq_worker_recheck(MyDatabaseId);
}

/* How many jobs of a group of that queue may run, or be started, has changed. */
static void
check_groups(int32 queue_id)
{
	idemq_groups_drop_floors(idemq_slot_find(MyDatabaseId, queue_id), queue_id);
}

/* The lease of a claim starts. */
static void
start_lease(const PendingAction *action, LeaseName lease)
{
	idemq_due_by(idemq_slot_current(action->slot, action->queue_id), DUE_LEASE,
				 idemq_lease_activate(lease.job_id, lease.token));
}

/* A job has its result, or its attempt has ended: tells its children, and who waits for it. */
static void
tell_of_end(const PendingAction *action, int64 job_id)
{
	idemq_kin_finished(action->slot, action->queue_id, job_id);
	idemq_wake_for_result(job_id);
}

/* Sessions look, and the worker: it has something to do now, or nothing, or a row to write again. */
static void
switched(void)
{
	idemq_slots_switched();
	idemq_worker_need_by(0);
}

/* Follows the commit of one action. */
void
idemq_action_apply(const PendingAction *action)
{
	switch (action->kind)
	{
		case ACTION_CLAIM:
			start_lease(action, action->u.claim.lease);
			break;
		case ACTION_CLAIM_ROWONLY:
		case ACTION_RECOVER:
			idemq_slot_need_recovery(action->slot, action->queue_id);
			break;
		case ACTION_END:
			drop_lease(action, action->u.end.lease);
			tell_of_end(action, action->u.end.lease.job_id);
			break;
		case ACTION_CANCEL:
			unmark_cancel(action);
			break;
		case ACTION_FINISHED:
			tell_of_end(action, action->u.job_id);
			break;
		case ACTION_GONE:
			idemq_wake_for_results();
			break;
		case ACTION_DROP_QUEUE:
			idemq_wake_queue(action->slot, action->queue_id);
			idemq_slot_forget_queue(action->queue_id);
			break;
		case ACTION_CREATE_QUEUE:
			break;
		case ACTION_FORGET:
			forget_database();
			break;
		case ACTION_EVENT:
			idemq_notify_ring_add(action->slot, action->queue_id, &action->u.news);
			break;
		case ACTION_SETTINGS:
			follow_settings(action->queue_id);
			break;
		case ACTION_GROUPS:
			check_groups(action->queue_id);
			break;
		case ACTION_SWITCH:
			switched();
			break;
		case ACTION_SCHEDULES:
			idemq_worker_note_schedules();
			break;
		case ACTION_ROWS:
			idemq_slots_unset_database(MyDatabaseId);
			idemq_wake_for_results();
			break;
		case ACTION_RESUME:
			idemq_wake_perhaps(NULL, action->queue_id, PG_INT32_MAX);
			break;
		case ACTION_EXTENSION:
			idemq_worker_visit(action->u.database);
			break;
	}
}

/* Counts the entry of a claim that borrowed its place. */
void
idemq_action_settle_loan(const PendingAction *action)
{
	const PendingClaim *claim = &action->u.claim;

	if (action->kind == ACTION_CLAIM && claim->borrowed)
		idemq_lease_settle_loan(claim->lease.job_id, claim->lease.token);
}

/* Takes a claim's entry back; prior: what it took over, if it did. */
static void
undo_claim(const PendingAction *action, const PriorLease *prior)
{
	const PendingClaim *claim = &action->u.claim;

	if (claim->has_prior)
		idemq_lease_restore(claim->lease.job_id, claim->lease.token, prior);
	else
		drop_lease(action, claim->lease);
	if (claim->borrowed)
		idemq_borrowed_note_claim(action->queue_id, -1);
}

/* Lets a lease go on; a search may have missed its job, whose entry we had marked. */
static void
undo_end(const PendingAction *action)
{
	const PendingEnd *end = &action->u.end;
	int64 again = idemq_lease_cancel_end(end->lease.job_id, end->lease.token);

	if (again > 0)
		idemq_due_by(idemq_slot_current(action->slot, action->queue_id), DUE_LEASE, again);
	else
		idemq_slot_need_recovery(action->slot, action->queue_id);
	idemq_borrowed_note_end(action->queue_id, end->frees, -1);
}

/* Follows the abort of one action; prior: of a claim that took an entry over. */
void
idemq_action_undo(const PendingAction *action, const PriorLease *prior)
{
	const PendingClaim *claim = &action->u.claim;

	idemq_slots_begin_change();
	switch (action->kind)
	{
		case ACTION_CLAIM:
			undo_claim(action, prior);
			/* fall through */
		case ACTION_CLAIM_ROWONLY:
			/* Others may have passed the job because of the claim. */
			show_again(action, claim->priority, (ReadyKey){claim->ready_at, claim->lease.job_id});
			break;
		case ACTION_END:
			undo_end(action);
			break;
		case ACTION_CANCEL:
			unmark_cancel(action);
			break;
		case ACTION_CREATE_QUEUE:
			idemq_slot_forget_queue(action->queue_id);
			break;
		case ACTION_FORGET:
			/* Our own claims did not see what was there, and passed it. */
			idemq_slots_unset_database(MyDatabaseId);
			break;
		case ACTION_SWITCH:
			/* This session has read what it wrote. */
			idemq_slots_switched();
			break;
		case ACTION_SETTINGS:
			idemq_queue_cache_forget(action->queue_id);
			break;
		case ACTION_RECOVER:
		case ACTION_DROP_QUEUE:
		case ACTION_GROUPS:
		case ACTION_EVENT:
		case ACTION_FINISHED:
		case ACTION_GONE:
		case ACTION_SCHEDULES:
		case ACTION_RESUME:
		case ACTION_ROWS:
		case ACTION_EXTENSION:
			break;
	}
	idemq_slots_end_change();
}

/* Returns whether the worker of an attempt has ended it as well, for a reaper to write it (job/reap.c). */
static bool
is_handed_over(LeaseName name)
{
	Lease lease;

	return idemq_lease_get(name.job_id, &lease) && lease.token == name.token &&
		   lease.loss >= LOSS_RETURNED;
}

/*
 * Follows PREPARE: no session can take an attempt's end back any more, so its entry goes.
 * One whose worker has ended the attempt as well stays, and says how: a reaper comes back to
 * it until the row is free.  The slot of a new queue goes too, since nothing follows ROLLBACK
 * PREPARED; after COMMIT PREPARED the first who looks the queue up gives it another.
 */
void
idemq_action_prepare(const PendingAction *action)
{
	if (action->kind == ACTION_END && is_handed_over(action->u.end.lease))
		undo_end(action);
	else if (action->kind == ACTION_END)
		drop_lease(action, action->u.end.lease);
	else if (action->kind == ACTION_CANCEL)
		unmark_cancel(action);
	else if (action->kind == ACTION_SETTINGS)
		idemq_queue_cache_forget(action->queue_id);
	else if (action->kind == ACTION_CREATE_QUEUE)
		idemq_slot_forget_queue(action->queue_id);
}
