-- Topic: Observing

CREATE FUNCTION idemq.job(id bigint) RETURNS SETOF idemq.jobs
	ROWS 1 STABLE LANGUAGE sql
	AS 'SELECT j.* FROM idemq.jobs j WHERE j.id OPERATOR(pg_catalog.=) job.id';
COMMENT ON FUNCTION idemq.job(bigint) IS 'Return one job as a row of idemq.jobs. Returns no row if there is no such job or you may not see it.';

CREATE FUNCTION idemq.why(id bigint) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_why';
COMMENT ON FUNCTION idemq.why(bigint)
	IS 'Explain in one sentence what a job is waiting for and what to do next. Requires claim or admin; the text tells you if you have neither.';

CREATE FUNCTION idemq.progress(checkpoint jsonb) RETURNS float8
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_progress';
COMMENT ON FUNCTION idemq.progress(jsonb)
	IS 'Compute the progress of a job, in percent from 0 to 100, from its checkpoint: {"done": 3, "of": 10} gives 30. Returns NULL if the checkpoint does not contain both numbers.';

-- Topic: Internal

CREATE FUNCTION idemq_internal.leases()
	RETURNS TABLE (queue text, job_id bigint, worker text, pid int, attempt int,
		claimed_at timestamptz,
		deadline timestamptz, expires_in interval, attached boolean, state text, handler boolean, ahead boolean)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_leases';
COMMENT ON FUNCTION idemq_internal.leases()
	IS 'List the lease entries of queues that the caller may claim from or administer. For pg_monitor, list all lease entries. Use the view idemq.running_jobs instead.';

-- The function decides which; of a job's row, which it has read, only this: one that nobody asks
-- for is not looked up.
CREATE VIEW idemq.running_jobs WITH (security_barrier) AS
	SELECT l.queue, l.job_id, l.worker, l.pid, l.attempt, l.claimed_at, l.deadline, l.expires_in,
		l.attached, l.state,
		idemq.progress((SELECT j.checkpoint FROM idemq.jobs j
			WHERE j.id OPERATOR(pg_catalog.=) l.job_id
				AND j.status OPERATOR(pg_catalog.=) 'running')) AS progress,
		l.ahead
	FROM idemq_internal.leases() l;
COMMENT ON VIEW idemq.running_jobs IS 'one row per running job, with the session that holds it, for queues that you may claim from or administer; pg_monitor sees all queues';
COMMENT ON COLUMN idemq.running_jobs.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.running_jobs.job_id IS 'id of the job';
COMMENT ON COLUMN idemq.running_jobs.worker IS 'name of the worker, as passed to the claim';
COMMENT ON COLUMN idemq.running_jobs.attempt IS 'number of the attempt, starting from 1';
COMMENT ON COLUMN idemq.running_jobs.claimed_at IS 'when the attempt began';
COMMENT ON COLUMN idemq.running_jobs.expires_in IS 'time left until the deadline; negative if the deadline has passed';
COMMENT ON COLUMN idemq.running_jobs.attached IS 'whether the lease also ends with the session';
COMMENT ON COLUMN idemq.running_jobs.pid IS 'process id of the session that claimed the job; NULL means that the session has ended or the server has restarted';
COMMENT ON COLUMN idemq.running_jobs.deadline IS 'end of the lease, including extensions by heartbeats; NULL while the claim''s transaction is open';
COMMENT ON COLUMN idemq.running_jobs.state IS 'state of the lease: claiming, active, cancelling, ending or reaping. Claiming means that the claim''s transaction is open. Cancelling means that a transaction that is cancelling the job is waiting for the worker''s transaction. Ending means that a transaction that finishes or cancels the job is open. Reaping means that the expired lease is being reclaimed.';

COMMENT ON COLUMN idemq.running_jobs.progress IS 'progress of the attempt in percent, computed by idemq.progress from its last checkpoint; NULL means that the checkpoint does not contain the progress';
COMMENT ON COLUMN idemq.running_jobs.ahead IS 'whether the job waits in its worker for a free place and has not begun; if its worker ends, the attempt does not count';

-- Topic: Observing

CREATE FUNCTION idemq.check()
	RETURNS TABLE (severity text, invariant text, detail text)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_check';
COMMENT ON FUNCTION idemq.check()
	IS 'Check rows, indexes, triggers and shared memory while other sessions are working. Returns one row per broken invariant (error) or degraded state (warning), or no row if no problem is found. Reads all rows. Run it in a separate transaction; otherwise, it raises 25001.';

