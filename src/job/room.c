/*
 * job/room.c
 *		Whether a queue's max_unfinished allows new jobs.
 *
 * shared/counts/unfinished.c says what is counted, and proves that the limit holds.  This file
 * asks it for room before a row is written, counts the rows if their number is not known, and raises
 * IQ007.
 *
 * The first enqueue after a restart, or after anything that makes the count unknown, counts the
 * queue's unfinished jobs through the indexes jobs_ready (pending, running and retrying jobs),
 * jobs_group (blocked jobs of groups) and children_queue (blocked jobs without a group), and reads
 * at most one entry beyond the limit.  Other sessions that enqueue wait for it, for COUNT_PATIENCE at
 * most.
 *
 * Some jobs are never refused, so they do not ask for room: dead-letter records, retry, redrive,
 * reruns, and rows that SQL writes.  A published job asks for room; if the queue is full, it is added
 * or skipped (api/publish.c).  A duplicate needs no room.
 *
 * A session that waits for a count keeps the locks of its transaction.  It cannot deadlock with the
 * session that counts, because counting never waits for a row lock.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/snapmgr.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/queue_states/queue_states.h"
#include "txn/txn.h"

/* How long an enqueue waits while another session counts the queue's jobs, in microseconds. */
#define COUNT_PATIENCE (5 * USECS_PER_SEC)

/* $1: queue, $2: maximum number of jobs to count. */
static SqlStatement count_unfinished =
	{.in_order = true,
	 .text = "SELECT pg_catalog.count(*) FROM (SELECT 1 FROM ("
			 "(SELECT 1 FROM idemq.jobs WHERE queue_id = $1 AND ready_at IS NOT NULL) "
			 "UNION ALL (SELECT 1 FROM idemq.jobs WHERE queue_id = $1 AND group_key IS NOT NULL "
			 "AND finished_at IS NULL AND ready_at IS NULL) "
			 "UNION ALL (SELECT 1 FROM (SELECT job_id FROM idemq.children WHERE queue_id = $1 "
			 "OFFSET 0) c CROSS JOIN LATERAL (SELECT 1 FROM idemq.jobs j WHERE j.id = c.job_id "
			 "AND j.queue_id = $1 AND j.group_key IS NULL AND j.finished_at IS NULL "
			 "AND j.ready_at IS NULL OFFSET 0) j)) u LIMIT $2) x",
	 .types = {INT4OID, INT8OID}};

/* Counts a queue's unfinished jobs, unless a session is counting them or their number is known. */
static void
room_count(const QueueInfo *queue)
{
	Datum values[] = {Int32GetDatum(queue->id), (Datum) 0};
	Snapshot snapshot;
	SqlScope scope;
	int64 bound;
	int64 jobs;

	if (!idemq_unfinished_begin_count(queue->qstate, queue->id, queue->max_unfinished, &snapshot,
									  &bound))
		return;
	IDEMQ_STOP("room_count");
	values[1] = Int64GetDatum(bound);
	idemq_spi_begin(&scope);
	(void) idemq_spi_query_at(&count_unfinished, values, NULL, snapshot);
	jobs = DatumGetInt64(idemq_spi_value(0, 1));
	idemq_spi_end(&scope);
	UnregisterSnapshot(snapshot);
	idemq_unfinished_end_count(true, jobs);
}

/* Raises IQ007 for jobs for which a queue does not have room. */
void
idemq_room_refuse(const QueueInfo *queue, int64 jobs)
{
	if (jobs > queue->max_unfinished)
		ereport(ERROR, errcode(ERRCODE_IDEMQ_QUEUE_FULL),
				errmsg("cannot add %lld jobs to queue \"%s\", because its max_unfinished is %d",
					   (long long) jobs, queue->name, queue->max_unfinished),
				errhint("Add fewer jobs in one transaction, or raise max_unfinished with "
						"idemq.alter_queue."));
	ereport(
		ERROR, errcode(ERRCODE_IDEMQ_QUEUE_FULL), errmsg("queue \"%s\" is full", queue->name),
		errdetail_plural("Its max_unfinished is %d, which leaves no room for %lld more job. Jobs "
						 "enqueued by open transactions also count.",
						 "Its max_unfinished is %d, which leaves no room for %lld more jobs. Jobs "
						 "enqueued by open transactions also count.",
						 (unsigned long) jobs, queue->max_unfinished, (long long) jobs),
		errhint("Enqueue again after jobs of the queue have finished, or raise max_unfinished "
				"with idemq.alter_queue."));
}

