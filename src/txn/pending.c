/*
 * txn/pending.c
 *		Pending actions: what this transaction has noted for shared memory, in order;
 *		and, by kind, what shared memory does after its commit, abort and PREPARE.
 *
 * An action is noted before the change that it undoes is made, into memory that was
 * reserved before (idemq_pending_reserve), so that no error can come between.  A
 * transaction may change a million jobs, so an action is small.
 *
 * At the commit entries with transferred permits are counted first, before the entries go whose
 * permits they take (job/limits.c); then the actions are followed in the order in which they were
 * noted.  What comes before and after them is in txn/at_end.c.
 *
 * Subtransactions: their ids grow, so at the end of one the actions with its id or a
 * greater one are its own or its children's, and are the tail of the list.  A release
 * needs nothing; a rollback undoes that tail, the last first, so that an entry which
 * was ended, claimed again and ended again goes back the way it came.
 *
 * PREPARE TRANSACTION: from then on no session owns the transaction, so what only a
 * session could answer for is refused: a claim (unless it is the attempt's end as well), a
 * promotion, the end of an attempt where max_running counts, an enqueue where max_unfinished or
 * group_max_unfinished counts, and a drop of what memory knows.  The entries of attempts that the
 * transaction ends are removed.  After that, only its row locks keep other sessions from these jobs,
 * and a claimer that meets such a row does not pass it.  When the transaction ends, the
 * utility hook (hooks/utility.c) unsets the scan starts and asks for recovery.
 *
 * What txn/at_end.c calls neither allocates nor raises; idemq_pending_before_prepare
 * alone raises.  No locks; all state is this backend's.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "base/base.h"
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
	int64 token; /* with the job it names a lease entry, and no later one */
	int32 queue_id;
	int16 priority;
	bool has_prior;	  /* of a claim: it took an entry over, which is in priors */
	bool transferred; /* of a claim: it has the permit of an attempt that this transaction ends */
	bool once;		  /* of a claim: it is the attempt's end as well */
	bool frees;		  /* of an end: the attempt was counted as running */
	uint8 finished;	  /* JobStatus to announce of an end or a finish; 0: none */
	EventKind event;  /* to NOTIFY */
	union
	{
		int32 attempt;		  /* of an event */
		Oid database;		  /* of ACTION_EXTENSION */
		TimestampTz ready_at; /* of a claim: with the priority, its position in the ready index */
		uint64 process;		  /* of an end by others: the process to tell; 0: none */
	} u;
} Action;

StaticAssertDecl(sizeof(Action) <= MAX_ACTION_SIZE, "a pending action is too large");
StaticAssertDecl(sizeof(PriorLease) <= MAX_PRIOR_SIZE, "what a claim takes over is too large");

/* In TopTransactionContext; NULL between transactions. */
static Action *actions = NULL;
static int nactions = 0;
static int max_actions = 0;
/* What claims took over: one for each action with has_prior, in the order of actions. */
static PriorLease *priors = NULL;
static int npriors = 0;
static int max_priors = 0;
/* Whether PREPARE TRANSACTION is under way, for idemq.check(). */
static bool preparing = false;
/* Whether an action is about settings or holds, perhaps one that was undone. */
static bool settings_changed = false;
/* The job that the last transaction with a claim has claimed, if it was one; else 0, 0. */
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

/* Notes what concerns a queue (0: all queues), and no job; equal notes in a row are one. */
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
 * Notes that all rows of this database are read anew, unless that is noted already.  The last
 * note is undone first, so a note that is there stays for all that comes behind it.
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
 * cannot fail, and has taken the lease entry; rowonly: it has none, because the table was full.
 * key: the ready key of the job.  once: the same transaction ends the attempt.  prior: the entry
 * that the claim took over, or NULL.
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
 * Notes that this transaction ends the lease of that token, and marks its entry.  The job may
 * be a parent.  A queue without a state has no marks (shared/groups/dependencies.c): then all
 * rows are read anew.  announced: the status to announce after the commit, or NOT_ANNOUNCED.
 * by_others: neither the worker nor anyone else with the token ends the attempt, so the worker's
 * process is told after the commit.
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

/* Notes that a job that had no lease is finished; like idemq_pending_note_end. */
void
idemq_pending_note_finished(QueueState *qstate, int32 queue_id, int64 job_id, JobStatus announced)
{
	if (qstate == NULL)
		note_rows_once();
	else
		pending_note(ACTION_FINISHED, qstate, queue_id, job_id)->finished = (uint8) announced;
}

/* Notes that a database may have the extension from now on. */
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

/* Makes a job visible again that other claimers may have passed. */
static void
show_again(const Action *action, int priority, TimestampTz ready_at)
{
	idemq_scan_start_lower(action->qstate, action->queue_id, priority,
						   (ReadyKey){ready_at, action->job_id});
	idemq_wake_if_ready(action->qstate, action->queue_id, 1);
}

