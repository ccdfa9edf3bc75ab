/*
 * worker/notify.c
 *		NOTIFY when jobs become ready, and for events of single jobs.  Only the background worker
 *		sends it, so that no producer takes the cluster-wide lock that NOTIFY takes at commit.
 *
 * The queue's state says whether a job became ready (DUE_NOTIFY), and the queue's ring contains the
 * events of jobs.  Sending takes two steps, with a commit between them: idemq_notify_send removes
 * the due time, copies the events and sends; idemq_notify_ended removes the copied events from the
 * ring, or, after a failure, restores the due time.  If a worker exits between the two steps, its
 * successor sends the events again, and checks each queue for ready jobs (worker/waking.c), so
 * nothing remains unsent.  A full ring counts the events that it loses, and this number is sent as
 * "overflow".  The worker reads only queue states in which it has seen something to send
 * (idemq_notify_look), so a NOTIFY costs nothing for other queues.
 *
 * The payloads are JSON made of words, numbers and a queue's name, which has no character that JSON
 * would escape.  Any role can LISTEN, so they never contain a job's payload, key or error.
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/counts/counts.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "worker/worker.h"

/* Delay before another attempt if something could not be sent. */
#define UNSENT_PAUSE (USECS_PER_SEC / 10)

/* What idemq_notify_send has read for a queue. */
typedef struct QueueNews
{
	QueueState *qstate;
	int32 queue_id;
	bool ready;
	bool known; /* the queue was found; if not, it is still being created */
	RingBatch batch;
} QueueNews;

static MemoryContext news_context = NULL;
static List *unsent = NIL; /* of QueueNews, between idemq_notify_send and idemq_notify_ended */
/* Indexes of the queue states that have something to send. */
static Bitmapset *with_news = NULL;
/* When (mono) the last NOTIFY was sent, and when the next one may be sent after a failure. */
static int64 notified_at = 0;
static int64 next_notify = 0;

/* Notes whether a queue state has something to send. */
void
idemq_notify_look(QueueState *qstate)
{
	MemoryContext old;

	if (idemq_due_at(qstate, DUE_NOTIFY) == PG_INT64_MAX &&
		!idemq_ring_is_waiting(RING_EVENTS, qstate))
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	with_news = bms_add_member(with_news, idemq_qstate_index(qstate));
	MemoryContextSwitchTo(old);
}

/*
 * Returns when (mono) task "notify" must run.  If nothing is to be sent, this is the end of
 * idemq.notify_delay after the last NOTIFY, so that sessions need not wake the worker until then.
 */
int64
idemq_notify_due_at(const QueueStateView *view)
{
	int64 next = notified_at + idemq_notify_delay * INT64CONST(1000);

	if (bms_is_empty(with_news))
		return idemq_mono_now() < next ? next : PG_INT64_MAX;
	return Max(next, next_notify);
}

/* Sends the news of one queue. */
static void
notify_tell(const QueueNews *news, const QueueInfo *queue)
{
	static const char *const names[] = {[JOB_LEASE_EXPIRED] = "lease_expired",
										[JOB_WORKER_LOST] = "worker_lost",
										[JOB_DIED] = "dead"};
	char *channel = psprintf("idemq_%s", queue->name);

	for (int i = 0; i < news->batch.count; i++)
	{
		const JobNews *event = &news->batch.news[i];

		Async_Notify(channel,
					 psprintf("{\"event\":\"%s\",\"queue\":\"%s\",\"id\":%lld,\"attempt\":%d}",
							  names[event->what], queue->name, (long long) event->job_id,
							  event->attempt));
	}
	if (news->batch.lost > 0)
		Async_Notify(channel, psprintf("{\"event\":\"overflow\",\"queue\":\"%s\",\"lost\":%llu}",
									   queue->name, (unsigned long long) news->batch.lost));
	if (news->ready && !idemq_queue_is_closed(queue))
		Async_Notify(channel, psprintf("{\"event\":\"ready\",\"queue\":\"%s\"}", queue->name));
}

/* Task "notify": sends the news of all queues, in the caller's transaction. */
void
idemq_notify_send(void)
{
	int index = -1;
	ListCell *lc;

	notified_at = idemq_mono_now();
	if (news_context == NULL)
		news_context =
			AllocSetContextCreate(TopMemoryContext, "idemq news", ALLOCSET_DEFAULT_SIZES);
	unsent = NIL;
	MemoryContextReset(news_context);
	while ((index = bms_next_member(with_news, index)) >= 0)
	{
		MemoryContext old;
		QueueNews *news;
		QueueStateView view;

		/* Its queue was dropped, or now has another state. */
		if (!idemq_qstate_view(index, MyDatabaseId, &view))
			continue;
		old = MemoryContextSwitchTo(news_context);
		news = palloc0(sizeof(QueueNews));
		unsent = lappend(unsent, news);
		MemoryContextSwitchTo(old);
		news->qstate = view.qstate;
		news->queue_id = view.queue_id;
		IDEMQ_STOP("idemq_notify_copy");
		news->ready = idemq_due_take(view.qstate, DUE_NOTIFY);
		(void) idemq_ring_copy(RING_EVENTS, view.qstate, view.queue_id, &news->batch);
	}
	/* A session that adds something from now on marks the queue state, which is then noted again. */
	bms_free(with_news);
	with_news = NULL;
	foreach(lc, unsent)
	{
		QueueNews *news = lfirst(lc);
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		news->known = idemq_queue_by_id(news->queue_id, &queue);
		if (idemq_notify && news->known)
			notify_tell(news, &queue);
	}
}

/*
 * Called after the transaction of idemq_notify_send.  Notes again what was not sent, because the
 * transaction failed or the queue is still being created.  If the queue state now belongs to another
 * queue, the DUE_NOTIFY that was taken may have been the other queue's.  Nothing is lost: DUE_READY
 * is 0 in a new queue state, so the task "due" checks for ready jobs (worker/waking.c).
 */
void
idemq_notify_ended(const QueueStateView *view, bool done)
{
	ListCell *lc;
	bool all = done;

	IDEMQ_STOP("idemq_notify_ended");
	foreach(lc, unsent)
	{
		const QueueNews *news = lfirst(lc);
		bool sent = done && news->known;

		all &= sent;
		if (!idemq_qstate_is_of(news->qstate, news->queue_id))
			continue;
		if (sent)
			idemq_ring_sent(RING_EVENTS, news->qstate, news->queue_id, &news->batch, RING_SENT_ALL);
		else if (news->ready)
			idemq_due_by(news->qstate, DUE_NOTIFY, 0);
		if (!sent)
			idemq_worker_mark_queue(idemq_qstate_index(news->qstate));
	}
	unsent = NIL;
	if (!all)
		next_notify = notified_at + UNSENT_PAUSE;
}
