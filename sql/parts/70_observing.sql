-- Topic: Observing

CREATE FUNCTION idemq.job(id bigint) RETURNS SETOF idemq.jobs
	ROWS 1 STABLE LANGUAGE sql
	AS 'SELECT j.* FROM idemq.jobs j WHERE j.id OPERATOR(pg_catalog.=) job.id';
COMMENT ON FUNCTION idemq.job(bigint) IS 'one job as a row of idemq.jobs; no row when there is none that you may see';

CREATE FUNCTION idemq.why(id bigint) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_why';
COMMENT ON FUNCTION idemq.why(bigint)
	IS 'one sentence: what a job waits for, and the next step; needs claim or admin, and says so otherwise';

CREATE FUNCTION idemq.progress(checkpoint jsonb) RETURNS float8
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_progress';
COMMENT ON FUNCTION idemq.progress(jsonb)
	IS 'how far a job has come, in percent, from 0 to 100: of {"done": 3, "of": 10} it is 30; NULL for a checkpoint without two such numbers';

-- Topic: Internal

CREATE FUNCTION idemq_internal.leases()
	RETURNS TABLE (queue text, job_id bigint, worker text, pid int, attempt int,
		claimed_at timestamptz,
		deadline timestamptz, expires_in interval, attached boolean, state text, handler boolean)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_leases';
COMMENT ON FUNCTION idemq_internal.leases()
	IS 'the entries of the lease table, of queues that the caller may claim from or administer, all for pg_monitor; use the view idemq.running_jobs';

-- The function decides which; of a job's row, which it has read, only this: one that nobody asks
-- for is not looked up.
CREATE VIEW idemq.running_jobs WITH (security_barrier) AS
	SELECT l.queue, l.job_id, l.worker, l.pid, l.attempt, l.claimed_at, l.deadline, l.expires_in,
		l.attached, l.state,
		idemq.progress((SELECT j.checkpoint FROM idemq.jobs j
			WHERE j.id OPERATOR(pg_catalog.=) l.job_id
				AND j.status OPERATOR(pg_catalog.=) 'running')) AS progress
	FROM idemq_internal.leases() l;
COMMENT ON VIEW idemq.running_jobs IS 'which session holds what: one row a job in flight, of queues that the role may claim from or administer; pg_monitor sees all';
COMMENT ON COLUMN idemq.running_jobs.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.running_jobs.job_id IS 'the job';
COMMENT ON COLUMN idemq.running_jobs.worker IS 'name that its claim gave';
COMMENT ON COLUMN idemq.running_jobs.attempt IS 'number of the attempt, from 1';
COMMENT ON COLUMN idemq.running_jobs.claimed_at IS 'when it began';
COMMENT ON COLUMN idemq.running_jobs.expires_in IS 'until the deadline; negative when it has passed';
COMMENT ON COLUMN idemq.running_jobs.attached IS 'whether the lease also ends with the session';
COMMENT ON COLUMN idemq.running_jobs.pid IS 'process of the session that claimed; NULL when it has ended, or after a restart';
COMMENT ON COLUMN idemq.running_jobs.deadline IS 'end of the lease as heartbeats moved it; NULL while the claim''s transaction is open';
COMMENT ON COLUMN idemq.running_jobs.state IS 'claiming (its transaction is open), active, cancelling (a transaction cancels it, and waits for the worker''s), ending (a transaction that finishes or cancels it is open), reaping';

COMMENT ON COLUMN idemq.running_jobs.progress IS 'how far the attempt has come, in percent, by idemq.progress of its last checkpoint; NULL: it does not say';

-- Topic: Observing

CREATE FUNCTION idemq.check()
	RETURNS TABLE (severity text, invariant text, detail text)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_check';
COMMENT ON FUNCTION idemq.check()
	IS 'audit rows, indexes, triggers and shared memory while others work, in a transaction of its own (25001 otherwise); returns a row for each broken invariant (error) or degraded state (warning), none when all is well; reads all rows';

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
		unattended_for   interval)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_queue_metrics';