-- Topic: Internal

CREATE FUNCTION idemq_internal.queue_metrics(count boolean DEFAULT true)
	RETURNS TABLE (
		queue_id         int,
		blocked          bigint,
		pending          bigint,
		running          bigint,
		retrying         bigint,
		completed        bigint,
		dead             bigint,
		cancelled        bigint,
		oldest_ready     interval,
		enqueued_total   bigint,
		duplicates_total bigint,
		claimed_total    bigint,
		committed_total  bigint,
		failed_total     bigint,
		dead_total       bigint,
		released_total   bigint,
		expired_total    bigint,
		cancelled_total  bigint,
		retried_total    bigint,
		redriven_total   bigint,
		row_only_total   bigint,
		purged_total     bigint,
		stale_commits_total    bigint,
		stale_calls_total      bigint,
		repeated_commits_total bigint,
		reruns_total     bigint,
		steps_done_total bigint,
		wait_p50         interval,
		wait_p95         interval,
		wait_p99         interval,
		run_p50          interval,
		run_p95          interval,
		run_p99          interval,
		in_memory        boolean,
		counted_since    timestamptz,
		recovering       boolean,
		permits_used     int,
		groups_limited   bigint,
		unattended_for   interval,
		unfinished       bigint)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_queue_metrics';
COMMENT ON FUNCTION idemq_internal.queue_metrics(boolean)
	IS 'Return the rows of idemq.metrics, one per queue that you may claim from or administer (for pg_monitor, every queue). If count is false, gauges that would require reading all jobs are NULL.';

-- Steps without an answer, for each queue that has any: those of running attempts, and the others.
CREATE VIEW idemq_internal.steps_without_answer AS
	SELECT x.queue_id, count(*) FILTER (WHERE x.runs) AS open,
		count(*) FILTER (WHERE x.runs IS NOT TRUE) AS unknown
	FROM (SELECT s.queue_id, (SELECT j.token = s.token AND j.status = 'running' FROM idemq.jobs j
			WHERE j.id = s.job_id) AS runs
		FROM idemq.steps s WHERE s.state = 'open') x GROUP BY x.queue_id;
COMMENT ON VIEW idemq_internal.steps_without_answer IS 'number of open steps without a response, per queue';

-- The function decides which queues; the view reads the names as its owner.
CREATE VIEW idemq.metrics WITH (security_barrier) AS
	SELECT q.name AS queue, m.queue_id, p.paused,
		CASE WHEN p.paused THEN q.paused_until END AS paused_until,
		m.pending, m.blocked, m.running, m.retrying, m.completed, m.dead, m.cancelled,
		m.oldest_ready,
		m.enqueued_total, m.duplicates_total, m.claimed_total, m.committed_total,
		m.failed_total, m.dead_total, m.released_total, m.expired_total,
		m.cancelled_total, m.retried_total, m.redriven_total, m.row_only_total, m.purged_total,
		m.stale_commits_total, m.stale_calls_total, m.repeated_commits_total, m.reruns_total,
		m.steps_done_total,
		m.wait_p50, m.wait_p95, m.wait_p99, m.run_p50, m.run_p95, m.run_p99,
		m.in_memory, m.counted_since, m.recovering, m.permits_used, q.max_running,
		coalesce(m.open, 0) AS steps_open, coalesce(m.unknown, 0) AS steps_unknown, m.groups_limited,
		CASE WHEN NOT d.is_dead_letter_queue THEN m.unattended_for END AS unattended_for, d.is_dead_letter_queue,
		h.held_until, h.groups_held, g.paused_groups,
		m.unfinished, q.max_unfinished
	-- A full join is never a nested loop, which may read all steps for each queue.
	FROM (SELECT n.*, s.open, s.unknown FROM idemq_internal.queue_metrics() n
		FULL JOIN idemq_internal.steps_without_answer s
			ON s.queue_id OPERATOR(pg_catalog.=) n.queue_id OFFSET 0) m
	-- Queue by queue: joins may read all queues for each.
	CROSS JOIN LATERAL (SELECT q.name, q.paused, q.paused_until, q.max_running, q.max_unfinished FROM idemq.queues q
		WHERE q.queue_id OPERATOR(pg_catalog.=) m.queue_id OFFSET 0) q
	CROSS JOIN LATERAL (SELECT q.name IN (SELECT o.dead_letter_queue FROM idemq.queues o
		WHERE o.dead_letter_queue IS NOT NULL) AS is_dead_letter_queue) d
	CROSS JOIN LATERAL (SELECT q.paused AND (q.paused_until IS NULL
		OR q.paused_until OPERATOR(pg_catalog.>) idemq.clock_timestamp()) AS paused) p
	CROSS JOIN LATERAL (SELECT
			pg_catalog.max(e.until) FILTER (WHERE e.group_key IS NULL) AS held_until,
			pg_catalog.count(DISTINCT e.group_key) AS groups_held
		FROM idemq_internal.hold_entries e WHERE e.queue_id OPERATOR(pg_catalog.=) m.queue_id
			AND e.until OPERATOR(pg_catalog.>) idemq.clock_timestamp()) h
	CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS paused_groups FROM idemq.paused_groups g
		WHERE g.queue_id OPERATOR(pg_catalog.=) m.queue_id AND (g.paused_until IS NULL
			OR g.paused_until OPERATOR(pg_catalog.>) idemq.clock_timestamp())) g;
