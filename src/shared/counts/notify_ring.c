/*
 * shared/counts/notify_ring.c
 *		What waits to be sent with NOTIFY: two rings of limited length per queue state.
 *
 *		RING_EVENTS		events of single jobs: lease expired, worker lost, dead (worker/notify.c)
 *		RING_FINISHED	finished jobs of a queue with notify_finished (worker/announce.c)
 *
 * Only the background worker sends NOTIFY, so a producer or worker never takes the server-wide lock
 * that PostgreSQL's PreCommit_Notify takes.  A session adds an element after its commit, when all
 * sessions can see the row, so nothing that was rolled back is sent.  A full ring only counts
 * further elements (lost), and this number is sent as an "overflow".  The worker copies a ring,
 * sends, and removes what it has sent only after the commit of its NOTIFY.  If the worker is killed
 * in between, its successor sends again.  If PostgreSQL refuses the NOTIFY of finished jobs, these
 * jobs become lost ones.
 *
 * Jobs that memory does not know.  A prepared transaction may be committed by another session, and
 * rows may be written while triggers are disabled.  Then unknown is set: an unknown number of jobs
 * may have finished (idemq_qstates_unset_database).  A restart empties the rings; no notification is
 * needed for that, because the restart has ended all sessions that listened.
 *
 * Wake-ups.  Only a session that adds to an empty ring of finished jobs wakes the worker.  This is
 * enough, because the ring is not empty until the worker has removed the copied jobs, and after that
 * the worker checks whether there are more.  A worker that starts checks all rings.
 *
 * A queue state may get another queue while a session adds to its ring or the worker copies it.
 * Therefore a ring contains the key of its queue, and these functions do nothing for other queues.
 *
 * Memory: 2 kB of events per queue, and 9 bytes for each of FINISHED_KEPT jobs.  The finished jobs
 * are a separate part of shared memory, so those of a queue without notify_finished are never
 * touched, and take no physical memory unless the kernel uses huge pages.
 *
 * Locks: see src/shared/README.md, level 4.  The spinlock of a ring protects its fields and its
 * elements.  idemq_ring_add is called after commit, and neither allocates nor raises errors.
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
	bool unknown; /* an unknown number of jobs may have finished */
	uint64 head;  /* number of elements added so far; number n is at n % kept */
	uint64 tail;  /* number of these that were removed */
	uint64 lost;  /* elements that found no room, and that no overflow has reported yet */
} Ring;

typedef struct QueueEvents
{
	JobNews news[EVENTS_KEPT];
} QueueEvents;

typedef struct FinishedJobs
{
	int64 ids[FINISHED_KEPT];
	uint8 statuses[FINISHED_KEPT];
} FinishedJobs;

/* Maximum number of elements of a ring. */
static const uint64 kept[RING_KINDS] =
	{[RING_EVENTS] = EVENTS_KEPT, [RING_FINISHED] = FINISHED_KEPT};

/* RING_KINDS per queue state. */
static Ring *rings = NULL;
static QueueEvents *queue_events = NULL;
static FinishedJobs *finished_jobs = NULL;

static int
ring_count(void)
{
	return RING_KINDS * idemq_max_queues;
}

static void
init_rings(int tranche)
{
	for (int i = 0; i < ring_count(); i++)
		SpinLockInit(&rings[i].mutex);
}

const ShmemPart idemq_rings_part = {.area = (void **) &rings,
									.each = sizeof(Ring),
									.count = ring_count,
									.lies_in = AREA_QUEUES,
									.init = init_rings};

const ShmemPart idemq_queue_events_part = {.area = (void **) &queue_events,
										   .each = sizeof(QueueEvents),
										   .count = idemq_queue_count,
										   .lies_in = AREA_QUEUES};

const ShmemPart idemq_finished_jobs_part = {.area = (void **) &finished_jobs,
											.each = sizeof(FinishedJobs),
											.count = idemq_queue_count,
											.lies_in = AREA_QUEUES};

static Ring *
ring_of(RingKind kind, int qstate_index)
{
	return &rings[RING_KINDS * qstate_index + kind];
}

/* Returns whether there is something to send.  mutex held. */
static bool
is_waiting(const Ring *ring)
{
	return ring->head != ring->tail || ring->lost > 0 || ring->unknown;
}

