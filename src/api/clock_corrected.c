/*
 * api/clock_corrected.c
 *		SQL function clock_corrected: after a jump of the wall clock ahead was corrected,
 *		jobs that were written meanwhile are due as if it had not jumped.
 *
 * Such jobs are found by times that are always of the past when they are written:
 * created_at, claimed_at, finished_at, and ended_at of the last attempt.  ready_at alone
 * tells nothing: a backoff, a delay and a run_at look the same.  But where the last
 * attempt failed, and the job is pending, it was retried; and the head of a group whose
 * run_at has passed was promoted: both became ready at once, at the time of that.
 *
 * What was to be waited for, from one of these times on, is waited for from now on.  A job
 * that waits for its group's rate is looked at again when its group is (job/group_rate.c): all
 * are.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "base/base.h"
#include "queue/queue.h"
#include "shared/sleepers/sleepers.h"
#include "table/table.h"
#include "txn/txn.h"

PG_FUNCTION_INFO_V1(idemq_sql_v2_clock_corrected);

/*
 * $1: now.  Lengths of time are taken as seconds, since a day of an interval depends on
 * the time zone.  Never waits for a row: the transaction that holds it may be about to
 * wait for ours.
 */
static SqlStatement correct_jobs = {
	.text =
		"WITH ahead AS MATERIALIZED (SELECT j.id, j.status::text AS status, j.token, j.attempt, "
		"j.created_at, j.claimed_at, j.deadline, j.finished_at, j.dead_at, j.ready_at, j.group_key, "
		"make_interval(secs => greatest(extract(epoch FROM j.created_at - $1), 0)) AS made, "
		"make_interval(secs => greatest(extract(epoch FROM j.claimed_at - $1), 0)) AS claimed, "
		"make_interval(secs => greatest(extract(epoch FROM a.ended_at - $1), 0)) AS ended, "
		"a.outcome, j.run_at, j.expires_at "
		"FROM idemq.jobs j LEFT JOIN idemq.attempts a ON a.job_id = j.id AND a.token = j.token "
		"WHERE greatest(j.created_at, j.claimed_at, j.finished_at, j.ready_at) > $1 "
		/* Given back, and blocked since then: that time is in its run_at alone. */
		"OR j.status = 'blocked' AND j.token > 0 AND j.run_at > $1 "
		"FOR NO KEY UPDATE OF j SKIP LOCKED), "
		"corrected AS (SELECT id, least(created_at, $1) AS created_at, "
		"CASE WHEN claimed_at > $1 THEN $1 ELSE claimed_at END AS claimed_at, deadline - claimed AS deadline, "
		"CASE WHEN finished_at > $1 THEN $1 ELSE finished_at END AS finished_at, "
		"CASE WHEN dead_at > $1 THEN $1 ELSE dead_at END AS dead_at, "
		"CASE WHEN token > 0 AND (status = 'blocked' OR run_at > claimed_at) "
		"THEN run_at - greatest(made, claimed, ended) "
		"ELSE run_at - made END AS run_at, "
		/* Given back, in a group of several at once: it is the same time. */
		"token > 0 AND status IN ('pending', 'failed') AND run_at = ready_at AS is_one, "
		"expires_at - made AS expires_at, "
		"CASE WHEN ready_at IS NULL OR ready_at <= $1 THEN ready_at "
		"WHEN status = 'processing' THEN $1 "
		/* Retried, or brought back from the dead. */
		"WHEN token > 0 AND status = 'pending' AND (outcome IN ('failed', 'cancelled') "
		"OR outcome = 'expired' AND attempt = 0) THEN $1 "
		"WHEN token > 0 THEN ready_at - greatest(claimed, ended) "
		"WHEN group_key IS NOT NULL THEN least(ready_at, greatest(run_at - made, $1)) "
		"ELSE ready_at - made END AS ready_at FROM ahead), "
		"changed AS (UPDATE idemq.jobs j SET created_at = c.created_at, "
		"claimed_at = c.claimed_at, deadline = c.deadline, finished_at = c.finished_at, dead_at = c.dead_at, "
		"run_at = CASE WHEN c.is_one THEN c.ready_at ELSE c.run_at END, expires_at = c.expires_at, ready_at = c.ready_at FROM corrected c "
		"WHERE j.id = c.id AND (j.created_at, j.claimed_at, j.finished_at, j.ready_at, j.run_at) "
		"IS DISTINCT FROM (c.created_at, c.claimed_at, c.finished_at, c.ready_at, "
		"CASE WHEN c.is_one THEN c.ready_at ELSE c.run_at END) RETURNING 1), "
		"history AS (UPDATE idemq.attempts a SET claimed_at = CASE WHEN a.claimed_at > $1 THEN $1 ELSE a.claimed_at END, "
		"ended_at = least(a.ended_at, $1) WHERE greatest(a.claimed_at, a.ended_at) > $1 "
		"AND NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = a.job_id AND j.ready_at > $1 "
		"AND NOT EXISTS (SELECT FROM corrected c WHERE c.id = j.id))), "
		"held AS MATERIALIZED (SELECT ctid FROM idemq.steps WHERE begun_at > $1 FOR NO KEY UPDATE SKIP LOCKED), "
		"calls AS (UPDATE idemq.steps s SET begun_at = $1, call_until = s.call_until - "
		"make_interval(secs => extract(epoch FROM s.begun_at - $1)) FROM held WHERE s.ctid = held.ctid) "
		"SELECT count(*) FROM changed",
	.types = {TIMESTAMPTZOID}};

/* Has those looked at again that wait for group_rate: what they were put off to may be ahead. */
static void
check_groups(void)
{
	int count;
	int32 *ids = idemq_queue_ids(0, &count);

	for (int i = 0; i < count; i++)
	{
		QueueInfo queue;

		if (idemq_queue_by_id(ids[i], &queue) && queue.group_rate > 0)
			idemq_pending_note_groups(queue.id);
	}
}

/*
 * clock_corrected() -> number of jobs changed; 25006, 40001.  A job that another open
 * transaction holds or has not committed stays.  The clock is set back at once, for all
 * databases, whatever becomes of the transaction.
 */
Datum
idemq_sql_v2_clock_corrected(PG_FUNCTION_ARGS)
{
	SqlScope scope;
	Datum now;
	int64 changed;

	idemq_jobs_check_writable();
	idemq_clock_correct();
	idemq_worker_need_all();
	now = TimestampTzGetDatum(idemq_now());
	idemq_spi_begin_on_jobs(&scope);
	(void) idemq_spi_run(&correct_jobs, &now, NULL, SPI_OK_SELECT);
	changed = DatumGetInt64(idemq_spi_value(0, 1, NULL));
	idemq_spi_end(&scope);
	check_groups();
	PG_RETURN_INT64(changed);
}
