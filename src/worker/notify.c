/*
 * worker/notify.c
 *		NOTIFY: what became ready, and events of single jobs.  Only the background
 *		worker sends it, so that no producer takes the cluster-wide lock that NOTIFY
 *		takes at commit.
 *
 * A queue's slot counts its announcements (announced) and how many of them have been
 * sent (notified); events of jobs are in its ring.  There are two steps, with a commit
 * between them.  idemq_notify_send reads announced, copies the rings and sends;
 * idemq_notify_sent, after the commit, writes what was read to notified and removes what
 * was copied.  What comes in between makes the two differ again.  A worker that dies
 * between the commit and the second step has its successor send twice, never not at all.
 * A full ring counts what it loses, which is sent as "overflow".
 *
 * Payloads are JSON made of words, numbers and a queue's name, which has no
 * character that JSON would escape.  Any role can LISTEN: there is never a
 * payload, key or error in them.
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "worker/notify.h"
#include "queue/queues.h"
#include "shared/notify_ring.h"
#include "shared/slots.h"
#include "base/settings.h"

/* What there is to send for a queue, as it was read before the NOTIFY. */
typedef struct QueueNews
{
	QueueSlot *slot;
	int32 queue_id;
	bool ready;
	bool known; /* the queue was found: else it is being created still */
	uint64 announced;
	NewsBatch batch;
} QueueNews;

static MemoryContext news_context = NULL;
static List *unsent = NIL; /* of QueueNews, between idemq_notify_send and idemq_notify_sent */

static bool
has_news(QueueSlot *slot)
{
	return pg_atomic_read_u64(&slot->announced) != pg_atomic_read_u64(&slot->notified) ||
		   idemq_notify_ring_waiting(slot);
}

static void
check_for_news(const SlotView *view, void *arg)
{
	*(bool *) arg |= has_news(view->slot);
}

/* Returns whether there is anything to send in this database. */
bool
idemq_notify_waiting(void)
{
	bool waiting = false;

	idemq_for_each_slot(MyDatabaseId, check_for_news, &waiting);
	return waiting;
}

/* Reads what there is to send for a queue. */
static void
collect(const SlotView *view, void *arg)
{
	QueueNews *news;
	MemoryContext old;

	if (!has_news(view->slot))
		return;
	old = MemoryContextSwitchTo(news_context);
	news = palloc(sizeof(QueueNews));
	news->slot = view->slot;
	news->queue_id = view->queue_id;
	news->announced = pg_atomic_read_u64(&view->slot->announced);
	news->ready = news->announced != pg_atomic_read_u64(&view->slot->notified);
	idemq_notify_ring_copy(view->slot, &news->batch);
	unsent = lappend(unsent, news);
	MemoryContextSwitchTo(old);
}

/* Sends the news of one queue.  send() is the system's, which some versions' headers declare. */
static void
tell(const QueueNews *news, const QueueInfo *queue)
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
	if (news->ready && !queue->paused)
		Async_Notify(channel, psprintf("{\"event\":\"ready\",\"queue\":\"%s\"}", queue->name));
}

/* Sends what there is to send, in the caller's transaction. */
void
idemq_notify_send(void)
{
	ListCell *lc;

	if (news_context == NULL)
		news_context =
			AllocSetContextCreate(TopMemoryContext, "idemq news", ALLOCSET_DEFAULT_SIZES);
	unsent = NIL;
	MemoryContextReset(news_context);
	idemq_for_each_slot(MyDatabaseId, collect, NULL);
	foreach(lc, unsent)
	{
		QueueNews *news = lfirst(lc);
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		news->known = idemq_queue_by_id(news->queue_id, &queue);
		if (idemq_notify && news->known)
			tell(news, &queue);
	}
}

/*
 * Notes that what idemq_notify_send sent is known to listeners: its transaction has
 * committed.  Returns whether that was all: a queue that is being created has to wait.
 */
bool
idemq_notify_sent(void)
{
	ListCell *lc;
	bool all = true;

	foreach(lc, unsent)
	{
		const QueueNews *news = lfirst(lc);

		all &= news->known;
		if (!news->known || !idemq_slot_is_of(news->slot, news->queue_id))
			continue;
		pg_atomic_write_u64(&news->slot->notified, news->announced);
		idemq_notify_ring_sent(news->slot, &news->batch);
	}
	unsent = NIL;
	MemoryContextReset(news_context);
	return all;
}
