/*
 * shared/counts/notify_ring.c
 *		Events of single jobs (lease expired, worker lost, dead) on their way to
 *		NOTIFY: a bounded ring for each queue that has a state.
 *
 * Only the background worker sends NOTIFY, so no producer takes the lock of the whole
 * server that PostgreSQL's PreCommit_Notify takes.  The worker copies a ring, sends, and lets
 * go of what it copied only after the commit of its NOTIFY: a worker that is killed in between
 * notifies twice rather than never.  That something became ready is not in the ring: it is a
 * time in the queue state (DUE_NOTIFY, worker/notify.c).  Events that find the ring full are
 * counted, and notified as one "overflow" event.
 *
 * Locks: see README.md, level 4.  Each ring's spinlock covers its fields.
 * idemq_notify_ring_add is called after commit: it neither allocates nor raises.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/spin.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/* Every other field is under mutex. */
typedef struct Ring
{
	slock_t mutex;
	uint64 head; /* events added so far */
	uint64 tail; /* of these, notified */
	uint64 lost; /* events that found no room, and are not notified yet */
	JobNews news[NEWS_KEPT];
} Ring;

static Ring *rings = NULL;

/* Makes the rings; their memory is zeros. */
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

/* Empties the ring of a queue state that another queue gets. */
void
idemq_notify_ring_reset(int qstate_index)
{
	Ring *ring = &rings[qstate_index];

	SpinLockAcquire(&ring->mutex);
	ring->tail = ring->head;
	ring->lost = 0;
	SpinLockRelease(&ring->mutex);
}

void
idemq_notify_ring_add(QueueState *qstate, int32 queue_id, const JobNews *news)
{
	Ring *ring;

	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate == NULL || !idemq_notify)
		return;
	ring = ring_of(qstate);
	SpinLockAcquire(&ring->mutex);
	if (ring->head - ring->tail < NEWS_KEPT)
		ring->news[ring->head++ % NEWS_KEPT] = *news;
	else
		ring->lost++;
	SpinLockRelease(&ring->mutex);
	idemq_worker_need_for_queue(qstate, idemq_mono_now() + idemq_notify_delay * INT64CONST(1000));
}

/* Returns whether a queue has events to notify. */
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

void
idemq_notify_ring_copy(const QueueState *qstate, NewsBatch *batch)
{
	Ring *ring = ring_of(qstate);

	SpinLockAcquire(&ring->mutex);
	batch->count = 0;
	batch->until = ring->head;
	batch->lost = ring->lost;
	for (uint64 i = ring->tail; i < ring->head; i++)
		batch->news[batch->count++] = ring->news[i % NEWS_KEPT];
	SpinLockRelease(&ring->mutex);
}

/* Lets go of what idemq_notify_ring_copy copied, once its NOTIFY has committed. */
void
idemq_notify_ring_sent(const QueueState *qstate, const NewsBatch *batch)
{
	Ring *ring = ring_of(qstate);

	SpinLockAcquire(&ring->mutex);
	if (ring->tail < batch->until)
		ring->tail = batch->until;
	ring->lost -= Min(ring->lost, batch->lost);
	SpinLockRelease(&ring->mutex);
}
