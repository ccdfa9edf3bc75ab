-- Topic: Internal

CREATE FUNCTION idemq_internal.timing_buckets()
	RETURNS TABLE (queue_id int, timing text, le float8, jobs bigint, seconds float8)
	ROWS 500 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_timing_buckets';
COMMENT ON FUNCTION idemq_internal.timing_buckets()
	IS 'Count the jobs that waited, and the attempts that ran, for less than le seconds (cumulative). Returns rows for each queue that you may claim from or administer (for pg_monitor, every queue) and each kind (wait, run). There is one row per power of two of microseconds from 1 ms to 9.5 h, and one row for Infinity, which also contains the sum (accurate to within 12.5 %).';

-- The metrics: name, type, unit and meaning of each.  A new metric needs a line here, and its
-- samples in idemq_internal.prometheus_samples.
CREATE VIEW idemq.prometheus_names AS
	SELECT * FROM (VALUES
	-- Of each queue.
	('idemq_jobs', 'gauge', NULL, 'Number of jobs by status; missing until jobs have been counted.'),
	('idemq_oldest_ready_seconds', 'gauge', 'seconds', 'How long the longest-waiting ready job has been ready; 0 means that no job is ready.'),
	('idemq_queue_paused', 'gauge', NULL, 'Whether the queue is paused.'),
	('idemq_queue_held_seconds', 'gauge', 'seconds', 'How long the queue has been held back by workers (idemq.hold_back); 0 means that it is not held back.'),
	('idemq_queue_groups_held', 'gauge', NULL, 'Number of groups of the queue that are held back by workers.'),
	('idemq_queue_paused_groups', 'gauge', NULL, 'Number of paused groups of the queue.'),
	('idemq_queue_is_dead_letter_queue', 'gauge', NULL, 'Whether the queue is the dead_letter_queue of another queue, so its jobs wait for a person instead of a worker.'),
	('idemq_queue_unattended_seconds', 'gauge', 'seconds', 'How long jobs have been due while the queue has had no worker: no job is running, none has been claimed, and no session is sleeping in idemq.wait; 0 means that the queue has a worker or needs none.'),
	('idemq_queue_in_memory', 'gauge', NULL, 'Whether the queue has an entry in shared memory; without an entry, it has no counters.'),
	('idemq_queue_recovering', 'gauge', NULL, 'Whether idemq is still searching for leases that are missing from shared memory.'),
	('idemq_queue_lease_seconds', 'gauge', 'seconds', 'Lease of the queue.'),
	('idemq_queue_permits_used', 'gauge', NULL, 'Number of running jobs and open claims, which max_running limits.'),
	('idemq_queue_max_running', 'gauge', NULL, 'Maximum value of permits_used, if the queue has a limit.'),
	('idemq_queue_unfinished', 'gauge', NULL, 'Committed unfinished jobs, plus the jobs that open transactions have room to add, if the queue has max_unfinished and its jobs have been counted.'),
	('idemq_queue_max_unfinished', 'gauge', NULL, 'Maximum number of unfinished jobs, if the queue has max_unfinished.'),
	('idemq_queue_groups_limited', 'gauge', NULL, 'Number of groups in which a job is waiting because group_max_running other jobs are running; only if group_max_running is greater than 1.'),
	('idemq_enqueued_total', 'counter', NULL, 'Jobs enqueued.'),
	('idemq_claimed_total', 'counter', NULL, 'Attempts begun.'),
	('idemq_committed_total', 'counter', NULL, 'Jobs committed.'),
	('idemq_failed_total', 'counter', NULL, 'Number of failed attempts, including the last attempt of a dead job.'),
	('idemq_dead_total', 'counter', NULL, 'Number of jobs that became dead.'),
	('idemq_released_total', 'counter', NULL, 'Attempts released.'),
	('idemq_expired_total', 'counter', NULL, 'Number of leases that were lost and reaped.'),
	('idemq_cancelled_total', 'counter', NULL, 'Number of jobs that were cancelled or that expired because they were not claimed by expires_at.'),
	('idemq_retried_total', 'counter', NULL, 'Number of jobs that retry made ready before they were due.'),
	('idemq_redriven_total', 'counter', NULL, 'Number of dead or cancelled jobs made ready again.'),
	('idemq_reruns_total', 'counter', NULL, 'Number of finished jobs that ran again because of a later request.'),
	('idemq_steps', 'gauge', NULL, 'Number of steps without a response, by state: open (of a running attempt), unknown (of an attempt that has ended).'),
	('idemq_steps_done_total', 'counter', NULL, 'Number of steps done.'),
	('idemq_children', 'gauge', NULL, 'Number of jobs with unfinished parents (depends_on), either blocked or already cancelled.'),
	('idemq_event_waits', 'gauge', NULL, 'Number of waits for events (await_event) that have not timed out, including those of cancelled jobs.'),
	('idemq_oldest_event_wait_seconds', 'gauge', 'seconds', 'How long the oldest of these waits has lasted; 0 means that there are none.'),
	('idemq_purged_total', 'counter', NULL, 'Number of finished jobs deleted after their retention period.'),
	('idemq_row_only_claims_total', 'counter', NULL, 'Number of claims whose lease did not fit into shared memory.'),
	('idemq_refused_total', 'counter', NULL, 'Number of calls refused, by reason: duplicate, stale_commit (of a zombie worker), stale_call, repeated_commit.'),
	('idemq_wait_seconds', 'histogram', 'seconds', 'Time between a job becoming due and being claimed or committed with commit_once.'),
	('idemq_run_seconds', 'histogram', 'seconds', 'Time between claim and commit.'),
	-- Of each handler.
	('idemq_handler_state', 'gauge', NULL, '1 for the current state of the handler (running, idle, waiting, refused, stopped, off), 0 for the others.'),
	('idemq_handler_workers', 'gauge', NULL, 'Number of processes of the handler.'),
	('idemq_handler_max_workers', 'gauge', NULL, 'Maximum number of processes of the handler.'),
	('idemq_handler_done_total', 'counter', NULL, 'Number of completed jobs of the queue that has the handler.'),
	('idemq_handler_failed_total', 'counter', NULL, 'Number of failed attempts of jobs of the queue that has the handler.'),
	-- Of the background worker of the database.
	('idemq_worker_wanted', 'gauge', NULL, 'Whether a background worker should run: idemq.worker is on, and the server is not a standby.'),
	('idemq_worker_up', 'gauge', NULL, 'Whether a background worker is running in this database.'),
	('idemq_worker_awake', 'gauge', NULL, 'Whether the background worker is active.'),
	('idemq_worker_stuck_seconds', 'gauge', 'seconds', 'How long the background worker has made no progress although it has work to do; 0 means that it is making progress.'),
	('idemq_worker_lag_seconds', 'gauge', 'seconds', 'How long the background worker''s oldest unfinished work has been due.'),
	('idemq_worker_last_run_timestamp_seconds', 'gauge', 'seconds', 'When the background worker last finished a maintenance task.'),
	('idemq_maintenance_tasks_total', 'counter', NULL, 'Number of maintenance tasks run, by kind.'),
	('idemq_maintenance_task_failures_total', 'counter', NULL, 'Number of maintenance tasks that failed, by kind.'),
	('idemq_maintenance_task_seconds_total', 'counter', 'seconds', 'Total duration of maintenance tasks, by kind.'),
	-- Of the schedules.
	('idemq_ticker_timestamp_seconds', 'gauge', 'seconds', 'When idemq.tick was last called.'),
	('idemq_schedule_late_seconds', 'gauge', 'seconds', 'How long the schedule''s oldest pending tick has been due; 0 means that none is due.'),
	('idemq_schedule_failing', 'gauge', NULL, 'Whether the schedule''s last tick could not be enqueued.'),
	('idemq_schedule_last_run_timestamp_seconds', 'gauge', 'seconds', 'Time of the schedule''s last enqueued tick.'),
	('idemq_schedule_next_run_timestamp_seconds', 'gauge', 'seconds', 'Time of the schedule''s overdue tick or, if none is overdue, of its next tick.'),
	-- Of the server.
	('idemq_memory_used', 'gauge', NULL, 'Number of entries in use in a table of shared memory.'),
	('idemq_memory_size', 'gauge', NULL, 'Maximum number of entries of the table.'),
	('idemq_memory_refused_total', 'counter', NULL, 'Number of times that an entry did not fit in the table.'),
	('idemq_admissions_total', 'counter', NULL, 'Number of calls to idemq.admit, by outcome: allowed, refused, shared (calls that had to share a bucket).'),
	('idemq_once_total', 'counter', NULL, 'Number of calls to idemq.once, by outcome: first, repeated.'),
	('idemq_publish_total', 'counter', NULL, 'Number of calls to idemq.publish, of jobs that they added and of bindings that they skipped, by outcome.'),
	('idemq_test_clock_ahead_seconds', 'gauge', 'seconds', 'How far idemq''s clock is ahead of the server''s clock; only on a test server (idemq.test_clock = on).'),
	-- Of tables.
	('idemq_table_bytes', 'gauge', 'bytes', 'Size of a table of idemq, by part: heap (with TOAST), indexes.'),
	('idemq_table_live_rows', 'gauge', NULL, 'Number of live rows of the table, from the statistics.'),
	('idemq_table_dead_rows', 'gauge', NULL, 'Number of dead rows of the table that vacuum has not removed, from the statistics.'),
	('idemq_table_last_vacuum_timestamp_seconds', 'gauge', 'seconds', 'When the table was last vacuumed.'),
	('idemq_oldest_snapshot_seconds', 'gauge', 'seconds', 'Age of the oldest transaction that may keep dead rows in this database, by holder: session, prepared; 0 means that there is none.'),
	('idemq_oldest_xmin_transactions', 'gauge', NULL, 'Number of transactions since the oldest one that keeps dead rows in this database, by holder: session, prepared, walsender (a standby''s feedback), slot.'),
	-- Of the figures.
	('idemq_info', 'gauge', NULL, 'Always 1; the labels are the versions of idemq and PostgreSQL.'),
	('idemq_in_recovery', 'gauge', NULL, 'Whether this server is a standby, which has no figures about queues.'),
	('idemq_collected_timestamp_seconds', 'gauge', 'seconds', 'When these figures were read.')
	) AS n (name, type, unit, help);
