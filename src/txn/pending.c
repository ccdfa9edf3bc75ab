/*
 * txn/pending.c
 *		Pending actions: what this transaction has noted for shared memory, in order.
 *		They are followed after its commit and undone after its abort, savepoints
 *		included; txn/pending_action.c says what that means for each kind.
 *
 * An action is noted before the change that it undoes is made, into memory that was
 * reserved before (idemq_pending_reserve), so that no error can come between.
 *
 * At the commit borrowed entries are counted first, before those go whose place they
 * take (job/limits.c); then the actions are followed in the order in which they were
 * noted.  What comes before and after them is in txn/at_end.c.
 *
 * Subtransactions: their ids grow, so at the end of one the actions with its id or a
 * greater one are its own or its children's, and are the tail of the list.  A release
 * needs nothing; a rollback undoes that tail, the last first, so that an entry which
 * was ended, claimed again and ended again goes back the way it came.
 *
 * PREPARE TRANSACTION: from then on no session owns the transaction, so what only a
 * session could answer for is refused: a claim, a promotion, an attempt that counts for
 * max_running, and a drop of what memory knows.
 *
 * What txn/at_end.c calls neither allocates nor raises; idemq_pending_before_prepare
 * alone raises.  No locks; all state is this backend's.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/leases/leases.h"
#include "shared/slots/slots.h"
#include "txn/txn.h"

#define MAX_PRIOR_SIZE 88 /* bytes */

StaticAssertDecl(sizeof(PriorLease) <= MAX_PRIOR_SIZE, "what a claim takes over is too large");

/* In TopTransactionContext; NULL between transactions. */
static PendingAction *actions = NULL;
static int nactions = 0;
static int max_actions = 0;
/* What claims took over: one for each action with has_prior, in the order of actions. */
static PriorLease *priors = NULL;
static int npriors = 0;
static int max_priors = 0;
/* Whether PREPARE TRANSACTION is under way, for idemq.check(). */
static bool preparing = false;

/* Makes room for one action, so that the next note cannot fail. */
void
idemq_pending_reserve(void)
{
	actions = idemq_grow(actions, &max_actions, (int64) nactions + 1, sizeof(PendingAction));
}

/* Makes room for a claim, and for the entry that it may take over. */
void
idemq_pending_reserve_claim(void)
{
	idemq_pending_reserve();
	priors = idemq_grow(priors, &max_priors, (int64) npriors + 1, sizeof(PriorLease));
}

/* Returns a new action at the end of the list; room was reserved. */
static PendingAction *
add_action(ActionKind kind, QueueSlot *slot, int32 queue_id)
{
	PendingAction *action;

	Assert(nactions < max_actions);
	action = &actions[nactions++];
	action->kind = kind;
	action->subid = GetCurrentSubTransactionId();
	action->slot = slot;
	action->queue_id = queue_id;
	return action;
}

/* As add_action, for which there may be no room yet. */
static PendingAction *
note(ActionKind kind, QueueSlot *slot, int32 queue_id)
{
	idemq_pending_reserve();
	return add_action(kind, slot, queue_id);
}

/* Returns whether the last action is of this kind, queue and subtransaction. */
static bool
is_last(ActionKind kind, int32 queue_id)
{
	const PendingAction *last = nactions > 0 ? &actions[nactions - 1] : NULL;

	return last != NULL && last->kind == kind && last->queue_id == queue_id &&
		   last->subid == GetCurrentSubTransactionId();
}

/*
 * Notes a claim of the job with that ready key, for which room was reserved
 * (idemq_pending_reserve_claim); its entry has been taken, or, with rowonly, the table
 * was full.  once: the claim is the attempt's end as well.  prior is the entry that it took
 * over, or NULL.  Cannot fail.
 */