COMMENT ON VIEW idemq.metrics IS 'one row per queue that you may claim from or administer (for pg_monitor, every queue), with job counts by status, counters and times. A restart or crash resets the counters and times (see counted_since). All figures change only when a transaction commits, except that the four counters of refused calls (duplicates_total, stale_commits_total, stale_calls_total and repeated_commits_total) count each refusal immediately, even if the caller rolls back.';
COMMENT ON COLUMN idemq.metrics.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.metrics.queue_id IS 'numeric id of the queue';
COMMENT ON COLUMN idemq.metrics.paused IS 'whether the queue is paused, so that no jobs can be claimed';
COMMENT ON COLUMN idemq.metrics.paused_until IS 'time at which the queue resumes automatically, if it is paused until a given time';
COMMENT ON COLUMN idemq.metrics.held_until IS 'end of the hold of the whole queue (idemq.hold_back); NULL means that there is none';
COMMENT ON COLUMN idemq.metrics.groups_held IS 'number of groups that are held back; idemq.holds lists them';
COMMENT ON COLUMN idemq.metrics.blocked IS 'number of blocked jobs';
COMMENT ON COLUMN idemq.metrics.running IS 'number of running jobs';
COMMENT ON COLUMN idemq.metrics.retrying IS 'number of jobs that have begun and are waiting for their next attempt';
COMMENT ON COLUMN idemq.metrics.completed IS 'number of completed jobs that have not been deleted';
COMMENT ON COLUMN idemq.metrics.dead IS 'number of dead jobs that have not been deleted';
COMMENT ON COLUMN idemq.metrics.cancelled IS 'number of cancelled and expired jobs that have not been deleted';
COMMENT ON COLUMN idemq.metrics.groups_limited IS 'number of groups in which a job is waiting because group_max_running other jobs are running, according to shared memory; NULL if group_max_running is 1';
COMMENT ON COLUMN idemq.metrics.unattended_for IS 'how long jobs have been due while the queue has had no worker, which means that no job is running, none has been claimed, and no session is sleeping in idemq.wait. NULL means less than a minute, or that no worker is needed because no job is due, the queue is paused, held back or at a limit, expect_workers is false, or the queue is a dead-letter queue.';
COMMENT ON COLUMN idemq.metrics.is_dead_letter_queue IS 'whether the queue is the dead_letter_queue of another queue, so its jobs wait for a person instead of a worker';
COMMENT ON COLUMN idemq.metrics.paused_groups IS 'number of groups of the queue that are paused, whether or not they have jobs';
COMMENT ON COLUMN idemq.metrics.max_running IS 'maximum value of permits_used; NULL means no limit';
COMMENT ON COLUMN idemq.metrics.unfinished IS 'number that max_unfinished limits: committed unfinished jobs, plus the jobs that open transactions have room to add. NULL means that there is no limit, or that the jobs have not been counted; the next enqueue counts them. It may be a lower bound if it exceeds the limit.';
COMMENT ON COLUMN idemq.metrics.max_unfinished IS 'maximum value of unfinished; NULL means no limit';
COMMENT ON COLUMN idemq.metrics.wait_p95 IS 'time within which 95 % of jobs were claimed';
COMMENT ON COLUMN idemq.metrics.wait_p99 IS 'time within which 99 % of jobs were claimed';
COMMENT ON COLUMN idemq.metrics.run_p95 IS 'time within which 95 % of attempts finished';
COMMENT ON COLUMN idemq.metrics.run_p99 IS 'time within which 99 % of attempts finished';
COMMENT ON COLUMN idemq.metrics.pending IS 'number of jobs that are ready now or will be ready at their scheduled time';
COMMENT ON COLUMN idemq.metrics.oldest_ready IS 'how long the longest-waiting ready job has been ready, even if the queue is paused; NULL means that no job is ready';
COMMENT ON COLUMN idemq.metrics.enqueued_total IS 'number of jobs enqueued';
COMMENT ON COLUMN idemq.metrics.duplicates_total IS 'number of requests whose key was already in use: calls to enqueue that added no job (including IQ003 and IQ004), and calls to acquire for a finished job. Each request is counted immediately, even if the caller rolls back.';
COMMENT ON COLUMN idemq.metrics.claimed_total IS 'number of attempts begun';
COMMENT ON COLUMN idemq.metrics.committed_total IS 'number of committed jobs, including those committed with commit_once';
COMMENT ON COLUMN idemq.metrics.failed_total IS 'number of failed attempts, including the last attempt of a dead job';
COMMENT ON COLUMN idemq.metrics.dead_total IS 'number of jobs that became dead';
COMMENT ON COLUMN idemq.metrics.released_total IS 'number of attempts released';
COMMENT ON COLUMN idemq.metrics.expired_total IS 'number of leases that expired and were reaped';
COMMENT ON COLUMN idemq.metrics.cancelled_total IS 'number of jobs that were cancelled or that expired because they were not claimed by expires_at';
COMMENT ON COLUMN idemq.metrics.retried_total IS 'number of jobs that idemq.retry made ready before they were due';
COMMENT ON COLUMN idemq.metrics.redriven_total IS 'number of dead or cancelled jobs that idemq.redrive or idemq.retry made ready again';
COMMENT ON COLUMN idemq.metrics.row_only_total IS 'number of claims whose lease did not fit into shared memory; if this number grows, raise idemq.max_leases';
COMMENT ON COLUMN idemq.metrics.purged_total IS 'number of finished jobs deleted by the background worker or idemq.apply_retention after their retention period';
COMMENT ON COLUMN idemq.metrics.stale_commits_total IS 'number of commits refused because the token was stale (IQ001, or outcome stale). Such commits come from workers that continued after losing their lease. Each commit is counted immediately, even if the caller rolls back.';
COMMENT ON COLUMN idemq.metrics.stale_calls_total IS 'number of other calls (fail, release, heartbeat, checkpoint, assert_current, fence) refused because the token was stale or the attempt had already ended. Each call is counted immediately, even if the caller rolls back.';
COMMENT ON COLUMN idemq.metrics.repeated_commits_total IS 'number of commits of jobs that were already committed (IQ006, or outcome already_committed), including calls to commit_once. Each commit is counted immediately, even if the caller rolls back.';
COMMENT ON COLUMN idemq.metrics.reruns_total IS 'number of finished jobs that ran again because of a later request (on_duplicate => rerun)';
COMMENT ON COLUMN idemq.metrics.steps_done_total IS 'number of steps that were done, either with a stored response or in this database';
COMMENT ON COLUMN idemq.metrics.steps_open IS 'number of open steps of running attempts';
COMMENT ON COLUMN idemq.metrics.steps_unknown IS 'number of steps whose attempt ended without a response; the next attempt, or a person if the job is finished, must ask the other system';
COMMENT ON COLUMN idemq.metrics.wait_p50 IS 'median time between a job becoming due and being claimed or committed with commit_once (accurate to within 12.5 %)';
COMMENT ON COLUMN idemq.metrics.run_p50 IS 'median time between claim and commit (accurate to within 12.5 %)';
COMMENT ON COLUMN idemq.metrics.in_memory IS 'whether the queue has an entry in shared memory; a queue that was restored in excess of idemq.max_queues does not have one and therefore has no counters or times';
COMMENT ON COLUMN idemq.metrics.counted_since IS 'when the counters started, which is when the queue was first used after a server start or after idemq.jobs was truncated';
COMMENT ON COLUMN idemq.metrics.recovering IS 'whether idemq is still searching for running jobs whose leases are missing from shared memory, usually after a restart; NULL means that the queue has no entry in shared memory';
COMMENT ON COLUMN idemq.metrics.permits_used IS 'number of running jobs and open claims, which max_running limits; NULL means that the queue has no entry in shared memory';

