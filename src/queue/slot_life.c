/*
 * queue/slot_life.c
 *		How a queue gets its slot in shared memory, and loses it.
 *
 * A slot has parts in several files: the cursors and the recovery point in the slot
 * itself; the ring of events, the counters, the groups and the cell of buckets at its
 * index.  Its next queue must inherit nothing, so all of them are reset or forgotten here,
 * and nowhere else.  (A pass of promotion, at its index too, is the worker's:
 * shared/groups/promote_pass.c.)
 *
 * Invariant: a queue that has a slot has all of its parts.  slots_lock is held
 * exclusively from before the slot gets its key until the last part is reset, so
 * no session finds the slot in between.
 *
 * Locks: shared/README.md, from level 2 on.  Nothing here allocates or raises: it is
 * called after commit and abort, too.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/groups/groups.h"
#include "shared/slots/slots.h"
#include "shared/waiters/waiters.h"

/*
 * Takes a queue's slot away, and wakes its waiters: if the queue is there still, it gets
 * another slot, and they have to sleep there.  slots_lock held exclusively.
 */
static void
end_life(QueueSlot *slot)
{
	idemq_slot_vacate(slot);
	(void) idemq_waiters_wake(idemq_waiters_of_queue(slot), PG_INT32_MAX);
	idemq_counters_forget(idemq_slot_index(slot));
	idemq_groups_forget(idemq_slot_index(slot));
	idemq_buckets_forget_queue(idemq_slot_index(slot));
}

/* Returns the slot of a queue of this database, given one if need be; NULL when all are used. */
QueueSlot *
idemq_slot_for_queue(int32 queue_id)
{
	QueueSlot *slot;
	bool full;

	idemq_slots_lock(LW_SHARED);
	slot = idemq_slot_find_locked(MyDatabaseId, queue_id);
	full = idemq_slots_are_full();
	idemq_slots_unlock();
	if (slot == NULL && !full)
	{
		idemq_slots_lock(LW_EXCLUSIVE);
		slot = idemq_slot_find_locked(MyDatabaseId, queue_id);
		if (slot == NULL && (slot = idemq_slot_occupy(MyDatabaseId, queue_id)) != NULL)
		{
			int index = idemq_slot_index(slot);

			/* This also bounds every view of the slot's former life. */
			idemq_cursor_unset_locked(slot);
			idemq_slot_begin_recovery(slot, 0);
			LWLockRelease(&slot->lock);
			idemq_notify_ring_reset(index);
			idemq_counters_reset(index, MyDatabaseId, queue_id);
			idemq_groups_reset(index, MyDatabaseId, queue_id);
			idemq_buckets_forget_queue(index); /* a session may have charged them after end_life */
		}
		idemq_slots_unlock();
	}
	if (slot == NULL && idemq_count_full(COUNT_FULL_QUEUES))
		idemq_worker_need_by(0);
	return slot;
}

/* Takes the slot of a dropped queue of this database away. */
void
idemq_slot_forget_queue(int32 queue_id)
{
	QueueSlot *slot;

	idemq_slots_lock(LW_EXCLUSIVE);
	slot = idemq_slot_find_locked(MyDatabaseId, queue_id);
	if (slot != NULL)
		end_life(slot);
	idemq_slots_unlock();
}

/* Takes the slots of a database away: it was dropped, or its queues, jobs or extension were. */
void
idemq_slots_forget_database(Oid database)
{
	IDEMQ_STOP("idemq_slots_forget_database");
	idemq_slots_lock(LW_EXCLUSIVE);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueSlot *slot = idemq_slot_at(i);

		if (slot->key.database == database && slot->key.queue_id != 0)
			end_life(slot);
	}
	idemq_counters_forget_database(database);
	idemq_slots_unlock();
}

/*
 * Unsets every cursor, gauge and floor of a database and asks for recovery: rows
 * changed, and it is not known which (after COMMIT PREPARED, for example).
 */
void
idemq_slots_unset_database(Oid database)
{
	IDEMQ_STOP("idemq_slots_unset_database");
	idemq_slots_lock(LW_SHARED);
	for (int i = 0; i < idemq_max_queues; i++)
	{
		QueueSlot *slot = idemq_slot_at(i);

		if (slot->key.database != database || slot->key.queue_id == 0)
			continue;
		LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
		idemq_cursor_unset_locked(slot);
		idemq_due_by(slot, DUE_EXPIRY, 0);
		idemq_due_by(slot, DUE_HANDLER, 0);
		slot_unset_dependencies(slot, DEPENDENCIES_KNOWN);
		idemq_slot_begin_recovery(slot, 0);
		LWLockRelease(&slot->lock);
	}
	idemq_slots_unlock();
	idemq_counters_unset_gauges(database);
	idemq_groups_unset_database(database);
	idemq_worker_need_all();
}