void
idemq_pending_note_claim(const LeaseClaim *claim, int32 priority, ReadyKey key, bool rowonly,
						 bool once, const PriorLease *prior)
{
	PendingAction *action =
		add_action(rowonly ? ACTION_CLAIM_ROWONLY : ACTION_CLAIM, claim->slot, claim->queue_id);
	PendingClaim *pending = &action->u.claim;

	pending->lease = (LeaseName){claim->job_id, claim->token};
	pending->ready_at = key.ready_at;
	pending->priority = priority;
	pending->once = once;
	pending->borrowed = claim->borrow;
	pending->has_prior = prior != NULL;
	if (claim->borrow)
		idemq_borrowed_note_claim(claim->queue_id, 1);
	if (prior != NULL)
	{
		Assert(npriors < max_priors);
		priors[npriors++] = *prior;
	}
}

/*
 * Notes that this transaction ends the lease of that token, and marks its entry.  The job may
 * be a parent, and where its queue has no slot there are no marks (shared/groups/kin.c): then
 * all are looked at.
 */
void
idemq_pending_note_end(QueueSlot *slot, int32 queue_id, int64 job_id, int64 token)
{
	PendingEnd *end;

	if (slot == NULL)
		idemq_pending_note_rows();
	end = &note(ACTION_END, slot, queue_id)->u.end;
	end->lease = (LeaseName){job_id, token};
	end->frees = false;
	idemq_borrowed_reserve(queue_id);
	end->frees = idemq_lease_begin_end(job_id, token);
	idemq_borrowed_note_end(queue_id, end->frees, 1);
}

/*
 * Notes that this transaction cancels the job of that token, and tells its worker
 * (shared/leases/lease_beat.c), before it waits for the job's row.
 */
void
idemq_pending_note_cancel(int32 queue_id, int64 job_id, int64 token)
{
	PendingAction *action = note(ACTION_CANCEL, NULL, queue_id);

	action->u.cancelled = (LeaseName){job_id, 0};
	if (idemq_lease_mark_cancel(job_id, token))
		action->u.cancelled.token = token;
}

/* Notes that rows in processing were written by hand; many are one action. */
void
idemq_pending_note_recovery(QueueSlot *slot, int32 queue_id)
{
	if (!is_last(ACTION_RECOVER, queue_id))
		(void) note(ACTION_RECOVER, slot, queue_id);
}

/* Notes that this database's jobs or queues are gone: TRUNCATE, DROP EXTENSION. */
void
idemq_pending_note_forget(void)
{
	(void) note(ACTION_FORGET, NULL, 0);
}

/* Notes that a queue is created. */
void
idemq_pending_note_create_queue(int32 queue_id)
{
	(void) note(ACTION_CREATE_QUEUE, NULL, queue_id);
}

/* Notes that a queue is dropped. */
void
idemq_pending_note_drop_queue(int32 queue_id)
{
	(void) note(ACTION_DROP_QUEUE, NULL, queue_id);
}

/* Notes an event of a job. */
void
idemq_pending_note_event(QueueSlot *slot, int32 queue_id, EventKind kind, int64 job_id,
						 int32 attempt)
{
	note(ACTION_EVENT, slot, queue_id)->u.news = (JobNews){kind, attempt, job_id};
}

/* Notes that a job is finished that had no lease; as idemq_pending_note_end. */
void
idemq_pending_note_finished(QueueSlot *slot, int32 queue_id, int64 job_id)
{
	if (slot == NULL)
		idemq_pending_note_rows();
	else
		note(ACTION_FINISHED, slot, queue_id)->u.job_id = job_id;
}

/*
 * Notes that rows have changed of which no trigger has told memory, or of idemq.dependencies by hand: all of
 * this database are read anew.  Many are one action.
 */
void
idemq_pending_note_rows(void)
{
	if (!is_last(ACTION_ROWS, 0))
		(void) note(ACTION_ROWS, NULL, 0);
}

/* Notes that a job is gone that was not finished; many are one action. */
void
idemq_pending_note_gone(void)
{
	if (!is_last(ACTION_GONE, 0))
		(void) note(ACTION_GONE, NULL, 0);
}

/* Notes that the settings of a queue change, with 0 of all, or its grants. */
void
idemq_pending_note_settings(int32 queue_id)
{
	if (!is_last(ACTION_SETTINGS, queue_id))
		(void) note(ACTION_SETTINGS, NULL, queue_id);
}

/* Notes that all groups of a queue are to be checked: how many of their jobs may run, or be started, changes. */
void
idemq_pending_note_groups(int32 queue_id)
{
	(void) note(ACTION_GROUPS, NULL, queue_id);
}

