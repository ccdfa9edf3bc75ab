/*
 * job/pausing.c
 *		The end of a queue's pause at its time.  (idemq.pause and idemq.resume:
 *		sql/parts/30_queues.sql)
 *
 * The row has both paused and paused_until.  Whoever hands out jobs, or waits for some, asks
 * idemq_queue_is_paused, which is false from that time on.  So the queue resumes by the clock
 * alone, without a worker, a write or a look.  What is left is to tell the sessions that sleep,
 * and whoever reads the row:
 *
 *	 - Every change of a queue's settings has the worker run its task "due" for it once
 *	   (follow_settings in txn/pending.c).  That reads the queue, and has itself run
 *	   again at paused_until.  It takes the queue state's DUE_READY first and reads the settings
 *	   then; a pause becomes visible, then moves the settings' number, then lowers DUE_READY.  So
 *	   if the taking swallowed the lowering, the read finds the new number.
 *	 - At that time the task ends the pause in the row, as idemq.resume does, with a line in
 *	   idemq.audit; all waiters wake, and sessions that LISTEN are told if something is ready.
 *	   It waits for nobody: a row that is locked is tried again a second later.
 *	 - A waiter of idemq.wait wakes at that time by itself.
 *
 * Without a worker the row says paused until somebody resumes the queue or a worker starts;
 * idemq.metrics and idemq.why go by the time.
 *
 * Locks: the row of the queue, to the end of the transaction.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "table/table.h"
#include "txn/txn.h"

static SqlStatement end_if_over =
	{.text = "WITH over AS MATERIALIZED (SELECT queue_id FROM idemq.queues WHERE queue_id = $1 "
			 "AND paused AND paused_until <= $2 FOR NO KEY UPDATE SKIP LOCKED) "
			 "UPDATE idemq.queues q SET paused = false, paused_until = NULL "
			 "FROM over WHERE q.queue_id = over.queue_id",
	 .types = {INT4OID, TIMESTAMPTZOID}};

/*
 * Ends the pause of a queue in its row, for the worker, unless the row is locked or the time is
 * not over; returns whether it did.
 */
bool
idemq_pause_end_if_over(const QueueInfo *queue)
{
	Datum values[] = {Int32GetDatum(queue->id), TimestampTzGetDatum(idemq_now())};
	if (idemq_spi_do(&end_if_over, values, NULL) == 0)
		return false;
	idemq_pending_note(ACTION_RESUME, NULL, queue->id);
	idemq_audit(
		&(AuditEntry){.action = "resume",
					  .queue = queue,
					  .members = {"until", pstrdup(timestamptz_to_str(queue->paused_until))}});
	return true;
}
