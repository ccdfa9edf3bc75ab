/*
 * txn/pending.c
 *		Pending actions: what this transaction has noted for shared memory, in order; and, for each
 *		kind of action, what shared memory does after commit, abort and PREPARE.
 *
 * An action is noted before the change that it undoes is made, in memory that was reserved before
 * (idemq_pending_reserve), so no error can come in between.  A transaction may change a million
 * jobs, so an action is small.
 *
 * At the commit, entries with transferred permits are counted first, before the entries are removed
 * whose permits they take (job/limits.c).  Then the actions are carried out in the order in which
 * they were noted. txn/at_end.c says what comes before and after them.
 *
 * Subtransactions: their ids increase, so when one ends, the actions with its id or a greater one
 * are its own or its children's, and are at the end of the list.  A release does nothing.  A
 * rollback undoes these actions, the last first, so an entry that was ended, claimed again and
 * ended again returns to its first state step by step.
 *
 * PREPARE TRANSACTION: from then on no session owns the transaction, so everything is refused that
 * requires a session: a claim (unless the same call ends the attempt), a promotion, the end of an
 * attempt in a queue with max_running, an enqueue that max_unfinished or group_max_unfinished
 * limits, and a drop of something that memory knows.  The entries of attempts that the transaction
 * ends are removed.  After that, only its row locks keep other sessions from these jobs, and a
 * claimer that meets such a row does not pass it.  When the transaction ends, the utility hook
 * (hooks/utility.c) unsets the scan starts and requests recovery.
 *
 * The functions that txn/at_end.c calls neither allocate memory nor raise errors, except
 * idemq_pending_before_prepare, which raises errors.  There are no locks; all state belongs to this
 * backend.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "base/base.h"
#include "base/compat.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "shared/waiters/waiters.h"
#include "txn/txn.h"

#define MAX_ACTION_SIZE 64 /* bytes; with what idemq_grow leaves empty, at most 72 */
#define MAX_PRIOR_SIZE 88  /* bytes */

typedef struct Action
{
	ActionKind kind;
	SubTransactionId subid;
	QueueState *qstate;
	int64 job_id;
	int64 token; /* of the lease entry */
	int32 queue_id;
	int16 priority;
	bool has_prior;	  /* claim: it took an entry over, which is in priors */
	bool transferred; /* claim: it has the permit of an attempt that this transaction ends */
	bool once;		  /* claim: the same call ends the attempt */
	bool frees;		  /* end: the attempt was counted as running */
	uint8 finished;	  /* end, finish: the JobStatus to announce, or NOT_ANNOUNCED */
	EventKind event;  /* event: for NOTIFY */
	union
	{
		int32 attempt;		  /* event */
		Oid database;		  /* ACTION_EXTENSION */
		TimestampTz ready_at; /* claim: with the priority, its position in the ready index */
		uint64 process;		  /* end by others: the process to tell; 0: none */
	} u;
} Action;

StaticAssertDecl(sizeof(Action) <= MAX_ACTION_SIZE, "a pending action is too large");
StaticAssertDecl(sizeof(PriorLease) <= MAX_PRIOR_SIZE, "what a claim takes over is too large");

/* In TopTransactionContext; NULL between transactions. */
static Action *actions = NULL;
static int nactions = 0;
static int max_actions = 0;
/*
 * The entries that claims took over: one for each action with has_prior, in the order of actions.
 */
static PriorLease *priors = NULL;
static int npriors = 0;
static int max_priors = 0;
/* Whether PREPARE TRANSACTION is under way, for idemq.check(). */
static bool preparing = false;
/* Whether an action concerns settings or holds, perhaps one that was undone. */
static bool settings_changed = false;
/*
 * The job claimed by the last transaction that claimed any, if it claimed exactly one; otherwise 0,
 * 0.
 */
static int64 claimed_id = 0;
static int64 claimed_token = 0;

/* Makes room for one action, so that the next note cannot fail. */
void
idemq_pending_reserve(void)
{
	actions = idemq_grow(actions, &max_actions, (int64) nactions + 1, sizeof(Action));
}