/*
 * Takes that much room in a queue; returns false if the queue is full.  If the number of unfinished
 * jobs is unknown, counts them, or waits while another session counts them.  Raises 55P03 if this
 * takes too long.
 */
static bool
take_room(const QueueInfo *queue, int64 room)
{
	int64 until = 0;

	for (;;)
	{
		RoomAnswer answer;
		bool is_late = until != 0 && idemq_stopwatch() > until;

		CHECK_FOR_INTERRUPTS();
		answer = idemq_pending_room_take(queue, room);
		if (answer == ROOM_TAKEN || answer == ROOM_FULL)
			return answer == ROOM_TAKEN;
		/* Count before an error can occur, because waiters sleep until a session has counted. */
		if (answer == ROOM_UNKNOWN)
			room_count(queue);
		if (until == 0)
			until = idemq_stopwatch() + COUNT_PATIENCE;
		if (is_late || (answer == ROOM_COUNTING &&
						!idemq_unfinished_await_count(queue->qstate, queue->id, until)))
			ereport(ERROR, errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("the unfinished jobs of queue \"%s\" are still being counted",
						   queue->name),
					errdetail("This call has waited 5 s for another session, which is counting "
							  "them because the queue has max_unfinished and their number is not "
							  "known, for example after a restart."),
					errhint("Repeat the call later."));
	}
}

/*
 * Takes room for new jobs of a queue, before their rows are written; takes none if the queue has no
 * max_unfinished.  Adds the room to *taken, for idemq_pending_room_give_back.  This is less than jobs
 * if the transaction still has unused room, or can use that of jobs that it has ended.  Returns false
 * if the queue is full.  Raises 55P03 if counting the jobs takes too long.
 */
bool
idemq_room_try(const QueueInfo *queue, int64 jobs, int64 *taken)
{
	QueueInfo again;
	int64 lacks;

	if (likely(queue->max_unfinished == 0) || jobs == 0)
		return true;
	/* The queue was looked up before idemq.jobs was locked, so a TRUNCATE may have run since. */
	if (unlikely(!idemq_qstate_is_of(queue->qstate, queue->id)))
	{
		if (!idemq_queue_by_id(queue->id, &again) || again.max_unfinished == 0)
			return true;
		queue = &again;
	}
	idemq_queue_need_qstate(queue);
	lacks = idemq_pending_room_lacks(queue, jobs);
	if (lacks > 0 && !take_room(queue, lacks))
		return false;
	idemq_pending_room_expect(queue, jobs);
	*taken += lacks;
	return true;
}

/* Like idemq_room_try, for jobs that are certain to be added; raises IQ007 if the queue is full. */
void
idemq_room_for(const QueueInfo *queue, int64 jobs)
{
	int64 taken = 0;

	if (!idemq_room_try(queue, jobs, &taken))
		idemq_room_refuse(queue, jobs);
}

/*
 * Returns whether a queue now has room for jobs.  The session must have joined the queue's waiters for
 * room: if this returns false, because the queue is full or another session is counting the jobs, the
 * session will be woken later.  Raises IQ007 if jobs exceeds max_unfinished.
 */
bool
idemq_room_is_there(const QueueInfo *queue, int64 jobs)
{
	if (queue->max_unfinished == 0)
		return true;
	if (jobs > queue->max_unfinished)
		idemq_room_refuse(queue, jobs);
	for (;;)
	{
		RoomAnswer answer;

		CHECK_FOR_INTERRUPTS();
		answer = idemq_room_peek(queue->qstate, queue->id, jobs, queue->max_unfinished);
		if (answer != ROOM_UNKNOWN)
			return answer == ROOM_TAKEN;
		/* The queue state no longer exists.  Its end has woken this session. */
		if (!idemq_qstate_is_of(queue->qstate, queue->id))
			return false;
		/* Count before an error can occur, as in take_room. */
		room_count(queue);
	}
}
