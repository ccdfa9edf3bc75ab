-- Topic: Observing

-- Columns are named one by one: one that comes later may hold what is nobody else's business.
-- Who may call it sees all queues, as in idemq.metrics, and so their settings and errors by number, which the
-- policies of these tables do not show to pg_monitor: it reads as the owner, through the wrapper.  It takes no
-- argument.
CREATE FUNCTION idemq.report() RETURNS TABLE (section text, line jsonb)
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.report()
	IS 'Describe this database and server for a person who is helping you. The report does not contain payloads, keys, job names, or the texts of errors and statements. Returns one line per fact, grouped into sections. Requires pg_monitor. The script deploy/psql/report.sql prints the report together with the result of idemq.check().';

-- It reads whole tables: the price of forbidden scans would hide what else tells two plans apart.
CREATE FUNCTION idemq_internal.report_impl() RETURNS TABLE (section text, line jsonb)
	STABLE LANGUAGE sql SET enable_seqscan = on AS $$
	SELECT 'server', to_jsonb(s) FROM (SELECT version(), current_setting('idemq.version') AS library,
		(SELECT e.extversion FROM pg_extension e WHERE e.extname = 'idemq') AS sql_objects,
		pg_is_in_recovery() AS is_standby, idemq.clock_timestamp() AS now, pg_postmaster_start_time() AS started_at,
		(SELECT count(*) FROM pg_prepared_xacts) AS prepared,
		(SELECT count(*) FROM pg_replication_slots) AS replication_slots) s
	UNION ALL SELECT 'setting', jsonb_build_object(s.name, concat(s.setting, s.unit)) FROM pg_settings s
		WHERE s.name LIKE 'idemq.%' AND s.name <> 'idemq.actor' OR s.name IN ('max_connections', 'max_worker_processes',
			'max_locks_per_transaction', 'max_prepared_transactions', 'shared_preload_libraries',
			'shared_buffers', 'fsync', 'synchronous_commit', 'autovacuum', 'wal_level',
			'default_transaction_isolation', 'default_toast_compression', 'jit')
	UNION ALL SELECT 'queue', to_jsonb(q) FROM (SELECT q.queue_id, q.name,
		q.lease, q.max_lease, q.job_timeout, q.max_attempts, q.retry_base, q.retry_factor, q.retry_max,
		q.retry_jitter, q.retention, q.dead_retention, q.idempotency_window, q.max_running, q.rate_limit,
		q.rate_period, q.group_max_running, q.group_rate_limit, q.group_rate_period, q.dead_letter_queue, q.paused,
		q.paused_until, q.created_at FROM idemq.queues q) q
	UNION ALL SELECT 'metrics', to_jsonb(m) FROM idemq.metrics m
	UNION ALL SELECT 'worker', to_jsonb(w) FROM idemq.background_worker w
	UNION ALL SELECT 'maintenance_task', to_jsonb(c) FROM idemq.maintenance_tasks c
	UNION ALL SELECT 'memory', to_jsonb(m) FROM idemq.memory m
	UNION ALL SELECT 'handler', to_jsonb(h) FROM (SELECT h.queue, h.state, h.workers, h.workers_running, h.batch,
		h.max_idle, h.jobs_per_second, h.done_total, h.failed_total, h.crashes, h.stopped_at,
		h.last_error_at FROM idemq.handlers h) h
	UNION ALL SELECT 'schedule', to_jsonb(s) FROM (SELECT s.queue, s.cron, s.time_zone, s.next_run, s.last_run,
		s.failed_at FROM idemq.schedules s) s
	UNION ALL SELECT 'lease', to_jsonb(l) FROM (SELECT l.queue, l.state, l.attached, count(*),
		min(l.expires_in) AS first_ends_in, count(*) FILTER (WHERE l.pid IS NULL) AS without_session
		FROM idemq_internal.leases() l GROUP BY l.queue, l.state, l.attached) l
	UNION ALL SELECT 'error', to_jsonb(e) FROM (SELECT e.queue, e.sqlstate, e.fingerprint, e.jobs, e.dead,
		e.first_seen, e.last_seen, e.example_id FROM idemq.errors e) e
	UNION ALL SELECT 'audit', to_jsonb(a) FROM (SELECT a.at, a.action, a.queue, a.job_id, a.jobs
		FROM idemq.audit a ORDER BY a.id DESC LIMIT 50) a
	UNION ALL SELECT 'relation', to_jsonb(r) FROM (SELECT c.relname AS name, c.relkind AS kind,
		pg_relation_size(c.oid) AS bytes, c.reltuples AS rows, CASE c.relkind WHEN 'r' THEN age(c.relfrozenxid) END AS xid_age,
		i.indisvalid AS is_valid, s.n_live_tup AS live, s.n_dead_tup AS dead, s.n_tup_hot_upd AS hot_updates,
		s.n_tup_upd AS updates, s.last_vacuum, s.last_autovacuum, s.last_autoanalyze
		FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
		LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
		WHERE c.relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace)
		AND c.relkind IN ('r', 'i')) r
	-- What somebody else has put on our tables.
	UNION ALL SELECT 'trigger', jsonb_build_object('relation', t.tgrelid::regclass, 'name', t.tgname,
		'enabled', t.tgenabled) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
		WHERE c.relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace)
		AND NOT t.tgisinternal AND t.tgname NOT LIKE 'idemq%'
	UNION ALL SELECT 'session', to_jsonb(a) FROM (SELECT a.backend_type, a.state, a.wait_event_type, a.wait_event,
		count(*), clock_timestamp() - min(a.xact_start) AS oldest_transaction,
		max(greatest(age(a.backend_xid), age(a.backend_xmin))) AS xids_held
		FROM pg_stat_activity a GROUP BY 1, 2, 3, 4) a
	UNION ALL SELECT 'waits for a lock', to_jsonb(l) FROM (SELECT l.locktype, l.relation::regclass, l.mode,
		l.pid, pg_blocking_pids(l.pid) AS behind FROM pg_locks l WHERE NOT l.granted) l
$$;
