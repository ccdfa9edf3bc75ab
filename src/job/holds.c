/*
 * job/holds.c
 *		Holds: a worker whose provider has answered 429 requests that no further job of its group,
 *		or of its queue, start before a given time.
 *
 * Each call of idemq.hold_back that begins or extends a hold inserts a row into
 * idemq_internal.hold_entries.  The hold of a group or queue is the row with the latest end, until
 * that end has passed.  The hold takes effect when the transaction that inserted the row commits,
 * and a rollback leaves nothing behind.  It ends by the clock alone, without a write.
 *
 * No session waits.  A call only inserts a row and never touches an existing one, so two workers
 * that get a 429 at the same time do not wait for each other's transactions.  Claims delete ended
 * rows (see below), skipping locked ones; only idemq.resume changes a row that has not ended.
 *
 * A hold ends at most max_hold_back after it began.  A call first reads the time t, then takes the
 * latest snapshot.  If the snapshot shows a hold in force, the new row copies that hold's began_at;
 * otherwise its began_at is t.  The call is refused if the end is later than began_at +
 * max_hold_back.  Let a hold be in force without interruption from S on: S is when the first of its
 * rows became visible.  Then each row that belongs to it has a began_at of at most S.  A row whose
 * snapshot is older than S has a t before S, and cannot copy a later time.  A row whose snapshot is
 * younger than S sees a row in force, and copies its began_at, which is at most S by induction.  So
 * every row ends by S + max_hold_back, regardless of the order in which open transactions commit,
 * and without a lock.
 *
 * The next hold begins only after a claim.  When a hold has ended, either at its time or because of
 * idemq.resume, its rows remain until a claim of a job of the queue or group deletes them.  The
 * claim deletes them in its own transaction, so a claim that is rolled back does not count.  While
 * the rows exist, a call is refused unless the caller's own job was claimed after the hold ended.
 * (So it does not matter that a claim skips rows that another open claim is deleting, and deletes
 * none above READ COMMITTED, where its snapshot may be too old.)  A transaction that saw no hold,
 * or an earlier one, may commit its row later, without a claim in between.  The row's began_at is
 * then still the time of its call, so without a claim no row ends later than max_hold_back after
 * the first of these rows took effect.
 *
 * How claims obey.  QueueInfo contains the end of the queue's last hold, and whether there are
 * holds of groups.  Like the queue's settings, it is reread after each change of the rows
 * (queue/queue_cache.c has the proof that a call that begins after a commit sees it; nothing is in
 * shared memory, so a restart, a crash or a failover changes nothing).  Like a paused queue, a held
 * queue hands out no jobs (idemq_queue_is_closed).  In a queue with holds of groups,
 * job/claim_one.c looks for the hold of each job's group before it takes the job, and refuses as
 * group_rate_limit does: ready_at becomes the end of the hold (job/group_rate_limit.c).  A
 * promotion does so at once (job/promote_one.c).  In queues without holds this costs a claim two
 * tests of its QueueInfo.
 *
 * The end of a hold wakes sleeping sessions.  Each change of the rows lowers the queue state's
 * DUE_READY: the worker reads until when the queue is held, and has itself run again then
 * (worker/waking.c, as for the end of a pause).  A deferred job has its own entry in the ready
 * index, and becomes due like any other job.  A waiter that has found its queue held wakes at the
 * end of the hold by itself, even without a worker.  After idemq.resume all waiters look again;
 * resume itself makes the jobs of held groups due, except those that an open claim is deferring.
 *
 * If no job of a group is ever claimed again, retention deletes the group's rows, once no call can
 * be refused because of them.  It also deletes rows of queues, apart from the last one, since claims
 * above READ COMMITTED delete none (idemq_internal.delete_by_time).
 *
 * Locks: none of its own.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "job/job.h"
#include "queue/queue.h"
#include "table/table.h"

/* '' for the queue, in place of NULL: the index is on that expression. */
static SqlStatement find_hold =
	{.few = true,
	 .text = "SELECT began_at, until, job_id FROM idemq_internal.hold_entries "
			 "WHERE queue_id = $1 AND coalesce(group_key, '') = $2 ORDER BY until DESC LIMIT 1",
	 .types = {INT4OID, TEXTOID},
	 .fields = (const SqlField[]){SQL_FIELD(Hold, began_at), SQL_FIELD(Hold, until),
								  SQL_FIELD(Hold, job_id)}};
static SqlStatement add_hold =
	{.text = "INSERT INTO idemq_internal.hold_entries (queue_id, group_key, began_at, until, "
			 "job_id, token, held_at) VALUES ($1, nullif($2, ''), $3, $4, $5, $6, $7)",
	 .types = {INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, TIMESTAMPTZOID}};
