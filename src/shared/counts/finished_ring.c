/*
 * shared/counts/finished_ring.c
 *		Finished jobs on their way to NOTIFY (worker/announce.c): a bounded ring for each queue
 *		that has a state.
 *
 * A transaction that finishes a job of a queue with notify_finished notes the job's status
 * (txn/pending.c), and adds the job to the ring after its commit, when all sessions can see the
 * row.  What was rolled back, to a savepoint as well, is never added.  A ring that is full counts
 * the jobs that it leaves out (lost).  The worker copies a ring, sends, and removes what it has
 * copied only after the commit of its NOTIFY: if a worker is killed in between, its successor sends
 * twice.  If PostgreSQL refuses the NOTIFY, the copied jobs become lost ones.
 *
 * What is not in memory: the jobs of a prepared transaction, which another session may commit, and
 * rows that were written with triggers off.  Then the ring has unknown set: jobs may have finished,
 * and nobody knows how many (idemq_qstates_unset_database).  A restart empties the rings.  That
 * needs no notification, because it has ended all sessions that listened.
 *
 * Wake-ups.  Only the session that adds to an empty ring calls the worker.  The others need not,
 * because the ring stays waiting until the worker has removed what it copied, and after that
 * the worker looks whether more has come.  A worker that starts looks at all rings.
 *
 * A queue state may become another queue's while a session adds to its ring or the worker copies it.
 * Therefore a ring knows its queue, and its functions do nothing for any other queue.
 *
 * Memory: FINISHED_KEPT jobs per queue, 9 bytes each.  The arrays are a part of their own, so a
 * queue without notify_finished never touches theirs, and the kernel gives them no memory unless it
 * uses huge pages.
 *
 * Locks: see src/shared/README.md, level 4.  Each ring's spinlock covers its fields and its array.
 * idemq_finished_ring_add is called after commit: it neither allocates nor raises.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/spin.h"

#include "base/base.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"

/* Every other field is under mutex. */
typedef struct FinishedRing
{
	slock_t mutex;
	QueueStateKey key;
	bool unknown; /* jobs may have finished that nobody counted */
	uint64 head;  /* jobs added so far */
	uint64 tail;  /* of these, removed */
	uint64 lost;  /* jobs that were left out, and that no overflow has told yet */
} FinishedRing;

/* The job number n of a ring is at n % FINISHED_KEPT. */
typedef struct FinishedJobs
{
	int64 ids[FINISHED_KEPT];
	uint8 statuses[FINISHED_KEPT];
} FinishedJobs;

static FinishedRing *finished_rings = NULL;
static FinishedJobs *finished_jobs = NULL;

/* Makes the rings; their memory is zeros. */
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

/* Returns whether there is something to send; mutex held. */
static bool
finished_is_waiting(const FinishedRing *ring)
{
	return ring->head != ring->tail || ring->lost > 0 || ring->unknown;
}

/* Empties the ring of a queue state that this queue gets. */
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
 * Notes that jobs of a queue may have finished which nobody counts.  The caller has the worker look
 * at all queues.
 */
void
idemq_finished_ring_set_unknown(int qstate_index)
{
	FinishedRing *ring = &finished_rings[qstate_index];

	SpinLockAcquire(&ring->mutex);
	ring->unknown = true;
	SpinLockRelease(&ring->mutex);
}

/* Adds a job that has finished with this status, after the commit. */
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

/* Copies what a queue has to send; returns false if there is nothing. */
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