COMMENT ON VIEW idemq.prometheus_names IS 'part of idemq.prometheus, with one row per metric; names of histograms appear without _bucket, _sum and _count';

-- A sample of each; value NULL: there is none now.  What is read of other tables than idemq's
-- own is the server's statistics.  Nothing here reads idemq.jobs but the head of its ready index,
-- and the jobs of steps that have no answer.  Children and waits are counted in indexes that have
-- only these.
CREATE VIEW idemq_internal.prometheus_samples WITH (security_barrier) AS
	WITH metrics AS MATERIALIZED (
		SELECT q.name, q.paused, q.lease, q.max_running, q.max_unfinished, m.*,
			q.name IN (SELECT o.dead_letter_queue FROM idemq.queues o
				WHERE o.dead_letter_queue IS NOT NULL) AS is_dead_letter_queue,
			coalesce(m.open, 0) AS steps_open, coalesce(m.unknown, 0) AS steps_unknown
		-- A full join is never a nested loop, which may read all steps for each queue.
		FROM (SELECT n.*, s.open, s.unknown FROM idemq_internal.queue_metrics(false) n
			FULL JOIN idemq_internal.steps_without_answer s ON s.queue_id = n.queue_id OFFSET 0) m
		-- Queue by queue, here and below: joins may read all queues for each.
		CROSS JOIN LATERAL (SELECT q.name, q.paused, q.lease, q.max_running, q.max_unfinished FROM idemq.queues q
			WHERE q.queue_id = m.queue_id OFFSET 0) q
		WHERE NOT pg_is_in_recovery()
	), worker AS MATERIALIZED (
		SELECT w.*, current_setting('idemq.worker')::boolean AND NOT pg_is_in_recovery() AS wanted
		FROM idemq.background_worker w
	), schedules AS MATERIALIZED (
		-- Of several ticks that were missed the last is enqueued, and is next_run: since when it is
		-- late the first says.
		SELECT s.name, s.queue, s.next_run, s.last_run, s.failed_at,
			CASE WHEN s.next_run <= idemq.clock_timestamp() THEN idemq.next_tick(e.cron, e.time_zone,
				e.done_until) END AS due_since
		FROM idemq.schedules s CROSS JOIN LATERAL (SELECT e.cron, e.time_zone, e.done_until
			FROM idemq_internal.schedule_entries e WHERE e.name = s.name OFFSET 0) e
	), holders AS MATERIALIZED (
		SELECT CASE WHEN a.backend_type = 'walsender' THEN 'walsender' ELSE 'session' END AS holder,
			-- A walsender passes on what a standby holds, and does not say since when.
			CASE
				WHEN a.backend_type <> 'walsender'
				THEN extract(epoch FROM clock_timestamp() - a.xact_start)::float8 END AS seconds,
			greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
		FROM pg_stat_activity a
		WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
		AND (a.datid IS NULL OR a.datid = (SELECT d.oid FROM pg_database d
			WHERE d.datname = current_database()))
		AND a.pid <> pg_backend_pid()
		-- Vacuum ignores vacuum's.
		AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
		UNION ALL
		SELECT 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::float8,
			age(p.transaction)
		FROM pg_prepared_xacts p WHERE p.database = current_database()
		UNION ALL
		SELECT 'slot', NULL, age(r.xmin) FROM pg_replication_slots r WHERE r.xmin IS NOT NULL
	), tables AS MATERIALIZED (
		SELECT c.relname::text AS name, c.oid FROM pg_class c
		WHERE c.relkind = 'r'
		AND c.relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace)
	)
	SELECT s.name::text AS name, s.labels, s.value::float8 AS value, s.name::text AS family
		FROM metrics m
	CROSS JOIN LATERAL (
		SELECT count(*) AS jobs FROM idemq.children k WHERE k.queue_id = m.queue_id) k
	-- The job of one whose time is over is ready, or has been cancelled.
	CROSS JOIN LATERAL (
		SELECT count(*) AS jobs, min(s.begun_at) AS begun_at FROM idemq.steps s
		WHERE s.queue_id = m.queue_id AND s.state = 'waiting'
			AND s.call_until > idemq.clock_timestamp()) w
	CROSS JOIN LATERAL (
		SELECT max(e.began_at) FILTER (WHERE e.group_key IS NULL) AS began_at,
			count(DISTINCT e.group_key) AS groups_held FROM idemq_internal.hold_entries e
		WHERE e.queue_id = m.queue_id AND e.until > idemq.clock_timestamp()) h
	CROSS JOIN LATERAL (
		SELECT v.name, jsonb_build_object('queue', m.name) || v.labels AS labels, v.value
			FROM (VALUES
			('idemq_jobs', '{"status": "blocked"}'::jsonb, m.blocked::float8),
			('idemq_jobs', '{"status": "pending"}', m.pending),
			('idemq_jobs', '{"status": "running"}', m.running),
			('idemq_jobs', '{"status": "retrying"}', m.retrying),
			('idemq_jobs', '{"status": "completed"}', m.completed),
			('idemq_jobs', '{"status": "dead"}', m.dead),
			('idemq_jobs', '{"status": "cancelled"}', m.cancelled),
			('idemq_oldest_ready_seconds', '{}',
				coalesce(extract(epoch FROM m.oldest_ready)::float8, 0)),
			('idemq_queue_paused', '{}', m.paused::int),
			('idemq_queue_held_seconds', '{}', coalesce(extract(epoch FROM
				idemq.clock_timestamp() - h.began_at)::float8, 0)),
			('idemq_queue_groups_held', '{}', h.groups_held),
			('idemq_queue_paused_groups', '{}', (SELECT count(*) FROM idemq.paused_groups g
				WHERE g.queue_id = m.queue_id AND (g.paused_until IS NULL
					OR g.paused_until > idemq.clock_timestamp()))),
			('idemq_queue_is_dead_letter_queue', '{}', m.is_dead_letter_queue::int),
			('idemq_queue_unattended_seconds', '{}', CASE WHEN m.is_dead_letter_queue THEN 0
				ELSE coalesce(extract(epoch FROM m.unattended_for)::float8, 0) END),
			('idemq_queue_in_memory', '{}', m.in_memory::int),
			('idemq_queue_recovering', '{}', m.recovering::int),
			('idemq_queue_lease_seconds', '{}', extract(epoch FROM m.lease)::float8),
			('idemq_queue_permits_used', '{}', m.permits_used),
			('idemq_queue_max_running', '{}', m.max_running),
			('idemq_queue_unfinished', '{}', m.unfinished),
			('idemq_queue_max_unfinished', '{}', m.max_unfinished),
			('idemq_queue_groups_limited', '{}', m.groups_limited),
			('idemq_enqueued_total', '{}', m.enqueued_total),
			('idemq_claimed_total', '{}', m.claimed_total),
			('idemq_committed_total', '{}', m.committed_total),
			('idemq_failed_total', '{}', m.failed_total),
			('idemq_dead_total', '{}', m.dead_total),
			('idemq_released_total', '{}', m.released_total),
			('idemq_expired_total', '{}', m.expired_total),
			('idemq_cancelled_total', '{}', m.cancelled_total),
			('idemq_retried_total', '{}', m.retried_total),
			('idemq_redriven_total', '{}', m.redriven_total),
			('idemq_reruns_total', '{}', m.reruns_total),
			('idemq_steps', '{"state": "open"}', m.steps_open),
			('idemq_steps', '{"state": "unknown"}', m.steps_unknown),
			('idemq_steps_done_total', '{}', m.steps_done_total),
			('idemq_children', '{}', k.jobs),
			('idemq_event_waits', '{}', w.jobs),
			('idemq_oldest_event_wait_seconds', '{}',
				coalesce(extract(epoch FROM idemq.clock_timestamp() - w.begun_at)::float8, 0)),
			('idemq_purged_total', '{}', m.purged_total),
			('idemq_row_only_claims_total', '{}', m.row_only_total),
			('idemq_refused_total', '{"reason": "duplicate"}', m.duplicates_total),
			('idemq_refused_total', '{"reason": "stale_commit"}', m.stale_commits_total),
			('idemq_refused_total', '{"reason": "stale_call"}', m.stale_calls_total),
			('idemq_refused_total', '{"reason": "repeated_commit"}', m.repeated_commits_total)
		) AS v (name, labels, value)) AS s
	UNION ALL
	SELECT v.name, v.labels, v.value, 'idemq_' || b.timing || '_seconds'
		FROM idemq_internal.timing_buckets() b
	CROSS JOIN LATERAL (SELECT idemq.queue_name(b.queue_id) AS name) q
	CROSS JOIN LATERAL (VALUES
		('idemq_' || b.timing || '_seconds_bucket',
			jsonb_build_object('queue', q.name, 'le', CASE WHEN b.le = 'Infinity' THEN '+Inf'
				-- As text of a numeric, which does not depend on extra_float_digits.
				ELSE b.le::numeric::text END),
			b.jobs::float8),
		('idemq_' || b.timing || '_seconds_count', jsonb_build_object('queue', q.name),
			CASE WHEN b.le = 'Infinity' THEN b.jobs END),
		('idemq_' || b.timing || '_seconds_sum', jsonb_build_object('queue', q.name), b.seconds)
	) AS v (name, labels, value)
	WHERE NOT pg_is_in_recovery()
	UNION ALL
	SELECT v.name, jsonb_build_object('queue', h.queue) || v.labels, v.value, v.name
		FROM idemq.handlers h
	CROSS JOIN LATERAL (
		SELECT 'idemq_handler_state', jsonb_build_object('state', k.state),
			(k.state = h.state)::int::float8
		FROM unnest('{running,idle,waiting,refused,stopped,off}'::text[]) AS k (state)
		UNION ALL VALUES
			('idemq_handler_workers', '{}'::jsonb, h.workers_running::float8),
			('idemq_handler_max_workers', '{}', h.workers),
			('idemq_handler_done_total', '{}', h.done_total),
			('idemq_handler_failed_total', '{}', h.failed_total)
	) AS v (name, labels, value)
	WHERE NOT pg_is_in_recovery()
	UNION ALL
	SELECT v.name, '{}', v.value, v.name FROM worker w CROSS JOIN LATERAL (VALUES
		('idemq_worker_wanted', w.wanted::int::float8),
		('idemq_worker_up', (w.pid IS NOT NULL)::int),
		('idemq_worker_awake', w.awake::int),
		('idemq_worker_stuck_seconds', coalesce(extract(epoch FROM w.stuck_for)::float8, 0)),
		('idemq_worker_lag_seconds', extract(epoch FROM w.lag)::float8),
		('idemq_worker_last_run_timestamp_seconds', extract(epoch FROM w.last_run)::float8)
	) AS v (name, value)
	UNION ALL
	SELECT v.name, jsonb_build_object('task', c.task), v.value, v.name FROM idemq.maintenance_tasks c
		CROSS JOIN LATERAL (VALUES
		('idemq_maintenance_tasks_total', c.runs::float8),
		('idemq_maintenance_task_failures_total', c.failures),
		('idemq_maintenance_task_seconds_total', extract(epoch FROM c.busy)::float8)
	) AS v (name, value)
	UNION ALL
	SELECT 'idemq_ticker_timestamp_seconds', '{}', extract(epoch FROM t.called_at)::float8,
		'idemq_ticker_timestamp_seconds' FROM idemq_internal.ticker t
	UNION ALL
	SELECT v.name, jsonb_build_object('queue', s.queue, 'schedule', s.name), v.value, v.name
		FROM schedules s
	CROSS JOIN LATERAL (VALUES
		('idemq_schedule_late_seconds',
			coalesce(greatest(extract(epoch FROM idemq.clock_timestamp() - s.due_since)::float8, 0), 0)),
		('idemq_schedule_failing', (s.failed_at IS NOT NULL)::int),
		('idemq_schedule_last_run_timestamp_seconds', extract(epoch FROM s.last_run)::float8),
		('idemq_schedule_next_run_timestamp_seconds', extract(epoch FROM s.next_run)::float8)
	) AS v (name, value)
	UNION ALL
	SELECT v.name, jsonb_build_object('resource', replace(u.resource, ' ', '_')), v.value, v.name
		FROM idemq.memory u
	CROSS JOIN LATERAL (VALUES
		('idemq_memory_used', u.used::float8),
		('idemq_memory_size', u.size),
		('idemq_memory_refused_total', u.refused)
	) AS v (name, value)
	UNION ALL
	SELECT 'idemq_admissions_total', jsonb_build_object('outcome', v.outcome), v.value,
		'idemq_admissions_total' FROM idemq.admissions a
	CROSS JOIN LATERAL (VALUES ('allowed', a.allowed::float8), ('refused', a.refused), ('shared',
		a.shared))
		AS v (outcome, value)
	UNION ALL
	SELECT 'idemq_once_total', jsonb_build_object('outcome', v.outcome), v.value, 'idemq_once_total'
		FROM idemq.once_calls a
	CROSS JOIN LATERAL (VALUES ('first', a.first::float8), ('repeated', a.repeated)) AS v (outcome,
		value)
	UNION ALL
	SELECT 'idemq_publish_total', jsonb_build_object('outcome', v.outcome), v.value,
		'idemq_publish_total' FROM idemq.publish_calls p
	CROSS JOIN LATERAL (VALUES ('calls', p.calls::float8), ('jobs', p.jobs), ('skipped',
		p.skipped)) AS v (outcome, value)
	UNION ALL
	SELECT v.name, jsonb_build_object('table', t.name) || v.labels, v.value, v.name FROM tables t
	CROSS JOIN LATERAL (VALUES
		('idemq_table_bytes', '{"part": "heap"}'::jsonb, pg_table_size(t.oid)::float8),
		('idemq_table_bytes', '{"part": "indexes"}', pg_indexes_size(t.oid)),
		('idemq_table_live_rows', '{}', pg_stat_get_live_tuples(t.oid)),
		('idemq_table_dead_rows', '{}', pg_stat_get_dead_tuples(t.oid)),
		('idemq_table_last_vacuum_timestamp_seconds', '{}',
			extract(epoch FROM greatest(pg_stat_get_last_vacuum_time(t.oid),
				pg_stat_get_last_autovacuum_time(t.oid)))::float8)
	) AS v (name, labels, value)
	UNION ALL
	SELECT 'idemq_oldest_snapshot_seconds', jsonb_build_object('holder', k.holder),
		coalesce(max(h.seconds), 0), 'idemq_oldest_snapshot_seconds'
	FROM unnest('{session,prepared}'::text[]) AS k (holder) LEFT JOIN holders h USING (holder)
		GROUP BY k.holder
	UNION ALL
	SELECT 'idemq_oldest_xmin_transactions', jsonb_build_object('holder', k.holder),
		coalesce(max(h.transactions), 0), 'idemq_oldest_xmin_transactions'
	FROM unnest('{session,walsender,prepared,slot}'::text[]) AS k (holder)
		LEFT JOIN holders h USING (holder) GROUP BY k.holder
	UNION ALL
	SELECT v.name, v.labels, v.value, v.name FROM (VALUES
		('idemq_info', jsonb_build_object('version', current_setting('idemq.version'),
			'postgres', current_setting('server_version_num')), 1::float8),
		('idemq_in_recovery', '{}', pg_is_in_recovery()::int),
		('idemq_test_clock_ahead_seconds', '{}',
			extract(epoch FROM idemq.test_clock_ahead())::float8),
		('idemq_collected_timestamp_seconds', '{}', extract(epoch FROM clock_timestamp())::float8)
	) AS v (name, labels, value);