COMMENT ON FUNCTION idemq_internal.queue_metrics(boolean)
	IS 'what idemq.metrics shows; without count, gauges that would have to be counted by reading all jobs are NULL; returns a row for each queue that you may claim from or administer (pg_monitor: for every queue)';

-- Steps without an answer, for each queue that has any: those of running attempts, and the others.
CREATE VIEW idemq_internal.steps_without_answer AS
	SELECT x.queue_id, count(*) FILTER (WHERE x.runs) AS open,
		count(*) FILTER (WHERE x.runs IS NOT TRUE) AS unknown
	FROM (SELECT s.queue_id, (SELECT j.token = s.token AND j.status = 'running' FROM idemq.jobs j
			WHERE j.id = s.job_id) AS runs
		FROM idemq.steps s WHERE s.state = 'open') x GROUP BY x.queue_id;
COMMENT ON VIEW idemq_internal.steps_without_answer IS 'steps that were begun and have no answer, by queue';

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
		CASE WHEN NOT d.is_dead_letter_queue THEN m.unattended_for END AS unattended_for, d.is_dead_letter_queue
	-- A full join is never a nested loop, which may read all steps for each queue.
	FROM (SELECT n.*, s.open, s.unknown FROM idemq_internal.queue_metrics() n
		FULL JOIN idemq_internal.steps_without_answer s
			ON s.queue_id OPERATOR(pg_catalog.=) n.queue_id OFFSET 0) m
	-- Queue by queue: joins may read all queues for each.
	CROSS JOIN LATERAL (SELECT q.name, q.paused, q.paused_until, q.max_running FROM idemq.queues q
		WHERE q.queue_id OPERATOR(pg_catalog.=) m.queue_id OFFSET 0) q
	CROSS JOIN LATERAL (SELECT q.name IN (SELECT o.dead_letter_queue FROM idemq.queues o
		WHERE o.dead_letter_queue IS NOT NULL) AS is_dead_letter_queue) d
	CROSS JOIN LATERAL (SELECT q.paused AND (q.paused_until IS NULL
		OR q.paused_until OPERATOR(pg_catalog.>) idemq.clock_timestamp()) AS paused) p;