/* Notes that idemq.followers was written; before this session reads it again. */
void
idemq_pending_note_switch(void)
{
	if (!is_last(ACTION_SWITCH, 0))
		(void) note(ACTION_SWITCH, NULL, 0);
}

/* Notes that schedules change. */
void
idemq_pending_note_schedules(void)
{
	if (!is_last(ACTION_SCHEDULES, 0))
		(void) note(ACTION_SCHEDULES, NULL, 0);
}

/* Notes that a queue which was paused hands out jobs again. */
void
idemq_pending_note_resume(int32 queue_id)
{
	(void) note(ACTION_RESUME, NULL, queue_id);
}

/* Notes that a database may have the extension from now on. */
void
idemq_pending_note_extension(Oid database)
{
	note(ACTION_EXTENSION, NULL, 0)->u.database = database;
}

/* Returns whether there is any action. */
bool
idemq_pending_any(void)
{
	return nactions > 0;
}

/* Follows the commit of all actions. */
void
idemq_pending_apply(void)
{
	for (int i = 0; i < nactions; i++)
		idemq_action_settle_loan(&actions[i]);
	for (int i = 0; i < nactions; i++)
		idemq_action_apply(&actions[i]);
}

/* Undoes the last action at once: its row turned out not to be ours. */
void
idemq_pending_undo_last(void)
{
	const PendingAction *last = &actions[--nactions];
	const PriorLease *prior = NULL;

	if (last->kind == ACTION_CLAIM && last->u.claim.has_prior)
		prior = &priors[--npriors];
	idemq_action_undo(last, prior);
}

/* Undoes each action with this subtransaction id or a greater one, the last first. */
void
idemq_pending_undo(SubTransactionId from)
{
	while (nactions > 0 && actions[nactions - 1].subid >= from)
		idemq_pending_undo_last();
}

static void
refuse_prepare(const char *what, const char *hint)
{
	ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					errmsg("cannot PREPARE a transaction that %s", what), errhint("%s", hint)));
}

/* A claim needs a session that it is the claim of; a claim promotes for itself alone. */
static void
refuse_claim(void)
{
	refuse_prepare("has claimed or promoted jobs",
				   "Claim in a transaction of its own; the one that ends the attempt can be prepared.");
}

/* Raises an error for an action that cannot be prepared. */
static void
check_prepare(const PendingAction *action)
{
	bool claims = action->kind == ACTION_CLAIM || action->kind == ACTION_CLAIM_ROWONLY;
	QueueInfo queue;

	if (claims && !action->u.claim.once)
		refuse_claim();
	if (action->kind == ACTION_FORGET || action->kind == ACTION_DROP_QUEUE)
		refuse_prepare("dropped or truncated queues or jobs", "Do that in a transaction of its own.");
	if ((claims || action->kind == ACTION_END) && idemq_queue_by_id(action->queue_id, &queue) &&
		queue.max_running > 0)
		refuse_prepare("has ended attempts in a queue with max_running",
					   "Commit it in one phase, or take the limit away with "
					   "SELECT idemq.alter_queue('...', max_running => 0).");
}

/*
 * Before PREPARE: raises 0A000 for what cannot be prepared.  From here on to
 * idemq_pending_forget the session's entries may outlive its transaction, which by then
 * has neither an id nor locks of its own.
 */
void
idemq_pending_before_prepare(void)
{
	if (idemq_pending_groups_owns_any())
		refuse_claim();
	for (int i = 0; i < nactions; i++)
		check_prepare(&actions[i]);
	preparing = nactions > 0;
	if (preparing)
		idemq_slots_begin_change();
}

/* Follows PREPARE. */
void
idemq_pending_prepare(void)
{
	for (int i = 0; i < nactions; i++)
		idemq_action_prepare(&actions[i]);
}

/* Forgets all, at the end of the transaction, and ends what PREPARE began. */
void
idemq_pending_forget(void)
{
	if (preparing)
		idemq_slots_end_change();
	preparing = false;
	actions = NULL;
	nactions = max_actions = 0;
	priors = NULL;
	npriors = max_priors = 0;
}
