/*
 * worker/handle.c
 *		Starting the processes that run the handlers of queues (handler/handler.c).
 *
 * One is started when something is ready in the queue and none of its handler's processes is
 * idle, up to as many as the handler may have.  The next one is started when the last has
 * come, and only if something is still ready.  They end by themselves.  The top of
 * shared/processes/handler_registry.c says when the worker has to look, and what tells it.
 *
 * What a process needs is checked before: the role may log in, connect and claim, the function
 * is there and may be executed (queue/handlers.c).  Otherwise none is started.  The view says
 * why, and the worker looks again after a second, then two, up to 64.
 *
 * After the end of a former server in the middle of a handler's job (a crash, a kill -9 of any
 * of its processes, an immediate shutdown; not a shutdown that lets it give its jobs back) the
 * handler's row counts one crash more, before a process is started: so no process is started
 * before the search for such jobs (job/recover.c) has been through the queue, or
 * SEARCH_PATIENCE is over.  The third crash in a row stops the handler.  A job whose function
 * has returned begins the count anew; but a job that was interrupted three times in a row stops
 * the handler in any case (job/reap.c).  The count is flushed: the next crash must find it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"
#include "worker/worker.h"

/* The search for jobs of a former server is awaited for so long after the start at most. */
#define SEARCH_PATIENCE (30 * USECS_PER_SEC)
/* When the postmaster has no room for a process, it is asked again after that. */
#define NO_ROOM_PAUSE USECS_PER_SEC
#define CRASHED (uint32)(HANDLER_CRASHED | HANDLER_CRASHED_AGAIN)

static SqlStatement count_crash =
	{.text = "UPDATE idemq_internal.handler_entries SET crashes = greatest(crashes + 1, $4), "
			 "crashed_at = $2, stopped_at = CASE WHEN greatest(crashes + 1, $4) >= $3 "
			 "THEN coalesce(stopped_at, $2) END WHERE queue_id = $1 AND stopped_at IS NULL",
	 .types = {INT4OID, TIMESTAMPTZOID, INT4OID, INT4OID}};

/* Returns when (mono) the handler of a queue is to be looked at. */
int64
idemq_handle_due_at(const QueueStateView *view)
{
	int64 due = idemq_due_at(view->qstate, DUE_HANDLER);

	if (due < PG_INT64_MAX && idemq_due_at(view->qstate, DUE_RECOVERY) < PG_INT64_MAX)
	{
		int64 patience = idemq_mono_from_timestamp(idemq_primary_since() + SEARCH_PATIENCE);

		return Max(due, patience);
	}
	return due;
}

/* Returns what the postmaster is to know of a process; it is not started again. */
BackgroundWorker
idemq_process_of_ours(const char *function, const char *name)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_library_name = IDEMQ_LIBRARY,
	};

	strlcpy(worker.bgw_function_name, function, sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, name, sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, name, sizeof(worker.bgw_type));
	return worker;
}

/* Starts a process if one is wanted; returns when (mono) to look again. */
static int64
start_one(const QueueInfo *queue, const HandlerInfo *info)
{
	BackgroundWorker worker = idemq_process_of_ours("idemq_handler_main", IDEMQ_HANDLER_WORKER);
	HandlerTicket ticket = {.key = {MyDatabaseId, queue->id}};
	HandlerTarget target;
	char *why = idemq_handler_resolve(info, &target);
	int64 again;

	StaticAssertStmt(sizeof(ticket) <= sizeof(worker.bgw_extra), "a ticket is too long");
	if (why != NULL)
		return idemq_handler_refuse(ticket.key, why, false);
	ticket.role = target.role;
	if (idemq_handler_reserve(queue->qstate, info->workers, &ticket, &again) != HANDLER_RESERVED)
		return again;
	memcpy(worker.bgw_extra, &ticket, sizeof(ticket));
	if (RegisterDynamicBackgroundWorker(&worker, NULL))
		return again;
	idemq_handler_unreserve(queue->qstate, &ticket);
	ereport(
		LOG,
		errmsg(
			"idemq cannot start a process for the handler of queue \"%s\": all %d worker processes "
			"(max_worker_processes) are in use",
			queue->name, max_worker_processes),
		errhint("Raise max_worker_processes, and restart the server."));
	return idemq_mono_now() + NO_ROOM_PAUSE;
}

/* Task "handle": looks at the handler of a queue. */
void
idemq_handle(const QueueInfo *queue)
{
	QueueStateKey key = {MyDatabaseId, queue->id};
	HandlerInfo info;
	TimestampTz next_due;
	uint32 crashed = pg_atomic_read_u32(&queue->qstate->handler) & CRASHED;

	if (!idemq_handler_read(queue->id, &info))
	{
		idemq_handler_settle(queue->qstate, key, 0, 0);
		(void) pg_atomic_fetch_and_u32(&queue->qstate->handler, ~CRASHED);
		return;
	}
	/* A former server crashed in the middle of the handler's jobs. */
	if (crashed != 0)
	{
		Datum values[] = {Int32GetDatum(queue->id), TimestampTzGetDatum(idemq_now()),
						  Int32GetDatum(HANDLER_MAX_CRASHES),
						  Int32GetDatum(crashed & HANDLER_CRASHED_AGAIN ? HANDLER_MAX_CRASHES : 0)};

		(void) idemq_spi_do(&count_crash, values, NULL);
		CommandCounterIncrement();
		ForceSyncCommit();
		/* Not a bit that was set since it was read: the next look counts that crash. */
		(void) pg_atomic_fetch_and_u32(&queue->qstate->handler, ~crashed);
		(void) idemq_handler_read(queue->id, &info);
	}
	idemq_handler_settle(queue->qstate, key, info.set_at, info.stopped ? 0 : info.workers);
	if (info.stopped || idemq_queue_is_closed(queue) || !idemq_ready_check(queue, &next_due, NULL))
		return;
	idemq_due_by(queue->qstate, DUE_HANDLER, start_one(queue, &info));
}
