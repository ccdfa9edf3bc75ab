-- Topic: Internal

CREATE FUNCTION idemq_internal.timing_buckets()
	RETURNS TABLE (queue_id int, timing text, le float8, jobs bigint, seconds float8)
	ROWS 500 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_timing_buckets';
COMMENT ON FUNCTION idemq_internal.timing_buckets()
	IS 'how many jobs waited, and ran, for less than le seconds, cumulative: a row for each queue that you may claim from or administer (pg_monitor: every queue), each of wait and run, and each power of two of microseconds from 1 ms to 9.5 h, then Infinity, which also has the sum (within 12.5 %)';

-- The metrics: name, type, unit and meaning of each.  A new metric needs a line here, and its
-- samples in idemq_internal.prometheus_samples.
CREATE VIEW idemq.prometheus_names AS
	SELECT * FROM (VALUES
	-- Of each queue.
	('idemq_jobs', 'gauge', NULL, 'Jobs by status; not there while they have not been counted.'),
	('idemq_oldest_ready_seconds', 'gauge', 'seconds', 'For how long the job has been due that could be claimed for the longest time; 0: none could be.'),
	('idemq_queue_paused', 'gauge', NULL, 'Whether the queue hands out no jobs.'),
	('idemq_queue_is_dead_letter_queue', 'gauge', NULL, 'Whether the queue is the dead_letter_queue of another: what waits there is for people.'),
	('idemq_queue_unattended_seconds', 'gauge', 'seconds', 'For how long nobody has worked on the queue though jobs are due: none in flight, none claimed, nobody asleep in wait; 0: somebody does, or nobody has to.'),
	('idemq_queue_in_memory', 'gauge', NULL, 'Whether the queue has a state in shared memory, without which it has no counters.'),
	('idemq_queue_recovering', 'gauge', NULL, 'Whether leases that shared memory lost are still being looked for.'),
	('idemq_queue_lease_seconds', 'gauge', 'seconds', 'The lease of the queue.'),
	('idemq_queue_permits_used', 'gauge', NULL, 'What max_running counts: running jobs, and open claims.'),
	('idemq_queue_max_running', 'gauge', NULL, 'The limit of permits_used, where there is one.'),
	('idemq_queue_groups_limited', 'gauge', NULL, 'Groups with a job that waits since group_max_running of theirs are running; where group_max_running is above 1.'),
	('idemq_enqueued_total', 'counter', NULL, 'Jobs enqueued.'),
	('idemq_claimed_total', 'counter', NULL, 'Attempts begun.'),
	('idemq_committed_total', 'counter', NULL, 'Jobs committed.'),
	('idemq_failed_total', 'counter', NULL, 'Attempts that failed, the last of a dead job included.'),
	('idemq_dead_total', 'counter', NULL, 'Jobs that died.'),
	('idemq_released_total', 'counter', NULL, 'Attempts released.'),
	('idemq_expired_total', 'counter', NULL, 'Leases that were lost: reaped.'),
	('idemq_cancelled_total', 'counter', NULL, 'Jobs cancelled, or not claimed by their expires_at.'),
	('idemq_retried_total', 'counter', NULL, 'Jobs made ready by retry before they were due.'),
	('idemq_redriven_total', 'counter', NULL, 'Dead or cancelled jobs made ready again.'),
	('idemq_reruns_total', 'counter', NULL, 'Finished jobs made ready for a later request.'),
	('idemq_steps', 'gauge', NULL, 'Steps that were begun and have no answer, by state: open, of a running attempt; unknown, of one that is over.'),
	('idemq_steps_done_total', 'counter', NULL, 'Steps that were done.'),
	('idemq_children', 'gauge', NULL, 'Jobs whose parents (depends_on) are not done: blocked, or cancelled before they were.'),
	('idemq_event_waits', 'gauge', NULL, 'Waits for events, whose time is not over (await_event); until then of cancelled jobs, too.'),
	('idemq_oldest_event_wait_seconds', 'gauge', 'seconds', 'For how long the oldest of these has lasted; 0: there is none.'),
	('idemq_purged_total', 'counter', NULL, 'Finished jobs deleted after their retention.'),
	('idemq_row_only_claims_total', 'counter', NULL, 'Claims whose lease had no room in shared memory.'),
	('idemq_refused_total', 'counter', NULL, 'Calls refused, by reason: duplicate, stale_commit (a zombie), stale_call, repeated_commit.'),
	('idemq_wait_seconds', 'histogram', 'seconds', 'From due to claimed, or committed once.'),
	('idemq_run_seconds', 'histogram', 'seconds', 'From claimed to committed.'),
	-- Of each handler.
	('idemq_handler_state', 'gauge', NULL, '1 for the state that the handler is in: running, idle, waiting, refused, stopped, off; 0 for the others.'),
	('idemq_handler_workers', 'gauge', NULL, 'Processes of the handler.'),
	('idemq_handler_max_workers', 'gauge', NULL, 'Processes that the handler may have.'),
	('idemq_handler_done_total', 'counter', NULL, 'Jobs that the function of the handler has returned for.'),
	('idemq_handler_failed_total', 'counter', NULL, 'Attempts of the handler that ended with an error.'),
	-- Of the background worker of the database.
	('idemq_worker_wanted', 'gauge', NULL, 'Whether there should be a background worker: idemq.worker is on, and this is no standby.'),
	('idemq_worker_up', 'gauge', NULL, 'Whether a background worker runs in this database.'),
	('idemq_worker_awake', 'gauge', NULL, 'Whether it does something now.'),
	('idemq_worker_stuck_seconds', 'gauge', 'seconds', 'For how long it has not moved though it should; 0: it moves.'),
	('idemq_worker_lag_seconds', 'gauge', 'seconds', 'For how long the first thing has been due that it has not done.'),
	('idemq_worker_last_run_timestamp_seconds', 'gauge', 'seconds', 'When it last ended a maintenance task.'),
	('idemq_maintenance_tasks_total', 'counter', NULL, 'Maintenance tasks run, by kind.'),
	('idemq_maintenance_task_failures_total', 'counter', NULL, 'Maintenance tasks that met an error, by kind.'),
	('idemq_maintenance_task_seconds_total', 'counter', 'seconds', 'How long maintenance tasks took, by kind.'),
	-- Of the schedules.
	('idemq_ticker_timestamp_seconds', 'gauge', 'seconds', 'When idemq.tick was last called.'),
	('idemq_schedule_late_seconds', 'gauge', 'seconds', 'For how long its first tick that is not done has been due; 0: none is.'),
	('idemq_schedule_failing', 'gauge', NULL, 'Whether its last tick could not be enqueued.'),
	('idemq_schedule_last_run_timestamp_seconds', 'gauge', 'seconds', 'The last tick that was enqueued.'),
	('idemq_schedule_next_run_timestamp_seconds', 'gauge', 'seconds', 'The tick that is due, or the next one.'),
	-- Of the server.
	('idemq_memory_used', 'gauge', NULL, 'Entries in use in a table of shared memory.'),
	('idemq_memory_size', 'gauge', NULL, 'Entries that it has room for.'),
	('idemq_memory_refused_total', 'counter', NULL, 'How often something found no room in it.'),
	('idemq_admissions_total', 'counter', NULL, 'Calls of idemq.admit, by outcome: allowed, refused, shared (of these, without room for a bucket of their own).'),
	('idemq_once_total', 'counter', NULL, 'Calls of idemq.once, by outcome: first, repeated.'),
	('idemq_publish_total', 'counter', NULL, 'Calls of idemq.publish, by outcome: calls, the jobs that they made, the bindings that they skipped.'),
	('idemq_test_clock_ahead_seconds', 'gauge', 'seconds', 'How far idemq''s clock is ahead of the server''s clock; only on a test server (idemq.test_clock = on).'),
	-- Of tables.
	('idemq_table_bytes', 'gauge', 'bytes', 'Size of a table of idemq, by part: heap (with TOAST), indexes.'),
	('idemq_table_live_rows', 'gauge', NULL, 'Rows of it, as the statistics have them.'),
	('idemq_table_dead_rows', 'gauge', NULL, 'Dead rows of it that vacuum has not removed, as the statistics have them.'),
	('idemq_table_last_vacuum_timestamp_seconds', 'gauge', 'seconds', 'When it was last vacuumed.'),
	('idemq_oldest_snapshot_seconds', 'gauge', 'seconds', 'Age of the oldest transaction that may keep dead rows of this database, by holder: session, prepared; 0: none.'),
	('idemq_oldest_xmin_transactions', 'gauge', NULL, 'Transactions since the oldest one that keeps dead rows of this database, by holder: session, prepared, walsender (a standby''s feedback), slot.'),
	-- Of the figures.
	('idemq_info', 'gauge', NULL, '1; its labels say which version of idemq and of PostgreSQL this is.'),
	('idemq_in_recovery', 'gauge', NULL, 'Whether this server is a standby, which has no figures of queues.'),
	('idemq_collected_timestamp_seconds', 'gauge', 'seconds', 'When these figures were read.')
	) AS n (name, type, unit, help);