/* Makes room for a claim in a queue, and for the entry that it may take over. */
void
idemq_pending_reserve_claim(int32 queue_id)
{
	idemq_pending_reserve();
	idemq_transfer_reserve(queue_id);
	priors = idemq_grow(priors, &max_priors, (int64) npriors + 1, sizeof(PriorLease));
}

/* Returns a new action at the end of the list; room was reserved. */
static Action *
add_action(ActionKind kind, QueueState *qstate, int32 queue_id)
{
	Action *action;

	Assert(nactions < max_actions);
	action = &actions[nactions++];
	*action = (Action){.kind = kind,
					   .subid = GetCurrentSubTransactionId(),
					   .qstate = qstate,
					   .queue_id = queue_id};
	return action;
}

/* Like add_action, for a job; makes room first. */
static Action *
pending_note(ActionKind kind, QueueState *qstate, int32 queue_id, int64 job_id)
{
	Action *action;

	idemq_pending_reserve();
	action = add_action(kind, qstate, queue_id);
	action->job_id = job_id;
	return action;
}

/*
 * Notes an action for a queue (0: all queues), without a job.  Several equal notes in a row become
 * one.
 */
void
idemq_pending_note(ActionKind kind, QueueState *qstate, int32 queue_id)
{
	const Action *last = nactions > 0 ? &actions[nactions - 1] : NULL;

	settings_changed |= kind == ACTION_SETTINGS || kind == ACTION_HOLDS;
	if (last == NULL || last->kind != kind || last->queue_id != queue_id ||
		last->subid != GetCurrentSubTransactionId())
		(void) pending_note(kind, qstate, queue_id, 0);
}

/*
 * Notes ACTION_ROWS, unless it is noted already.  Actions are undone from the end of the list, so
 * an earlier note stays for all that come after it.
 */
static void
note_rows_once(void)
{
	static int known = 0;

	if (known >= nactions || actions[known].kind != ACTION_ROWS)
	{
		known = nactions;
		(void) pending_note(ACTION_ROWS, NULL, 0, 0);
	}
}

/*
 * Notes a claim.  The caller has reserved room for the note (idemq_pending_reserve_claim), so this
 * cannot fail, and has taken the lease entry, unless rowonly is true, because the table was full.
 * key: the ready key of the job. once: the same call ends the attempt. prior: the entry that the
 * claim took over, or NULL.
 */
void
idemq_pending_note_claim(const LeaseClaim *claim, int32 priority, ReadyKey key, bool rowonly,
						 bool once, const PriorLease *prior)
{
	Action *action =
		add_action(rowonly ? ACTION_CLAIM_ROWONLY : ACTION_CLAIM, claim->qstate, claim->queue_id);

	action->job_id = claim->job_id;
	action->token = claim->token;
	action->u.ready_at = key.ready_at;
	action->priority = (int16) priority;
	action->transferred = claim->transfer;
	action->once = once;
	action->has_prior = prior != NULL;
	if (claim->transfer)
		idemq_transfer_note_end(claim->queue_id, true, -1); /* its permit is taken */
	if (prior != NULL)
	{
		Assert(npriors < max_priors);
		priors[npriors++] = *prior;
	}
}

/*
 * Notes that this transaction ends the lease of that token, and marks its entry.  The job may be a
 * parent.  A queue without a state has no marks (shared/groups/dependencies.c), so then all rows
 * are read again. announced: the status to announce after the commit, or NOT_ANNOUNCED. by_others:
 * the attempt is ended by a session that does not have the token, so the worker's process is told
 * after the commit.
 */
void
idemq_pending_note_end(QueueState *qstate, int32 queue_id, int64 job_id, int64 token,
					   JobStatus announced, bool by_others)
{
	Action *action;

	if (qstate == NULL)
		note_rows_once();
	action = pending_note(ACTION_END, qstate, queue_id, job_id);
	action->token = token;
	action->finished = (uint8) announced;
	idemq_transfer_reserve(queue_id);
	action->frees = idemq_lease_begin_end(job_id, token);
	if (by_others)
		action->u.process = idemq_lease_process(job_id, token);
	idemq_transfer_note_end(queue_id, action->frees, 1);
}