COMMENT ON VIEW idemq.metrics IS 'one row a queue that you may claim from or administer (pg_monitor: every queue): jobs by status, counters and times since counted_since, which a restart or crash sets anew; all follows commits but four counters of refusals (duplicates, stale_commits, stale_calls, repeated_commits), which count each answer when it is given, also if its caller rolls back';
COMMENT ON COLUMN idemq.metrics.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.metrics.queue_id IS 'its number';
COMMENT ON COLUMN idemq.metrics.paused IS 'whether it hands out no jobs';
COMMENT ON COLUMN idemq.metrics.paused_until IS 'until when, of a queue that was paused until a time';
COMMENT ON COLUMN idemq.metrics.blocked IS 'jobs that are blocked';
COMMENT ON COLUMN idemq.metrics.running IS 'jobs in flight';
COMMENT ON COLUMN idemq.metrics.retrying IS 'jobs that have begun, and wait for their next attempt';
COMMENT ON COLUMN idemq.metrics.completed IS 'finished jobs that are still there';
COMMENT ON COLUMN idemq.metrics.dead IS 'jobs whose attempts are used up, still there';
COMMENT ON COLUMN idemq.metrics.cancelled IS 'cancelled and expired jobs that are still there';
COMMENT ON COLUMN idemq.metrics.groups_limited IS 'groups with a job that waits since group_max_running of theirs are running, as far as shared memory knows; NULL where group_max_running is 1';
COMMENT ON COLUMN idemq.metrics.unattended_for IS 'for how long nobody has worked on the queue though jobs are due: none is in flight, none was claimed, and nobody sleeps in idemq.wait for it; NULL: for less than a minute, or nobody has to, since nothing is due, the queue is paused, a limit keeps its jobs, its expect_workers is false, or it is a dead-letter queue';
COMMENT ON COLUMN idemq.metrics.is_dead_letter_queue IS 'whether it is the dead_letter_queue of another: what waits there is for people';
COMMENT ON COLUMN idemq.metrics.max_running IS 'the queue''s limit for permits_used; NULL: none';
COMMENT ON COLUMN idemq.metrics.wait_p95 IS 'of 95 jobs in 100';
COMMENT ON COLUMN idemq.metrics.wait_p99 IS 'of 99 jobs in 100';
COMMENT ON COLUMN idemq.metrics.run_p95 IS 'of 95 attempts in 100';
COMMENT ON COLUMN idemq.metrics.run_p99 IS 'of 99 attempts in 100';
COMMENT ON COLUMN idemq.metrics.pending IS 'jobs that are ready, or will be at their time';
COMMENT ON COLUMN idemq.metrics.oldest_ready IS 'for how long the job has been due that could be claimed for the longest time; NULL when none can be; in a paused queue, as if it were not';
COMMENT ON COLUMN idemq.metrics.enqueued_total IS 'jobs enqueued';
COMMENT ON COLUMN idemq.metrics.duplicates_total IS 'requests whose key was taken: enqueues that made no job (refused with IQ003 or IQ004 as well), and acquires of a job that is finished; counted when answered, a rollback does not undo it';
COMMENT ON COLUMN idemq.metrics.claimed_total IS 'attempts begun';
COMMENT ON COLUMN idemq.metrics.committed_total IS 'jobs committed, with commit_once as well';
COMMENT ON COLUMN idemq.metrics.failed_total IS 'attempts that failed, the last of a dead job included';
COMMENT ON COLUMN idemq.metrics.dead_total IS 'jobs that died';
COMMENT ON COLUMN idemq.metrics.released_total IS 'attempts released';
COMMENT ON COLUMN idemq.metrics.expired_total IS 'leases reaped';
COMMENT ON COLUMN idemq.metrics.cancelled_total IS 'jobs cancelled, or not claimed by their expires_at';
COMMENT ON COLUMN idemq.metrics.retried_total IS 'jobs made ready by retry before they were due';
COMMENT ON COLUMN idemq.metrics.redriven_total IS 'dead or cancelled jobs made ready again, by redrive or retry';
COMMENT ON COLUMN idemq.metrics.row_only_total IS 'claims whose lease had no room in shared memory: raise idemq.max_leases';
COMMENT ON COLUMN idemq.metrics.purged_total IS 'finished jobs deleted after their retention, by the background worker or idemq.apply_retention';
COMMENT ON COLUMN idemq.metrics.stale_commits_total IS 'commits that were refused because the token was not the job''s any more (IQ001, or outcome stale): of workers that lived on after their lease; counted when answered, a rollback does not undo it';
COMMENT ON COLUMN idemq.metrics.stale_calls_total IS 'other calls that were refused for such a token, or after the attempt''s own end: fail, release, heartbeat, checkpoint, assert_current, fence; counted as stale_commits_total';
COMMENT ON COLUMN idemq.metrics.repeated_commits_total IS 'commits of what was committed already (IQ006, or outcome already_committed), commit_once as well; counted as stale_commits_total';
COMMENT ON COLUMN idemq.metrics.reruns_total IS 'finished jobs that were made ready for a later request: on_duplicate => rerun';
COMMENT ON COLUMN idemq.metrics.steps_done_total IS 'steps that were done: an answer stored, or done in this database';
COMMENT ON COLUMN idemq.metrics.steps_open IS 'steps that running attempts have begun, and not answered yet';
COMMENT ON COLUMN idemq.metrics.steps_unknown IS 'steps whose attempt is over, without an answer: the next attempt asks the other side; if the job is finished, somebody has to';
COMMENT ON COLUMN idemq.metrics.wait_p50 IS 'from due to claimed, or committed once: half of the jobs waited no longer (within 12.5 %)';
COMMENT ON COLUMN idemq.metrics.run_p50 IS 'from claimed to committed: half of the attempts ran no longer (within 12.5 %)';
COMMENT ON COLUMN idemq.metrics.in_memory IS 'whether the queue has a state in shared memory; one that was restored beyond idemq.max_queues has none, and so no counters and no times';
COMMENT ON COLUMN idemq.metrics.counted_since IS 'when the counters began: at the first use after the start of the server, or after idemq.jobs was truncated';
COMMENT ON COLUMN idemq.metrics.recovering IS 'whether jobs in flight whose leases shared memory has lost, usually through a restart, are still being looked for; NULL without a state in shared memory';
COMMENT ON COLUMN idemq.metrics.permits_used IS 'what max_running counts: running jobs, and open claims; NULL without a state in shared memory';