COMMENT ON VIEW idemq.prometheus_names IS 'part of idemq.prometheus: what there is; of a histogram the name without _bucket, _sum and _count';

-- A sample of each; value NULL: there is none now.  What is read of other tables than idemq's
-- own is the server's statistics.  Nothing here reads idemq.jobs but the head of its ready index,
-- and the jobs of steps that have no answer.  Children and waits are counted in indexes that have
-- only these.
CREATE VIEW idemq_internal.prometheus_samples WITH (security_barrier) AS
	WITH metrics AS MATERIALIZED (
		SELECT q.name, q.paused, q.lease, q.max_running, m.*,
			q.name IN (SELECT o.dead_letter_queue FROM idemq.queues o
				WHERE o.dead_letter_queue IS NOT NULL) AS is_dead_letter_queue,
			coalesce(m.open, 0) AS steps_open, coalesce(m.unknown, 0) AS steps_unknown
		-- A full join is never a nested loop, which may read all steps for each queue.
		FROM (SELECT n.*, s.open, s.unknown FROM idemq_internal.queue_metrics(false) n
			FULL JOIN idemq_internal.steps_without_answer s ON s.queue_id = n.queue_id OFFSET 0) m
		-- Queue by queue, here and below: joins may read all queues for each.
		CROSS JOIN LATERAL (SELECT q.name, q.paused, q.lease, q.max_running FROM idemq.queues q
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
			('idemq_queue_is_dead_letter_queue', '{}', m.is_dead_letter_queue::int),
			('idemq_queue_unattended_seconds', '{}', CASE WHEN m.is_dead_letter_queue THEN 0
				ELSE coalesce(extract(epoch FROM m.unattended_for)::float8, 0) END),
			('idemq_queue_in_memory', '{}', m.in_memory::int),
			('idemq_queue_recovering', '{}', m.recovering::int),
			('idemq_queue_lease_seconds', '{}', extract(epoch FROM m.lease)::float8),
			('idemq_queue_permits_used', '{}', m.permits_used),
			('idemq_queue_max_running', '{}', m.max_running),
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
COMMENT ON VIEW idemq_internal.prometheus_samples IS 'part of idemq.prometheus: what each is now';

-- Topic: Observing

CREATE VIEW idemq.prometheus WITH (security_barrier) AS
	SELECT s.name, s.labels, s.value, n.type, n.unit, n.help, s.family
	FROM idemq_internal.prometheus_samples s JOIN idemq.prometheus_names n ON n.name = s.family
	WHERE s.value IS NOT NULL;
COMMENT ON VIEW idemq.prometheus IS 'figures for machines, one row a sample, named as Prometheus names them: times in seconds, sizes in bytes, counters that end in _total, cumulative histogram buckets; for pg_monitor; reads no jobs but the head of each queue';
COMMENT ON COLUMN idemq.prometheus.name IS 'of the sample; of a histogram with _bucket, _sum or _count';
COMMENT ON COLUMN idemq.prometheus.labels IS 'what tells it from the others of its name: queue, status, state, reason, le, task, schedule, resource, table, part, holder, outcome, version, postgres';
COMMENT ON COLUMN idemq.prometheus.value IS 'the figure; a truth is 1 or 0';
COMMENT ON COLUMN idemq.prometheus.type IS 'gauge: it goes up and down; counter: it only grows, and begins anew with the server; histogram';
COMMENT ON COLUMN idemq.prometheus.unit IS 'seconds, bytes, or NULL: a number';
COMMENT ON COLUMN idemq.prometheus.help IS 'what it means';
COMMENT ON COLUMN idemq.prometheus.family IS 'the name without _bucket, _sum or _count, as in idemq.prometheus_names';

CREATE FUNCTION idemq.prometheus_text() RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_as_caller';
COMMENT ON FUNCTION idemq.prometheus_text() IS 'idemq.prometheus in the text format that Prometheus scrapes, for a text file collector or a web server; for pg_monitor';

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