/*
 * Notes that this transaction cancels the job of that token, and tells its worker
 * (shared/leases/lease_beat.c), before it waits for the job's row.  at_once: whether the worker is
 * woken as well.
 */
void
idemq_pending_note_cancel(int32 queue_id, int64 job_id, int64 token, bool at_once)
{
	Action *action = pending_note(ACTION_CANCEL, NULL, queue_id, job_id);

	if (idemq_lease_mark_cancel(job_id, token, at_once))
		action->token = token;
}

void
idemq_pending_note_event(QueueState *qstate, int32 queue_id, EventKind kind, int64 job_id,
						 int32 attempt)
{
	Action *action = pending_note(ACTION_EVENT, qstate, queue_id, job_id);

	action->event = kind;
	action->u.attempt = attempt;
}

/* Notes that a job without a lease has finished. announced: as for idemq_pending_note_end. */
void
idemq_pending_note_finished(QueueState *qstate, int32 queue_id, int64 job_id, JobStatus announced)
{
	if (qstate == NULL)
		note_rows_once();
	else
		pending_note(ACTION_FINISHED, qstate, queue_id, job_id)->finished = (uint8) announced;
}

/* Notes that a database may now have the extension. */
void
idemq_pending_note_extension(Oid database)
{
	pending_note(ACTION_EXTENSION, NULL, 0, 0)->u.database = database;
}

bool
idemq_pending_any(void)
{
	return nactions > 0;
}

/* Makes claimers visit a job again that they may have passed. */
static void
show_again(const Action *action, int priority, TimestampTz ready_at)
{
	idemq_scan_start_lower(action->qstate, action->queue_id, priority,
						   (ReadyKey){ready_at, action->job_id});
	idemq_wake_if_ready(action->qstate, action->queue_id, 1);
}

/*
 * Removes an entry, and makes claimers visit its job again if they have passed it because of the
 * entry.  Returns false if there is no entry with that token.
 */
static bool
drop_lease(const Action *action, Lease *dropped)
{
	if (!idemq_lease_drop(action->job_id, action->token, dropped))
		return false;
	if (dropped->passed_by.any)
		show_again(action, dropped->passed_by.priority, dropped->passed_by.least);
	return true;
}

/*
 * Removes the entry of an attempt that has ended.  Tells the worker's process if others have ended the
 * attempt and have not told it before.  A claim of this transaction may have taken the entry over.
 */
static void
drop_ended(const Action *action)
{
	Lease dropped;

	if (!drop_lease(action, &dropped))
		idemq_listeners_tell(action->u.process);
	else if (!dropped.told && (dropped.marked || action->u.process != 0))
		idemq_listeners_tell(dropped.process);
}

/*
 * After the commit of a transaction that has finished a job or ended its attempt: marks the job for
 * its children, wakes the sessions that wait for its result, and announces its status for NOTIFY
 * unless it is NOT_ANNOUNCED.  Neither allocates memory nor raises errors.
 */
static void
tell_of_end(const Action *action)
{
	idemq_dependency_finished(action->qstate, action->queue_id, action->job_id);
	idemq_wake_for_result(action->job_id);
	if (unlikely(action->finished != NOT_ANNOUNCED))
		idemq_ring_add(RING_FINISHED, action->qstate, action->queue_id,
					   (JobNews){.what = action->finished, .job_id = action->job_id});
}

/* Removes a claim's entry, or restores the entry that it took over. */
static void
undo_claim(const Action *action)
{
	Lease dropped;

	if (!action->has_prior)
		(void) drop_lease(action, &dropped);
	else if (!idemq_lease_restore(action->job_id, action->token, &priors[--npriors]))
		idemq_scan_start_unset(action->qstate, action->queue_id);
	if (action->transferred)
		idemq_transfer_note_end(action->queue_id, true, 1);
	/* Others may have passed the job because of the claim. */
	show_again(action, action->priority, action->u.ready_at);
}