-- Topic: Observing

CREATE FUNCTION idemq.recount() RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_recount';
COMMENT ON FUNCTION idemq.recount()
	IS 'count the jobs of idemq.metrics anew, after changes that no trigger saw, by one scan of the whole table, in a transaction of its own; returns how many there are';

-- Topic: Internal

CREATE FUNCTION idemq_internal.memory_usage()
	RETURNS TABLE (resource text, used bigint, size bigint, refused bigint)
	ROWS 5 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_memory_usage';
COMMENT ON FUNCTION idemq_internal.memory_usage() IS 'what idemq.memory shows; returns one row per table, five in all';

CREATE VIEW idemq.memory AS SELECT resource, used, size, refused FROM idemq_internal.memory_usage();
COMMENT ON VIEW idemq.memory IS 'the tables in shared memory, of the whole server: leases (idemq.max_leases), those of them that are this database''s (idemq.max_leases_per_database), buckets (idemq.max_buckets), queues (idemq.max_queues), groups (those of whose jobs the next may be due to be claimed)';
COMMENT ON COLUMN idemq.memory.resource IS 'which table';
COMMENT ON COLUMN idemq.memory.used IS 'entries in use now';
COMMENT ON COLUMN idemq.memory.size IS 'entries that it has room for';
COMMENT ON COLUMN idemq.memory.refused IS 'how often something found no room since the start of the server; it then works without, more slowly';

CREATE FUNCTION idemq_internal.server_counts()
	RETURNS TABLE (name text, value bigint)
	ROWS 12 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_server_counts';
COMMENT ON FUNCTION idemq_internal.server_counts() IS 'what idemq.admissions, idemq.once_calls and idemq.publish_calls show; returns a row for each count of the whole server';

CREATE VIEW idemq.admissions AS
	SELECT pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'admit_allowed')
		AS allowed,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'admit_refused')
			AS refused,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'admit_shared')
			AS shared
	FROM idemq_internal.server_counts() c;
COMMENT ON VIEW idemq.admissions IS 'calls of idemq.admit on the whole server since its start, one row; those of cost 0 ask only, and are not counted';
COMMENT ON COLUMN idemq.admissions.allowed IS 'calls that their limit allowed';
COMMENT ON COLUMN idemq.admissions.refused IS 'calls that their limit refused';
COMMENT ON COLUMN idemq.admissions.shared IS 'of these, calls that found no room for a bucket of their own, and had one with others of their database: raise idemq.max_buckets';

CREATE VIEW idemq.once_calls AS
	SELECT pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'once_first')
		AS first,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'once_repeated')
			AS repeated
	FROM idemq_internal.server_counts() c;
COMMENT ON VIEW idemq.once_calls IS 'calls of idemq.once on the whole server since its start, one row; counted when answered, a rollback does not undo it';
COMMENT ON COLUMN idemq.once_calls.first IS 'calls that were the first, answered true; one that is rolled back and repeated counts twice';
COMMENT ON COLUMN idemq.once_calls.repeated IS 'calls whose key was taken, answered false';

