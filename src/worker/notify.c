/*
 * worker/notify.c
 *		NOTIFY: what became ready, and events of single jobs.  Only the background
 *		worker sends it, so that no producer takes the cluster-wide lock that NOTIFY
 *		takes at commit.
 *
 * That something became ready is in the queue's state (DUE_NOTIFY); events of jobs are in its ring.
 * There are two steps, with a commit between them.  idemq_notify_send takes the time, copies
 * the events and sends; idemq_notify_ended, after the commit, removes what was copied, and after
 * a failure notes again what was taken.  If a worker dies between the two, its successor sends
 * twice, or looks at each queue (worker/waking.c): nothing stays unsent.  A full ring counts
 * what it loses, which is sent as "overflow".  The worker reads only the queue states in which it
 * has seen something to send (idemq_notify_look, when it visits a queue state that is marked), so a
 * NOTIFY costs nothing for the other queues.
 *
 * NOTIFY's payloads are JSON made of words, numbers and a queue's name, which has no character
 * that JSON would escape.  Any role can LISTEN: a job's payload, key or error is never in them.
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

/* If news could not be sent, since their queue is being created, NOTIFY is tried after that. */
#define UNSENT_PAUSE (USECS_PER_SEC / 10)

/* What there is to send for a queue, as it was read before the NOTIFY. */
typedef struct QueueNews
{
	QueueState *qstate;
	int32 queue_id;
	bool ready;
	bool known; /* the queue was found; otherwise it is still being created */
	NewsBatch batch;
} QueueNews;

static MemoryContext news_context = NULL;
static List *unsent = NIL; /* of QueueNews, between idemq_notify_send and idemq_notify_ended */
/* Queue states, by index, that had something to send when they were looked at. */
static Bitmapset *with_news = NULL;
/* When (mono) the last NOTIFY was sent, and the next one may be. */
static int64 notified_at = 0;
static int64 next_notify = 0;

/* Notes a queue state if it has something to send. */
void
idemq_notify_look(QueueState *qstate)
{
	MemoryContext old;

	if (idemq_due_at(qstate, DUE_NOTIFY) == PG_INT64_MAX && !idemq_notify_ring_waiting(qstate))
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	with_news = bms_add_member(with_news, idemq_qstate_index(qstate));
	MemoryContextSwitchTo(old);
}

/*
 * Returns when (mono) something is to be sent for the queue states that were looked at.  Just after
 * a NOTIFY the worker comes again by itself, so that a busy queue need not wake it each time.
 */
int64
idemq_notify_due_at(const QueueStateView *view)
{
	int64 next = notified_at + idemq_notify_delay * INT64CONST(1000);

	if (bms_is_empty(with_news))
		return idemq_mono_now() < next ? next : PG_INT64_MAX;
	return Max(next, next_notify);
}

/* Sends the news of one queue.  It is not named send: some versions' headers declare that. */
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
							  names[event->kind], queue->name, (long long) event->job_id,
							  event->attempt));
	}
	if (news->batch.lost > 0)
		Async_Notify(channel, psprintf("{\"event\":\"overflow\",\"queue\":\"%s\",\"lost\":%llu}",
									   queue->name, (unsigned long long) news->batch.lost));
	if (news->ready && !idemq_queue_is_closed(queue))
		Async_Notify(channel, psprintf("{\"event\":\"ready\",\"queue\":\"%s\"}", queue->name));
}

/* Sends what there is to send, in the caller's transaction. */
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

		/* Its queue is gone, or has another state. */
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
		idemq_notify_ring_copy(view.qstate, view.queue_id, &news->batch);
	}
	/* What comes from here on marks its queue state, which is then looked at again. */
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
 * To be called after the transaction of idemq_notify_send.  What was not sent is noted again, also
 * for a queue that is being created.  If the queue state has become another queue's, DUE_NOTIFY may
 * have been that queue's when it was taken.  Nothing is lost: DUE_READY is 0 in a new queue state, so
 * the task "due" looks, and notes what is ready (worker/waking.c).
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
			idemq_notify_ring_sent(news->qstate, news->queue_id, &news->batch);
		else if (news->ready)
			idemq_due_by(news->qstate, DUE_NOTIFY, 0);
		if (!sent)
			idemq_worker_mark_queue(idemq_qstate_index(news->qstate));
	}
	unsent = NIL;
	if (!all)
		next_notify = notified_at + UNSENT_PAUSE;
}
