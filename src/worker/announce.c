/*
 * worker/announce.c
 *		NOTIFY for finished jobs: in a queue with notify_finished, the ids and statuses of jobs
 *		that are completed, dead or cancelled, on the channel idemq_finished:<queue>.
 *
 * The name of the channel begins with that of the ready channel (worker/notify.c).  No queue's name
 * contains a colon, so it is never another queue's ready channel, and with the longest name of a
 * queue it has 63 bytes, which is PostgreSQL's limit.
 *
 * The jobs come from shared/counts/notify_ring.c, to which sessions add them after their commit.
 * Producers and workers never send NOTIFY, and therefore never take the server-wide lock that NOTIFY
 * takes at commit.  As for the ready channel, there are two steps with a commit between them:
 * idemq_announce_send copies the jobs and sends; idemq_announce_ended removes what was sent.
 *
 * Rate.  A round sends at most one notification per queue, and rounds are at least ROUND_PAUSE and
 * idemq.notify_delay apart: at most 20 notifications per second and queue.  The first job after a
 * quiet time is announced at once.  A ring holds at most as many ids as fit into a notification.
 * Jobs that do not fit into the ring are counted, and this number is sent as an overflow.  If there
 * is an overflow as well as ids, the two take turns, so both are sent even if the queue's ring
 * overflows all the time.
 *
 * Refusals.  This is a separate task with its own transaction, so if PostgreSQL refuses it, the
 * ready channel is not affected.  The jobs then become part of the next overflow, the failure is
 * counted in idemq.maintenance_tasks and logged at most once per minute (worker/worker_log.c), and
 * the next round follows after REFUSED_PAUSE, without the growing pauses of other tasks.  One
 * session that listens but does not read can fill PostgreSQL's queue of notifications, which would
 * stop the ready channel.  Therefore this task sends nothing while the queue is more than half full.
 *
 * The payload is JSON made of words, numbers and a queue's name, which has no character that JSON
 * would escape:
 *		{"event":"finished","queue":"mail","completed":[7,8],"dead":[9],"cancelled":[10]}
 *		{"event":"overflow","queue":"mail","lost":12}
 * An empty list is left out.  lost is null if the number is not known.  A later version may add
 * events and members.  Any role can LISTEN, so a payload never contains a job's payload, key or
 * error.
 *
 * Notifications are only hints.  Jobs that were not sent are lost in a restart, a notification may
 * come twice, and a job may have been retried or deleted by the time its notification is read.
 */
#include "postgres.h"

#include "commands/async.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "nodes/pg_list.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/queue_states/queue_states.h"
#include "worker/worker.h"

/* Minimum time between two rounds. */
#define ROUND_PAUSE (USECS_PER_SEC / 20)
/* The same, after a round that failed, and after one with a queue that is still being created. */
#define REFUSED_PAUSE USECS_PER_SEC
#define UNSEEN_PAUSE (USECS_PER_SEC / 10)
/* Nothing is sent while more than this fraction of PostgreSQL's queue of notifications is in use. */
#define QUEUE_USAGE_MAX 0.5

/* PostgreSQL's maximum size of a payload.  An id and its comma take at most 20 bytes. */
#define PAYLOAD_ROOM (BLCKSZ - NAMEDATALEN - 128)
#define PAYLOAD_REST 128 /* the words, and the queue's name */
StaticAssertDecl(FINISHED_KEPT * 20 + PAYLOAD_REST < PAYLOAD_ROOM,
				 "the ids of a full ring do not fit into a notification");

/* What idemq_announce_send has read for a queue. */
typedef struct QueueFinished
{
	QueueState *qstate;
	int32 queue_id;
	int index;		  /* of the queue state */
	bool is_known;	  /* the queue was found; if not, it is still being created */
	bool is_overflow; /* this round sends the overflow; if there are ids, the next one sends them */
	RingBatch batch;
} QueueFinished;

static MemoryContext announce_context = NULL;
static List *announced = NIL; /* of QueueFinished, between send and ended */
/* Indexes of the queue states that have something to send. */
static Bitmapset *with_finished = NULL;
/* Indexes of queue states whose last notification had ids, so that an overflow is next. */
static Bitmapset *had_ids = NULL;
/* When (mono) the next round may begin. */
static int64 next_round = 0;

/* Adds the index of a queue state to a set, or removes it. */
static void
set_member(Bitmapset **set, int index, bool is_member)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	*set = is_member ? bms_add_member(*set, index) : bms_del_member(*set, index);
	MemoryContextSwitchTo(old);
}

/* Notes whether a queue state has something to send. */
void
idemq_announce_look(QueueState *qstate)
{
	if (idemq_ring_is_waiting(RING_FINISHED, qstate))
		set_member(&with_finished, idemq_qstate_index(qstate), true);
}

/* Returns when (mono) task "announce" must run; PG_INT64_MAX: never. */
int64
idemq_announce_due_at(const QueueStateView *view)
{
	return bms_is_empty(with_finished) ? PG_INT64_MAX : next_round;
}

