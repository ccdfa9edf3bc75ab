/*
 * txn/pending.c
 *		What this transaction touched: applied to shared memory after its commit,
 *		undone after its abort, savepoints included.
 *
 * A touch is noted before the thing that it undoes is done, into memory that
 * was reserved before (idemq_xact_reserve), so that no error can come between.
 *
 * Order at the end: lease entries first, then the cursors: whoever skipped a
 * job because of an entry is answered by a lowering that comes after the entry
 * is gone.  Before all, the entries that were borrowed are counted (job/limits.c).
 *
 * Subtransactions: their ids grow, and at a subtransaction's end every touch
 * with its id or a greater one is its own or its children's.  So nothing is
 * done at a savepoint's release, and a rollback to it undoes the tail of the
 * list.
 *
 * PREPARE TRANSACTION: from then on no session owns the transaction.  Entries
 * are removed; its row locks alone keep others off, and whoever finds such a
 * row does not pass it.  When it ends, the utility hook (hooks/utility.c) unsets the
 * cursors and asks for recovery.  Attached claims cannot be prepared.
 *
 * The callbacks run with interrupts held; they neither allocate nor raise.  No locks.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "txn/borrowed.h"
#include "txn/growing.h"
#include "txn/pending.h"
#include "txn/prepare_check.h"
#include "shared/lease_scan.h"
#include "shared/leases.h"
#include "shared/next_deadline.h"
#include "shared/notify_ring.h"
#include "shared/ready_cursor.h"
#include "shared/recovery_point.h"
#include "shared/slots.h"
#include "shared/wake.h"
#include "shared/worker_board.h"

typedef enum TouchKind
{
	TOUCH_CLAIM,		 /* commit: the lease starts; abort: the entry goes, the cursor lowers */
	TOUCH_CLAIM_ROWONLY, /* commit: a job is in flight without an entry; abort: as above */
	TOUCH_END,			 /* commit: the entry goes; abort: the lease goes on */
	TOUCH_RECOVER,		 /* commit: a job may be in flight without an entry */
	TOUCH_CREATE_QUEUE,	 /* abort: the queue's slot is free */
	TOUCH_DROP_QUEUE,	 /* commit: the queue's slot is free */
	TOUCH_FORGET,	/* commit: nothing of this database is known any more; abort: cursors unset */
	TOUCH_EVENT,	/* commit: there is something to NOTIFY */
	TOUCH_FINISHED, /* commit: a job that was in no attempt has its result; 0: some are gone */
	TOUCH_WAKE,		/* commit: who waits for the queue, 0 for any, looks again */
	TOUCH_EXTENSION /* commit: a database, job_id, is to be looked into by a worker */
} TouchKind;

typedef struct Touch
{
	TouchKind kind;
	SubTransactionId subid;
	int32 queue_id;
	bool attached;
	bool has_prior;
	bool borrowed; /* a claim: its entry takes the place of one that we end */
	bool frees;	   /* an end: of an attempt that was counted as running */
	QueueSlot *slot;
	int64 job_id;
	int64 token;
	int32 priority; /* of a claim, with its ready key: */
	TimestampTz ready_at;
	Lease prior;  /* what the claim took over */
	JobNews news; /* of an event */
} Touch;

/* In TopTransactionContext; NULL between transactions. */
static Touch *touches = NULL;
static int ntouches = 0;
static int max_touches = 0;
/* Whether PREPARE TRANSACTION is under way, for idemq.check(). */
static bool preparing = false;

/* Makes room for one touch, so that the next note cannot fail. */
void
idemq_xact_reserve(void)
{
	touches = idemq_grow(touches, &max_touches, (int64) ntouches + 1, sizeof(Touch));
}

/* Returns a new touch at the end of the list; room was reserved. */
static Touch *
add_touch(TouchKind kind, QueueSlot *slot, int32 queue_id, int64 job_id, int64 token)
{
	Touch *touch = &touches[ntouches++];

	Assert(ntouches <= max_touches);
	touch->kind = kind;
	touch->subid = GetCurrentSubTransactionId();
	touch->queue_id = queue_id;
	touch->attached = touch->has_prior = touch->borrowed = touch->frees = false;
	touch->slot = slot;
	touch->job_id = job_id;
	touch->token = token;
	return touch;
}

/* As add_touch, for which there may be no room yet. */
static Touch *
note(TouchKind kind, QueueSlot *slot, int32 queue_id, int64 job_id, int64 token)
{
	idemq_xact_reserve();
	return add_touch(kind, slot, queue_id, job_id, token);
}

/* Returns whether the last touch, of this subtransaction, is just that. */
static bool
is_last(TouchKind kind, int32 queue_id, int64 job_id)
{
	const Touch *last = ntouches > 0 ? &touches[ntouches - 1] : NULL;

	return last != NULL && last->kind == kind && last->queue_id == queue_id &&
		   last->job_id == job_id && last->subid == GetCurrentSubTransactionId();
}