/* Undoes idemq_pending_note_end: the lease stays active. */
static void
undo_end(const Action *action)
{
	int64 again = idemq_lease_cancel_end(action->job_id, action->token);

	if (again > 0)
		idemq_due_by(idemq_qstate_current(action->qstate, action->queue_id), DUE_LEASE, again);
	else
		/* Without an entry; recovery may have skipped the job because of the entry's mark. */
		idemq_qstate_need_recovery(action->qstate, action->queue_id);
	idemq_transfer_note_end(action->queue_id, action->frees, -1);
}

/* Makes shared memory forget this database. */
static void
forget_database(void)
{
	idemq_version_move(0);
	/* The queue states first, so that no entry is left that another state would have to count. */
	idemq_qstates_forget_database(MyDatabaseId);
	idemq_lease_forget_database(MyDatabaseId);
	/* Last, because sessions that began to sleep before would otherwise not be woken any more. */
	idemq_wake_database(MyDatabaseId, false);
	idemq_worker_recheck(MyDatabaseId);
}

/*
 * Makes sessions and the worker reread the settings of a queue (0: of all queues), whose version
 * has moved.
 */
static void
follow_settings(int32 queue_id)
{
	QueueState *qstate = queue_id == 0 ? NULL : idemq_qstate_find(MyDatabaseId, queue_id);

	idemq_due_by(qstate, DUE_HANDLER, 0);
	/* The worker may have found a queue that was not there yet. */
	if (queue_id == 0)
		idemq_worker_need_all();
	else if (qstate != NULL)
	{
		idemq_worker_need_for_queue(qstate, 0);
		/* A pause may have an end (job/pausing.c). */
		idemq_due_by(qstate, DUE_READY, 0);
	}
	if (queue_id == 0)
		idemq_wake_database(MyDatabaseId, false);
	else
		idemq_wake_queue(qstate, queue_id);
}

/* Carries out an action after the commit. */
static void
action_commit(const Action *action)
{
	QueueState *qstate = action->qstate;
	int32 queue_id = action->queue_id;

	switch (action->kind)
	{
		case ACTION_CLAIM:
			idemq_due_by(idemq_qstate_current(qstate, queue_id), DUE_LEASE,
						 idemq_lease_activate(action->job_id, action->token));
			break;
		case ACTION_CLAIM_ROWONLY:
		case ACTION_RECOVER:
			idemq_qstate_need_recovery(qstate, queue_id);
			break;
		case ACTION_END:
			drop_ended(action);
			tell_of_end(action);
			break;
		case ACTION_FINISHED:
			tell_of_end(action);
			break;
		case ACTION_CANCEL:
			if (action->token != 0)
				idemq_lease_unmark_cancel(action->job_id, action->token, false);
			break;
		case ACTION_CREATE_QUEUE:
			break;
		case ACTION_DROP_QUEUE:
			idemq_wake_queue(qstate, queue_id);
			idemq_qstate_forget_queue(queue_id);
			break;
		case ACTION_FORGET:
			forget_database();
			break;
		case ACTION_EVENT:
			idemq_ring_add(RING_EVENTS, qstate, queue_id,
						   (JobNews){action->event, action->u.attempt, action->job_id});
			break;
		case ACTION_ROWS:
			idemq_qstates_unset_database(MyDatabaseId);
			pg_fallthrough;
		case ACTION_GONE:
			idemq_wake_for_results(MyDatabaseId);
			break;
		case ACTION_SETTINGS:
			follow_settings(queue_id);
			break;
		case ACTION_HOLDS:
			/* The worker looks up when they end (worker/waking.c). */
			idemq_due_by(idemq_qstate_find(MyDatabaseId, queue_id), DUE_READY, 0);
			break;
		case ACTION_GROUPS:
			idemq_groups_drop_low_water_marks(idemq_qstate_find(MyDatabaseId, queue_id), queue_id);
			break;
		case ACTION_SWITCH:
			idemq_version_move_following();
			/* The worker now has something to do, or nothing, or a row to write again. */
			idemq_worker_need_by(0);
			break;
		case ACTION_SCHEDULES:
			idemq_worker_note_schedules();
			break;
		case ACTION_RESUME:
			idemq_wake_if_ready(NULL, queue_id, PG_INT32_MAX);
			break;
		case ACTION_EXTENSION:
			idemq_worker_visit(action->u.database);
			break;
	}
}

