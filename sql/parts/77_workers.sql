-- The workers, as they report themselves: a worker has several sessions, waits on another one, and
-- may be behind a pooler.  No promise depends on these rows.  Not dumped, because they are about
-- this server.
CREATE TABLE idemq_internal.worker_entries (
	role_oid    oid NOT NULL,
	id          uuid NOT NULL,
	worker      text NOT NULL,
	queue_ids   int[] NOT NULL,
	program     text,
	version     text,
	host        text,
	started_at  timestamptz NOT NULL,
	seen_at     timestamptz NOT NULL,
	concurrency int,
	running     int NOT NULL,
	jobs        bigint[] NOT NULL,
	done        bigint NOT NULL,
	done_before bigint,
	seen_before timestamptz,
	stopping    boolean NOT NULL,
	PRIMARY KEY (role_oid, id)
) WITH (
	fillfactor = 45,
	autovacuum_vacuum_threshold = 5000
);
COMMENT ON TABLE idemq_internal.worker_entries IS 'one row per worker process that has called idemq.report_worker in the last hour; use idemq.workers to read it';
COMMENT ON COLUMN idemq_internal.worker_entries.role_oid IS 'role of the worker';
COMMENT ON COLUMN idemq_internal.worker_entries.queue_ids IS 'numeric ids of the worker''s queues (at most 100)';
COMMENT ON COLUMN idemq_internal.worker_entries.done_before IS 'value of done as of seen_before';
COMMENT ON COLUMN idemq_internal.worker_entries.seen_before IS 'time of the report before the last one';
COMMENT ON COLUMN idemq_internal.worker_entries.stopping IS 'whether the worker has reported that it is stopping';
-- No policy: the view shows what is to be seen.
ALTER TABLE idemq_internal.worker_entries ENABLE ROW LEVEL SECURITY;

-- Topic: Workers

CREATE FUNCTION idemq.report_worker(
	process uuid, worker text, queues text[], program text DEFAULT NULL, version text DEFAULT NULL,
	host text DEFAULT NULL, concurrency int DEFAULT NULL, running bigint[] DEFAULT '{}',
	done bigint DEFAULT 0, stopping boolean DEFAULT false, end_waits int[] DEFAULT '{}')
	RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.report_worker(uuid, text, text[], text, text, text, int, bigint[], bigint, boolean, int[])
	IS 'Report a worker to idemq.workers. Call the function when the worker starts, every 30 s, and when the worker stops. Job processing does not depend on these reports. Returns false if the worker is not recorded because 1,000 workers of the role are already recorded. Requires claim on the worker''s queues.
- process: identifier that the process chooses, unique among the workers of its role
- worker: name that the worker passes to its claims
- program, version: name and version of the client, up to 64 bytes
- host: host name of the worker
- concurrency: maximum number of jobs that the worker runs at once
- running: ids of the jobs that the worker is running. All are counted, but only 100 ids are stored.
- done: number of jobs that the worker has finished since it started
- stopping: whether the worker is stopping now
- end_waits: process ids of sessions with the same login role. If such a session is sleeping in wait, wait_any, wait_for_room, wait_result or wait_results, the call returns immediately, as if its timeout had passed. Otherwise, the session''s next such call returns immediately. Use this argument when a worker stops, instead of a cancel request, which the server logs as an ERROR.';

-- The time of the report before the last is kept for the rate; a report that follows at once does
-- not count for it.  Clients call this on the connection of their heartbeats, so it waits for no
-- lock for long.
CREATE FUNCTION idemq_internal.report_worker_impl(process uuid, worker text, queues text[], program text,
	version text, host text, concurrency int, running bigint[], done bigint, stopping boolean,
	end_waits int[])
	RETURNS boolean
	LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
#variable_conflict use_variable
DECLARE
	now CONSTANT timestamptz := idemq.clock_timestamp();
	caller CONSTANT oid := idemq_internal.caller();
	queue_ids int[];
BEGIN
	PERFORM idemq_internal.given('process', process),
		idemq_internal.check_text('worker', worker, 256),
		idemq_internal.given('queues', queues), idemq_internal.check_ids('running', running),
		idemq_internal.given('done', done), idemq_internal.given('stopping', stopping);
	PERFORM idemq_internal.check_text(a.name, a.value, a.most)
		FROM (VALUES ('program', program, 64), ('version', version, 64), ('host', host, 256))
			a (name, value, most) WHERE a.value IS NOT NULL;
	PERFORM idemq_internal.check_int('concurrency', concurrency, 1, 1000000)
		WHERE concurrency IS NOT NULL;
	IF cardinality(queues) = 0 OR array_ndims(queues) > 1 THEN
		RAISE EXCEPTION 'queues must be a non-empty, one-dimensional array of names' USING ERRCODE = '22023',
			HINT = 'Pass the names of the queues that the worker claims from.';
	END IF;
	-- Before anything that may refuse the report.
	PERFORM idemq_internal.end_waits(end_waits);
	queue_ids := ARRAY(SELECT DISTINCT idemq_internal.queue(q.name, 'claim', '', 'queues')
		FROM (SELECT q.name FROM unnest(queues) q (name) LIMIT 100) q ORDER BY 1);
	IF NOT EXISTS (SELECT FROM idemq_internal.worker_entries w WHERE w.role_oid = caller
		AND w.id = process)
		AND (SELECT count(*) >= 1000 FROM (SELECT FROM idemq_internal.worker_entries w
			WHERE w.role_oid = caller LIMIT 1000) w) THEN
		DELETE FROM idemq_internal.worker_entries w WHERE w.role_oid = caller
			AND (w.stopping OR w.seen_at < now - interval '10 min');
		IF NOT FOUND THEN
			RETURN false;
		END IF;
	END IF;
	INSERT INTO idemq_internal.worker_entries AS w (role_oid, id, worker, queue_ids, program,
		version, host,
			started_at, seen_at, concurrency, running, jobs, done, stopping)
		VALUES (caller, process, worker, queue_ids, program, version, host, now, now, concurrency,
			cardinality(running), running[1:100], done, stopping)
		ON CONFLICT ON CONSTRAINT worker_entries_pkey DO UPDATE SET worker = excluded.worker,
			queue_ids = excluded.queue_ids, program = excluded.program,
			version = excluded.version, host = excluded.host, seen_at = excluded.seen_at,
			concurrency = excluded.concurrency, running = excluded.running, jobs = excluded.jobs,
			done = excluded.done, stopping = excluded.stopping,
			done_before = CASE WHEN now - w.seen_at < interval '5 s' THEN w.done_before
				ELSE w.done END,
			seen_before = CASE WHEN now - w.seen_at < interval '5 s' THEN w.seen_before
				ELSE w.seen_at END;
	RETURN true;