/*
 * Notes a claim of the job with that ready key, for which room was reserved;
 * its entry has been taken, or, with rowonly, the table was full.  prior is the
 * entry that it took over, or NULL.
 */
void
idemq_xact_note_claim(const LeaseClaim *claim, int32 priority, ReadyKey key, bool rowonly,
					  const Lease *prior)
{
	Touch *touch = add_touch(rowonly ? TOUCH_CLAIM_ROWONLY : TOUCH_CLAIM, claim->slot,
							 claim->queue_id, claim->job_id, claim->token);

	touch->priority = priority;
	touch->ready_at = key.ready_at;
	touch->attached = claim->attached;
	touch->borrowed = claim->borrow;
	if (claim->borrow)
		idemq_credit_borrow(claim->queue_id, 1);
	if (prior != NULL)
	{
		touch->has_prior = true;
		touch->prior = *prior;
	}
}

/* Notes that this transaction ends the lease of that token, and marks its entry. */
void
idemq_xact_note_end(QueueSlot *slot, int32 queue_id, int64 job_id, int64 token)
{
	Touch *touch = note(TOUCH_END, slot, queue_id, job_id, token);

	idemq_credit_reserve(queue_id);
	touch->frees = idemq_lease_begin_end(job_id, token);
	idemq_credit_end(queue_id, touch->frees, 1);
}

/* Notes that rows in processing were written by hand; many are one touch. */
void
idemq_xact_note_recovery(QueueSlot *slot, int32 queue_id)
{
	if (!is_last(TOUCH_RECOVER, queue_id, 0))
		(void) note(TOUCH_RECOVER, slot, queue_id, 0, 0);
}

/* Notes that this database's jobs or queues are gone: TRUNCATE, DROP EXTENSION. */
void
idemq_xact_note_forget(void)
{
	(void) note(TOUCH_FORGET, NULL, 0, 0, 0);
}

/* Notes that a queue is created. */
void
idemq_xact_note_create_queue(int32 queue_id)
{
	(void) note(TOUCH_CREATE_QUEUE, NULL, queue_id, 0, 0);
}

/* Notes that a queue is dropped. */
void
idemq_xact_note_drop_queue(int32 queue_id)
{
	(void) note(TOUCH_DROP_QUEUE, NULL, queue_id, 0, 0);
}

/* Notes an event of a job. */
void
idemq_xact_note_event(QueueSlot *slot, int32 queue_id, EventKind kind, int64 job_id, int32 attempt)
{
	Touch *touch = note(TOUCH_EVENT, slot, queue_id, job_id, 0);

	touch->news = (JobNews){kind, attempt, job_id};
}

/* Notes that a job is finished that had no lease. */
void
idemq_xact_note_finished(int64 job_id)
{
	(void) note(TOUCH_FINISHED, NULL, 0, job_id, 0);
}

/* Notes that a job is gone that was not finished; many are one touch. */
void
idemq_xact_note_gone(void)
{
	if (!is_last(TOUCH_FINISHED, 0, 0))
		idemq_xact_note_finished(0);
}

/* Notes that a queue's settings change, 0 for any; who waits for it looks again. */
void
idemq_xact_note_settings(int32 queue_id)
{
	(void) note(TOUCH_WAKE, NULL, queue_id, 0, 0);
}

/* Notes that a database may have the extension from now on. */
void
idemq_xact_note_extension(Oid database)
{
	(void) note(TOUCH_EXTENSION, NULL, 0, (int64) database, 0);
}

/* Lets a job be seen again that others may have passed. */
static void
show_again(const Touch *touch, int priority, ReadyKey key)
{
	idemq_cursor_lower(touch->slot, touch->queue_id, priority, key);
	idemq_wake_perhaps(touch->slot, touch->queue_id, 1);
}

/* Returns whether there is any touch. */
bool
idemq_xact_any(void)
{
	return ntouches > 0;
}

/* Removes an entry, and lets those see its job again whom it turned away. */
static void
drop_lease(const Touch *touch)
{
	Lease dropped;

	if (idemq_lease_drop(touch->job_id, touch->token, &dropped) && dropped.turned_away)
		show_again(touch, dropped.priority, dropped.passed);
}