/* Undoes an action after an abort. */
static void
action_abort(const Action *action)
{
	switch (action->kind)
	{
		case ACTION_CLAIM:
			undo_claim(action);
			break;
		case ACTION_CLAIM_ROWONLY:
			show_again(action, action->priority, action->u.ready_at);
			break;
		case ACTION_END:
			undo_end(action);
			break;
		case ACTION_CANCEL:
			if (action->token != 0)
				idemq_lease_unmark_cancel(action->job_id, action->token, true);
			break;
		case ACTION_CREATE_QUEUE:
			idemq_qstate_forget_queue(action->queue_id);
			break;
		case ACTION_FORGET:
			/* Claims of this transaction have passed jobs that are there again. */
			idemq_qstates_unset_database(MyDatabaseId);
			idemq_wake_for_results(MyDatabaseId);
			break;
		case ACTION_SETTINGS:
		case ACTION_HOLDS:
			idemq_queue_cache_forget(action->queue_id);
			break;
		case ACTION_SWITCH:
			/* This session, too, must read again, because it has read its own changes. */
			idemq_version_move_following();
			break;
		default:
			break;
	}
}

/* Carries out an action at PREPARE, as far as no session can do it when the transaction ends. */
static void
action_prepare(const Action *action)
{
	Lease lease;

	switch (action->kind)
	{
		case ACTION_END:
			/*
			 * No session can undo this end any more, so the entry goes.  An entry whose worker has
			 * also ended the attempt stays, and says how: a reaper comes back to it until the row is
			 * free (job/reap.c).
			 */
			if (idemq_lease_get(action->job_id, &lease) && lease.token == action->token &&
				lease.loss >= LOSS_RETURNED)
				undo_end(action);
			else
				drop_ended(action);
			break;
		case ACTION_CREATE_QUEUE:
			/* After COMMIT PREPARED, the first session that looks the queue up gives it a state. */
			idemq_qstate_forget_queue(action->queue_id);
			break;
		case ACTION_CANCEL:
			action_commit(action);
			break;
		case ACTION_SETTINGS:
		case ACTION_HOLDS:
			action_abort(action);
			break;
		default:
			break;
	}
}

/*
 * Returns the job claimed by the last transaction of this session that claimed any; false if there
 * were several or none.
 */
bool
idemq_pending_claimed(int64 *id, int64 *token)
{
	*id = claimed_id;
	*token = claimed_token;
	return claimed_token != 0;
}

/*
 * Forgets that job, because another client uses the session from now on (DISCARD ALL), or a later
 * transaction has claimed.
 */
void
idemq_pending_forget_claimed(void)
{
	claimed_id = claimed_token = 0;
}

/* Called first after the commit: makes sessions reread the settings and holds that have changed. */
void
idemq_pending_move_versions(void)
{
	if (likely(!settings_changed))
		return;
	for (int i = 0; i < nactions; i++)
	{
		if (actions[i].kind == ACTION_SETTINGS || actions[i].kind == ACTION_HOLDS)
			idemq_version_move(actions[i].queue_id);
	}
}