/* Empties the rings of a queue state that a queue has just got. */
void
idemq_rings_reset(int qstate_index, QueueStateKey key)
{
	for (RingKind kind = 0; kind < RING_KINDS; kind++)
	{
		Ring *ring = ring_of(kind, qstate_index);

		SpinLockAcquire(&ring->mutex);
		ring->key = key;
		ring->tail = ring->head;
		ring->lost = 0;
		ring->unknown = false;
		SpinLockRelease(&ring->mutex);
	}
}

/*
 * Notes that an unknown number of jobs of a queue may have finished.  The caller makes the worker
 * check all queues.
 */
void
idemq_ring_set_unknown(int qstate_index)
{
	Ring *ring = ring_of(RING_FINISHED, qstate_index);

	SpinLockAcquire(&ring->mutex);
	ring->unknown = true;
	SpinLockRelease(&ring->mutex);
}

/* Adds an event or a finished job of a queue; called after the commit. */
void
idemq_ring_add(RingKind kind, QueueState *qstate, int32 queue_id, JobNews news)
{
	Ring *ring;
	int index;
	bool is_first = false;

	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate == NULL || !idemq_notify)
		return;
	index = idemq_qstate_index(qstate);
	ring = ring_of(kind, index);
	SpinLockAcquire(&ring->mutex);
	if (likely(queue_state_key_is(ring->key, queue_id)))
	{
		uint64 place = ring->head % kept[kind];
		bool is_full = ring->head - ring->tail == kept[kind];

		is_first = !is_waiting(ring);
		if (is_full)
			ring->lost++;
		else if (kind == RING_EVENTS)
			queue_events[index].news[place] = news;
		else
		{
			finished_jobs[index].ids[place] = news.job_id;
			finished_jobs[index].statuses[place] = (uint8) news.what;
		}
		if (!is_full)
			ring->head++;
	}
	SpinLockRelease(&ring->mutex);
	if (is_first || kind == RING_EVENTS)
		idemq_worker_need_for_queue(qstate,
									idemq_mono_now() + idemq_notify_delay * INT64CONST(1000));
}

/* Returns whether a ring of a queue state has something to send. */
bool
idemq_ring_is_waiting(RingKind kind, const QueueState *qstate)
{
	Ring *ring = ring_of(kind, idemq_qstate_index(qstate));
	bool waiting;

	SpinLockAcquire(&ring->mutex);
	waiting = is_waiting(ring);
	SpinLockRelease(&ring->mutex);
	return waiting;
}

/*
 * Copies a ring of a queue.  Returns false if there is nothing to send, for example because the
 * queue state belongs to another queue now; then the copy is empty.
 */
bool
idemq_ring_copy(RingKind kind, const QueueState *qstate, int32 queue_id, RingBatch *batch)
{
	int index = idemq_qstate_index(qstate);
	const FinishedJobs *jobs = &finished_jobs[index];
	Ring *ring = ring_of(kind, index);
	bool is_own;

	SpinLockAcquire(&ring->mutex);
	is_own = queue_state_key_is(ring->key, queue_id) && is_waiting(ring);
	batch->count = 0;
	batch->until = ring->head;
	batch->lost = is_own ? ring->lost : 0;
	batch->unknown = is_own && ring->unknown;
	for (uint64 n = ring->tail; n < ring->head && is_own; n++)
	{
		uint64 place = n % kept[kind];

		batch->news[batch->count++] = kind == RING_EVENTS ? queue_events[index].news[place]
														  : (JobNews){.what = jobs->statuses[place],
																	  .job_id = jobs->ids[place]};
	}
	SpinLockRelease(&ring->mutex);
	return is_own;
}

/* Called after the transaction that has sent a copy of a ring: removes what was sent. */
void
idemq_ring_sent(RingKind kind, const QueueState *qstate, int32 queue_id, const RingBatch *batch,
				RingSent sent)
{
	Ring *ring = ring_of(kind, idemq_qstate_index(qstate));
	bool is_own;

	SpinLockAcquire(&ring->mutex);
	is_own = queue_state_key_is(ring->key, queue_id);
	/* If the queue lost its state and got it again, the ring has been emptied. */
	if (is_own && sent != RING_SENT_OVERFLOW && ring->tail < batch->until)
	{
		if (sent == RING_REFUSED)
			ring->lost += batch->until - ring->tail;
		ring->tail = batch->until;
	}
	if (is_own && (sent == RING_SENT_OVERFLOW || sent == RING_SENT_ALL))
	{
		ring->lost -= Min(ring->lost, batch->lost);
		ring->unknown &= !batch->unknown;
	}
	SpinLockRelease(&ring->mutex);
}