-- idemq_internal.may_see decides which rows are shown; the view reads the names as its owner.  Like the
-- view above, it omits pauses whose time has passed, even if their rows still exist.
CREATE VIEW idemq.paused_group_list WITH (security_barrier) AS
	SELECT q.name AS queue, g.queue_id, g.group_key, g.paused_at, g.paused_until, g.paused_by
	FROM idemq.paused_groups g
	CROSS JOIN LATERAL (SELECT q.name FROM idemq.queues q
		WHERE q.queue_id OPERATOR(pg_catalog.=) g.queue_id OFFSET 0) q
	WHERE (g.paused_until IS NULL
			OR g.paused_until OPERATOR(pg_catalog.>) idemq.clock_timestamp())
		AND idemq_internal.may_see(g.queue_id);
COMMENT ON VIEW idemq.paused_group_list IS 'one row per paused group of the queues that you may claim from or administer, with the name of the queue';
COMMENT ON COLUMN idemq.paused_group_list.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.paused_group_list.queue_id IS 'numeric id of the queue';
COMMENT ON COLUMN idemq.paused_group_list.group_key IS 'key of the group';
COMMENT ON COLUMN idemq.paused_group_list.paused_at IS 'when the group was paused';
COMMENT ON COLUMN idemq.paused_group_list.paused_until IS 'when the group resumes automatically; NULL means that it stays paused until idemq.resume is called';
COMMENT ON COLUMN idemq.paused_group_list.paused_by IS 'role that last called idemq.pause for the group';

