/*
 * shared/counts/finished_ring.c
 *		Finished jobs on their way to NOTIFY (worker/announce.c): a bounded ring for each queue
 *		that has a state.
 *
 * A transaction that finishes a job of a queue with notify_finished notes the job's status
 * (txn/pending.c), and adds the job to the ring after its commit, when all sessions can see the row.
 * If it is rolled back, even to a savepoint, the job is not added.  A full ring only counts further
 * jobs (lost).  The worker copies a ring, sends the jobs, and removes them from the ring after the
 * commit of its NOTIFY.  If the worker is killed in between, its successor sends them again.  If
 * PostgreSQL refuses the NOTIFY, the copied jobs become lost ones.
 *
 * Jobs that memory does not know.  A prepared transaction may be committed by another session, and
 * rows may be written while triggers are disabled.  Then unknown is set in the ring: an unknown
 * number of jobs may have finished (idemq_qstates_unset_database).  A restart empties the rings; no
 * notification is needed for that, because the restart has ended all sessions that listened.
 *
 * Wake-ups.  Only a session that adds to an empty ring wakes the worker.  This is enough, because the
 * ring is not empty until the worker has removed the copied jobs, and after that the worker checks
 * whether there are more.  A worker that starts checks all rings.
 *
 * A queue state may get another queue while a session adds to its ring or the worker copies it.
 * Therefore a ring contains the key of its queue, and its functions do nothing for other queues.
 *
 * Memory: FINISHED_KEPT jobs per queue, 9 bytes each.  The arrays are a separate part of shared
 * memory, so the array of a queue without notify_finished is never touched, and takes no physical
 * memory unless the kernel uses huge pages.
 *
 * Locks: see src/shared/README.md, level 4.  The spinlock of a ring protects its fields and its
 * array.  idemq_finished_ring_add is called after commit, and neither allocates nor raises errors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/spin.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/* mutex protects the other fields. */
typedef struct FinishedRing
{
	slock_t mutex;
	QueueStateKey key;
	bool unknown; /* an unknown number of jobs may have finished */
	uint64 head;  /* number of jobs added so far */
	uint64 tail;  /* number of these that were removed */
	uint64 lost;  /* jobs that found no room, and that no overflow has reported yet */
} FinishedRing;

/* Job number n of a ring is at n % FINISHED_KEPT. */
typedef struct FinishedJobs
{
	int64 ids[FINISHED_KEPT];
	uint8 statuses[FINISHED_KEPT];
} FinishedJobs;

static FinishedRing *finished_rings = NULL;
static FinishedJobs *finished_jobs = NULL;

static void
init_finished_rings(int tranche)
{
	for (int i = 0; i < idemq_max_queues; i++)
		SpinLockInit(&finished_rings[i].mutex);
}

const ShmemPart idemq_finished_rings_part = {.area = (void **) &finished_rings,
											 .each = sizeof(FinishedRing),
											 .count = idemq_queue_count,
											 .lies_in = AREA_QUEUES,
											 .init = init_finished_rings};

const ShmemPart idemq_finished_jobs_part = {.area = (void **) &finished_jobs,
											.each = sizeof(FinishedJobs),
											.count = idemq_queue_count,
											.lies_in = AREA_QUEUES};

/* Returns whether there is something to send. mutex held. */
static bool
finished_is_waiting(const FinishedRing *ring)
{
	return ring->head != ring->tail || ring->lost > 0 || ring->unknown;
}

/* Empties the ring of a queue state that a queue has just got. */
void
idemq_finished_ring_reset(int qstate_index, QueueStateKey key)
{
	FinishedRing *ring = &finished_rings[qstate_index];

	SpinLockAcquire(&ring->mutex);
	ring->key = key;
	ring->tail = ring->head;
	ring->lost = 0;
	ring->unknown = false;
	SpinLockRelease(&ring->mutex);
}

/*
 * Notes that an unknown number of jobs of a queue may have finished.  The caller makes the worker
 * check all queues.
 */
