/*
 * worker/handle.c
 *		Starting the processes that run the handlers of queues (handler/handler.c).
 *
 * The worker starts a process if a job is ready, none of the handler's processes is idle, and the
 * handler has fewer processes than its maximum.  It starts the next one only after the previous one
 * has started, and only if a job is still ready.  The processes exit by themselves.  The comment at
 * the top of shared/processes/handler_registry.c says when the worker must look, and who wakes it.
 *
 * Before it starts a process, the worker checks that the role may log in, connect and claim, and
 * that the function exists and may be executed (queue/handlers.c).  Otherwise it starts none, and
 * the view idemq.handlers says why.  It checks again after 1 s, then 2 s, up to 64 s.
 *
 * A job may crash the server.  Therefore, if the server ended while one of the handler's jobs was
 * running (a crash, a kill -9 of one of its processes, or an immediate shutdown; in other
 * shutdowns the processes release their jobs), the worker adds 1 to the handler's crash count
 * before it starts a process.  So it starts none until the search for such jobs (job/recover.c) has
 * finished in the queue, or until SEARCH_PATIENCE is over.  The third crash in a row stops the
 * handler.  A job whose function returns resets the count.  But a job that was interrupted three
 * times in a row stops the handler in any case (job/reap.c).  The new count is flushed to disk,
 * because it must survive the next crash.
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

/* Maximum time to wait, after the start, for the search for lost leases. */
#define SEARCH_PATIENCE (30 * USECS_PER_SEC)
/* Delay before another attempt if all worker processes are in use. */
#define NO_ROOM_PAUSE USECS_PER_SEC
#define CRASHED (uint32)(HANDLER_CRASHED | HANDLER_CRASHED_AGAIN)

static SqlStatement count_crash =
	{.text = "UPDATE idemq_internal.handler_entries SET crashes = greatest(crashes + 1, $4), "
			 "crashed_at = $2, stopped_at = CASE WHEN greatest(crashes + 1, $4) >= $3 "
			 "THEN coalesce(stopped_at, $2) END WHERE queue_id = $1 AND stopped_at IS NULL",
	 .types = {INT4OID, TIMESTAMPTZOID, INT4OID, INT4OID}};

/* Returns when (mono) task "handle" must run for a queue. */
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

/*
 * Returns the registration of a process that runs a function of this library; the postmaster does
 * not restart it.  The launcher also uses this.
 */
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

/* Starts a process of the handler if one is needed and allowed.  Returns when (mono) to try again. */
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

/* Task "handle": counts a crash, and starts a process for the queue's handler if a job is ready. */
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
	/* The server crashed while one of the handler's jobs was running. */
	if (crashed != 0)
	{
		Datum values[] = {Int32GetDatum(queue->id), TimestampTzGetDatum(idemq_now()),
						  Int32GetDatum(HANDLER_MAX_CRASHES),
						  Int32GetDatum(crashed & HANDLER_CRASHED_AGAIN ? HANDLER_MAX_CRASHES : 0)};

		(void) idemq_spi_do(&count_crash, values, NULL);
		CommandCounterIncrement();
		ForceSyncCommit();
		/* Only the bits that were read: a bit set since then is another crash, counted next time. */
		(void) pg_atomic_fetch_and_u32(&queue->qstate->handler, ~crashed);
		(void) idemq_handler_read(queue->id, &info);
	}
	idemq_handler_settle(queue->qstate, key, info.set_at, info.stopped ? 0 : info.workers);
	if (info.stopped || idemq_queue_is_closed(queue) || !idemq_ready_check(queue, &next_due, NULL))
		return;
	idemq_due_by(queue->qstate, DUE_HANDLER, start_one(queue, &info));
}