END $$;

-- Who may claim from one of its queues, or is its role, sees a worker, with the queues of his own.
CREATE VIEW idemq.workers WITH (security_barrier) AS
	WITH leases AS MATERIALIZED (
		SELECT l.queue, array_agg(l.job_id ORDER BY l.job_id) AS jobs FROM idemq_internal.leases() l
		WHERE l.handler GROUP BY l.queue
	)
	SELECT w.worker, w.id, pg_get_userbyid(w.role_oid) AS role, w.host, w.program, w.version,
		v.queues, w.started_at, w.seen_at, w.concurrency,
		CASE WHEN w.stopping THEN 0 ELSE w.running END AS running,
		CASE WHEN w.stopping THEN '{}' ELSE w.jobs END AS jobs, w.done,
		greatest(w.done::float8 - w.done_before, 0) * 60
			/ nullif(extract(epoch FROM w.seen_at - w.seen_before), 0)::float8 AS per_minute,
		CASE WHEN w.stopping THEN 'gone' WHEN w.seen_at < idemq.clock_timestamp() - interval '90 s'
			THEN 'silent' ELSE 'here' END AS state
	FROM idemq_internal.worker_entries w
	-- The names by a function: a join may read all queues for each worker.
	CROSS JOIN LATERAL (SELECT array_agg(n.name ORDER BY n.name COLLATE "C") AS queues
		FROM unnest(w.queue_ids) q (queue_id)
		CROSS JOIN LATERAL (SELECT idemq.queue_name(q.queue_id) AS name OFFSET 0) n
		WHERE n.name IS NOT NULL AND (pg_has_role('pg_monitor', 'USAGE')
			OR idemq_internal.may_see(q.queue_id))) v
	WHERE w.seen_at > idemq.clock_timestamp() - interval '1 hour'
		AND (v.queues IS NOT NULL OR pg_has_role(w.role_oid, 'USAGE')
			OR pg_has_role('pg_monitor', 'USAGE'))
	UNION ALL
	SELECT h.function, NULL, h.role, NULL, 'handler', current_setting('idemq.version'),
		ARRAY[h.queue::text], h.set_at, idemq.clock_timestamp(), h.workers,
		coalesce(cardinality(l.jobs), 0), coalesce(l.jobs[1:100], '{}'), h.done_total,
		h.jobs_per_second * 60, h.state
	FROM idemq.handlers h LEFT JOIN leases l ON l.queue = h.queue;
COMMENT ON VIEW idemq.workers IS 'one row per worker process that has called idemq.report_worker in the last hour, and one row per handler. The clients and idemq-work call that function every 30 s. Shows workers of queues that you may claim from or administer, and workers of your own roles; pg_monitor sees all workers.';
COMMENT ON COLUMN idemq.workers.worker IS 'name of the worker, as shown in idemq.running_jobs, or, for a handler, the name of its function';
COMMENT ON COLUMN idemq.workers.id IS 'identifier of the process; NULL means that the row describes a handler';
COMMENT ON COLUMN idemq.workers.role IS 'role of the worker';
COMMENT ON COLUMN idemq.workers.host IS 'host of the worker; NULL means that the host is unknown or that the row describes a handler, which runs in the server';
COMMENT ON COLUMN idemq.workers.program IS 'name of the program: node, python, idemq-work, handler, or the name that another client reports';
COMMENT ON COLUMN idemq.workers.version IS 'version of the program';
COMMENT ON COLUMN idemq.workers.queues IS 'queues of the worker that you may see';
COMMENT ON COLUMN idemq.workers.started_at IS 'time of the first report or, for a handler, the time when it was set';
COMMENT ON COLUMN idemq.workers.seen_at IS 'time of the last report';
COMMENT ON COLUMN idemq.workers.concurrency IS 'maximum number of jobs that the worker runs at once or, for a handler, maximum number of processes; NULL means that the worker did not report the number';
COMMENT ON COLUMN idemq.workers.running IS 'number of jobs that were running at the last report or, for a handler, are running now';
COMMENT ON COLUMN idemq.workers.jobs IS 'ids of the jobs that the worker reports running (at most 100), including jobs of queues that you cannot see; start times are in idemq.running_jobs';
COMMENT ON COLUMN idemq.workers.done IS 'number of jobs that the worker has finished, successfully or not, since it started or, for a handler, since the server started';
COMMENT ON COLUMN idemq.workers.per_minute IS 'jobs per minute between the last two reports or, for a handler, during the last minute; NULL means that the rate is not known yet';
COMMENT ON COLUMN idemq.workers.state IS 'state of the worker (here, silent or gone) or, for a handler, the state shown in idemq.handlers. Silent means that there has been no report for 90 s because the worker exited without reporting or cannot reach the database. Gone means that the worker reported that it was stopping.';
