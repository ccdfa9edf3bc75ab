-- Topic: Keys

CREATE FUNCTION idemq.acquire(
	queue text, key text, payload jsonb DEFAULT NULL, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS idemq.claim_result
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_acquire';
COMMENT ON FUNCTION idemq.acquire(text, text, jsonb, interval, text, boolean)
	IS 'claim the job of a message that came from elsewhere, enqueued first if its key is new; outcome as idemq.claim_job, or locked at once while another transaction has the key; needs claim, and enqueue for a key that is new';

CREATE FUNCTION idemq.once(scope text, key text, ttl interval DEFAULT '1 day') RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_once';
COMMENT ON FUNCTION idemq.once(text, text, interval)
	IS 'true the first time in ttl for this scope and key, then false: for an effect with no job; undone with the transaction; waits for a concurrent duplicate whose transaction is open; all roles that may execute it share its keys';

CREATE FUNCTION idemq.cancel_by_key(queue text, key text) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel_by_key';
COMMENT ON FUNCTION idemq.cancel_by_key(text, text)
	IS 'idemq.cancel of the job that has the key; returns cancelled, or why not: completed, dead, not_found; needs enqueue';

CREATE FUNCTION idemq.job_by_key(queue text, key text) RETURNS SETOF idemq.jobs
	ROWS 1 STABLE LANGUAGE sql
	AS 'SELECT j.* FROM idemq.jobs j
		WHERE j.queue_id OPERATOR(pg_catalog.=) idemq.queue_id(job_by_key.queue)
		AND j.key OPERATOR(pg_catalog.=) job_by_key.key COLLATE pg_catalog."C"';
COMMENT ON FUNCTION idemq.job_by_key(text, text)
	IS 'the job that has a key, as a row of idemq.jobs; no row when there is none that you may see';

CREATE FUNCTION idemq.fence() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fence';
COMMENT ON FUNCTION idemq.fence()
	IS 'trigger for your own tables, BEFORE INSERT OR UPDATE FOR EACH ROW, arguments (''job_id'', ''token''): refuses with IQ001 a row whose token is no longer the job''s';
