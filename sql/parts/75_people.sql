-- Topic: Observing

CREATE FUNCTION idemq_internal.error_pattern(error text) RETURNS text
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_error_pattern';
COMMENT ON FUNCTION idemq_internal.error_pattern(text)
	IS 'a message without what differs from job to job: numbers, quoted strings, uuids and the like become ?; of the first 2,000 bytes';

CREATE FUNCTION idemq_internal.error_sqlstate(details jsonb, error text) RETURNS text
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_error_sqlstate';
COMMENT ON FUNCTION idemq_internal.error_sqlstate(jsonb, text)
	IS 'the SQLSTATE of a failed attempt: details->>''sqlstate'' of idemq.fail, or the one that its message calls so (SQLSTATE 22012, SQLSTATE[22012]); NULL when there is none';

CREATE FUNCTION idemq_internal.error_fingerprint(sqlstate text, error text) RETURNS text
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_error_fingerprint';
COMMENT ON FUNCTION idemq_internal.error_fingerprint(text, text)
	IS 'what errors of one SQLSTATE and one idemq_internal.error_pattern have in common: 16 hex digits, the same on every server; idemq.errors shows them, idemq.redrive takes them';

-- Shows what the policy of idemq.jobs shows; it goes by queue first, so that the policy is asked
-- once per queue.  The error is that of the last attempt that has ended: a running job has begun
-- another.
CREATE VIEW idemq.errors WITH (security_barrier) AS
	SELECT q.name AS queue,
		s.sqlstate,
		idemq_internal.error_pattern(j.last_error) AS error,
		idemq_internal.error_fingerprint(s.sqlstate, j.last_error) AS fingerprint,
		pg_catalog.count(*) AS jobs,
		pg_catalog.count(*) FILTER (WHERE j.status OPERATOR(pg_catalog.=) 'dead') AS dead,
		pg_catalog.min(coalesce(a.ended_at, j.dead_at, j.enqueued_at)) AS first_seen,
		pg_catalog.max(coalesce(a.ended_at, j.dead_at, j.enqueued_at)) AS last_seen,
		pg_catalog.max(j.id) AS example_id,
		pg_catalog.array_agg(DISTINCT j.kind) FILTER (WHERE j.kind IS NOT NULL) AS kinds
	FROM idemq.queues q
	JOIN idemq.jobs j ON j.queue_id OPERATOR(pg_catalog.=) q.queue_id
	LEFT JOIN LATERAL (
		SELECT t.ended_at, t.details FROM idemq.attempts t
		WHERE t.job_id OPERATOR(pg_catalog.=) j.id AND t.token OPERATOR(pg_catalog.<=) j.token
			AND t.outcome OPERATOR(pg_catalog.=) ANY ('{failed,expired}')
		ORDER BY t.token DESC LIMIT 1) a ON true
	CROSS JOIN LATERAL (SELECT idemq_internal.error_sqlstate(a.details, j.last_error) AS sqlstate) s
	WHERE idemq_internal.may_see(q.queue_id)
		-- Of the job alone first: the attempts of all others are not looked up.
		AND (j.status OPERATOR(pg_catalog.=) 'dead'
			OR (j.finished_at IS NULL AND j.attempt OPERATOR(pg_catalog.>) 0))
		AND (j.status OPERATOR(pg_catalog.=) 'dead' OR a.ended_at IS NOT NULL)
	GROUP BY 1, 2, 3, 4;
