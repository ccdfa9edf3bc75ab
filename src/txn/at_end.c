/*
 * txn/at_end.c
 *		What happens when a transaction or a subtransaction ends, and in which order.
 *
 * Only this file registers callbacks for that.  PostgreSQL runs several callbacks last
 * registered first, so their order would depend on the order of lines in _PG_init.
 *
 *		PRE_COMMIT		groups: enter commit windows
 *						room: take room for jobs that were added without asking
 *		COMMIT			settings and holds: move versions
 *						groups: mark, leave commit windows, give back owned ones
 *						counts: add; room in queues: count the jobs, give it back
 *						room in groups: give it back
 *						actions: count transferred entries, then follow all in order
 *						ready keys: lower scan starts, wake
 *						forget all, let kept-away workers back
 *		ABORT			groups: give back owned ones, to be promoted again
 *						counts: end a count of jobs that is under way
 *						actions: undo, the last first
 *						ready keys: lower scan starts, wake; drop, with what was counted
 *						room in queues and groups: give it back
 *						forget all, leave commit windows, let kept-away workers back
 *		PRE_PREPARE		actions: raise an error for what cannot be prepared
 *		PREPARE			counts: end a count of jobs that is under way
 *						actions: drop the entries of attempts that the transaction ends
 *						forget all, let kept-away workers back
 *		sub COMMIT		ready keys, counts and room: give to the parent
 *		sub ABORT		as ABORT, of this subtransaction and its children; forget nothing
 *
 * Versions come first: a session that promotes the next job of a group, which this transaction has
 * marked, must know whether the group is held back (job/holds.c) or paused (job/group_pause.c).
 * Groups and counts come before actions and ready keys, because these wake sessions: a claimer that
 * wakes finds the group marked, and a session that waited for a result finds it counted.  Ready keys
 * come after actions: a claimer may have passed a job because of its lease entry, so the scan start
 * must be lowered after the entry has been removed.  Workers that were kept away return last, when
 * nothing is pending any more.
 *
 * A parallel worker notes nothing: no function that writes is parallel safe.
 *
 * COMMIT and the aborts come when the end is visible to others, with interrupts held;
 * PREPARE when it is on disk; sub COMMIT, PRE_COMMIT and PRE_PREPARE in the middle of the
 * transaction.  All except PRE_COMMIT and PRE_PREPARE take no locks but LWLocks, and
 * neither allocate memory nor raise errors.
 */
#include "postgres.h"

#include "access/xact.h"

#include "base/base.h"
#include "txn/txn.h"

/* Returns whether this transaction has noted anything whose end changes shared memory. */
bool
idemq_at_end_is_pending(void)
{
	return idemq_pending_any() || idemq_pending_ready_any() || idemq_pending_groups_any();
}

static void
forget(void)
{
	idemq_pending_groups_forget();
	idemq_pending_forget();
	idemq_pending_queues_forget();
	idemq_pending_group_room_forget();
	idemq_pending_away_let_back();
}

/* Undoes the notes of a subtransaction and of later ones; InvalidSubTransactionId: all notes. */
static void
undo_from(SubTransactionId from)
{
	idemq_jitter();
	idemq_pending_groups_undo(from);
	idemq_counters_end_count(false, NULL, 0);
	idemq_unfinished_end_count(false, 0);
	idemq_pending_undo(from);
	idemq_jitter();
	idemq_pending_queues_undo(from);
	idemq_pending_group_room_undo(from);
}

static void
at_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			idemq_pending_move_versions();
			idemq_jitter();
			idemq_pending_groups_apply();
			idemq_pending_counts_apply();
			idemq_pending_group_room_apply();
			idemq_jitter();
			idemq_pending_apply();
			idemq_jitter();
			idemq_pending_ready_apply();
			forget();
			IDEMQ_STOP("after_commit");
			break;
		case XACT_EVENT_ABORT:
			undo_from(InvalidSubTransactionId);
			forget();
			break;
		case XACT_EVENT_PRE_PREPARE:
			idemq_pending_before_prepare();
			break;
		case XACT_EVENT_PREPARE:
			idemq_counters_end_count(false, NULL, 0);
			idemq_unfinished_end_count(false, 0);
			idemq_pending_prepare();
			forget();
			break;
		case XACT_EVENT_PRE_COMMIT:
			idemq_pending_groups_before_commit();
			idemq_pending_room_before_commit();
			IDEMQ_STOP("before_commit");
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

static void
at_sub_end(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		idemq_pending_queues_release(subid, parent);
		idemq_pending_group_room_release(subid, parent);
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		undo_from(subid);
}

/* Registers the callbacks; called once, from _PG_init. */
void
idemq_at_end_install(void)
{
	RegisterXactCallback(at_end, NULL);
	RegisterSubXactCallback(at_sub_end, NULL);
}