/* Copies the rings of the queue states that have something to send into the list announced. */
static void
copy_finished(void)
{
	int index = -1;

	if (announce_context == NULL)
		announce_context =
			AllocSetContextCreate(TopMemoryContext, "idemq finished jobs", ALLOCSET_DEFAULT_SIZES);
	announced = NIL;
	MemoryContextReset(announce_context);
	while ((index = bms_next_member(with_finished, index)) >= 0)
	{
		MemoryContext old;
		QueueFinished *finished;
		QueueStateView view;

		/* Its queue was dropped, or now has another state. */
		if (!idemq_qstate_view(index, MyDatabaseId, &view))
			continue;
		old = MemoryContextSwitchTo(announce_context);
		finished = palloc0(sizeof(QueueFinished));
		/* If the ring is empty, it was noted when the queue state belonged to another queue. */
		if (idemq_ring_copy(RING_FINISHED, view.qstate, view.queue_id, &finished->batch))
			announced = lappend(announced, finished);
		MemoryContextSwitchTo(old);
		finished->qstate = view.qstate;
		finished->queue_id = view.queue_id;
		finished->index = index;
		finished->is_overflow = (finished->batch.lost > 0 || finished->batch.unknown) &&
								(finished->batch.count == 0 || bms_is_member(index, had_ids));
	}
	bms_free(with_finished);
	with_finished = NULL;
}

/* Adds the ids of the jobs with that status to a payload, if there are any. */
static void
add_ids(StringInfo payload, const RingBatch *batch, JobStatus status)
{
	bool any = false;

	for (int i = 0; i < batch->count; i++)
	{
		if (batch->news[i].what != (int) status)
			continue;
		if (any)
			appendStringInfoChar(payload, ',');
		else
			appendStringInfo(payload, ",\"%s\":[", idemq_status_name(status));
		appendStringInfo(payload, "%lld", (long long) batch->news[i].job_id);
		any = true;
	}
	if (any)
		appendStringInfoChar(payload, ']');
}

/* Sends one notification about a queue. */
static void
announce(const QueueFinished *finished, const QueueInfo *queue)
{
	const RingBatch *batch = &finished->batch;
	StringInfoData payload;

	initStringInfo(&payload);
	appendStringInfo(&payload, "{\"event\":\"%s\",\"queue\":\"%s\"",
					 finished->is_overflow ? "overflow" : "finished", queue->name);
	if (!finished->is_overflow)
	{
		add_ids(&payload, batch, JOB_COMPLETED);
		add_ids(&payload, batch, JOB_DEAD);
		add_ids(&payload, batch, JOB_CANCELLED);
	}
	else if (batch->unknown)
		appendStringInfoString(&payload, ",\"lost\":null");
	else
		appendStringInfo(&payload, ",\"lost\":%llu", (unsigned long long) batch->lost);
	appendStringInfoChar(&payload, '}');
	Async_Notify(psprintf("idemq_finished:%s", queue->name), payload.data);
}

/* Raises 54000 if PostgreSQL's queue of notifications is more than half full. */
static void
check_queue_usage(void)
{
	if (DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0)) >
		QUEUE_USAGE_MAX)
		ereport(ERROR, errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("notifications of finished jobs are not sent while the NOTIFY queue is more "
					   "than half full"),
				errhint(
					"Find the session that runs LISTEN but has been in a transaction for a long "
					"time, and end it."));
}

/* Task "announce": sends the notifications of one round, in the caller's transaction. */
void
idemq_announce_send(void)
{
	bool is_checked = false;
	ListCell *lc;

	IDEMQ_STOP("idemq_announce_begin");
	copy_finished();
	IDEMQ_STOP("idemq_announce_send");
	foreach(lc, announced)
	{
		QueueFinished *finished = lfirst(lc);
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		finished->is_known = idemq_queue_by_id(finished->queue_id, &queue);
		/* If the setting was turned off, the jobs are removed from the ring without being sent. */
		if (!idemq_notify || !finished->is_known || !queue.notify_finished)
			continue;
		if (!is_checked)
			check_queue_usage();
		is_checked = true;
		announce(finished, &queue);
	}
}

/*
 * Called after the transaction of idemq_announce_send: removes from the rings what was sent or, after
 * a failure, what will be part of the next overflow.  Notes what remains for the next round.
 */
void
idemq_announce_ended(const QueueStateView *view, bool done)
{
	int64 pause = Max(ROUND_PAUSE, idemq_notify_delay * INT64CONST(1000));
	bool all = true;
	ListCell *lc;

	IDEMQ_STOP("idemq_announce_ended");
	foreach(lc, announced)
	{
		const QueueFinished *finished = lfirst(lc);
		QueueState *qstate = finished->qstate;

		if (!done || finished->is_known)
		{
			idemq_ring_sent(RING_FINISHED, qstate, finished->queue_id, &finished->batch,
							!done					? RING_REFUSED
							: finished->is_overflow ? RING_SENT_OVERFLOW
													: RING_SENT_NEWS);
			set_member(&had_ids, finished->index,
					   done && !finished->is_overflow &&
						   idemq_ring_is_waiting(RING_FINISHED, qstate));
		}
		all &= finished->is_known;
		/* A session that added to a ring with something waiting has not woken this worker. */
		idemq_announce_look(qstate);
	}
	announced = NIL;
	if (announce_context != NULL)
		MemoryContextReset(announce_context);
	if (!done)
		pause = Max(pause, REFUSED_PAUSE);
	else if (!all)
		pause = Max(pause, UNSEEN_PAUSE);
	next_round = idemq_mono_now() + pause;
}
