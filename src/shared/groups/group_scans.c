/*
 * shared/groups/group_scans.c
 *		Scans of all groups, or all children, of a queue, for when marks may be missing.
 *
 * A session takes a scan, then takes a snapshot, and then does what the scan is for.  After an
 * error, the scan is requested again (txn/pending_groups.c).  A scan of groups is taken as a
 * whole.  A scan of children is taken in slices (ChildrenScan), by any session; it visits the
 * children in the order of their ids, and wraps around until it reaches the point where it began.
 *
 * No child is missed.  Let W be a session that requests a scan because of something that is visible
 * already.  If W comes during a slice whose snapshot may not show that, the scan goes around once
 * more from where that slice stops, and so visits the children of that slice again.  If the slices
 * of two sessions overlap, the scan also goes around once more.
 *
 * Locks: the lock of groups.c, which also protects the times at which scans are due.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "shared/groups/groups.h"
#include "shared/processes/processes.h"

/* Returns whether all groups of a queue must be checked now; if so, the caller must do it. */
bool
idemq_groups_take_scan(const QueueState *qstate, int32 queue_id)
{
	GroupQueue *queue;
	bool wanted;

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	wanted = queue != NULL && queue->scan_at <= idemq_mono_now();
	if (wanted)
	{
		queue->scan_at = PG_INT64_MAX;
		idemq_group_queue_note_due(queue);
	}
	LWLockRelease(&idemq_groups->lock);
	return wanted;
}

/*
 * Returns whether children of a queue must be checked now, and sets *scan to which.  If so, the
 * caller must take a snapshot, check some of them, and call idemq_groups_leave_children.
 */
bool
idemq_groups_take_children(const QueueState *qstate, int32 queue_id, ChildrenScan *scan)
{
	GroupQueue *queue;
	bool wanted;

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	wanted = queue != NULL && queue->children_at <= idemq_mono_now();
	if (wanted)
	{
		if (queue->children_again)
		{
			queue->children_stop = queue->children_from;
			queue->children_at_end = queue->children_again = false;
		}
		queue->children_at = PG_INT64_MAX;
		idemq_group_queue_note_due(queue);
		*scan = (ChildrenScan){.from = queue->children_from, .until = PG_INT64_MAX};
		if (queue->children_at_end)
			scan->until = queue->children_stop;
	}
	LWLockRelease(&idemq_groups->lock);
	return wanted;
}

/*
 * Ends a slice of a scan of children, which has marked the children that need a change.  Unless the
 * scan is over, its next slice is due at once.
 */
void
idemq_groups_leave_children(const QueueState *qstate, int32 queue_id, const ChildrenScan *scan)
{
	GroupQueue *queue;
	bool is_over = true;

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	if (queue != NULL)
	{
		is_over = scan->at_end && (queue->children_at_end || queue->children_stop == PG_INT64_MIN);
		/* Another session has taken a slice in the meantime, with another snapshot. */
		if (queue->children_from != scan->from)
		{
			queue->children_again = true;
			is_over = false;
		}
		else if (!scan->at_end)
			queue->children_from = scan->next;
		else
		{
			queue->children_from = is_over ? queue->children_stop : PG_INT64_MIN;
			queue->children_at_end = true;
		}
		if (!is_over)
			queue->children_at = 0;
		idemq_group_queue_note_due(queue);
	}
	LWLockRelease(&idemq_groups->lock);
	if (!is_over)
		idemq_worker_need_by(0);
}

/*
 * Requests a scan of all groups of a queue, of its children, or both; later: when marks may find
 * room.
 */
void
idemq_groups_want_scan(const QueueState *qstate, int32 queue_id, uint32 what, bool later)
{
	GroupQueue *queue;

	LWLockAcquire(&idemq_groups->lock, LW_EXCLUSIVE);
	queue = idemq_group_queue_of(qstate, MyDatabaseId, queue_id);
	if (queue != NULL)
		idemq_group_queue_want_scan(queue, what, later);
	LWLockRelease(&idemq_groups->lock);
	idemq_worker_need_by(later ? idemq_mono_now() + LEASE_BUSY_RETRY : 0);
}
