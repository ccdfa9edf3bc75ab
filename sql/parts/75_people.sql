-- Topic: Observing

CREATE FUNCTION idemq_internal.error_pattern(error text) RETURNS text
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_error_pattern';
COMMENT ON FUNCTION idemq_internal.error_pattern(text)
	IS 'Replace the parts of a message that differ from job to job (numbers, quoted strings, UUIDs and the like) with ?. Only the first 2,000 bytes are used.';

CREATE FUNCTION idemq_internal.error_sqlstate(details jsonb, error text) RETURNS text
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_error_sqlstate';
COMMENT ON FUNCTION idemq_internal.error_sqlstate(jsonb, text)
	IS 'Return the SQLSTATE of a failed attempt, as passed to idemq.fail in details->>''sqlstate'' or as found in the message (SQLSTATE 22012, SQLSTATE[22012]). Returns NULL if there is none.';

CREATE FUNCTION idemq_internal.error_fingerprint(sqlstate text, error text) RETURNS text
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_error_fingerprint';
COMMENT ON FUNCTION idemq_internal.error_fingerprint(text, text)
	IS 'Return the fingerprint of errors with the same SQLSTATE and idemq_internal.error_pattern. A fingerprint has 16 hex digits and is the same on every server. idemq.errors shows fingerprints, and idemq.redrive accepts them.';

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
COMMENT ON VIEW idemq.errors IS 'one row per cause of failure. Dead jobs, and failed jobs that will run again, are grouped by queue, SQLSTATE and message pattern of their last failed or expired attempt. Shows queues that you may claim from or administer. A query reads all unfinished and dead jobs of the queues that it selects.';
COMMENT ON COLUMN idemq.errors.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.errors.sqlstate IS 'SQLSTATE of the error, as passed to idemq.fail in details->>''sqlstate'' or as found in the message; NULL means that there is none';
COMMENT ON COLUMN idemq.errors.error IS 'error message, with ? in place of the parts that differ from job to job; NULL means that no message was passed to idemq.fail';
COMMENT ON COLUMN idemq.errors.fingerprint IS 'identifier of the cause, for idemq.redrive(queue, error => ...)';
COMMENT ON COLUMN idemq.errors.jobs IS 'number of jobs whose last attempt ended with this error';
COMMENT ON COLUMN idemq.errors.dead IS 'number of these jobs that are dead; the others will be retried or are running now';
COMMENT ON COLUMN idemq.errors.first_seen IS 'when the earliest attempt counted in this row ended; each job counts only under the error of its last attempt';
COMMENT ON COLUMN idemq.errors.last_seen IS 'when the last of these attempts ended';
COMMENT ON COLUMN idemq.errors.example_id IS 'id of the newest of these jobs';
COMMENT ON COLUMN idemq.errors.kinds IS 'kinds of these jobs; NULL means that the jobs have no kind';

-- idemq.errors is not defined on this view: it would read the errors of completed jobs, too.
CREATE VIEW idemq.job_errors WITH (security_barrier) AS
	SELECT j.id AS job_id, q.name AS queue, j.kind, j.status,
		s.sqlstate,
		idemq_internal.error_pattern(j.last_error) AS error,
		idemq_internal.error_fingerprint(s.sqlstate, j.last_error) AS fingerprint,
		coalesce(a.ended_at, j.dead_at, j.enqueued_at) AS failed_at
	FROM idemq.queues q
	JOIN idemq.jobs j ON j.queue_id OPERATOR(pg_catalog.=) q.queue_id
	LEFT JOIN LATERAL (
		SELECT t.ended_at, t.details FROM idemq.attempts t
		WHERE t.job_id OPERATOR(pg_catalog.=) j.id AND t.token OPERATOR(pg_catalog.<=) j.token
			AND t.outcome OPERATOR(pg_catalog.=) ANY ('{failed,expired}')
		ORDER BY t.token DESC LIMIT 1) a ON true
	CROSS JOIN LATERAL (SELECT idemq_internal.error_sqlstate(a.details, j.last_error) AS sqlstate) s
	WHERE idemq_internal.may_see(q.queue_id) AND j.last_error IS NOT NULL;