COMMENT ON VIEW idemq_internal.prometheus_samples IS 'part of idemq.prometheus: the current value of each metric';

-- Topic: Observing

CREATE VIEW idemq.prometheus WITH (security_barrier) AS
	SELECT s.name, s.labels, s.value, n.type, n.unit, n.help, s.family
	FROM idemq_internal.prometheus_samples s JOIN idemq.prometheus_names n ON n.name = s.family
	WHERE s.value IS NOT NULL;
COMMENT ON VIEW idemq.prometheus IS 'metrics for monitoring systems, one row per sample, named as in Prometheus: times in seconds, sizes in bytes, counters ending in _total, and cumulative histogram buckets. Requires pg_monitor. A query reads no jobs except the first ready jobs of each queue.';
COMMENT ON COLUMN idemq.prometheus.name IS 'name of the sample, which ends in _bucket, _sum or _count for a histogram';
COMMENT ON COLUMN idemq.prometheus.labels IS 'labels that distinguish the sample from others of the same name: queue, status, state, reason, le, task, schedule, resource, table, part, holder, outcome, version, postgres';
COMMENT ON COLUMN idemq.prometheus.value IS 'value of the sample; for conditions, 1 means true and 0 means false';
COMMENT ON COLUMN idemq.prometheus.type IS 'type of the metric: gauge (rises and falls), counter (only increases, and starts again at zero when the server restarts) or histogram';
COMMENT ON COLUMN idemq.prometheus.unit IS 'unit of the value, seconds or bytes; NULL means that the value has no unit';
COMMENT ON COLUMN idemq.prometheus.help IS 'description of the metric';
COMMENT ON COLUMN idemq.prometheus.family IS 'name without _bucket, _sum or _count, as in idemq.prometheus_names';

