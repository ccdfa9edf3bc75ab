-- Topic: Observing

CREATE FUNCTION idemq.error_pattern(error text) RETURNS text
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_error_pattern';
COMMENT ON FUNCTION idemq.error_pattern(text)
	IS 'a message without what differs from job to job: numbers, quoted strings, uuids and the like become ?; of the first 2,000 bytes';

CREATE FUNCTION idemq.error_sqlstate(details jsonb, error text) RETURNS text
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_error_sqlstate';
COMMENT ON FUNCTION idemq.error_sqlstate(jsonb, text)
	IS 'the SQLSTATE of a failed attempt: details->>''sqlstate'' of idemq.fail, or the one that its message calls so (SQLSTATE 22012, SQLSTATE[22012]); NULL when there is none';

CREATE FUNCTION idemq.error_fingerprint(sqlstate text, error text) RETURNS text
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_error_fingerprint';
COMMENT ON FUNCTION idemq.error_fingerprint(text, text)
	IS 'what errors of one SQLSTATE and one idemq.error_pattern have in common: 16 hex digits, the same on every server; idemq.errors shows them, idemq.redrive takes them';

-- As the jobs' policy; by queue first, so that it is asked once a queue.  The last attempt
-- that ended is that of the error: a job in processing has begun another.
CREATE VIEW idemq.errors WITH (security_barrier) AS
	SELECT q.name AS queue,
		s.sqlstate,
		idemq.error_pattern(j.last_error) AS error,
		idemq.error_fingerprint(s.sqlstate, j.last_error) AS fingerprint,
		pg_catalog.count(*) AS jobs,
		pg_catalog.count(*) FILTER (WHERE j.status OPERATOR(pg_catalog.=) 'dead') AS dead,
		pg_catalog.min(coalesce(a.ended_at, j.dead_at, j.created_at)) AS first_seen,
		pg_catalog.max(coalesce(a.ended_at, j.dead_at, j.created_at)) AS last_seen,
		pg_catalog.max(j.id) AS example_id
	FROM idemq.queues q
	JOIN idemq.jobs j ON j.queue_id OPERATOR(pg_catalog.=) q.queue_id
	LEFT JOIN LATERAL (
		SELECT t.ended_at, t.details FROM idemq.attempts t
		WHERE t.job_id OPERATOR(pg_catalog.=) j.id AND t.token OPERATOR(pg_catalog.<=) j.token
			AND t.outcome OPERATOR(pg_catalog.=) ANY ('{failed,expired}')
		ORDER BY t.token DESC LIMIT 1) a ON true
	CROSS JOIN LATERAL (SELECT idemq.error_sqlstate(a.details, j.last_error) AS sqlstate) s
	WHERE idemq.may_see(q.queue_id)
		AND (j.status OPERATOR(pg_catalog.=) 'dead'
			OR (j.finished_at IS NULL AND j.attempt OPERATOR(pg_catalog.>) 0 AND a.ended_at IS NOT NULL))
	GROUP BY 1, 2, 3, 4;
COMMENT ON VIEW idemq.errors IS 'what goes wrong, one row a cause: dead jobs, and those that failed and go on, of queues that you may claim from or administer, by queue, SQLSTATE and message (idemq.error_pattern) of the last attempt that failed or whose lease ended; reads all unfinished and dead jobs of the queues asked for';
COMMENT ON COLUMN idemq.errors.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.errors.sqlstate IS 'SQLSTATE of the error, as idemq.error_sqlstate finds it; NULL: none';
COMMENT ON COLUMN idemq.errors.error IS 'the message, with ? for what differs from job to job; NULL: idemq.fail was given none';
COMMENT ON COLUMN idemq.errors.fingerprint IS 'its name for idemq.redrive(queue, error => ...)';
COMMENT ON COLUMN idemq.errors.jobs IS 'jobs whose last attempt ended so';
COMMENT ON COLUMN idemq.errors.dead IS 'how many of them are dead; the others will be tried again, or are being tried';
COMMENT ON COLUMN idemq.errors.first_seen IS 'when the first of these attempts ended; of jobs that failed otherwise since, nothing is left here';
COMMENT ON COLUMN idemq.errors.last_seen IS 'when the last of them ended';
COMMENT ON COLUMN idemq.errors.example_id IS 'the newest of the jobs';