/* Follows the commit of one touch. */
static void
apply(const Touch *touch)
{
	switch (touch->kind)
	{
		case TOUCH_CLAIM:
			idemq_slot_note_deadline(touch->slot, touch->queue_id,
									 idemq_lease_activate(touch->job_id, touch->token));
			break;
		case TOUCH_CLAIM_ROWONLY:
		case TOUCH_RECOVER:
			idemq_slot_need_recovery(touch->slot, touch->queue_id);
			break;
		case TOUCH_END:
			drop_lease(touch);
			idemq_wake_for_result(touch->job_id);
			break;
		case TOUCH_FINISHED:
			if (touch->job_id == 0)
				idemq_wake_for_results();
			else
				idemq_wake_for_result(touch->job_id);
			break;
		case TOUCH_DROP_QUEUE:
			idemq_wake_queue(touch->slot, touch->queue_id);
			idemq_slot_forget_queue(touch->queue_id);
			break;
		case TOUCH_CREATE_QUEUE:
			break;
		case TOUCH_FORGET:
			idemq_wake_database(MyDatabaseId, false);
			idemq_lease_forget_database(MyDatabaseId);
			idemq_slots_forget_database(MyDatabaseId);
			idemq_worker_recheck(MyDatabaseId);
			break;
		case TOUCH_EVENT:
			idemq_event_add(touch->slot, touch->queue_id, &touch->news);
			break;
		case TOUCH_WAKE:
			idemq_slots_settings_changed();
			idemq_worker_need_by(0); /* it may have found a queue that was not there yet */
			if (touch->queue_id == 0)
				idemq_wake_database(MyDatabaseId, false);
			else
				idemq_wake_perhaps(NULL, touch->queue_id, PG_INT32_MAX);
			break;
		case TOUCH_EXTENSION:
			idemq_worker_look_into((Oid) touch->job_id);
			break;
	}
}

/* Follows the commit of all touches. */
void
idemq_xact_apply(void)
{
	/* Borrowed entries are counted before those go in whose place they are. */
	for (int i = 0; i < ntouches; i++)
	{
		if (touches[i].borrowed)
			idemq_lease_settle_loan(touches[i].job_id, touches[i].token);
	}
	for (int i = 0; i < ntouches; i++)
		apply(&touches[i]);
}

/* A lease goes on; a search may have missed a job that has no entry because of us. */
static void
undo_end(const Touch *touch)
{
	int64 again = idemq_lease_cancel_end(touch->job_id, touch->token);

	if (again > 0)
		idemq_slot_note_deadline(touch->slot, touch->queue_id, again);
	else
		idemq_slot_need_recovery(touch->slot, touch->queue_id);
}

/* Follows the abort of one touch. */
static void
undo(const Touch *touch)
{
	idemq_slots_begin_change();
	switch (touch->kind)
	{
		case TOUCH_CLAIM:
			if (touch->has_prior)
				idemq_lease_restore(touch->token, &touch->prior);
			else
				drop_lease(touch);
			if (touch->borrowed)
				idemq_credit_borrow(touch->queue_id, -1);
			/* fall through */
		case TOUCH_CLAIM_ROWONLY:
			/* Others may have passed the job because of the claim. */
			show_again(touch, touch->priority, (ReadyKey){touch->ready_at, touch->job_id});
			break;
		case TOUCH_END:
			undo_end(touch);
			idemq_credit_end(touch->queue_id, touch->frees, -1);
			break;
		case TOUCH_CREATE_QUEUE:
			idemq_slot_forget_queue(touch->queue_id);
			break;
		case TOUCH_FORGET:
			/* Our own claims did not see what was there, and passed it. */
			idemq_slots_unset_database(MyDatabaseId);
			break;
		case TOUCH_RECOVER:
		case TOUCH_DROP_QUEUE:
		case TOUCH_EVENT:
		case TOUCH_FINISHED:
		case TOUCH_WAKE:
		case TOUCH_EXTENSION:
			break;
	}
	idemq_slots_end_change();
}

/* Undoes the last touch at once: its row turned out not to be ours. */
void
idemq_xact_undo_last(void)
{
	undo(&touches[--ntouches]);
}

/* Undoes every touch with this subtransaction id or a greater one, the last first. */
void
idemq_xact_undo(SubTransactionId from)
{
	while (ntouches > 0 && touches[ntouches - 1].subid >= from)
		undo(&touches[--ntouches]);
}

/* Raises an error for what cannot be prepared. */
static void
check_prepare(void)
{
	for (int i = 0; i < ntouches; i++)
	{
		TouchKind kind = touches[i].kind;
		bool attempt = kind == TOUCH_CLAIM || kind == TOUCH_END;

		idemq_check_prepare(attempt ? touches[i].queue_id : 0,
							kind == TOUCH_CLAIM && touches[i].attached,
							kind == TOUCH_FORGET || kind == TOUCH_DROP_QUEUE);
	}
}

/*
 * From here on to the callback that follows PREPARE the session's entries may
 * outlive its transaction, which by then has neither an id nor locks of its own.
 */
void
idemq_xact_before_prepare(void)
{
	check_prepare();
	preparing = ntouches > 0;
	if (preparing)
		idemq_slots_begin_change();
}

/* After PREPARE: no session is on these jobs any more, so their entries go. */
void
idemq_xact_prepare(void)
{
	for (int i = 0; i < ntouches; i++)
	{
		if (touches[i].kind == TOUCH_CLAIM || touches[i].kind == TOUCH_END)
			drop_lease(&touches[i]);
	}
}

/* Forgets all, at the end of the transaction, and ends what PREPARE began. */
void
idemq_xact_forget(void)
{
	if (preparing)
		idemq_slots_end_change();
	preparing = false;
	touches = NULL;
	ntouches = max_touches = 0;
}
