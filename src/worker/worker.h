/*
 * worker/worker.h
 *		The background worker's maintenance tasks, and the launcher.
 */
#ifndef IDEMQ_WORKER_WORKER_H
#define IDEMQ_WORKER_WORKER_H

#include "postmaster/bgworker.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/processes/processes.h"
#include "shared/queue_states/queue_states.h"
#include "table/table.h"

/*
 * tasks.c
 *		What a background worker does.
 */

extern int64 idemq_tasks_do(void);

/*
 * handle.c
 *		Starting the processes that run handlers.
 */

extern BackgroundWorker idemq_process_of_ours(const char *function, const char *name);
extern int64 idemq_handle_due_at(const QueueStateView *view);
extern void idemq_handle(const QueueInfo *queue);

/*
 * launcher.c
 *		The process that keeps a worker in each database with idemq.
 */

extern void idemq_launcher_install(void);

/*
 * worker.c
 *		The background worker of one database.
 */

extern void idemq_worker_idle_interrupts(void);
extern void idemq_worker_sleep(int64 until, uint32 wait_event);
pg_noreturn extern PGDLLEXPORT void idemq_worker_main(Datum arg);

/*
 * worker_log.c
 *		What a background worker tells the server's log.
 */

extern void idemq_log_presence(IdemqPresence presence, const char *waits);
extern void idemq_log_test_clock(void);
extern void idemq_log_worker_started(void);
extern void idemq_log_worker_ends(const char *why);
extern void idemq_log_recovery_begins(void);
extern void idemq_log_task_error(void);
extern void idemq_log_refusal(void);
extern void idemq_log_news(void);

/*
 * task_runner.c
 *		Running a background worker's maintenance tasks.
 */

/*
 * A maintenance task.  It runs either once per queue, with a view of that queue, or once for all
 * queues; then view is NULL.  Times are mono.
 */
typedef struct Task
{
	TaskKind kind;
	DueKind due;		  /* which due time of the queue's state says when it runs */
	bool takes;			  /* this time is removed before the task runs, and set to 0 if it fails */
	bool is_promote_pass; /* claims that find nothing wait until it has run */
	bool drops;			  /* after a failure it is not postponed, and errors are logged rarely */
	/* Returns when it must run; PG_INT64_MAX: never.  NULL: at the due time. */
	int64 (*due_at)(const QueueStateView *view);
	/* Exactly one of these is set; it runs in its own transaction. */
	void (*run)(const QueueInfo *queue);
	void (*run_for_all)(void);
	/* If not NULL, called after that transaction; done: it has committed. */
	void (*ended)(const QueueStateView *view, bool done);
} Task;

extern void idemq_tasks_prepare(void);
extern int64 idemq_task_due_at(const Task *task, const QueueStateView *view);
extern bool idemq_task_is_left(const Task *task, const QueueStateView *view, int64 target);
extern int64 idemq_task_run_if_due(const Task *task, const QueueStateView *view);
extern bool idemq_task_run(const Task *task, int32 queue_id);
extern void idemq_tasks_forget_failures(void);

/*
 * notify.c
 *		NOTIFY: what became ready, and events of single jobs.
 */

extern void idemq_notify_look(QueueState *qstate);
extern int64 idemq_notify_due_at(const QueueStateView *view);
extern void idemq_notify_send(void);
extern void idemq_notify_ended(const QueueStateView *view, bool done);

/*
 * announce.c
 *		NOTIFY: which jobs have finished.
 */

extern void idemq_announce_look(QueueState *qstate);
extern int64 idemq_announce_due_at(const QueueStateView *view);
extern void idemq_announce_send(void);
extern void idemq_announce_ended(const QueueStateView *view, bool done);

/*
 * history.c
 *		The figures of each queue over time.
 */

extern void idemq_history_begin(TimestampTz young);
extern int64 idemq_history_due_at(const QueueStateView *view);
extern void idemq_history_write(void);
extern void idemq_history_ended(const QueueStateView *view, bool done);

/*
 * waking.c
 *		Waking the waiters of a queue when no commit wakes them.
 */

extern void idemq_due(const QueueInfo *queue);
extern void idemq_remind(const QueueInfo *queue);
extern void idemq_remind_of_room(const QueueInfo *queue);

/*
 * expire.c
 *		Cancelling jobs that were not claimed in time.
 */

extern int64 idemq_expire_due_at(const QueueStateView *view);
extern void idemq_expire_some(const QueueInfo *queue);
extern void idemq_expire_ended(const QueueStateView *view, bool done);
extern void idemq_expire_make_due(void);

/*
 * retention.c
 *		Deleting jobs and other rows that are past their retention.
 */

extern int64 idemq_retention_due_at(const QueueStateView *view);
extern void idemq_retention_run(void);
extern void idemq_retention_ended(const QueueStateView *view, bool done);
extern void idemq_retention_make_due(void);

/*
 * retention_ranges.c
 *		Which ids retention visits, and when.
 */

/* A scan of the primary key: ids from at (inclusive) to until (exclusive). */
typedef struct IdScan
{
	int64 at;
	int64 until;
} IdScan;

#define ALL_IDS ((IdScan){PG_INT64_MIN, PG_INT64_MAX})

static inline bool
id_scan_is_over(const IdScan *scan)
{
	return scan->at >= scan->until;
}

extern int64 idemq_retention_of(const Job *job, const QueueInfo *queue);
extern TimestampTz idemq_retention_visit_unfinished(const Job *job, const QueueInfo *queue,
													TimestampTz now);
extern TimestampTz idemq_retention_visit_finished(TimestampTz finished_at, int64 keep,
												  TimestampTz now);
extern void idemq_ranges_begin_pass(TimestampTz now, int64 last_id);
extern bool idemq_ranges_begin_visit(IdScan *scan);
extern void idemq_ranges_stays(int64 id, TimestampTz next_visit);
extern void idemq_ranges_end_visit(const IdScan *scan);

#endif