/*
 * Removes an entry, and makes its job visible again to claimers that it turned away.  Returns false if
 * there is no entry of that token.
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

/* The lease of a claim starts. */
static void
start_lease(const Action *action)
{
	idemq_due_by(idemq_qstate_current(action->qstate, action->queue_id), DUE_LEASE,
				 idemq_lease_activate(action->job_id, action->token));
}

/* Others may have passed the job because of the claim. */
static void
undo_claim_rowonly(const Action *action)
{
	show_again(action, action->priority, action->u.ready_at);
}

/* Takes a claim's entry back, or gives it what it took over. */
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
	undo_claim_rowonly(action);
}

/* A job may be in flight without an entry. */
static void
need_recovery(const Action *action)
{
	idemq_qstate_need_recovery(action->qstate, action->queue_id);
}

/*
 * A job has its result, or its attempt has ended: tells its children, the sessions waiting, and those
 * who LISTEN.
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

static void
end_lease(const Action *action)
{
	drop_ended(action);
	tell_of_end(action);
}

/* Lets a lease go on; a search may have missed its job while we had marked the entry. */
static void
undo_end(const Action *action)
{
	int64 again = idemq_lease_cancel_end(action->job_id, action->token);

	if (again > 0)
		idemq_due_by(idemq_qstate_current(action->qstate, action->queue_id), DUE_LEASE, again);
	else
		need_recovery(action);
	idemq_transfer_note_end(action->queue_id, action->frees, -1);
}

/*
 * No session can take an attempt's end back any more, so its entry goes.  An entry whose worker
 * has ended the attempt as well stays, and says how: a reaper comes back to it until the row is
 * free (job/reap.c).
 */
static void
prepare_end(const Action *action)
{
	Lease lease;

	if (idemq_lease_get(action->job_id, &lease) && lease.token == action->token &&
		lease.loss >= LOSS_RETURNED)
		undo_end(action);
	else
		drop_ended(action);
}

/* Ends a cancel's mark, if there is one. */
static void
unmark_cancel(const Action *action)
{
	if (action->token != 0)
		idemq_lease_unmark_cancel(action->job_id, action->token, false);
}

static void
undo_cancel(const Action *action)
{
	if (action->token != 0)
		idemq_lease_unmark_cancel(action->job_id, action->token, true);
}

static void
free_qstate(const Action *action)
{
	idemq_qstate_forget_queue(action->queue_id);
}

static void
drop_queue(const Action *action)
{
	idemq_wake_queue(action->qstate, action->queue_id);
	free_qstate(action);
}

/* Nothing of this database is known any more. */
static void
pending_forget_database(const Action *action)
{
	idemq_version_move(0);
	/* In this order: no entry is left that another state would have to count. */
	idemq_qstates_forget_database(MyDatabaseId);
	idemq_lease_forget_database(MyDatabaseId);
	/* After that: a session that looked before it sleeps where nobody would wake it any more. */
	idemq_wake_database(MyDatabaseId, false);
	idemq_worker_recheck(MyDatabaseId);
}

/*
 * Rows have changed, and memory has not been told which; or our own claims have passed some
 * unseen.
 */
static void
unset_database(const Action *action)
{
	idemq_qstates_unset_database(MyDatabaseId);
	idemq_wake_for_results(MyDatabaseId);
}

static void
notify_event(const Action *action)
{
	idemq_ring_add(RING_EVENTS, action->qstate, action->queue_id,
				   (JobNews){action->event, action->u.attempt, action->job_id});
}

static void
pending_wake_for_results(const Action *action)
{
	idemq_wake_for_results(MyDatabaseId);
}