static SqlStatement delete_ended =
	{.few = true,
	 .text = "WITH over AS MATERIALIZED (SELECT hold_id FROM idemq_internal.hold_entries "
			 "WHERE queue_id = $1 AND coalesce(group_key, '') = $2 AND until <= $3 "
			 "FOR UPDATE SKIP LOCKED) "
			 "DELETE FROM idemq_internal.hold_entries h USING over WHERE h.hold_id = over.hold_id",
	 .types = {INT4OID, TEXTOID, TIMESTAMPTZOID}};
static SqlStatement end_all =
	{.latest = true,
	 .text = "WITH ended AS (UPDATE idemq_internal.hold_entries SET until = $2 WHERE queue_id = $1 "
			 "AND until > $2 AND ($3 IS NULL OR group_key = $3) RETURNING group_key) "
			 "SELECT FROM ended GROUP BY group_key",
	 .types = {INT4OID, TIMESTAMPTZOID, TEXTOID}};

/* Returns a group as find_hold names it; a group of 0 is the whole queue. */
static Datum
scope_of(Datum group)
{
	return group == (Datum) 0 ? CStringGetTextDatum("") : group;
}

/*
 * Finds the last hold of a group, or, if group is 0, of a whole queue; the hold may have ended.
 * Returns false if there is none.
 */
bool
idemq_hold_find(const QueueInfo *queue, Datum group, Hold *hold)
{
	Datum values[] = {Int32GetDatum(queue->id), scope_of(group)};

	return idemq_spi_row(&find_hold, values, hold, sizeof(*hold));
}

/*
 * Returns the time until which a group is held back, DT_NOBEGIN if it is not.  *was_held: the group
 * has a hold that has ended.  The group without a name, and group 0, cannot be held back.
 */
TimestampTz
idemq_group_held_until(const QueueInfo *queue, Datum group, bool *was_held)
{
	Hold hold;

	*was_held = false;
	if (likely(!queue->has_group_holds) || group == (Datum) 0 || idemq_is_no_group(group) ||
		!idemq_hold_find(queue, group, &hold))
		return DT_NOBEGIN;
	*was_held = hold.until <= idemq_now();
	return *was_held ? DT_NOBEGIN : hold.until;
}

/* Deletes the rows of holds that ended before a job was claimed. */
static void
forget_ended(const QueueInfo *queue, Datum group, TimestampTz claimed_at)
{
	Datum values[] = {Int32GetDatum(queue->id), scope_of(group), TimestampTzGetDatum(claimed_at)};

	(void) idemq_spi_do(&delete_ended, values, NULL);
}

/*
 * Called after a claim whose row this transaction has written: the next hold of the job's queue and
 * group may now begin.  was_held must be as idemq_group_held_until set it.  The next lookup of the
 * queue no longer has the hold.
 */
void
idemq_holds_note_claim(const QueueInfo *queue, const Job *job, bool was_held,
					   TimestampTz claimed_at)
{
	if (likely(queue->held_until == DT_NOBEGIN && !was_held))
		return;
	if (IsolationUsesXactSnapshot())
		return;
	if (queue->held_until != DT_NOBEGIN)
		forget_ended(queue, (Datum) 0, claimed_at);
	if (was_held)
		forget_ended(queue, job_value(job, COL_GROUP_KEY), claimed_at);
}

/* Formats a time into palloc'ed memory: two calls of timestamptz_to_str would share a buffer. */
static const char *
in_words(TimestampTz time)
{
	return pstrdup(timestamptz_to_str(time));
}

/* Raises 22023 for a hold that would end later than its queue allows. */
static void
check_end(const QueueInfo *queue, TimestampTz began_at, TimestampTz until)
{
	char *most;

	if (until <= began_at + queue->max_hold_back)
		return;
	if (queue->max_hold_back == 0)
		ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("queue \"%s\" does not allow workers to hold back jobs", queue->name),
				errhint("Ask an administrator of the queue to set max_hold_back with "
						"idemq.alter_queue."));
	most = DatumGetCString(
		DirectFunctionCall1(interval_out, idemq_interval_datum(queue->max_hold_back)));
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("the hold would last longer than max_hold_back of queue \"%s\", which is %s",
				   queue->name, most),
			errdetail("A hold that began at %s must end by %s.", in_words(began_at),
					  in_words(began_at + queue->max_hold_back)),
			errhint("Pass an earlier end, or ask an administrator of the queue to raise "
					"max_hold_back with idemq.alter_queue."));
}

/* Raises 22023 unless a job has been claimed since the last hold ended. */
static void
check_claimed_since(const Attempt *attempt, Datum group, TimestampTz ended_at)
{
	if (attempt->job.claimed_at > ended_at)
		return;
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("no job of this %s has been claimed since its last hold ended",
				   group == (Datum) 0 ? "queue" : "group"),
			errdetail("The last hold of %s \"%s\" ended at %s.",
					  group == (Datum) 0 ? "queue" : "this group in queue", attempt->queue.name,
					  in_words(ended_at)),
			errhint(
				"Release the job with idemq.release. A new hold can begin after the next claim."));
}