-- Topic: Observing

CREATE FUNCTION idemq.recount() RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_recount';
COMMENT ON FUNCTION idemq.recount()
	IS 'Recount the jobs for idemq.metrics with a single scan of the whole table, after changes that bypassed the triggers. Run it in a separate transaction. Returns the number of jobs.';

-- Topic: Internal

CREATE FUNCTION idemq_internal.memory_usage()
	RETURNS TABLE (resource text, used bigint, size bigint, refused bigint)
	ROWS 6 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_memory_usage';
COMMENT ON FUNCTION idemq_internal.memory_usage() IS 'Return the six rows of idemq.memory, one per table.';

CREATE VIEW idemq.memory AS SELECT resource, used, size, refused FROM idemq_internal.memory_usage();
COMMENT ON VIEW idemq.memory IS 'one row per table in shared memory, for the whole server. The tables are leases (idemq.max_leases), this database''s share of them (idemq.max_leases_per_database), buckets (idemq.max_buckets), queues (idemq.max_queues), groups (those whose next job may be due) and group room (groups with group_max_unfinished into which open transactions have enqueued; idemq.max_buckets also sets its size).';
COMMENT ON COLUMN idemq.memory.resource IS 'name of the table';
COMMENT ON COLUMN idemq.memory.used IS 'number of entries in use';
COMMENT ON COLUMN idemq.memory.size IS 'maximum number of entries';
COMMENT ON COLUMN idemq.memory.refused IS 'number of times since the server started that an entry did not fit. A call that needs an entry in queues or group room then raises 53400. Without an entry in another table, idemq works more slowly.';

CREATE FUNCTION idemq_internal.server_counts()
	RETURNS TABLE (name text, value bigint)
	ROWS 13 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_server_counts';
COMMENT ON FUNCTION idemq_internal.server_counts() IS 'Return the rows of idemq.admissions, idemq.once_calls and idemq.publish_calls, one per counter of the whole server.';

CREATE VIEW idemq.admissions AS
	SELECT pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'admit_allowed')
		AS allowed,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'admit_refused')
			AS refused,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'admit_shared')
			AS shared
	FROM idemq_internal.server_counts() c;
COMMENT ON VIEW idemq.admissions IS 'calls to idemq.admit on the whole server since it started, as a single row; calls with cost 0 are not counted';
COMMENT ON COLUMN idemq.admissions.allowed IS 'number of calls that were allowed';
COMMENT ON COLUMN idemq.admissions.refused IS 'number of calls that were refused because the limit was reached';
COMMENT ON COLUMN idemq.admissions.shared IS 'number of these calls that had to share a bucket with other calls in their database; if this number grows, raise idemq.max_buckets';

CREATE VIEW idemq.once_calls AS
	SELECT pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'once_first')
		AS first,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'once_repeated')
			AS repeated
	FROM idemq_internal.server_counts() c;