/* The settings of a queue (0: of all queues) have changed, and their version has moved. */
static void
pending_follow_settings(const Action *action)
{
	int32 queue_id = action->queue_id;
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

/*
 * Holds of a queue or of its groups have changed, and the version of its settings has moved.  The
 * worker looks up when they end (worker/waking.c).
 */
static void
pending_follow_holds(const Action *action)
{
	idemq_due_by(idemq_qstate_find(MyDatabaseId, action->queue_id), DUE_READY, 0);
}

static void
forget_settings(const Action *action)
{
	idemq_queue_cache_forget(action->queue_id);
}

static void
check_groups(const Action *action)
{
	idemq_groups_drop_low_water_marks(idemq_qstate_find(MyDatabaseId, action->queue_id),
									  action->queue_id);
}

/* All sessions look again, this one too: it has read what it wrote. */
static void
look_again(const Action *action)
{
	idemq_version_move_following();
}

/* So does the worker: it has something to do now, or nothing, or a row to write again. */
static void
switched(const Action *action)
{
	look_again(action);
	idemq_worker_need_by(0);
}

static void
pending_note_schedules(const Action *action)
{
	idemq_worker_note_schedules();
}

static void
wake_resumed(const Action *action)
{
	idemq_wake_if_ready(NULL, action->queue_id, PG_INT32_MAX);
}

static void
visit_database(const Action *action)
{
	idemq_worker_visit(action->u.database);
}

/*
 * What follows.  The queue state of a queue that is created goes at PREPARE, since nothing follows
 * ROLLBACK PREPARED; after COMMIT PREPARED the first session that looks the queue up gives it
 * another.
 */
/* clang-format off */
static const struct
{
	void (*commit)(const Action *action); /* NULL: nothing follows */
	void (*abort)(const Action *action);
	void (*prepare)(const Action *action);
} rules[] = {
	/*                         commit            abort               prepare */
	[ACTION_CLAIM] =          {start_lease,      undo_claim,         NULL},
	[ACTION_CLAIM_ROWONLY] =  {need_recovery,    undo_claim_rowonly, NULL},
	[ACTION_END] =            {end_lease,        undo_end,           prepare_end},
	[ACTION_CANCEL] =         {unmark_cancel,    undo_cancel,        unmark_cancel},
	[ACTION_RECOVER] =        {need_recovery,    NULL,               NULL},
	[ACTION_CREATE_QUEUE] =   {NULL,             free_qstate,          free_qstate},
	[ACTION_DROP_QUEUE] =     {drop_queue,       NULL,               NULL},
	[ACTION_FORGET] =         {pending_forget_database,  unset_database,     NULL},
	[ACTION_EVENT] =          {notify_event,     NULL,               NULL},
	[ACTION_FINISHED] =       {tell_of_end,      NULL,               NULL},
	[ACTION_GONE] =           {pending_wake_for_results, NULL,               NULL},
	[ACTION_SETTINGS] =       {pending_follow_settings,  forget_settings,    forget_settings},
	[ACTION_HOLDS] =          {pending_follow_holds,     forget_settings,    forget_settings},
	[ACTION_GROUPS] =         {check_groups,     NULL,               NULL},
	[ACTION_SWITCH] =         {switched,         look_again,         NULL},
	[ACTION_SCHEDULES] =      {pending_note_schedules,   NULL,               NULL},
	[ACTION_RESUME] =         {wake_resumed,     NULL,               NULL},
	[ACTION_ROWS] =           {unset_database,   NULL,               NULL},
	[ACTION_EXTENSION] =      {visit_database,   NULL,               NULL},
};
/* clang-format on */

/* Remembers the job that this transaction has claimed; nothing if it has claimed several. */
static void
remember_claim(void)
{
	const Action *claim = NULL;
	int claims = 0;

	for (int i = 0; i < nactions; i++)
	{
		if (actions[i].kind == ACTION_CLAIM || actions[i].kind == ACTION_CLAIM_ROWONLY)
		{
			claim = &actions[i];
			claims++;
		}
	}
	if (claims == 0)
		return;
	idemq_pending_forget_claimed();
	if (claims == 1)
	{
		claimed_id = claim->job_id;
		claimed_token = claim->token;
	}
}

/* Returns the one job that this session's last transaction with a claim claimed; false: none. */
bool
idemq_pending_claimed(int64 *id, int64 *token)
{
	*id = claimed_id;
	*token = claimed_token;
	return claimed_token != 0;
}

/* Forgets that job: the session is somebody else's from now on. */
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

/* Follows the commit. */
void
idemq_pending_apply(void)
{
	IDEMQ_STOP("idemq_pending_apply");
	remember_claim();
	for (int i = 0; i < nactions; i++)
	{
		if (actions[i].transferred)
			idemq_lease_count_transferred(actions[i].job_id, actions[i].token);
	}
	for (int i = 0; i < nactions; i++)
	{
		if (rules[actions[i].kind].commit != NULL)
			rules[actions[i].kind].commit(&actions[i]);
	}
}

/* Undoes the last action; at once, if its row turned out not to be ours. */
void
idemq_pending_undo_last(void)
{
	const Action *last = &actions[--nactions];

	idemq_qstates_begin_change();
	if (rules[last->kind].abort != NULL)
		rules[last->kind].abort(last);
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

/* A claim needs a session that holds it; a promotion is part of a claim. */
static void
refuse_claim(void)
{
	refuse_prepare(
		"has claimed or promoted jobs",
		"Claim jobs in a separate transaction. The transaction that ends the attempt can be "
		"prepared.");
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

/* Follows PREPARE. */
void
idemq_pending_prepare(void)
{
	for (int i = 0; i < nactions; i++)
	{
		if (rules[actions[i].kind].prepare != NULL)
			rules[actions[i].kind].prepare(&actions[i]);
	}
}

/* Forgets all, at the end of the transaction, and ends what PREPARE began. */
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
