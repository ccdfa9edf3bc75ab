/*
 * worker/notify.c
 *		NOTIFY: what became ready, and events of single jobs.  Only the background
 *		worker sends it, so that no producer takes the lock that NOTIFY takes at
 *		commit.
 *
 * Two steps, with a commit between them: idemq_tell reads how far each queue's
 * announcements and events have come, and sends; idemq_told, after the commit,
 * notes that they are told.  A worker that dies in between tells twice.
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

/* What a queue has to tell, as it was read before the NOTIFY. */
typedef struct Telling
{
	QueueSlot *slot;
	int32 queue_id;
	bool ready;
	bool known; /* the queue was found: else it is being created still */
	uint64 announced;
	NewsBatch batch;
} Telling;

static MemoryContext tell_context = NULL;
static List *tellings = NIL; /* of Telling, between idemq_tell and idemq_told */

static bool
has_news(QueueSlot *slot)
{
	return pg_atomic_read_u64(&slot->announced) != pg_atomic_read_u64(&slot->notified) ||
		   idemq_events_waiting(slot);
}

static void
look_for_news(const SlotView *view, void *arg)
{
	*(bool *) arg |= has_news(view->slot);
}

/* Returns whether there is anything to tell in this database. */
bool
idemq_tell_waiting(void)
{
	bool waiting = false;

	idemq_for_each_slot(MyDatabaseId, look_for_news, &waiting);
	return waiting;
}

/* Reads what a queue has to tell. */
static void
collect(const SlotView *view, void *arg)
{
	Telling *telling;
	MemoryContext old;

	if (!has_news(view->slot))
		return;
	old = MemoryContextSwitchTo(tell_context);
	telling = palloc(sizeof(Telling));
	telling->slot = view->slot;
	telling->queue_id = view->queue_id;
	telling->announced = pg_atomic_read_u64(&view->slot->announced);
	telling->ready = telling->announced != pg_atomic_read_u64(&view->slot->notified);
	idemq_events_copy(view->slot, &telling->batch);
	tellings = lappend(tellings, telling);
	MemoryContextSwitchTo(old);
}

/* Sends what one queue has to tell. */
static void
send(const Telling *telling, const QueueInfo *queue)
{
	static const char *const names[] = {[JOB_LEASE_EXPIRED] = "lease_expired",
										[JOB_WORKER_LOST] = "worker_lost",
										[JOB_DIED] = "dead"};
	char *channel = psprintf("idemq_%s", queue->name);

	for (int i = 0; i < telling->batch.count; i++)
	{
		const JobNews *news = &telling->batch.news[i];

		Async_Notify(channel,
					 psprintf("{\"event\":\"%s\",\"queue\":\"%s\",\"id\":%lld,\"attempt\":%d}",
							  names[news->kind], queue->name, (long long) news->job_id,
							  news->attempt));
	}
	if (telling->batch.lost > 0)
		Async_Notify(channel, psprintf("{\"event\":\"overflow\",\"queue\":\"%s\",\"lost\":%llu}",
									   queue->name, (unsigned long long) telling->batch.lost));
	if (telling->ready && !queue->paused)
		Async_Notify(channel, psprintf("{\"event\":\"ready\",\"queue\":\"%s\"}", queue->name));
}

/* Sends what there is to tell, in the caller's transaction. */
void
idemq_tell(void)
{
	ListCell *lc;

	if (tell_context == NULL)
		tell_context =
			AllocSetContextCreate(TopMemoryContext, "idemq tell", ALLOCSET_DEFAULT_SIZES);
	tellings = NIL;
	MemoryContextReset(tell_context);
	idemq_for_each_slot(MyDatabaseId, collect, NULL);
	foreach(lc, tellings)
	{
		Telling *telling = lfirst(lc);
		QueueInfo queue;

		CHECK_FOR_INTERRUPTS();
		telling->known = idemq_queue_by_id(telling->queue_id, &queue);
		if (idemq_notify && telling->known)
			send(telling, &queue);
	}
}

/*
 * Notes that what idemq_tell sent is told: its transaction has committed.  Returns
 * whether that was all: a queue that is being created has to wait.
 */
bool
idemq_told(void)
{
	ListCell *lc;
	bool all = true;

	foreach(lc, tellings)
	{
		const Telling *telling = lfirst(lc);

		all &= telling->known;
		if (!telling->known || !idemq_slot_is_of(telling->slot, telling->queue_id))
			continue;
		pg_atomic_write_u64(&telling->slot->notified, telling->announced);
		idemq_events_told(telling->slot, &telling->batch);
	}
	tellings = NIL;
	MemoryContextReset(tell_context);
	return all;
}
