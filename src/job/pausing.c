/*
 * job/pausing.c
 *		The end of a pause at its time, of a queue or of one of its groups.  (idemq.pause and
 *		idemq.resume: sql/parts/30_queues.sql)
 *
 * A row of idemq.queues has both paused and paused_until.  Code that hands out jobs, or waits for
 * some, calls idemq_queue_is_paused, which returns false from that time on.  So the queue resumes
 * when the time comes, without a worker, and without a read or a write.  What remains is to notify
 * sleeping sessions, and to update the row for its readers:
 *
 *	 - After each change of a queue's settings, the worker runs its task "due" for the queue once
 *	   (follow_settings in txn/pending.c).  The task reads the queue, and schedules itself for
 *	   paused_until.  It first takes the queue state's DUE_READY, and then reads the settings.  A
 *	   pause first becomes visible, then moves the version of the settings, then lowers DUE_READY.
 *	   So if taking DUE_READY undid that lowering, the task sees the new version.
 *	 - At that time, the task ends the pause in the row, as idemq.resume does, with a row in
 *	   idemq.audit.  All waiters wake, and sessions that LISTEN are notified if a job is ready.
 *	   The task does not wait for locks: if the row is locked, the task tries again a second
 *	   later.
 *	 - A session in idemq.wait wakes at that time by itself.
 *
 * Without a worker, the row says paused until the queue is resumed or a worker starts;
 * idemq.metrics and idemq.why compare the times.
 *
 * A pause of a group (job/group_pause.c) ends in the same way: when its time comes, and in the task
 * "due", which deletes its row and has the group promoted.  A queue's settings say when the first
 * of these pauses ends.  Without a worker, a claim deletes such rows, and so does a session that
 * waits, as part of the fallback maintenance, because no other session would promote the group.
 *
 * Locks: the row of the queue, or of the paused group, until the end of the transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
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

/* Maximum number of group pauses that one call ends; the next call continues. */
#define END_AT_ONCE 100

/* A pause of a group that is over. */
typedef struct EndedPause
{
	Datum group;
	TimestampTz until;
} EndedPause;

static SqlStatement group_pause_end_over =
	{.few = true,
	 .locks = true,
	 .text = "WITH over AS MATERIALIZED (SELECT p.group_key FROM idemq.paused_groups p "
			 "WHERE p.queue_id = $1 AND p.paused_until <= $2 ORDER BY p.paused_until LIMIT $3 "
			 "FOR UPDATE SKIP LOCKED) "
			 "DELETE FROM idemq.paused_groups p USING over WHERE p.queue_id = $1 "
			 "AND p.group_key = over.group_key RETURNING p.group_key, p.paused_until",
	 .types = {INT4OID, TIMESTAMPTZOID, INT4OID},
	 .fields = (const SqlField[]){SQL_FIELD(EndedPause, group), SQL_FIELD(EndedPause, until)}};

/*
 * The same pauses, for a claim above READ COMMITTED.  It must not lock their rows: if another
 * transaction has deleted one since the snapshot was taken, SKIP LOCKED does not skip it, but
 * raises 40001, and a claim raises no such error.
 */
static SqlStatement group_pause_list_over =
	{.few = true,
	 .latest = true,
	 .text = "SELECT group_key, paused_until FROM idemq.paused_groups WHERE queue_id = $1 "
			 "AND paused_until <= $2 ORDER BY paused_until LIMIT $3",
	 .types = {INT4OID, TIMESTAMPTZOID, INT4OID},
	 .fields = (const SqlField[]){SQL_FIELD(EndedPause, group), SQL_FIELD(EndedPause, until)}};

/*
 * Ends the pause of a queue in its row, unless the row is locked or the time has not come; returns
 * whether it did.
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

/* Returns whether a group of the queue has a pause that has ended, so its row must be deleted. */
bool
idemq_group_pause_is_over(const QueueInfo *queue)
{
	return unlikely(queue->group_pauses_end < DT_NOEND) && queue->group_pauses_end <= idemq_now();
}

/*
 * Deletes the rows of pauses of a queue's groups that are over, unless they are locked, and has
 * these groups promoted, at most 100 per call.  Above READ COMMITTED it leaves the rows, which no
 * longer have any effect.  Returns the number of pauses that are over.  The queue's settings change
 * with the commit, so the next session that reads them finds the remaining pauses.
 */
int
idemq_group_pauses_end(const QueueInfo *queue)
{
	bool keeps = IsolationUsesXactSnapshot();
	Datum values[] = {Int32GetDatum(queue->id), TimestampTzGetDatum(idemq_now()),
					  Int32GetDatum(END_AT_ONCE)};
	EndedPause *ended;
	int count;

	ended = idemq_spi_rows(keeps ? &group_pause_list_over : &group_pause_end_over, values,
						   sizeof(EndedPause), &count);
	for (int i = 0; i < count; i++)
	{
		const char *until = pstrdup(timestamptz_to_str(ended[i].until));

		if (!keeps)
			idemq_audit(&(AuditEntry){.action = "resume",
									  .queue = queue,
									  .members = {"group_key", TextDatumGetCString(ended[i].group),
												  "until", until}});
		/* Immediately, because the caller may itself be claiming jobs of this group. */
		idemq_promote_later(queue, ended[i].group);
	}
	return count;
}