/* Carries out all actions after the commit. */
void
idemq_pending_apply(void)
{
	const Action *claim = NULL;
	int claims = 0;

	IDEMQ_STOP("idemq_pending_apply");
	for (int i = 0; i < nactions; i++)
	{
		const Action *action = &actions[i];

		if (action->kind == ACTION_CLAIM || action->kind == ACTION_CLAIM_ROWONLY)
		{
			claim = action;
			claims++;
		}
		if (action->transferred)
			idemq_lease_count_transferred(action->job_id, action->token);
	}
	if (claims > 0)
		idemq_pending_forget_claimed();
	if (claims == 1)
	{
		claimed_id = claim->job_id;
		claimed_token = claim->token;
	}
	for (int i = 0; i < nactions; i++)
		action_commit(&actions[i]);
}

/*
 * Undoes the action that was noted last, and removes it.  Called at an abort, or by a caller that
 * has just noted the action, and then could not write its row.  Actions must be undone in reverse
 * order, because priors is a stack.
 */
void
idemq_pending_undo_last(void)
{
	idemq_qstates_begin_change();
	action_abort(&actions[--nactions]);
	idemq_qstates_end_change();
}

/* Undoes the actions of this subtransaction and of later ones, in reverse order. */
void
idemq_pending_undo(SubTransactionId from)
{
	while (nactions > 0 && actions[nactions - 1].subid >= from)
		idemq_pending_undo_last();
}

static void
refuse_prepare(const char *what, const char *hint)
{
	ereport(ERROR, errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			errmsg("cannot PREPARE a transaction that %s", what), errhint("%s", hint));
}

/* A claim needs a session, and a promotion is part of a claim. */
static void
refuse_claim(void)
{
	refuse_prepare(
		"has claimed or promoted jobs",
		"Claim jobs in a separate transaction. The transaction that ends the attempt can be "
		"prepared.");
}

/*
 * Before PREPARE: raises 0A000 if the transaction cannot be prepared.  From here on until
 * idemq_pending_forget, the session's entries may outlive its transaction, which then has neither
 * an id nor locks of its own.
 */
void
idemq_pending_before_prepare(void)
{
	if (idemq_pending_groups_owns_any())
		refuse_claim();
	if (idemq_pending_room_any())
		refuse_prepare("has added jobs to a queue with max_unfinished",
					   "Use COMMIT instead of PREPARE TRANSACTION, or remove the limit with SELECT "
					   "idemq.alter_queue('...', max_unfinished => 0).");
	if (idemq_pending_group_room_any())
		refuse_prepare("has enqueued into a group of a queue with group_max_unfinished",
					   "Use COMMIT instead of PREPARE TRANSACTION, or remove the limit with SELECT "
					   "idemq.alter_queue('...', group_max_unfinished => 0).");
	for (int i = 0; i < nactions; i++)
	{
		const Action *action = &actions[i];
		QueueInfo queue;

		if ((action->kind == ACTION_CLAIM || action->kind == ACTION_CLAIM_ROWONLY) && !action->once)
			refuse_claim();
		if (action->kind == ACTION_FORGET || action->kind == ACTION_DROP_QUEUE)
			refuse_prepare("has dropped or truncated queues or jobs",
						   "Drop or truncate them in a separate transaction.");
		if (action->kind == ACTION_END && idemq_queue_by_id(action->queue_id, &queue) &&
			queue.max_running > 0)
			refuse_prepare(
				"has ended attempts in a queue with max_running",
				"Use COMMIT instead of PREPARE TRANSACTION, or remove the limit with SELECT "
				"idemq.alter_queue('...', max_running => 0).");
	}
	preparing = nactions > 0;
	if (preparing)
		idemq_qstates_begin_change();
}

/* Carries out all actions at PREPARE. */
void
idemq_pending_prepare(void)
{
	for (int i = 0; i < nactions; i++)
		action_prepare(&actions[i]);
}

/*
 * Forgets all actions at the end of the transaction, and ends what idemq_pending_before_prepare
 * began.
 */
void
idemq_pending_forget(void)
{
	if (preparing)
		idemq_qstates_end_change();
	preparing = settings_changed = false;
	actions = NULL;
	nactions = max_actions = 0;
	priors = NULL;
	npriors = max_priors = 0;
}
