
-- The rows.  Memory forgets what it knew when this commits, and reads them then; so the
-- trigger need not see each.
TRUNCATE idemq.jobs;
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;

INSERT INTO idemq.queues (queue_id, name, lease, max_attempts, retry_base, retry_factor, retry_max, retry_jitter,
		retention, idempotency_window, max_running, rate_limit, rate_period, dead_queue, dead_retention, max_lease,
		paused, created_at) OVERRIDING SYSTEM VALUE
	SELECT queue_id, name, lease, max_attempts, retry_base, retry_factor, retry_max, retry_jitter,
		retention, idempotency_window, max_running, rate_limit, rate_period, dead_queue,
		greatest('30 days', retention), greatest('1 day', lease), paused, created_at
	FROM idemq_before.queues ORDER BY queue_id;
SELECT setval('idemq.queues_queue_id_seq', last_value, is_called) FROM idemq_before.queues_queue_id_seq;

INSERT INTO idemq.jobs (id, queue_id, created_at, priority, max_attempts, expires_at, run_at, status, attempt, token,
		ready_at, claimed_at, deadline, finished_at, dead_at, worker, key, group_key, headers, checkpoint, result,
		last_error, payload)
	SELECT id, queue_id, created_at, priority, max_attempts, expires_at, run_at, status, attempt, token,
		ready_at, claimed_at, deadline, finished_at, CASE WHEN status = 'dead' THEN finished_at END, worker, key,
		group_key, headers, checkpoint, result, last_error, payload
	FROM idemq_before.jobs ORDER BY id;
-- One that has given nothing begins at its new start.  Another is left where it was: its next id
-- is the time of day (src/table/jobs_id.c), and no gap is needed behind those that it gave.
SELECT setval('idemq.jobs_id_seq', last_value, is_called) FROM idemq_before.jobs_id_seq WHERE is_called;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;

INSERT INTO idemq.attempts (job_id, token, queue_id, attempt, worker, claimed_at, ended_at, outcome, error)
	SELECT job_id, token, queue_id, attempt, worker, claimed_at, ended_at, outcome, error FROM idemq_before.attempts;
INSERT INTO idemq.seen (scope, key, expires_at) SELECT scope, key, expires_at FROM idemq_before.seen;
INSERT INTO idemq.queue_grants (queue_id, role_name, privilege)
	SELECT queue_id, role_name, privilege FROM idemq_before.queue_grants;
INSERT INTO idemq.schedule_entries (name, queue_id, cron, time_zone, payload, priority, group_key, max_attempts, headers,
		expires_in, created_by, created_at, done_until, last_run, last_job, failed_at, last_error)
	SELECT name, queue_id, cron, time_zone, payload, priority, group_key, max_attempts, headers, expires_in, created_by,
		created_at, done_until, last_run, last_job, failed_at, last_error
	FROM idemq_before.schedule_entries;
INSERT INTO idemq.ticker (one, called_at) SELECT one, called_at FROM idemq_before.ticker;

DROP TABLE idemq_before.queue_grants, idemq_before.schedule_entries, idemq_before.queues, idemq_before.jobs,
	idemq_before.attempts, idemq_before.seen, idemq_before.ticker;
DROP SCHEMA idemq_before;
ANALYZE idemq.jobs;

-- Tokens go on growing, also where 0.1.0's rows were restored from a cluster with a greater
-- timeline: it did not keep where they were issued.
DO $$
DECLARE
	greatest_token int8 := (SELECT coalesce(max(token), 0) FROM idemq.jobs);
	-- As base/token.c: 2^41 a timeline, and microseconds since 2026.
	clock int8 := extract(epoch FROM clock_timestamp() - '2026-01-01 00:00:00+00') * 1000000;
	lead int8 := (SELECT timeline_id FROM pg_control_checkpoint()) * 2199023255552;
BEGIN
	WHILE greatest_token >= lead + clock LOOP
		lead := idemq.new_generation();
	END LOOP;
END $$;

-- The rights of CREATE EXTENSION are those that pg_dump takes for given; what follows is not.
CREATE TEMPORARY TABLE idemq_at_first AS
	SELECT i.* FROM pg_init_privs i JOIN pg_depend d ON d.classid = i.classoid AND d.objid = i.objoid AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'idemq';

DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format('REVOKE %s FROM %s CASCADE', what, grantee) FROM idemq_rights r WHERE NOT granted AND kind <> 'SCHEMA'
			AND (kind <> 'TABLE' OR EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'idemq'::regnamespace AND c.relname = r.name))
		UNION ALL SELECT format('GRANT %s TO %s%s', what, grantee, CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
			FROM idemq_rights WHERE granted
		-- PUBLIC could use the schema; now those can who have been given anything in it.
		UNION ALL SELECT DISTINCT format('GRANT USAGE ON SCHEMA idemq TO %s', grantee) FROM idemq_rights
			WHERE granted AND grantee <> 'PUBLIC'
		UNION ALL SELECT DISTINCT format('GRANT USAGE ON SCHEMA idemq TO %I', r.rolname)
			FROM idemq.queue_grants g JOIN pg_roles r ON r.rolname = g.role_name
			WHERE r.rolname <> current_user
	LOOP
		EXECUTE command;
	END LOOP;
END $$;

-- To PostgreSQL all that a script grants is the extension's own, and pg_dump would leave out
-- what was granted by hand.
UPDATE pg_init_privs i SET initprivs = f.initprivs FROM idemq_at_first f
	WHERE i.classoid = f.classoid AND i.objoid = f.objoid AND i.objsubid = f.objsubid AND i.initprivs <> f.initprivs;
DELETE FROM pg_init_privs i USING pg_depend d, pg_extension e
	WHERE d.classid = i.classoid AND d.objid = i.objoid AND d.deptype = 'e'
	AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'idemq'
	AND NOT EXISTS (SELECT FROM idemq_at_first f
		WHERE i.classoid = f.classoid AND i.objoid = f.objoid AND i.objsubid = f.objsubid);
-- From 17 on such roles are noted there, too ('i').
DELETE FROM pg_shdepend s USING pg_depend d, pg_extension e
	WHERE s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND s.deptype = 'i'
	AND s.classid = d.classid AND s.objid = d.objid AND d.deptype = 'e'
	AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'idemq'
	AND s.refclassid = 'pg_authid'::regclass AND NOT EXISTS (SELECT FROM idemq_at_first f, aclexplode(f.initprivs) x
		WHERE f.classoid = s.classid AND f.objoid = s.objid AND f.objsubid = s.objsubid AND x.grantee = s.refobjid);

DROP TABLE pg_temp.idemq_goes, pg_temp.idemq_rights, pg_temp.idemq_at_first;