COMMENT ON VIEW idemq.once_calls IS 'calls to idemq.once on the whole server since it started, as a single row; each call is counted immediately, even if the caller rolls back';
COMMENT ON COLUMN idemq.once_calls.first IS 'number of calls that returned true; a call that is rolled back and repeated counts twice';
COMMENT ON COLUMN idemq.once_calls.repeated IS 'number of calls that returned false because the key was already in use';

CREATE VIEW idemq.publish_calls AS
	SELECT pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'publish_calls')
		AS calls,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'publish_jobs') AS jobs,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'publish_skipped')
			AS skipped
	FROM idemq_internal.server_counts() c;
COMMENT ON VIEW idemq.publish_calls IS 'calls to idemq.publish on the whole server since it started, as a single row; each call is counted immediately, even if the caller rolls back';
COMMENT ON COLUMN idemq.publish_calls.calls IS 'number of calls';
COMMENT ON COLUMN idemq.publish_calls.jobs IS 'number of jobs that these calls added';
COMMENT ON COLUMN idemq.publish_calls.skipped IS 'number of bindings that these calls skipped; idemq.topic_bindings shows which ones and why';

CREATE FUNCTION idemq_internal.worker_state(OUT pid int, OUT stuck_for interval, OUT awake boolean,
	OUT task text,
	OUT last_run timestamptz, OUT lag interval)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_worker_state';
COMMENT ON FUNCTION idemq_internal.worker_state() IS 'Return the row of idemq.background_worker.';

CREATE VIEW idemq.background_worker AS SELECT pid, stuck_for, awake, task, last_run, lag
	FROM idemq_internal.worker_state();
COMMENT ON VIEW idemq.background_worker IS 'state of this database''s background worker, as a single row; the worker is healthy if pid is set and stuck_for is NULL';
COMMENT ON COLUMN idemq.background_worker.pid IS 'process id of the worker; NULL means that no worker is running, because idemq.worker is off, max_worker_processes is exhausted, the server is a standby, or the worker is starting';
COMMENT ON COLUMN idemq.background_worker.stuck_for IS 'how long the worker has made no progress although it has work to do, if this has lasted at least 2 s. In this state, the process is stopped or busy with one long task. NULL means that the worker is making progress or is idle.';
COMMENT ON COLUMN idemq.background_worker.awake IS 'whether the worker is active or about to become active';
COMMENT ON COLUMN idemq.background_worker.task IS 'maintenance task that the worker is running; NULL means that the worker is between two tasks';
COMMENT ON COLUMN idemq.background_worker.last_run IS 'when the worker last finished a maintenance task; NULL means that the worker has not finished a task yet';
COMMENT ON COLUMN idemq.background_worker.lag IS 'how long the oldest unfinished work has been due. The time is normally a few milliseconds; it is longer if the worker is stuck or overloaded, a maintenance task fails, or a transaction has locked a row. NULL means that the database follows another database.';

CREATE FUNCTION idemq_internal.task_counts()
	RETURNS TABLE (task text, runs bigint, failures bigint, busy interval)
	ROWS 15 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_task_counts';
COMMENT ON FUNCTION idemq_internal.task_counts() IS 'Return the rows of idemq.maintenance_tasks, one per maintenance task.';

CREATE VIEW idemq.maintenance_tasks AS SELECT task, runs, failures, busy
	FROM idemq_internal.task_counts();
COMMENT ON VIEW idemq.maintenance_tasks IS 'work done by this database''s background worker since the server started, with one row per maintenance task, or no row if the database has had no background worker';
COMMENT ON COLUMN idemq.maintenance_tasks.task IS 'name of the task: promote, reap, recover, due, remind, expire, handle, tick, notify, announce, count, purge, history, discover or follow. The promote task makes the heads of groups ready. The reap task reclaims jobs whose leases have expired, and the recover task finds leases that were lost in a restart. The due task wakes waiting sessions, and the remind task wakes them again. The expire task cancels jobs that were not claimed in time. The handle task starts handler processes, the tick task runs schedules, and the notify task sends notifications. The announce task sends those about finished jobs. The count task counts the jobs in each queue, the purge task applies retention, and the history task writes idemq.history. The discover and follow tasks run when the worker starts.';
COMMENT ON COLUMN idemq.maintenance_tasks.runs IS 'number of runs';
COMMENT ON COLUMN idemq.maintenance_tasks.failures IS 'number of runs that failed; the errors are in the server log';
COMMENT ON COLUMN idemq.maintenance_tasks.busy IS 'total duration of all runs';