void
idemq_finished_ring_set_unknown(int qstate_index)
{
	FinishedRing *ring = &finished_rings[qstate_index];

	SpinLockAcquire(&ring->mutex);
	ring->unknown = true;
	SpinLockRelease(&ring->mutex);
}

/* Adds a job that has finished with a status; called after the commit. */
void
idemq_finished_ring_add(QueueState *qstate, int32 queue_id, int64 job_id, JobStatus status)
{
	FinishedRing *ring;
	FinishedJobs *jobs;
	bool is_first = false;

	qstate = idemq_qstate_current(qstate, queue_id);
	if (qstate == NULL || !idemq_notify)
		return;
	ring = &finished_rings[idemq_qstate_index(qstate)];
	jobs = &finished_jobs[idemq_qstate_index(qstate)];
	SpinLockAcquire(&ring->mutex);
	if (likely(queue_state_key_is(ring->key, queue_id)))
	{
		is_first = !finished_is_waiting(ring);
		if (ring->head - ring->tail < FINISHED_KEPT)
		{
			jobs->ids[ring->head % FINISHED_KEPT] = job_id;
			jobs->statuses[ring->head++ % FINISHED_KEPT] = (uint8) status;
		}
		else
			ring->lost++;
	}
	SpinLockRelease(&ring->mutex);
	if (is_first)
		idemq_worker_need_for_queue(qstate,
									idemq_mono_now() + idemq_notify_delay * INT64CONST(1000));
}

/* Returns whether a queue has something to send. */
bool
idemq_finished_ring_is_waiting(const QueueState *qstate)
{
	FinishedRing *ring = &finished_rings[idemq_qstate_index(qstate)];
	bool waiting;

	SpinLockAcquire(&ring->mutex);
	waiting = finished_is_waiting(ring);
	SpinLockRelease(&ring->mutex);
	return waiting;
}

/* Copies the ring of a queue; returns false if there is nothing to send. */
bool
idemq_finished_ring_copy(const QueueState *qstate, int32 queue_id, FinishedBatch *batch)
{
	FinishedRing *ring = &finished_rings[idemq_qstate_index(qstate)];
	const FinishedJobs *jobs = &finished_jobs[idemq_qstate_index(qstate)];
	bool waiting;

	SpinLockAcquire(&ring->mutex);
	waiting = queue_state_key_is(ring->key, queue_id) && finished_is_waiting(ring);
	batch->count = 0;
	batch->until = ring->head;
	batch->lost = ring->lost;
	batch->unknown = ring->unknown;
	for (uint64 n = ring->tail; n < ring->head && waiting; n++)
	{
		batch->ids[batch->count] = jobs->ids[n % FINISHED_KEPT];
		batch->statuses[batch->count++] = jobs->statuses[n % FINISHED_KEPT];
	}
	SpinLockRelease(&ring->mutex);
	return waiting;
}

/*
 * Called after the transaction that has sent a copy: removes the jobs, or, if is_overflow, the numbers
 * that the overflow has reported.  If the transaction failed (!done), the jobs become lost ones.
 */
void
idemq_finished_ring_sent(const QueueState *qstate, int32 queue_id, const FinishedBatch *batch,
						 bool is_overflow, bool done)
{
	FinishedRing *ring = &finished_rings[idemq_qstate_index(qstate)];
	bool is_own;

	SpinLockAcquire(&ring->mutex);
	is_own = queue_state_key_is(ring->key, queue_id);
	if (is_own && done && is_overflow)
	{
		ring->lost -= Min(ring->lost, batch->lost);
		ring->unknown &= !batch->unknown;
	}
	/* If the queue lost its state and got it again, the ring has been emptied. */
	else if (is_own && ring->tail < batch->until)
	{
		ring->lost += done ? 0 : batch->until - ring->tail;
		ring->tail = batch->until;
	}
	SpinLockRelease(&ring->mutex);
}