COMMENT ON VIEW idemq.job_errors IS 'the last error of each job that has failed, even if a later attempt completed the job. Shows queues that you may claim from or administer. Select by job_id, because a query without it reads all jobs.';
COMMENT ON COLUMN idemq.job_errors.job_id IS 'id of the job';
COMMENT ON COLUMN idemq.job_errors.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.job_errors.kind IS 'kind of the job';
COMMENT ON COLUMN idemq.job_errors.status IS 'state of the job; completed means that a retry has resolved the error';
COMMENT ON COLUMN idemq.job_errors.sqlstate IS 'SQLSTATE of the error, as in idemq.errors';
COMMENT ON COLUMN idemq.job_errors.error IS 'error message, with ? in place of the parts that differ from job to job';
COMMENT ON COLUMN idemq.job_errors.fingerprint IS 'identifier of the cause, as in idemq.errors';
COMMENT ON COLUMN idemq.job_errors.failed_at IS 'when the attempt that failed last ended';

CREATE FUNCTION idemq.queue_name(queue_id int) RETURNS text
	STABLE STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_queue_name';
COMMENT ON FUNCTION idemq.queue_name(int)
	IS 'Return the name of a queue on which you hold a privilege (for pg_monitor, any queue), given its queue_id from idemq.jobs, idemq.attempts or idemq.audit. Returns NULL otherwise.';

-- As idemq.errors.
CREATE VIEW idemq.job_list WITH (security_barrier) AS
	SELECT q.name AS queue, j.id, j.status, j.priority, j.attempt, j.max_attempts,
		idemq.progress(j.checkpoint) AS progress,
		j.enqueued_at, j.ready_at, j.claimed_at, j.finished_at, j.worker, j.key, j.group_key,
		j.last_error, j.payload, j.result, j.headers, j.kind
	FROM idemq.queues q
	JOIN idemq.jobs j ON j.queue_id OPERATOR(pg_catalog.=) q.queue_id
	WHERE idemq_internal.may_see(q.queue_id);
COMMENT ON VIEW idemq.job_list IS 'idemq.jobs in a readable form, with the name of the queue and the progress, for queues that you may claim from or administer';
COMMENT ON COLUMN idemq.job_list.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.job_list.progress IS 'progress in percent, computed by idemq.progress from the last checkpoint';
COMMENT ON COLUMN idemq.job_list.id IS 'job id, a bigint between 10^12 and 2^53. Ids are assigned in increasing order, with gaps after a restart, a promotion or a restore.';
COMMENT ON COLUMN idemq.job_list.status IS 'state of the job';
COMMENT ON COLUMN idemq.job_list.priority IS 'priority of the job, from 0 (claimed first) to 9 (claimed last)';
COMMENT ON COLUMN idemq.job_list.attempt IS 'number of attempts that have begun, not counting released attempts';
COMMENT ON COLUMN idemq.job_list.max_attempts IS 'maximum number of attempts before the job becomes dead';
COMMENT ON COLUMN idemq.job_list.enqueued_at IS 'when the job was enqueued';
COMMENT ON COLUMN idemq.job_list.ready_at IS 'position of the job in the ready index; NULL means that the job cannot be claimed because it is blocked or finished';
COMMENT ON COLUMN idemq.job_list.claimed_at IS 'when the last attempt began';
COMMENT ON COLUMN idemq.job_list.finished_at IS 'when the job was completed or cancelled, or became dead';
COMMENT ON COLUMN idemq.job_list.worker IS 'name of the worker, as passed to the last claim';
COMMENT ON COLUMN idemq.job_list.key IS 'idempotency key of the job, unique within the queue';
COMMENT ON COLUMN idemq.job_list.group_key IS 'FIFO group of the job';
COMMENT ON COLUMN idemq.job_list.last_error IS 'why the last attempt ended: the error passed to idemq.fail, or a text from idemq such as "lease expired"';
COMMENT ON COLUMN idemq.job_list.payload IS 'data that the worker needs to run the job';
COMMENT ON COLUMN idemq.job_list.result IS 'result stored by the last commit; a job that runs again keeps it until its next commit';
COMMENT ON COLUMN idemq.job_list.headers IS 'headers of the job, exactly as the producer passed them';
COMMENT ON COLUMN idemq.job_list.kind IS 'label that tells the worker which handler to use; NULL means that the job has no kind';
