/*
 * shared/counts/notify_ring.c
 *		Events of single jobs (lease expired, worker lost, dead) that are waiting to be sent with
 *		NOTIFY: a ring of limited length per queue state.
 *
 * Only the background worker sends NOTIFY, so a producer never takes the lock of the whole server
 * that PostgreSQL's PreCommit_Notify takes.  The worker copies a ring, sends the events, and
 * removes them from the ring only after the commit of its NOTIFY.  If the worker is killed in
 * between, the events are sent twice, rather than never.  That jobs have become ready is not in the
 * ring, but is the due time DUE_NOTIFY (worker/notify.c).  Events that find the ring full are
 * counted, and sent as one "overflow" event.
 *
 * A queue state may become another queue's while a session adds to its ring or the worker copies it.
 * Therefore a ring knows its queue, and its functions do nothing for any other queue.
 *
 * Locks: see src/shared/README.md, level 4.  The spinlock of a ring protects its fields.
 * idemq_notify_ring_add is called after commit, and neither allocates nor raises errors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/spin.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/* mutex protects the other fields. */
typedef struct Ring
{
	slock_t mutex;
	QueueStateKey key;
	uint64 head; /* number of events added so far */
	uint64 tail; /* number of these that have been sent */
	uint64 lost; /* events that found no room, and have not been reported yet */
	JobNews news[NEWS_KEPT];
} Ring;

static Ring *rings = NULL;

static void
init_rings(int tranche)
{
	for (int i = 0; i < idemq_max_queues; i++)
		SpinLockInit(&rings[i].mutex);
}

const ShmemPart idemq_notify_ring_part = {.area = (void **) &rings,
										  .each = sizeof(Ring),
										  .count = idemq_queue_count,
										  .lies_in = AREA_QUEUES,
										  .init = init_rings};

static Ring *
ring_of(const QueueState *qstate)
{
	return &rings[idemq_qstate_index(qstate)];
}

/* Empties the ring of a queue state that this queue gets. */
void
idemq_notify_ring_reset(int qstate_index, QueueStateKey key)
{
	Ring *ring = &rings[qstate_index];

	SpinLockAcquire(&ring->mutex);
	ring->key = key;
	ring->tail = ring->head;
	ring->lost = 0;
	SpinLockRelease(&ring->mutex);
}

/* Adds an event of a queue; called after commit. */
void
idemq_notify_ring_add(QueueState *qstate, int32 queue_id, const JobNews *news)
{
	Ring *ring;

	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate == NULL || !idemq_notify)
		return;
	ring = ring_of(qstate);
	SpinLockAcquire(&ring->mutex);
	if (!queue_state_key_is(ring->key, queue_id))
		; /* the queue has just lost its state, and its events with it */
	else if (ring->head - ring->tail < NEWS_KEPT)
		ring->news[ring->head++ % NEWS_KEPT] = *news;
	else
		ring->lost++;
	SpinLockRelease(&ring->mutex);
	idemq_worker_need_for_queue(qstate, idemq_mono_now() + idemq_notify_delay * INT64CONST(1000));
}

/* Returns whether a queue has events to send. */
bool
idemq_notify_ring_waiting(const QueueState *qstate)
{
	Ring *ring = ring_of(qstate);
	bool waiting;

	SpinLockAcquire(&ring->mutex);
	waiting = ring->head != ring->tail || ring->lost > 0;
	SpinLockRelease(&ring->mutex);
	return waiting;
}

/* Copies all events of a queue to *batch; none if the queue state has become another queue's. */
void
idemq_notify_ring_copy(const QueueState *qstate, int32 queue_id, NewsBatch *batch)
{
	Ring *ring = ring_of(qstate);
	bool is_own;

	SpinLockAcquire(&ring->mutex);
	is_own = queue_state_key_is(ring->key, queue_id);
	batch->count = 0;
	batch->until = ring->head;
	batch->lost = is_own ? ring->lost : 0;
	for (uint64 i = ring->tail; i < ring->head && is_own; i++)
		batch->news[batch->count++] = ring->news[i % NEWS_KEPT];
	SpinLockRelease(&ring->mutex);
}

/* Removes the events that idemq_notify_ring_copy has copied, after the commit of their NOTIFY. */
void
idemq_notify_ring_sent(const QueueState *qstate, int32 queue_id, const NewsBatch *batch)
{
	Ring *ring = ring_of(qstate);

	SpinLockAcquire(&ring->mutex);
	if (queue_state_key_is(ring->key, queue_id))
	{
		ring->tail = Max(ring->tail, batch->until);
		ring->lost -= Min(ring->lost, batch->lost);
	}
	SpinLockRelease(&ring->mutex);
}