/*
 * Holds back a group, or, if group is 0, the whole queue of a current attempt until a time that is
 * later than now, a time read before the call.  Returns when the hold ends, which may be later.
 * Writes nothing unless it extends the hold.  Raises 22023 for a hold that max_hold_back forbids,
 * and for a new hold if no job has been claimed since the last one.
 */
TimestampTz
idemq_hold_begin(const Attempt *attempt, Datum group, TimestampTz now, TimestampTz until)
{
	const QueueInfo *queue = &attempt->queue;
	Hold hold;
	bool found = idemq_hold_find(queue, group, &hold);
	bool begins = !found || hold.until <= now;

	if (!begins && until <= hold.until)
		return hold.until;
	check_end(queue, begins ? now : hold.began_at, until);
	if (found && begins)
		check_claimed_since(attempt, group, hold.until);
	(void) idemq_spi_do(&add_hold,
						(Datum[]){Int32GetDatum(queue->id), scope_of(group),
								  TimestampTzGetDatum(begins ? now : hold.began_at),
								  TimestampTzGetDatum(until), Int64GetDatum(attempt->id),
								  Int64GetDatum(attempt->token), TimestampTzGetDatum(now)},
						NULL);
	/* Extensions are not recorded in idemq.audit, because there may be many. */
	if (begins)
	{
		AuditEntry entry = {.action = "hold_back",
							.queue = queue,
							.job_id = attempt->id,
							.members = {"scope", group == (Datum) 0 ? "queue" : "group", "until",
										in_words(until)}};

		if (group != (Datum) 0)
		{
			entry.members[4] = "group_key";
			entry.members[5] = TextDatumGetCString(group);
		}
		idemq_audit(&entry);
	}
	return until;
}

/*
 * $1: queue, $2: now, $3: JOB_RATE_LIMITED, $4: JOB_PERMIT, $5: group.  A time that the job itself
 * was given stays.  In a group with permits, a job without one has the time for which it waits in
 * run_at (idemq_permit_follow), and waits for a permit when it is due.  Never waits for a row.
 */
#define END_WAITS(of_group)                                                                        \
	"WITH due AS MATERIALIZED (SELECT id, greatest($2, run_at) AS at FROM idemq.jobs "             \
	"WHERE queue_id = $1 AND ready_at > $2 AND " of_group                                          \
	" AND finished_at IS NULL AND flags & $3 <> 0 FOR NO KEY UPDATE SKIP LOCKED) "                 \
	"UPDATE idemq.jobs j SET ready_at = due.at, flags = flags & ~$3, "                             \
	"run_at = CASE WHEN flags & $4 = 0 THEN due.at END FROM due WHERE j.id = due.id"

static SqlStatement end_waits = {.text = END_WAITS("group_key <> ''"),
								 .types = {INT4OID, TIMESTAMPTZOID, INT4OID, INT4OID},
								 .on_jobs = true,
								 .latest = true};
static SqlStatement end_waits_of_group = {.text = END_WAITS("group_key = $5"),
										  .types = {INT4OID, TIMESTAMPTZOID, INT4OID, INT4OID,
													TEXTOID},
										  .on_jobs = true,
										  .few = true,
										  .latest = true};

/*
 * Makes the jobs of a group, or, if name is 0, of a queue due that wait for their group's rate, or
 * for the end of its hold.  The next claim defers those that still start too early.
 */
void
idemq_group_waits_end(int32 queue_id, Datum name)
{
	Datum values[] = {Int32GetDatum(queue_id), TimestampTzGetDatum(idemq_now()),
					  Int32GetDatum(JOB_RATE_LIMITED), Int32GetDatum(JOB_PERMIT), name};

	(void) idemq_spi_do(name == (Datum) 0 ? &end_waits : &end_waits_of_group, values, NULL);
}

/*
 * Ends the holds of a group, or, if group is 0, of a queue and all of its groups, for idemq.resume;
 * returns how many.  The jobs that wait for the end of a group's hold become due.  May wait for
 * another call of idemq.resume.
 */
int
idemq_holds_end(int32 queue_id, Datum group)
{
	Datum values[] = {Int32GetDatum(queue_id), TimestampTzGetDatum(idemq_now()), group};
	int ended = (int) idemq_spi_do(&end_all, values, NULL);
	QueueInfo queue;

	/* Also if no hold was in force: see job/group_rate_limit.c. */
	if (idemq_queue_by_id(queue_id, &queue) && queue.has_group_holds)
		idemq_group_waits_end(queue_id, group);
	return ended;
}
