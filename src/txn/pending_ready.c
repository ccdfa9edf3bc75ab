/*
 * txn/pending_ready.c
 *		The keys of the ready index that this transaction makes claimable.  At its end
 *		the ready cursors are lowered to them, sessions that wait are woken, and the
 *		worker is told when a job expires that is not claimed by then.
 *
 * They are kept per queue and priority, as their least key, for the whole
 * transaction: lowering too much or too often is only slower.
 *
 * idemq_pending_ready_apply is called after commit and abort, by txn/at_end.c: it neither
 * allocates nor raises.  All state is this backend's.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "shared/sleepers/sleepers.h"
#include "shared/slots/slots.h"
#include "txn/txn.h"

typedef struct Lower
{
	QueueSlot *slot;
	int32 queue_id;
	int32 priority;
	SubTransactionId last_subid; /* the latest that noted it */
	ReadyKey key;
	int count;				/* keys that become claimable at commit, and were due when noted */
	TimestampTz later;		/* the earliest of the others; DT_NOEND: there is none */
	TimestampTz expires_at; /* the earliest; DT_NOEND: none expires */
} Lower;

/* In TopTransactionContext; NULL between transactions. */
static Lower *lowers = NULL;
static int nlowers = 0;
static int max_lowers = 0;

/* Finds, or adds, what is kept of a priority, and lowers it to a key. */
static Lower *
keep(QueueSlot *slot, int32 queue_id, int priority, ReadyKey key)
{
	Lower *lower = NULL;

	for (int i = 0; i < nlowers && lower == NULL; i++)
	{
		if (lowers[i].queue_id == queue_id && lowers[i].priority == priority)
			lower = &lowers[i];
	}
	if (lower == NULL)
	{
		lowers = idemq_grow(lowers, &max_lowers, (int64) nlowers + 1, sizeof(Lower));
		lower = &lowers[nlowers++];
		*lower =
			(Lower){slot, queue_id, priority, InvalidSubTransactionId, key, 0, DT_NOEND, DT_NOEND};
	}
	if (ready_key_less(key, lower->key))
		lower->key = key;
	lower->last_subid = GetCurrentSubTransactionId();
	return lower;
}

/*
 * Notes that this transaction makes a key claimable by its commit, or may do so by
 * its end either way.  To be called before the row is written.
 */
void
idemq_pending_ready_note(QueueSlot *slot, int32 queue_id, int priority, ReadyKey key)
{
	Lower *lower = keep(slot, queue_id, priority, key);

	if (key.ready_at <= idemq_now())
		lower->count++;
	else
		lower->later = Min(lower->later, key.ready_at);
}

/* Notes when a job expires that this transaction makes ready, or blocked. */
void
idemq_pending_ready_note_expiry(QueueSlot *slot, int32 queue_id, int priority,
								TimestampTz expires_at)
{
	Lower *lower = keep(slot, queue_id, priority, READY_KEY_MAX);

	lower->expires_at = Min(lower->expires_at, expires_at);
}

/* Notes a key that this transaction takes away: claimable again should it abort. */
void
idemq_pending_ready_note_taken(QueueSlot *slot, int32 queue_id, int priority, ReadyKey key)
{
	(void) keep(slot, queue_id, priority, key);
}

/*
 * Lowers a view, and cuts its copy of the ring, to what this transaction itself has made
 * ready: its own claims see that before its commit, and no others do.
 */
void
idemq_pending_ready_view(int32 queue_id, CursorView *view)
{
	for (int i = 0; i < nlowers; i++)
	{
		ReadyKey *from = &view->from[lowers[i].priority];

		if (lowers[i].queue_id != queue_id)
			continue;
		idemq_ring_view_cut(&view->ring, lowers[i].priority, lowers[i].key);
		if (ready_key_less(lowers[i].key, *from))
			*from = lowers[i].key;
	}
}

/*
 * Lowers cursors to what was noted in a subtransaction or a later one, and wakes
 * sessions that wait for it; at its end, either way.  After an abort nobody knows
 * whether what was there before is ready.
 */
void
idemq_pending_ready_apply(SubTransactionId from, bool committed)
{
	for (int i = 0; i < nlowers; i++)
	{
		Lower *lower = &lowers[i];

		if (lower->last_subid < from)
			continue;
		idemq_cursor_lower(lower->slot, lower->queue_id, lower->priority, lower->key);
		if (committed && lower->expires_at < DT_NOEND)
			idemq_due_by(idemq_slot_current(lower->slot, lower->queue_id), DUE_EXPIRY,
						 lower->expires_at);
		if (committed)
			idemq_wake_ready(lower->slot, lower->queue_id, lower->count, lower->later);
		else
			idemq_wake_perhaps(lower->slot, lower->queue_id, Max(lower->count, 1));
	}
}

/* Returns whether anything is noted. */
bool
idemq_pending_ready_any(void)
{
	return nlowers > 0;
}

/* Forgets all, at the end of the transaction. */
void
idemq_pending_ready_forget(void)
{
	lowers = NULL;
	nlowers = max_lowers = 0;
}