CREATE FUNCTION idemq.prometheus_text() RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_as_caller';
COMMENT ON FUNCTION idemq.prometheus_text() IS 'Return idemq.prometheus in the text format that Prometheus scrapes, for a textfile collector or a web server. Requires pg_monitor.';

CREATE FUNCTION idemq_internal.prometheus_text_impl() RETURNS text LANGUAGE sql AS $$
	WITH samples AS MATERIALIZED (
		SELECT s.* FROM idemq.prometheus s
	), lines AS (
		SELECT family, 1 AS part, NULL AS labels, NULL::float8 AS le, NULL AS name,
			format(E'# HELP %s %s\n# TYPE %s %s', family,
			replace(replace(min(help), '\', '\\'), E'\n', '\n'), family, min(type)) AS line
		FROM samples GROUP BY family
		UNION ALL
		SELECT family, 2, (labels - 'le')::text, CASE labels->>'le' WHEN '+Inf' THEN 'Infinity'
			ELSE (labels->>'le')::float8 END, s.name,
			s.name || coalesce((SELECT '{' || string_agg(format('%s="%s"', l.key,
				replace(replace(replace(l.value, '\', '\\'), '"', '\"'), E'\n', '\n')), ','
					ORDER BY l.key) || '}'
				FROM jsonb_each_text(labels) l), '') || ' ' || value::text
		FROM samples s
	)
	SELECT string_agg(line, E'\n' ORDER BY family, part, labels, le NULLS LAST, name) || E'\n'
		FROM lines
	$$;
