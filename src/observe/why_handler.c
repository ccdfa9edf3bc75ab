/*
 * observe/why_handler.c
 *		What idemq.why says of who will claim a job: its queue's handler, or a worker.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"

#include "base/base.h"
#include "observe/observe.h"
#include "queue/queue.h"
#include "shared/leases/leases.h"
#include "shared/processes/processes.h"

/* Says what a queue's handler does about a job that is ready; false when it has none. */
static bool
say_handler(StringInfo answer, const QueueInfo *queue)
{
	HandlerKey key = {MyDatabaseId, queue->id};
	HandlerInfo handler;
	HandlerTarget target;
	HandlerState state;
	const char *why;
	int processes;
	int busy; /* not said */

	if (!idemq_handler_read(queue->id, &handler))
		return false;
	idemq_handler_state(key, &state);
	idemq_handler_processes(key, &processes, &busy);
	appendStringInfo(answer, "; the handler of queue \"%s\" ", queue->name);
	if (handler.stopped)
		appendStringInfo(answer, "is %s", idemq_handler_stopped_text(&handler));
	else if ((why = idemq_handler_resolve(&handler, &target)) != NULL)
		appendStringInfo(answer, "does not run: %s", why);
	else if (queue->slot == NULL)
		appendStringInfoString(answer, "does not run: " HANDLER_WITHOUT_SLOT);
	else if (!idemq_worker)
		appendStringInfoString(answer, "does not run: idemq.worker is off");
	else if (processes > 0)
		appendStringInfo(answer, "will claim it: %d of its %d processes run", processes,
						 handler.workers);
	else if (state.refused)
		appendStringInfoString(answer, "does not run: see last_error in idemq.handlers");
	else if (state.waits)
		appendStringInfoString(answer, "waits for a process: raise idemq.max_handler_workers "
									   "or max_worker_processes");
	else
		appendStringInfoString(answer, "is being started");
	return true;
}

/* Says who will claim a job that is ready: its queue's handler, or a worker; on a standby nothing. */
void
idemq_why_worker(StringInfo answer, const QueueInfo *queue)
{
	int in_flight = idemq_lease_count_queue(queue->id);

	if (RecoveryInProgress() || say_handler(answer, queue))
		return;
	if (in_flight == 0)
		appendStringInfo(answer,
						 "; no job of queue \"%s\" is in flight: start a worker that calls "
						 "idemq.claim('%s')",
						 queue->name, queue->name);
	else
		appendStringInfo(answer, "; a worker has to claim it: of queue \"%s\" %d job%s in flight",
						 queue->name, in_flight, in_flight == 1 ? " is" : "s are");
}