COMMENT ON VIEW idemq.errors IS 'what goes wrong, one row a cause: dead jobs, and those that failed and go on, of queues that you may claim from or administer, by queue, SQLSTATE and pattern of the message of the last attempt that failed or whose lease ended; reads all unfinished and dead jobs of the queues asked for';
COMMENT ON COLUMN idemq.errors.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.errors.sqlstate IS 'SQLSTATE of the error: details->>''sqlstate'' of idemq.fail, or the one that the message calls so; NULL: none';
COMMENT ON COLUMN idemq.errors.error IS 'the message, with ? for what differs from job to job; NULL: idemq.fail was given none';
COMMENT ON COLUMN idemq.errors.fingerprint IS 'its name for idemq.redrive(queue, error => ...)';
COMMENT ON COLUMN idemq.errors.jobs IS 'jobs whose last attempt ended so';
COMMENT ON COLUMN idemq.errors.dead IS 'how many of them are dead; the others will be tried again, or are being tried';
COMMENT ON COLUMN idemq.errors.first_seen IS 'when the first of these attempts ended; of jobs that failed otherwise since, nothing is left here';
COMMENT ON COLUMN idemq.errors.last_seen IS 'when the last of them ended';
COMMENT ON COLUMN idemq.errors.example_id IS 'the newest of the jobs';
COMMENT ON COLUMN idemq.errors.kinds IS 'kinds of these jobs; NULL: they have none';

CREATE FUNCTION idemq.queue_name(queue_id int) RETURNS text
	STABLE STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_queue_name';
COMMENT ON FUNCTION idemq.queue_name(int)
	IS 'the name of a queue on which you hold a privilege (pg_monitor: of any), by its queue_id as in idemq.jobs, idemq.attempts and idemq.audit; NULL otherwise';

-- As idemq.errors.
CREATE VIEW idemq.job_list WITH (security_barrier) AS
	SELECT q.name AS queue, j.id, j.status, j.priority, j.attempt, j.max_attempts,
		idemq.progress(j.checkpoint) AS progress,
		j.enqueued_at, j.ready_at, j.claimed_at, j.finished_at, j.worker, j.key, j.group_key,
		j.last_error, j.payload, j.result, j.headers, j.kind
	FROM idemq.queues q
	JOIN idemq.jobs j ON j.queue_id OPERATOR(pg_catalog.=) q.queue_id
	WHERE idemq_internal.may_see(q.queue_id);
COMMENT ON VIEW idemq.job_list IS 'idemq.jobs for people: with the name of the queue and the progress, in an order to read; the jobs of queues that you may claim from or administer';
COMMENT ON COLUMN idemq.job_list.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.job_list.progress IS 'progress in percent: idemq.progress of the last checkpoint';
COMMENT ON COLUMN idemq.job_list.id IS 'number of the job: a bigint, above 10^12 and below 2^53; numbers grow, and jump ahead at a restart, a promotion or a restore';
COMMENT ON COLUMN idemq.job_list.status IS 'where it stands';
COMMENT ON COLUMN idemq.job_list.priority IS '0 is claimed first, 9 last';
COMMENT ON COLUMN idemq.job_list.attempt IS 'how many attempts have begun; released ones do not count';
COMMENT ON COLUMN idemq.job_list.max_attempts IS 'attempts until it is dead';
COMMENT ON COLUMN idemq.job_list.enqueued_at IS 'when it was enqueued';
COMMENT ON COLUMN idemq.job_list.ready_at IS 'position in the ready index; NULL when the job cannot be claimed (blocked, finished)';
COMMENT ON COLUMN idemq.job_list.claimed_at IS 'when its last attempt began';
COMMENT ON COLUMN idemq.job_list.finished_at IS 'when it was completed, dead or cancelled';
COMMENT ON COLUMN idemq.job_list.worker IS 'name that the last claim gave';
COMMENT ON COLUMN idemq.job_list.key IS 'its idempotency key, unique in the queue';
COMMENT ON COLUMN idemq.job_list.group_key IS 'its FIFO group';
COMMENT ON COLUMN idemq.job_list.last_error IS 'why the last attempt ended: the error of idemq.fail, or lease expired';
COMMENT ON COLUMN idemq.job_list.payload IS 'what to do';
COMMENT ON COLUMN idemq.job_list.result IS 'what its last commit stored, until the next one of a job that runs again';
COMMENT ON COLUMN idemq.job_list.headers IS 'the producer''s, untouched';
COMMENT ON COLUMN idemq.job_list.kind IS 'what kind of job it is; NULL: it has none';
