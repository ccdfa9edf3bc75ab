/*
 * shared/leases/next_deadline.c
 *		When the next lease of a queue ends: one number in its slot, which says no
 *		later than that.  A scan of all leases of the queue notes it anew (job/reap.c).
 *
 * 0 says that it is not known.  It is reset before a scan, which then notes what it
 * finds, so a deadline that is noted meanwhile is not lost.
 *
 * Locks: none, it is an atomic.  Functions that are called after commit or abort
 * neither allocate nor raise.
 */
#include "postgres.h"

#include "base/base.h"
#include "shared/leases/leases.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"

/*
 * Returns whether a lease of the queue may have expired: true, too, without a slot,
 * when that is not known.
 */
bool
idemq_slot_deadline_passed(QueueSlot *slot, int32 queue_id)
{
	slot = idemq_slot_current(slot, queue_id);
	return slot == NULL || pg_atomic_read_u64(&slot->next_deadline) <= (uint64) idemq_mono_now();
}

/* Forgets the earliest deadline, before a scan of all leases that notes it anew. */
void
idemq_slot_reset_deadline(QueueSlot *slot, int32 queue_id)
{
	slot = idemq_slot_current(slot, queue_id);
	if (slot != NULL)
		pg_atomic_write_u64(&slot->next_deadline, PG_UINT64_MAX);
}

/*
 * Notes that a lease ends at a deadline (mono); or, from a reaper, when to check it
 * again.
 */
void
idemq_slot_note_deadline(QueueSlot *slot, int32 queue_id, int64 deadline)
{
	uint64 wanted = (uint64) Max(deadline, 0);
	uint64 known;

	slot = idemq_slot_current(slot, queue_id);
	if (slot == NULL)
		return;
	known = pg_atomic_read_u64(&slot->next_deadline);
	while (wanted < known)
	{
		if (pg_atomic_compare_exchange_u64(&slot->next_deadline, &known, wanted))
		{
			idemq_worker_need_slot(slot, (int64) wanted);
			break;
		}
	}
}