CREATE VIEW idemq.publish_calls AS
	SELECT pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'publish_calls')
		AS calls,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'publish_jobs') AS jobs,
		pg_catalog.max(c.value) FILTER (WHERE c.name OPERATOR(pg_catalog.=) 'publish_skipped')
			AS skipped
	FROM idemq_internal.server_counts() c;
COMMENT ON VIEW idemq.publish_calls IS 'calls of idemq.publish on the whole server since its start, one row; counted when answered, a rollback does not undo it';
COMMENT ON COLUMN idemq.publish_calls.calls IS 'calls';
COMMENT ON COLUMN idemq.publish_calls.jobs IS 'jobs that they have made';
COMMENT ON COLUMN idemq.publish_calls.skipped IS 'bindings that they have skipped: idemq.topic_bindings says which, and why';

CREATE FUNCTION idemq_internal.worker_state(OUT pid int, OUT stuck_for interval, OUT awake boolean,
	OUT task text,
	OUT last_run timestamptz, OUT lag interval)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_worker_state';
COMMENT ON FUNCTION idemq_internal.worker_state() IS 'what idemq.background_worker shows; returns one row';

CREATE VIEW idemq.background_worker AS SELECT pid, stuck_for, awake, task, last_run, lag
	FROM idemq_internal.worker_state();
COMMENT ON VIEW idemq.background_worker IS 'the background worker of this database, one row: with a pid and without stuck_for all is well';
COMMENT ON COLUMN idemq.background_worker.pid IS 'its process; NULL: none runs (idemq.worker is off, max_worker_processes is used up, a standby, or it is being started)';
COMMENT ON COLUMN idemq.background_worker.stuck_for IS 'for how long it has not moved though it should, once that is 2 s: it is stopped, or at one long piece of work; NULL: it moves, or has nothing to do';
COMMENT ON COLUMN idemq.background_worker.awake IS 'whether it does something now, or is about to';
COMMENT ON COLUMN idemq.background_worker.task IS 'the maintenance task that it runs; NULL between two';
COMMENT ON COLUMN idemq.background_worker.last_run IS 'when it last ended a maintenance task; NULL: it has run none yet';
COMMENT ON COLUMN idemq.background_worker.lag IS 'for how long the first thing has been due that it has not done: milliseconds while all is well; more when it is stuck or does not keep up, a maintenance task fails, or somebody holds a row; NULL in a database that follows another';

CREATE FUNCTION idemq_internal.task_counts()
	RETURNS TABLE (task text, runs bigint, failures bigint, busy interval)
	ROWS 14 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_task_counts';
COMMENT ON FUNCTION idemq_internal.task_counts() IS 'what idemq.maintenance_tasks shows; returns a row for each maintenance task';

CREATE VIEW idemq.maintenance_tasks AS SELECT task, runs, failures, busy
	FROM idemq_internal.task_counts();
COMMENT ON VIEW idemq.maintenance_tasks IS 'what the background worker of this database has done since the start of the server: one row for each maintenance task, none while the database has had no worker';
COMMENT ON COLUMN idemq.maintenance_tasks.task IS 'promote (heads of groups), reap (leases that ended), recover (leases that a restart lost), due (wakes who sleeps), remind (wakes again), expire (jobs not claimed in time), handle (starts processes of handlers), tick (schedules), notify, count (the jobs of each queue), purge (retention), history (idemq.history), discover and follow (at its start)';
COMMENT ON COLUMN idemq.maintenance_tasks.runs IS 'how often it has run';
COMMENT ON COLUMN idemq.maintenance_tasks.failures IS 'how often it met an error, which is in the server''s log';
COMMENT ON COLUMN idemq.maintenance_tasks.busy IS 'how long all that took';
